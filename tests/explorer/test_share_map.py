"""The map's share is the verdict's probability, its lines are those of the phase diagram, its sizes are kept."""

from __future__ import annotations

import numpy as np
import pytest

import edgewise
from edgewise.errors import BadInput
from edgewise.explorer.answers import affordable, share_map
from edgewise.explorer.requests import axes_of, span_of

NETWORKS = {
    "post": edgewise.transformer(depth=9, tokens=24, norm="post", activation="tanh", mlp_bias=0.1),
    "pre": edgewise.transformer(depth=8, tokens=16),
    "no skip": edgewise.transformer(depth=6, tokens=16, attention_skip=0.0, mlp_skip=0.0, norm="none"),
    "parallel": edgewise.transformer(depth=6, tokens=16, parallel=True, norm="none"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_share_of_a_point_is_the_probability_of_its_verdict(name: str) -> None:
    """Two programs: the grid follows all points at once, predict and judge one network."""
    network = NETWORKS[name]
    axes = {"mlp_in_gain": (0.2, 2.0), "attention_branch": (0.1, 1.0)}
    result = share_map(network, axes, 4)
    for j, i in ((0, 0), (3, 1), (2, 3)):
        knobs = {"mlp_in_gain": float(result.diagram.x[i]), "attention_branch": float(result.diagram.y[j])}
        verdict = edgewise.judge(edgewise.predict(network.replace(**knobs)))
        assert verdict.probability is not None
        assert result.share[j, i] == pytest.approx(verdict.probability.value, rel=1e-6, abs=1e-12)


def test_a_stream_that_is_lost_has_a_share_of_zero() -> None:
    network = edgewise.transformer(depth=8, tokens=8, norm="none", mlp_out_gain=1e60)
    result = share_map(network, {"value_gain": (1.0, 50.0), "attention_branch": (0.5, 1.0)}, 3)
    assert np.array_equal(result.share, np.zeros((3, 3)))


def test_lines_lie_where_the_share_has_their_level() -> None:
    result = share_map(NETWORKS["post"], {"mlp_in_gain": (0.1, 3.0), "attention_branch": (0.0, 1.25)}, 24)
    assert result.share.min() < 0.25 and result.share.max() > 0.75
    for level, lines in result.levels.items():
        assert lines
        for x, y in lines[0][::5]:
            i, j = (
                int(np.abs(axis - v).argmin()) for axis, v in ((result.diagram.x, x), (result.diagram.y, y))
            )
            near = result.share[max(j - 1, 0) : j + 2, max(i - 1, 0) : i + 2]
            assert near.min() <= level <= near.max()


def test_axes_and_sizes() -> None:
    names = axes_of(edgewise.transformer(heads=0, depth=2, mlp_in_gain=[1, 2]))
    assert names == ["mlp_out_gain", "mlp_bias", "mlp_branch", "mlp_skip", "embedding_norm"]
    assert "mlp_in_gain" in axes_of(NETWORKS["pre"])
    low, high = span_of("value_gain", 7.0)
    assert 0 < low < 7 < high
    assert affordable(64, 12) == 64 and affordable(64, 256) == 32
    with pytest.raises(BadInput, match="from 2 to 64"):
        affordable(65, 12)
