"""Simulate: a random network is drawn at the dot, narrower where it must be, and lies on the curves of theory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import edgewise
from edgewise.errors import BadInput

fastapi_client = pytest.importorskip("fastapi.testclient", reason="the extra `explore` is not installed")

from edgewise.explorer.answers import narrower  # noqa: E402
from edgewise.explorer.server import application  # noqa: E402

client = fastapi_client.TestClient(application())
SOURCE = {"preset": "transformer", "depth": 6, "tokens": 24}


def ask(path: str, **wanted: Any) -> Any:
    return client.post(
        f"/api/1/{path}", json={"source": SOURCE, "knobs": {"mlp_in_gain": 1.5}, **wanted}
    ).json()


def test_a_random_network_lies_on_the_curves_of_theory() -> None:
    theory, drawn = ask("point")["curves"], [ask("simulate", seed=seed)["curves"] for seed in range(3)]
    for name, tolerance in (("overlap", 0.05), ("gradient", 0.15), ("norm", 0.05)):
        mean = np.mean([each[name] for each in drawn], 0)
        assert mean == pytest.approx(np.array(theory[name]), rel=tolerance, abs=tolerance), name
    assert drawn[0] != drawn[1]
    far = client.post("/api/1/point", json={"source": SOURCE, "knobs": {"mlp_in_gain": 0.2}}).json()["curves"]
    assert abs(far["norm"][-1] - drawn[0]["norm"][-1]) > 0.2  # another network would not


def test_a_wide_network_is_drawn_narrower_and_says_so() -> None:
    assert "of width 256 instead of 512" in ask("simulate")["note"]
    wide = edgewise.transformer(depth=4, tokens=16, width=1024, heads=16, mlp_width=4096)
    drawn = narrower(wide)
    assert (drawn.width, drawn.heads, drawn.mlp_width) == (256, 4, 1024)
    assert narrower(edgewise.transformer(depth=2, tokens=8, width=96, heads=4)).width == 96
    assert narrower(edgewise.transformer(depth=2, tokens=8, width=512, heads=0)).heads == 0


def test_what_would_take_too_long_is_refused() -> None:
    with pytest.raises(BadInput, match="Choose at most 512"):
        narrower(edgewise.transformer(depth=2, tokens=1000))
    with pytest.raises(BadInput, match="smaller depth or length"):
        narrower(edgewise.transformer(depth=256, tokens=512))
