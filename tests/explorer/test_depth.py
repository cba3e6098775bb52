"""The depth view: shares are those of predict and judge at each depth, limits those of a search of all depths."""

from __future__ import annotations

import json
from typing import Any

import pytest

import edgewise

fastapi_client = pytest.importorskip("fastapi.testclient", reason="the extra `explore` is not installed")

from edgewise.explorer.server import application  # noqa: E402

KNOBS: dict[str, Any] = {"tokens": 16, "norm": "post", "activation": "tanh"}
SOURCE = {"config": json.dumps({"depth": 24, **KNOBS}), "name": "mine"}
client = fastapi_client.TestClient(application())


def ask(path: str, **wanted: Any) -> Any:
    return client.post(f"/api/1/{path}", json={"source": SOURCE, **wanted})


def share(depth: int, **changes: Any) -> float:
    verdict = edgewise.judge(edgewise.predict(edgewise.transformer(depth=depth, **KNOBS).replace(**changes)))
    assert verdict.probability is not None
    return verdict.probability.value


def test_shares_are_those_of_the_verdict_at_each_depth() -> None:
    answer = ask("depth", depths=[2, 9, 24]).json()
    assert [row["share"] for row in answer["rows"]] == pytest.approx([share(depth) for depth in (2, 9, 24)])
    assert all(row["low"] <= row["share"] <= row["high"] for row in answer["rows"])
    assert answer["tried"][0] < answer["tried"][1] < answer["deepest"] == 256


def test_a_fix_is_kept_at_all_depths() -> None:
    remedies = edgewise.judge(edgewise.predict(edgewise.transformer(depth=24, **KNOBS))).remedies
    rows = ask("depth/fixes").json()["rows"]
    assert [row["change"] for row in rows] == [remedy.sentence for remedy in remedies[:3]]
    answer = ask("depth", depths=[6, 40], fix=0, at=24).json()
    expected = [share(depth, **remedies[0].changes) for depth in (6, 40)]
    assert [row["share"] for row in answer["rows"]] == pytest.approx(expected)


def test_the_limit_is_the_last_depth_before_the_share_falls_below_three_in_four() -> None:
    shares = {depth: share(depth) for depth in range(1, 25)}
    last = max(depth for depth, value in shares.items() if value >= 0.75)
    assert all(value >= 0.75 for depth, value in shares.items() if depth <= last)
    answer = ask("depth/limit", trains=1, above=24).json()
    assert answer["limit"] == last and answer["then"] == f"up to {last} block{'s' if last > 1 else ''}"
    assert answer["sentence"].startswith(f"Up to {last} block")
    assert ask("depth/limit").json()["then"] == "at no depth"
    beyond = ask("depth/limit", trains=200).json()
    assert beyond["then"] == "to 200 blocks and beyond" and "extrapolated" in beyond["sentence"]


@pytest.mark.parametrize(
    "path, wanted, sentence",
    [
        ("depth", {"depths": []}, "depths"),
        ("depth", {"depths": [257]}, "depths"),
        ("depth", {"depths": list(range(1, 14))}, "depths"),
        ("depth", {"depths": [4], "fix": 2, "at": 1}, "none has the number 3"),
        (
            "depth",
            {"depths": [200], "source": {"preset": "gpt2", "tokens": 256}},
            "more than this page follows at once",
        ),
        ("depth", {"depths": [250] * 12}, "more than this page follows at once"),
        ("depth/limit", {"trains": 9, "above": 8}, "must be less than"),
        (
            "depth/limit",
            {"trains": 9, "above": 90, "source": {"preset": "gpt2", "tokens": 256}},
            "more than this page",
        ),
        ("depth/fixes", {"source": {"preset": "nothing"}}, "is not a preset"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refusals_are_sentences(path: str, wanted: dict[str, Any], sentence: str) -> None:
    answer = ask(path, **wanted)
    assert answer.status_code == 422 and sentence in answer.json()["error"]
