"""The blocks alone are those of the whole network, and its tokens start where they are told to."""

from __future__ import annotations

import pytest
import torch

import edgewise
from edgewise.errors import BadInput
from edgewise.nets.stack import Stack, random_tokens
from edgewise.study.random_network import simulated, simulated_streams

SMALL = edgewise.transformer(depth=3, tokens=8, width=32, heads=2, norm="post", causal=True, rope=True, score_gain=2.0)


def test_the_blocks_are_those_of_the_whole_network() -> None:
    whole, alone = edgewise.nets.transformer(SMALL, inputs=5, outputs=4), Stack(SMALL)
    alone.load_state_dict(whole.state_dict(), strict=False)
    ids = torch.randint(5, (2, 8))
    entering = whole.embed(ids) + whole.positions.weight
    torch.testing.assert_close(alone(entering), whole.features(ids))  # post-norm: no last norm after the blocks


def test_tokens_start_where_they_are_told() -> None:
    torch.manual_seed(0)
    wide = SMALL.replace(width=4096, embedding_norm=0.3)
    tokens = random_tokens(wide, 0.7)[0]
    unit = tokens / tokens.norm(dim=-1, keepdim=True)
    cosines = unit @ unit.T
    assert tokens.square().mean().item() == pytest.approx(0.3, rel=0.05)
    assert (cosines.sum() - 8).item() / 56 == pytest.approx(0.7, rel=0.05)
    with pytest.raises(BadInput, match=r"overlap = 1\.5"):
        random_tokens(SMALL, 1.5)


def test_the_measured_orbit_is_that_of_the_streams_and_of_the_seed() -> None:
    trace, streams = simulated(SMALL, seed=3), simulated_streams(SMALL, seed=3)
    assert trace.blocks("norm") == pytest.approx([stream.square().mean().item() for stream in streams])
    assert trace.readouts == ("token", "pooled")
    again, other = simulated(SMALL, seed=3), simulated(SMALL, seed=4)
    assert (again.separation == trace.separation).all()
    assert (again.log_gradient == trace.log_gradient).all()
    assert (other.separation != trace.separation).any()


def test_merged_tokens_are_told_apart() -> None:
    trace = simulated(SMALL.replace(causal=False, rope=False), seed=0, start_overlap=1 - 1e-12)
    theory = edgewise.predict(SMALL.replace(causal=False, rope=False), start_overlap=1 - 1e-12)
    assert trace.blocks("separation") == pytest.approx(theory.blocks("separation"), rel=0.6)
