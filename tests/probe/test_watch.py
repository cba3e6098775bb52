"""What a measurement reads, on tensors whose answers are known."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn

from edgewise.probe.attention_rows import AttentionLocation, AttentionWatch, SoftmaxCall
from edgewise.probe.batches import Counted
from edgewise.probe.geometry import StreamSite
from edgewise.probe.observation import read_geometry


class Raises(nn.Module):
    def forward(self, _: Tensor) -> Tensor:
        raise ValueError("inside attention")


def test_a_softmax_after_an_attention_that_raised_is_not_taken_for_its_own() -> None:
    """A model may catch what its attention raises and go on."""
    model, watch = nn.Sequential(Raises()), AttentionWatch([AttentionLocation(0, "0", 1)], torch.Generator())
    watch.sample(1, 4)
    with ExitStack() as stack:
        watch.attach(model, stack)
        with watch:
            with pytest.raises(ValueError, match="inside attention"):
                model(torch.zeros(1, 4, 2))
            torch.softmax(torch.zeros(1, 1, 4, 4), -1)
    assert watch.current is None and not watch.records


def test_beyond_the_range_of_numbers_the_last_finite_separation_stays() -> None:
    """Two tokens at an angle: 1 - cos, kept where their norm is infinite; nothing is known where the first is."""
    streams = [torch.tensor([[[1.0, 0.0], [math.cos(a), math.sin(a)]]]) for a in (1.5, 1.0, 0.5)]
    streams[2] = streams[2] * math.inf
    seen = read_geometry(
        [StreamSite("a", None), StreamSite("b", None), StreamSite("c", None)], streams, Counted()
    )
    assert seen.separation.tolist() == pytest.approx(
        [1 - math.cos(1.5), 1 - math.cos(1.0), 1 - math.cos(1.0)]
    )
    assert seen.norm.tolist() == pytest.approx([0.5, 0.5, math.inf])
    first = read_geometry([StreamSite("a", None), StreamSite("b", None)], streams[::-2], Counted())
    assert first.separation.tolist() == [0.0, 0.0]


def test_the_gradient_of_values_is_that_of_autograd_in_both_layouts() -> None:
    """(B, H, n, d) or (B H, n, d): V e for the rows that were drawn, from the gradient e of the output P V."""
    generator = torch.Generator().manual_seed(0)
    P, V, e = (torch.randn(2, 3, 5, d, generator=generator, dtype=torch.float64) for d in (5, 4, 4))
    P.requires_grad_()
    (exact,) = torch.autograd.grad(P @ V, P, e)
    rows = torch.tensor([0, 3])
    logits = torch.zeros(2, 3, 2, 5)
    fused = SoftmaxCall(P @ V, logits, V)
    torch.testing.assert_close(fused.upstream(e, rows), exact[:, :, rows])
    torch.testing.assert_close(fused.upstream(e.flatten(0, 1), rows), exact[:, :, rows])
    torch.testing.assert_close(
        SoftmaxCall(P, logits, None).upstream(exact.flatten(0, 1), rows), exact[:, :, rows]
    )
