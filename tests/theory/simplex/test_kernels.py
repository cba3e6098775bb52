"""The Gaussian and the bilinear kernel: one layer against random networks with autograd, and their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import edgewise
from edgewise.errors import BadInput
from edgewise.theory.simplex.state import Gradient, Setting, SimplexState
from edgewise.theory.simplex.step import step as apply_branch
from tests.support.covering import covering

N, WIDTH, HEADS, HEAD_WIDTH = 6, 512, 24, 8
GAINS = {"score_gain": 0.8, "key_gain": 1.1, "value_gain": 1.3, "output_gain": 0.9}


def tokens(overlap: float, norm: float) -> Tensor:
    """(N, WIDTH) with exactly this Gram matrix."""
    gram = norm * (overlap * torch.ones(N, N) + (1 - overlap) * torch.eye(N)).double()
    frame = torch.linalg.qr(torch.randn(WIDTH, N, dtype=torch.float64))[0]
    return torch.linalg.cholesky(gram) @ frame.T * WIDTH**0.5


def attend(x: Tensor, kernel: str, weights: list[Tensor]) -> Tensor:
    """Written from the definitions, head by head, without the library."""
    query, key, value = (torch.einsum("hkd,nd->hnk", w, x) for w in weights[:3])
    if kernel == "gaussian":
        mixing = (-(query[:, :, None] - key[:, None]).square().sum(-1) / 2 / HEAD_WIDTH**0.5).exp()
    else:
        mixing = query @ key.mT / HEAD_WIDTH**0.5 / N
    return torch.einsum("hab,hbk,hdk->ad", mixing, value, weights[3])


def draw() -> list[Tensor]:
    query_gain, value_gain = (
        GAINS["score_gain"] / GAINS["key_gain"],
        GAINS["value_gain"] / GAINS["output_gain"],
    )
    into = [
        torch.randn(HEADS, HEAD_WIDTH, WIDTH, dtype=torch.float64) * g / WIDTH**0.5
        for g in (query_gain, GAINS["key_gain"], value_gain)
    ]
    size = GAINS["output_gain"] / (HEADS * HEAD_WIDTH) ** 0.5
    out = torch.randn(HEADS, WIDTH, HEAD_WIDTH, dtype=torch.float64) * size
    return [w.requires_grad_() for w in (*into, out)]


def own_and_cross(gram: Tensor) -> tuple[float, float]:
    diagonal = gram.diagonal().mean().item()
    return diagonal, (gram.sum().item() - N * diagonal) / (N * (N - 1))


@pytest.mark.parametrize(("kernel", "overlap"), covering(["gaussian", "bilinear"], [0.0, 0.6]))
def test_one_layer_forward_and_backward(kernel: str, overlap: float) -> None:
    torch.manual_seed(0)
    seen: dict[str, list[float]] = {}
    for _ in range(60):
        x, weights = tokens(overlap, 0.9).requires_grad_(), draw()
        out = attend(x, kernel, weights)
        shared = torch.randn(1, WIDTH, dtype=torch.float64)
        g = (
            0.6 * shared + 0.8 * torch.randn(N, WIDTH, dtype=torch.float64)
        ) / WIDTH**0.5  # own 1, cross 0.36
        gradients = torch.autograd.grad((out * g).sum(), [x, *weights])
        numbers = dict(
            zip(("own", "cross"), own_and_cross(out.detach() @ out.detach().T / WIDTH), strict=True)
        )
        numbers |= dict(zip(("g_own", "g_cross"), own_and_cross(gradients[0] @ gradients[0].T), strict=True))
        names = ("query", "key", "value", "output")
        numbers |= {n: w.square().sum().item() for n, w in zip(names, gradients[1:], strict=True)}
        for name, value in numbers.items():
            seen.setdefault(name, []).append(value)
    network = edgewise.transformer(
        tokens=N,
        width=WIDTH,
        heads=HEADS,
        head_width=HEAD_WIDTH,
        depth=1,
        norm="none",
        attention_skip=0.0,
        kernel=kernel,
        **GAINS,
    )
    state = SimplexState(np.asarray(0.9), np.asarray(0.9 * (1 - overlap)))
    step = apply_branch(state, network.blocks[0][0], Setting(N, WIDTH))
    g = Gradient(np.asarray(1.0), np.asarray(0.36))
    assert step.weights is not None
    theory = {
        "own": step.state.norm,
        "cross": step.state.cross,
        "g_own": step.pull(g).own,
        "g_cross": step.pull(g).cross,
        **step.weights(g),
    }
    for name, value in theory.items():
        error = np.std(seen[name]) / math.sqrt(60)
        allowed = (
            4 * error
            + 0.06 * abs(float(theory["own" if name == "cross" else name])) * (name != "g_cross")
            + (0.06 * float(theory["g_own"]) * (name == "g_cross"))
        )
        assert np.mean(seen[name]) == pytest.approx(float(value), abs=allowed), name


def near_slope(query_gain: float, key_gain: float, head_width: int) -> float:
    """d(1-c')/d(1-c) at c = 1 and q = 1: gQ^2 (gQ^2 + gK^2) / (1 + 2 (gQ^2 + gK^2)/sqrt(h)), for every length."""
    total = query_gain**2 + key_gain**2
    return query_gain**2 * total / (1 + 2 * total / head_width**0.5)


def test_bilinear_attention_keeps_every_angle_and_gaussian_has_an_edge() -> None:
    alone = dict(
        width=256, heads=4, head_width=64, tokens=16, depth=12, mlp_width=0, attention_skip=0.0, norm="post"
    )
    kept = edgewise.predict(edgewise.transformer(kernel="bilinear", **alone), start_overlap=0.4)
    assert kept.overlap == pytest.approx(0.4, abs=1e-12)
    for gain in (0.5, 2.0):
        network = edgewise.transformer(kernel="gaussian", score_gain=gain**2, key_gain=gain, **alone)
        near = edgewise.predict(network, start_overlap=1 - 1e-9)
        slope = near_slope(gain, gain, 64)
        assert near.separation[0, 1] / near.separation[0, 0] == pytest.approx(slope, rel=1e-5)
        assert (slope < 1) == (gain < 1)


def test_what_is_not_modelled_is_refused() -> None:
    with pytest.raises(BadInput, match="tokens that are all alike"):
        edgewise.predict(edgewise.transformer(kernel="gaussian", causal=True))
    with pytest.raises(BadInput, match="qk_norm"):
        edgewise.predict(edgewise.transformer(kernel="gaussian", qk_norm=True))
    with pytest.raises(BadInput, match="position_bias"):
        edgewise.predict(edgewise.transformer(kernel="bilinear", position_bias=0.5))
