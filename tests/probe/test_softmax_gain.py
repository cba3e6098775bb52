"""The softmax's gain on the true backward signal: against autograd on the logits, fused and eager, and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import edgewise
from edgewise import BadInput
from edgewise.probe.attention_rows import head_statistics, row_blocks


def test_blocks_are_those_of_autograd() -> None:
    """|dLoss/dz| from J V e equals the gradient that torch computes for the logits, masked keys left out."""
    generator = torch.Generator().manual_seed(0)
    z = (2 * torch.randn(3, 2, 5, 7, generator=generator, dtype=torch.float64)).requires_grad_()
    hidden = torch.arange(7) > torch.arange(2, 7)[:, None]
    V = torch.randn(3, 2, 7, 4, generator=generator, dtype=torch.float64)
    e = torch.randn(3, 2, 5, 4, generator=generator, dtype=torch.float64)
    masked = z.masked_fill(hidden, -math.inf)
    (e * (torch.softmax(masked, -1) @ V)).sum().backward()
    blocks = row_blocks(masked.detach(), e @ V.transpose(-1, -2))
    torch.testing.assert_close(blocks.log_gradient.exp(), z.grad.norm(dim=-1))
    upstream = (e @ V.transpose(-1, -2)).masked_fill(hidden, 0.0)
    torch.testing.assert_close(blocks.gain, z.grad.norm(dim=-1) / upstream.norm(dim=-1))
    assert (blocks.gain.log() <= blocks.log_largest + 0.02).all()  # never more than the largest eigenvalue


def test_uniform_rows_have_the_gain_of_the_centred_signal() -> None:
    """J = (I - 11^T/n)/n: a centred signal is divided by n, a constant one vanishes."""
    signal = torch.tensor([[1.0, -1.0, 2.0, -2.0], [1.0, 1.0, 1.0, 1.0]]).double()[None, None]
    blocks = row_blocks(torch.zeros(1, 1, 2, 4).double(), signal)
    assert blocks.gain[0, 0].tolist() == pytest.approx([0.25, 0.0], abs=1e-15)


def test_rows_of_one_key_and_no_key_are_unknown() -> None:
    logits = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf], [0.0, 0.0]]).double()[None, None]
    blocks = row_blocks(logits, torch.ones(1, 1, 3, 2).double() * torch.tensor([1.0, -1.0]))
    assert torch.isnan(blocks.gain[0, 0, :2]).all() and blocks.gain[0, 0, 2].item() == pytest.approx(0.5)
    found = head_statistics(blocks)
    assert found["softmax_gain"].tolist() == pytest.approx([0.5])
    assert found["row_gradient_spread"].tolist() == pytest.approx([0.0])


def model(attention: str, scale: float = 1.0) -> GPT2LMHeadModel:
    config = GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=24, attn_implementation=attention
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = GPT2LMHeadModel(config)
    for block in made.transformer.h:
        block.attn.c_attn.weight.data[:, :64] *= scale
    return made


def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 50, (2, 16), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


def gains(attention: str, scale: float = 1.0) -> edgewise.Trace:
    return edgewise.measure(model(attention, scale), batch(), readouts=("own",), pair=False, gain=True)


def test_fused_and_eager_attention_agree_in_a_real_model() -> None:
    fused, eager = gains("sdpa", 10.0), gains("eager", 10.0)
    for name in ("softmax_gain", "row_gradient_spread", "row_eigenvalue_spread"):
        a, b = fused.statistics[name], eager.statistics[name]
        assert a.shape == (1, len(fused.sites), 4)
        at = [i for i, site in enumerate(fused.sites) if site.endswith("attention")]
        assert np.isfinite(a[:, at]).all()
        np.testing.assert_allclose(a[:, at], b[:, at], rtol=2e-3, atol=2e-3)


def test_gain_in_a_real_model_is_that_of_its_own_logits() -> None:
    """Eager GPT-2, every row: the softmax is replaced by one that keeps its input, and autograd gives the gradients."""
    made, kept = model("eager", 10.0).eval(), []
    plain = torch.nn.functional.softmax

    def keeping(z: torch.Tensor, dim: int = -1, **named: object) -> torch.Tensor:
        z.retain_grad()
        s = plain(z, dim=dim, **named)
        s.retain_grad()
        kept.append((z, s))
        return s

    torch.nn.functional.softmax = keeping
    try:
        made(**batch()).loss.backward()
    finally:
        torch.nn.functional.softmax = plain
    found = gains("eager", 10.0)
    at = [i for i, site in enumerate(found.sites) if site.endswith("attention")]
    for place, (z, s) in zip(at, kept, strict=True):
        seen = torch.tril(torch.ones(16, 16, dtype=torch.bool))
        ratio = (z.grad * seen).norm(dim=-1) / (s.grad * seen).norm(dim=-1)  # (2, 4, 16)
        rows = ratio[:, :, 1:].transpose(0, 1).flatten(1)  # the first row has one key, the last no loss (nan)
        median = rows.nanmedian(-1).values
        np.testing.assert_allclose(found.statistics["softmax_gain"][0, place], median.numpy(), rtol=1e-3)


def test_sharper_logits_let_less_through() -> None:
    flat, sharp = (gains("sdpa", scale).statistics["softmax_gain"] for scale in (1.0, 40.0))
    assert np.nanmedian(sharp) < 0.5 * np.nanmedian(flat)


def test_where_it_cannot_be_measured_it_is_refused() -> None:
    for options in ({"attention": False}, {"stream": True}, {"readouts": ()}):
        with pytest.raises(BadInput, match="gain needs"):
            edgewise.measure(model("sdpa"), batch(), gain=True, **options)
