"""The blocks alone are those of the whole network, and its tokens start where they are told to."""

from __future__ import annotations

import pytest
import torch

import edgewise
from edgewise.errors import BadInput
from edgewise.nets.build import BlockStack, random_tokens, simulated, simulated_streams

SMALL = edgewise.transformer(
    depth=3, tokens=8, width=32, heads=2, norm="post", causal=True, rope=True, score_gain=2.0
)


def test_the_blocks_are_those_of_the_whole_network() -> None:
    whole, alone = edgewise.nets.build(SMALL, inputs=5, outputs=4), BlockStack(SMALL)
    alone.load_state_dict(whole.state_dict(), strict=False)
    ids = torch.randint(5, (2, 8))
    entering = whole.embed(ids) + whole.positions.weight
    torch.testing.assert_close(
        alone(entering), whole.features(ids)
    )  # post-norm: no last norm after the blocks


def test_tokens_start_where_they_are_told() -> None:
    torch.manual_seed(0)
    wide = SMALL.replace(width=4096, embedding_norm=0.3)
    tokens = random_tokens(wide, 0.7)[0]
    unit = tokens / tokens.norm(dim=-1, keepdim=True)
    cosines = unit @ unit.T
    assert tokens.square().mean().item() == pytest.approx(0.3, rel=0.05)
    assert (cosines.sum() - 8).item() / 56 == pytest.approx(0.7, rel=0.05)
    with pytest.raises(BadInput, match=r"overlap must be .* got 1\.5"):
        random_tokens(SMALL, 1.5)


def test_the_orbit_is_that_of_the_streams_and_of_the_seed() -> None:
    orbit, streams = simulated(SMALL, seed=3), simulated_streams(SMALL, seed=3)
    assert orbit.norm == pytest.approx([stream.square().mean().item() for stream in streams])
    again, other = simulated(SMALL, seed=3), simulated(SMALL, seed=4)
    assert (again.token_gradient == orbit.token_gradient).all()
    assert (other.separation != orbit.separation).any()


def test_a_plain_reading_agrees_with_the_probe() -> None:
    torch.manual_seed(3)
    tokens, network = random_tokens(SMALL, 0.2), BlockStack(SMALL).double()
    orbit = simulated(SMALL, seed=3, start_overlap=0.2)
    trace = edgewise.measure(
        network, tokens, readouts=("token", "pooled"), attention=False, pair=False, seeds=64
    )
    assert orbit.norm == pytest.approx(trace.blocks("norm"))
    assert orbit.separation == pytest.approx(trace.blocks("separation"))
    for row, readout in (
        (orbit.token_gradient, 0),
        (orbit.pooled_gradient, 1),
    ):  # other directions, same network
        logs = trace.log_gradient[readout][:, trace.block_ends()]
        assert (abs(row - logs.mean(0)) < 4 * logs.std(0) + 1e-9).all()


def test_merged_tokens_are_told_apart() -> None:
    alike = SMALL.replace(causal=False, rope=False, width=256)
    orbit = simulated(alike, seed=0, start_overlap=1 - 1e-12)
    theory = edgewise.predict(alike, start_overlap=1 - 1e-12)
    assert orbit.separation == pytest.approx(theory.blocks("separation"), rel=0.2)


def test_attention_alone_has_an_orbit() -> None:
    alone = edgewise.transformer(
        depth=2, tokens=16, width=512, heads=8, mlp_width=0, norm="none", attention_skip=0.0
    )
    orbit = simulated(alone, seed=0)
    assert orbit.norm == pytest.approx(edgewise.predict(alone).blocks("norm"), rel=0.1)
