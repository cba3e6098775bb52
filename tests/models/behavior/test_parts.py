"""Steps of a reading on tensors made by hand: which tokens are changed, which rows are asked, what scores are."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgewise.models.behavior import compare, dependence, queries_and_keys, token_order
from edgewise.models.behavior.gains import _scores
from edgewise.models.behavior.graph import DOT_PRODUCT
from edgewise.models.behavior.visibility import pokes

LENGTH, WIDTH = 12, 3


def test_two_tokens_are_exchanged_and_each_other_entry_has_one_changed() -> None:
    """Entry 0 is the input itself, entry 1 the same tokens in another order."""
    made: dict[str, Any] = {}
    experiment = SimpleNamespace(
        feed=SimpleNamespace(tokens=None),
        chains=[SimpleNamespace(language=False)],
        sites=[],
        weights=lambda _: None,
        forced=lambda count, make, see, **_: made.update(count=count, make=make),
    )
    dependence._columns(experiment)  # type: ignore[arg-type]
    base = torch.randn(1, LENGTH, WIDTH)
    tokens = made["make"](SimpleNamespace(base=base, length=LENGTH, stack=0))
    assert torch.equal(tokens[0], base[0])
    order = [*range(LENGTH - 3), LENGTH - 2, LENGTH - 3, LENGTH - 1]
    assert torch.equal(tokens[1], base[0, order])
    for entry, position in enumerate(pokes(LENGTH), 2):
        assert (tokens[entry] != base[0]).any(-1).nonzero().flatten().tolist() == [position]


@pytest.mark.parametrize(
    "causal, reach, asked",
    [(False, LENGTH, [6]), (False, 2, [6, 9]), (True, LENGTH, [11]), (True, 3, [11, 8])],
)
def test_a_second_row_is_asked_where_the_first_is_limited(causal: bool, reach: int, asked: list[int]) -> None:
    """Of `reach` tokens to either side, or to the left alone."""
    places = torch.arange(LENGTH)
    apart = places[:, None] - places
    seen = (apart.abs() <= reach) & ((apart >= 0) | torch.tensor(not causal))
    leaf = torch.randn(1, LENGTH, WIDTH, requires_grad=True)
    layout = SimpleNamespace(tokens=lambda gradient, _: gradient)
    experiment = SimpleNamespace(streams={"op": SimpleNamespace(layout=layout)})
    site = SimpleNamespace(traits=SimpleNamespace(sight=SimpleNamespace(sees="causal" if causal else "all")))
    rows = list(token_order._rows(experiment, site, seen.to(leaf) @ leaf, {"op": leaf}))  # type: ignore[arg-type, dict-item]
    assert [query for query, _ in rows] == asked
    assert all(keys == set(seen[query].nonzero().flatten().tolist()) for query, keys in rows)


@pytest.mark.parametrize("shape, key_heads", [((2, 5, 4), None), ((2, 6, 5, 4), 6), ((2, 6, 5, 4), 2)])
@pytest.mark.parametrize("scale", [None, 0.25])
def test_scores_of_fused_attention_are_scaled_products(
    shape: tuple[int, ...], key_heads: int | None, scale: float | None
) -> None:
    """One head without an axis of its own, as many key heads, and fewer; 1/sqrt(width) unless a scale is given."""
    query = torch.randn(shape)
    key = torch.randn(shape if key_heads is None else (shape[0], key_heads, *shape[2:]))
    operation = SimpleNamespace(function=DOT_PRODUCT)
    given = {} if scale is None else {"scale": scale}
    found = _scores(operation, operation, (query, key, key), given)  # type: ignore[arg-type]
    whole = key if key_heads is None else key.repeat_interleave(shape[1] // key_heads, 1)
    wanted = torch.einsum("...ik,...jk->...ij", query, whole) * (1 / math.sqrt(4) if scale is None else scale)
    assert isinstance(found, Tensor) and torch.allclose(found, wanted, atol=1e-6)


def test_the_spectral_edge_is_the_median_over_matrices() -> None:
    """Matrices of which more and more is one direction; the middle one of five counts."""
    model, generator = (
        nn.ModuleList(nn.Linear(24, 24, bias=False) for _ in range(5)),
        torch.Generator().manual_seed(0),
    )
    for share, layer in enumerate(model):
        noise, left, right = (torch.randn(24, n, generator=generator) for n in (24, 1, 1))
        layer.weight.data = noise + share * left @ right.T
    edges = [compare._edge(layer.weight) for layer in model]
    assert edges == sorted(edges) and edges[0] == pytest.approx(1.0, abs=0.2) and edges[4] > 1.5
    assert compare.spectral_edge(model) == edges[2]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rank, heads, keys", [(4, 4, 4), (4, 4, 2), (3, 4, 4), (3, 4, 1)])
def test_heads_and_key_heads_are_counted_from_queries_and_keys(
    rank: int, heads: int, keys: int, fused: bool
) -> None:
    """Key heads that are equal numbers are one, with an axis for heads and folded into the batch."""
    query = torch.randn(2, heads, 5, WIDTH)
    key = torch.randn(2, keys, 5, WIDTH).repeat_interleave(heads // keys, 1)
    query, key = (t if rank == 4 else t.flatten(0, 1) for t in (query, key))
    site = SimpleNamespace(traits=SimpleNamespace())
    operation = SimpleNamespace(function=DOT_PRODUCT if fused else "bmm")
    queries_and_keys._heads(site, operation, query, key if fused else key.transpose(-1, -2))  # type: ignore[arg-type]
    assert (site.traits.heads, site.traits.head_width, site.traits.kv_heads) == (heads, WIDTH, keys)
