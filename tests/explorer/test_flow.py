"""The flow view answers with the library's own field, and splits its fixed point where the phase changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import edgewise

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")

from edgewise.explorer import flows
from edgewise.explorer.flows import FlowRequest, flow_answer, plain_block


def asked(**wanted: Any) -> dict[str, Any]:
    return flow_answer(FlowRequest.model_validate(wanted))


def test_arrows_paths_and_points_are_those_of_vector_field() -> None:
    drawn = asked(knobs={"mlp_in_gain": 3.0}, start={"norm": 4.0, "overlap": 0.5})
    network = plain_block().replace(mlp_in_gain=3.0)
    low, high = drawn["extent"]
    across, up = flows.GRID
    field = edgewise.critical.vector_field(
        network, norms=(low, high, across), overlaps=(0.0, 1 - 1e-9, up), starts=flows.STARTS
    )
    np.testing.assert_allclose(drawn["arrows"][0], field.d_log_norm.ravel(), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(drawn["arrows"][1], field.d_overlap.ravel(), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(drawn["paths"][:-1], field.trajectories, rtol=1e-4)
    assert drawn["points"] == [point.json() for point in field.fixed_points]
    own = edgewise.critical.vector_field(network.replace(embedding_norm=4.0), starts=(0.5,)).trajectories[0]
    np.testing.assert_allclose(drawn["paths"][-1], own, rtol=1e-4)


def test_the_fixed_point_splits_as_the_phase_changes() -> None:
    ordered, chaotic = asked(), asked(knobs={"mlp_in_gain": 3.0})
    assert [point["stable"] for point in ordered["points"]] == [True]
    assert [point["stable"] for point in chaotic["points"]] == [False, True]
    assert ordered["title"] == "All tokens end alike" and chaotic["title"] == "Tokens settle apart"
    assert "two tokens is 0.79" in chaotic["sentences"] and "split off" in chaotic["sentences"]


def test_other_streams_are_described_and_what_is_left_out_is_said() -> None:
    gpt2 = asked(source={"preset": "gpt2", "depth": 4})
    assert gpt2["title"] == "The stream grows" and "positions are left out" in gpt2["caption"]
    nothing = asked(source={"preset": "transformer"}, knobs={"mlp_out_gain": 0.0, "value_gain": 0.0})
    assert nothing["title"] == "Nothing moves"
    fading = asked(knobs={"mlp_out_gain": 0.0, "value_gain": 0.0})
    assert fading["title"] == "The stream fades"


def test_sharp_attention_ends_a_path_in_time() -> None:
    config = '{"norm": "none", "depth": 60, "activation": "relu", "mlp_in_gain": 20, "mlp_out_gain": 20}'
    drawn = asked(source={"config": config, "name": "sharp.json"})
    assert len(drawn["paths"][0]) < 61 and "the path ends there" in drawn["sentences"]


def test_sliders_are_strengths_where_skip_and_branch_are_a_pair() -> None:
    assert [row["knob"] for row in asked()["sliders"]][2::3] == ["mlp_strength", "attention_strength"]
    rows = {row["knob"]: row for row in asked(source={"preset": "transformer", "depth": 4})["sliders"]}
    assert rows["mlp_branch"]["value"] == 1.0 and rows["score_gain"]["high"] == 4.0
    with pytest.raises(edgewise.BadInput, match="attention_branch is not a slider"):
        asked(knobs={"attention_branch": 2.0, "attention_strength": 0.5})
    moved = flows.moved(plain_block(), {"attention_strength": 0.6})
    assert (moved.attention_branch, moved.attention_skip) == (0.6, pytest.approx(0.8))
    attention_only = asked(source={"config": '{"mlp_width": 0, "depth": 3}'})
    assert {row["knob"] for row in attention_only["sliders"]} == {
        "value_gain",
        "score_gain",
        "attention_branch",
    }
