"""The map with mask and positions: its points are the verdicts of single networks, finer each time, and it can end."""

from __future__ import annotations

import json
from typing import Any

import pytest

import edgewise

fastapi_client = pytest.importorskip("fastapi.testclient", reason="the extra `explore` is not installed")

from edgewise.explorer import positions_map  # noqa: E402
from edgewise.explorer.requests import AxesRequest  # noqa: E402
from edgewise.explorer.server import application  # noqa: E402

client = fastapi_client.TestClient(application())
KNOBS: dict[str, Any] = {
    "depth": 6,
    "tokens": 20,
    "norm": "post",
    "activation": "relu",
    "causal": True,
    "width": 128,
    "heads": 2,
}
AXES = {
    "x": {"knob": "mlp_in_gain", "low": 0.2, "high": 3},
    "y": {"knob": "attention_branch", "low": 0.1, "high": 1.2},
}
WANTED: dict[str, Any] = {"source": {"config": json.dumps(KNOBS), "name": "mine"}, **AXES}


def events(**changes: Any) -> list[dict[str, Any]]:
    answer = client.post("/api/1/map/positions", json={**WANTED, **changes})
    assert answer.status_code == 200, answer.text
    return [json.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n") if part]


def test_points_are_nearly_those_of_single_networks_and_positions_matter() -> None:
    network = edgewise.transformer(**KNOBS)
    plain, moved = network.replace(causal=False), 0.0
    for gain, branch in ((0.4, 0.3), (1.5, 1.2), (2.8, 0.7)):
        changes = {"mlp_in_gain": gain, "attention_branch": branch}
        exact, without = (
            edgewise.judge(edgewise.predict(each.replace(**changes))).probability for each in (network, plain)
        )
        assert exact is not None and without is not None
        share = positions_map.share(network.replace(**changes), "token")
        assert share == pytest.approx(exact.value, abs=0.012)  # 8 heads scatter by 0.0035 over seeds
        moved = max(moved, abs(share - without.value))
    assert moved > 0.02  # so that the map without positions would not do


def test_a_gain_of_zero_is_a_place_where_nothing_trains() -> None:
    network = edgewise.transformer(**KNOBS).replace(attention_skip=0.0, mlp_skip=0.0, mlp_in_gain=0.0)
    assert positions_map.share(network, "token") == 0.0


def test_the_map_becomes_finer_says_what_it_is_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions_map, "COARSE", 3)
    monkeypatch.setattr(positions_map, "FINE", 5)
    news = events()
    assert [each["done"] for each in news] == sorted(each["done"] for each in news) and news[-1]["done"] == 1
    maps = [each["map"] for each in news if "map" in each]
    assert [each["x"]["count"] for each in maps] == [3, 3, 5]
    assert "3 × 3 networks were followed over 16 tokens" in maps[0]["caption"]
    assert "5 × 5 networks were followed over 20 tokens" in maps[-1]["caption"]
    assert "leaves mask and positions out;" not in maps[-1]["caption"]
    gain, branch = 3.0, 1.2
    network = edgewise.transformer(**KNOBS).replace(mlp_in_gain=gain, attention_branch=branch)
    assert maps[-1]["share"][-1] == round(1000 * positions_map.share(network, "token"))
    monkeypatch.setattr(positions_map.pieces, "submit", None)  # nothing is computed twice
    assert events()[-1]["map"] == maps[-1]


def test_it_ends_in_time_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions_map, "SECONDS", 0.0)
    news = events(readout="pooled")
    assert news[-1] == {"stopped": "Stopped after 0 seconds."}


def test_a_network_without_positions_has_no_such_map() -> None:
    answer = client.post(
        "/api/1/map/positions", json={**WANTED, "source": {"preset": "transformer", "depth": 2}}
    )
    assert answer.status_code == 422 and "neither a mask nor positions" in answer.json()["error"]


def test_stages_of_short_networks_are_fewer() -> None:
    assert positions_map.resolutions(8) == [(9, 8), (17, 8)]
    wanted = AxesRequest.model_validate(WANTED)
    coarse, fine = (
        positions_map.places(wanted, positions_map.MapResolution(points, 8)) for points in (9, 17)
    )
    assert len(coarse) == 81 and set(coarse) < set(fine) and len(fine) == 289


def test_a_cell_is_the_probability_of_its_network_and_zero_where_nothing_arrives() -> None:
    fine = edgewise.transformer(depth=3, tokens=4, width=64, heads=2, causal=True)
    lost = fine.replace(norm="none", mlp_skip=1e30)
    assert 0.5 < positions_map.share(fine, "token") < 1
    assert positions_map.share(lost, "token") == 0.0
