"""timm's vision transformers: described, measured, left unchanged. Real classes where timm imports, else its names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import edgewise
from tests.support.timm_names import DEPTH, HEADS, HIDDEN, PATCH, SIDE, WIDTH, VisionTransformer

Sizes = tuple[int, int, int, int]


def ours(scale: float | None) -> tuple[nn.Module, Sizes, int]:
    torch.manual_seed(0)
    return VisionTransformer(scale).eval(), (DEPTH, WIDTH, HEADS, HIDDEN), SIDE


def theirs(name: str) -> tuple[nn.Module, Sizes, int]:
    import timm

    torch.manual_seed(0)
    sizes = {"depth": DEPTH, "embed_dim": WIDTH, "num_heads": HEADS, "img_size": SIDE, "patch_size": PATCH}
    return timm.create_model(name, **sizes).eval(), (DEPTH, WIDTH, HEADS, HIDDEN), SIDE


real = pytest.mark.skipif(
    find_spec("timm") is None, reason="timm is not installed: its names stand in for it"
)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: ours(None), id="names"),
        pytest.param(lambda: ours(0.1), id="names, LayerScale"),
        pytest.param(lambda: theirs("vit_tiny_patch16_224"), id="timm vit", marks=real),
        pytest.param(lambda: theirs("deit3_small_patch16_224"), id="timm deit3", marks=real),
    ],
)
def test_described_and_measured(make: Callable[[], tuple[nn.Module, Sizes, int]]) -> None:
    model, (depth, width, heads, hidden), side = make()
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = model(images)
    found = edgewise.describe(model)
    assert (found.depth, found.width, found.heads, found.mlp_width) == (depth, width, heads, hidden)
    assert (found.norm, found.norm_kind, found.activation, found.causal) == ("pre", "layer", "gelu", False)
    trace = edgewise.measure(model, images)
    assert trace.sites == edgewise.predict(found).sites
    assert trace.attention_entropy is not None, trace.source
    assert trace.attention_entropy.shape == (1, 2 * depth + 1, heads)
    with torch.no_grad():
        assert torch.equal(model(images), before)


def test_timm_is_never_imported_by_us() -> None:
    assert find_spec("timm") is not None or "timm" not in sys.modules


def test_layer_scale_is_a_branch_multiplier() -> None:
    plain, scaled = (edgewise.describe(ours(scale)[0]) for scale in (None, 0.1))
    assert scaled.attention_branch == pytest.approx(0.1 * plain.attention_branch)
    assert scaled.mlp_branch == pytest.approx(0.1 * plain.mlp_branch)
