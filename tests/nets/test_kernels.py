"""Attention kernels against their definitions written out, token by token, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgewise import nets
from edgewise.errors import BadInput
from edgewise.nets.kernel_attention import CHUNK, _causal


def distances(query: Tensor, key: Tensor) -> Tensor:
    return (query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)


def hidden(logits: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    if is_causal:
        logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if mask is None:
        return logits
    return logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask


def gaussian(query, key, value, mask=None, is_causal=False, scale=None):
    logits = -(scale or query.shape[-1] ** -0.5) / 2 * distances(query, key)
    return hidden(logits, mask, is_causal).exp() @ value


def normalized_gaussian(query, key, value, mask=None, is_causal=False, scale=None):
    logits = -(scale or query.shape[-1] ** -0.5) / 2 * distances(query, key)
    return hidden(logits, mask, is_causal).softmax(-1) @ value


def linear(query, key, value, mask=None, is_causal=False, scale=None):
    root = (scale or query.shape[-1] ** -0.5) ** 0.5
    weights = (F.elu(root * query) + 1) @ (F.elu(root * key) + 1).mT
    weights = torch.where(hidden(torch.zeros_like(weights), mask, is_causal) == 0, weights, 0.0)
    return weights / weights.sum(-1, keepdim=True) @ value


def softmax(query, key, value, mask=None, is_causal=False, scale=None):
    logits = (scale or query.shape[-1] ** -0.5) * query @ key.mT
    return hidden(logits, mask, is_causal).softmax(-1) @ value


KERNELS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "gaussian": (nets.gaussian_attention, gaussian),
    "normalized gaussian": (nets.normalized_gaussian_attention, normalized_gaussian),
    "linear": (nets.linear_attention, linear),
    "softmax": (nets.softmax_attention, softmax),
}
PADDING = torch.arange(150) < 120


def inputs(
    length: int = 33,
    keys: int | None = None,
    size: int = 12,
    shift: float = 0.0,
    batch: tuple[int, int] = (2, 3),
    value_size: int = 7,
) -> list[Tensor]:
    torch.manual_seed(length)
    shapes = ((*batch, length, size), (*batch, keys or length, size), (*batch, keys or length, value_size))
    made = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    return [(made[i] + shift * (i < 2)).requires_grad_() for i in range(3)]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"is_causal": True},
        {"scale": 0.7},
        {"attn_mask": PADDING},
        {"is_causal": True, "scale": 0.1},
    ],
)
def test_forward_and_gradients(name: str, how: dict) -> None:
    kernel, direct = KERNELS[name]
    tensors = inputs(150)
    reference = {("mask" if key == "attn_mask" else key): value for key, value in how.items()}
    mask = {"attn_mask": how["attn_mask"][None]} if "attn_mask" in how else {}
    made, expected = kernel(*tensors, **(how | mask)), direct(*tensors, **reference)
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-12)
    weights = torch.randn_like(made)
    ours, theirs = (torch.autograd.grad((x * weights).sum(), tensors) for x in (made, expected))
    for first, second in zip(ours, theirs, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "normalized gaussian", "softmax"])
def test_additive_and_per_query_masks(name: str) -> None:
    kernel, direct = KERNELS[name]
    tensors = inputs(20, 26)
    for mask in (torch.randn(20, 26, dtype=torch.float64), torch.rand(2, 1, 20, 26) < 0.7):
        torch.testing.assert_close(kernel(*tensors, mask), direct(*tensors, mask), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_double_backward_through_the_math_path(name: str, is_causal: bool) -> None:
    kernel, direct = KERNELS[name]
    tensors, few = inputs(6, size=4), inputs(4, size=3, batch=(1, 2), value_size=2)
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(lambda *x: kernel(*x, is_causal=is_causal), few)
        ours, theirs = (_hessian_product(k, tensors, is_causal) for k in (kernel, direct))
    for first, second in zip(ours, theirs, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-12)


def _hessian_product(
    kernel: Callable[..., Tensor], tensors: list[Tensor], is_causal: bool
) -> tuple[Tensor, ...]:
    loss = kernel(*tensors, is_causal=is_causal).square().sum()
    slopes = torch.autograd.grad(loss, tensors, create_graph=True)
    return torch.autograd.grad(sum((g * g.detach().sign()).sum() for g in slopes), tensors)


@pytest.mark.parametrize("name", KERNELS)
def test_grouped_heads(name: str) -> None:
    kernel, direct = KERNELS[name]
    query, key, value = inputs(10)
    query = torch.cat([query, query + 1.0], 1)  # six query heads on three key heads
    expected = direct(query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1))
    torch.testing.assert_close(kernel(query, key, value, enable_gqa=True), expected, rtol=0, atol=1e-12)


def test_a_large_common_mean_keeps_the_digits() -> None:
    """Against the exact result for the inputs as that precision holds them."""
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.bfloat16, 0.05)):
        tensors = [x.detach().to(dtype) for x in inputs(64, shift=30.0)]
        made, exact = nets.gaussian_attention(*tensors), gaussian(*(x.double() for x in tensors))
        assert made.dtype == dtype and bool(made.isfinite().all())
        torch.testing.assert_close(made.double(), exact, rtol=0, atol=tolerance)


def test_a_fully_masked_query_gives_zero_and_far_keys_vanish_together_with_the_truth() -> None:
    query, key, value = inputs(8)
    mask = torch.ones(8, 8, dtype=torch.bool)
    mask[3] = False
    assert bool((nets.gaussian_attention(query, key, value, mask)[..., 3, :] == 0).all())
    assert bool((nets.gaussian_attention(query * 1e6, key, value) == 0).all())


def test_dropout_falls_on_the_weights() -> None:
    """Mean over many masks is the result without; every sample is finite although the null key may be dropped."""
    torch.manual_seed(0)
    tensors = [x.detach().float() for x in inputs(16)]
    made = torch.stack([nets.gaussian_attention(*tensors, dropout_p=0.3) for _ in range(800)])
    expected = nets.gaussian_attention(*tensors)
    assert bool(made.isfinite().all())
    error = made.std(0) / 800**0.5
    assert float(((made.mean(0) - expected).abs() / error.clamp_min(1e-6)).mean()) < 1.2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda q, k, v: nets.gaussian_attention(q[..., :5], k, v), "head size 5"),
        (lambda q, k, v: nets.gaussian_attention(q, k, v[:, :, :3]), "differ before the last"),
        (lambda q, k, v: nets.gaussian_attention(q[:, :1], k, v), "enable_gqa"),
        (lambda q, k, v: nets.gaussian_attention(q, k, v, torch.ones(33, 33) > 0, is_causal=True), "both"),
        (lambda q, k, v: nets.gaussian_attention(q, k, v, dropout_p=1.0), "dropout_p"),
        (lambda q, k, v: nets.linear_attention(q, k, v, dropout_p=0.1), "dropout_p must be 0"),
        (lambda q, k, v: nets.linear_attention(q, k, v, torch.rand(33, 33) < 0.5), "alike"),
        (
            lambda q, k, v: nets.gaussian_attention(q.repeat(1, 2, 1, 1)[:, :5], k, v, enable_gqa=True),
            "multiple",
        ),
    ],
)
def test_refusals(call: Callable[..., Tensor], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call(*inputs())


def test_linear_attention_remembers_over_its_chunks() -> None:
    """Two chunks and a bit: the last token still sees the first."""
    length = 2 * CHUNK + 5
    query, key, value = inputs(length, size=3, batch=(1, 1), value_size=2)
    direct = linear(query, key, value, is_causal=True)
    torch.testing.assert_close(
        nets.linear_attention(query, key, value, is_causal=True), direct, rtol=1e-9, atol=1e-12
    )
    moved = value.detach().clone()
    moved[..., 0, :] += length
    after = nets.linear_attention(query, key, moved, is_causal=True)
    assert float((after - direct)[..., -1, :].abs().min()) > 0.1


@pytest.mark.parametrize(
    ("queries", "keys"), [(CHUNK + 40, 30), (30, CHUNK + 40), (2 * CHUNK + 3, CHUNK + 5)]
)
def test_causal_sums_in_chunks_are_the_lower_triangle_for_any_two_lengths(queries: int, keys: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(2, n, 3, generator=generator, dtype=torch.float64) for n in (queries, keys, keys))
    torch.testing.assert_close(_causal(q, k, v)[:, :queries], (q @ k.mT).tril() @ v)
