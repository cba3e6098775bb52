"""Softmax attention on the dense state, forward: C_att = sV^2 mean over sampled heads of S U S^T.

Shapes: n tokens, h heads of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.blocks import Attention
from edgewise.theory.gram.geometry import Geometry, mean_of_pair
from edgewise.theory.gram.heads import Heads, Logits, Sampling, draw_heads
from edgewise.theory.gram.mask import Mask, attention_mask, sandwich
from edgewise.theory.gram.root import Root, geometry_root


@dataclass(frozen=True)
class Memory:
    """What the backward pass needs of the forward pass: the square root of U, and the heads or how to draw them."""

    root: Root
    seed: int
    heads: list[Heads]

    def recall(self, layer: Attention, mask: Mask, sampling: Sampling) -> Iterator[Heads]:
        if self.heads:
            yield from self.heads
        else:
            for heads, _ in draw_heads(layer, self.root, mask, sampling, generator_of(self.seed)):
                yield heads


def attend(
    layer: Attention, state: Geometry, sampling: Sampling, seed: int
) -> tuple[Geometry, Mapping[str, float], Memory]:
    """The geometry of the layer's output, what was seen (entropy, logit variance, condensation), and a memory.

    Rows of S sum to one, so distances map to distances: with P = S H S^T,
    H_att = P_ab - (P_aa + P_bb)/2 and q_att = S q - P_aa.
    """
    mask = attention_mask(state.tokens, layer.causal, layer.window, sampling.dtype)
    unit = max(float(state.spreads.max()), 1e-300)
    spreads = (state.spreads / unit).to(sampling.dtype)
    mean_square = state.squares.mean()
    excess = (state.squares - mean_square).to(sampling.dtype)
    P = torch.zeros_like(state.spreads)
    squares, kept = torch.zeros_like(state.squares), torch.zeros_like(state.squares)
    seen, memory = _Seen(mask), Memory(geometry_root(state, sampling.dtype), seed, [])
    for heads, logits in draw_heads(layer, memory.root, mask, sampling, generator_of(seed)):
        S = heads.probabilities
        memory.heads.extend([heads] if sampling.keep else [])
        squares += (S @ excess).sum(0)
        seen.add(S, logits)
        # Without a mask rows of S become equal under collapse: their common part is taken out before the product.
        common = S.mean(1, keepdim=True) if mask.visible is None else torch.zeros_like(S[:, :1])
        rest = S - common if mask.visible is None else S
        product = sandwich(rest, spreads, mask.rows)
        P += product
        shift = common @ spreads
        kept += product.diagonal() + (2 * rest @ shift.mT + shift @ common.mT).sum((0, 2))
    P, kept, squares = P * (unit / sampling.samples), kept * (unit / sampling.samples), squares / sampling.samples
    spreads_out = (P - mean_of_pair(P.diagonal())).clamp_min(0.0).fill_diagonal_(0.0)
    mixed = Geometry((mean_square + squares - kept).clamp_min(0.0), spreads_out)
    return mixed.scaled(layer.value_gain**2), seen.means(), memory


class _Seen:
    """Means over rows and heads; the position bias counts for the entropy, not for the variance of the logits."""

    def __init__(self, mask: Mask) -> None:
        self.mask, self.heads = mask, 0
        self.entropy, self.variance = torch.zeros(mask.tokens), torch.zeros(mask.tokens)

    def add(self, S: Tensor, logits: Logits) -> None:
        largest, where = S.max(-1, keepdim=True)
        log_total = logits.biased.gather(-1, where) - largest.log()
        self.entropy = self.entropy + (log_total[..., 0] - (S * logits.biased).sum(-1)).sum(0)
        content = logits.content if self.mask.visible is None else logits.content * self.mask.visible
        total, square = content.sum(-1), content.square().sum(-1)
        counts = self.mask.counts
        self.variance = self.variance + ((square - total**2 / counts) / (counts - 1).clamp_min(1)).sum(0)
        self.heads += len(S)

    def means(self) -> dict[str, float]:
        """Rows with a single visible key have no logit variance and are left out of the last two."""
        several = self.mask.counts >= 2
        variance = self.variance.double()[several].clamp_min(0.0) / self.heads
        scale = 2 * self.mask.counts.double()[several].log()
        return {
            "attention_entropy": float(self.entropy.double().clamp_min(0.0).mean()) / self.heads,
            "logit_variance": float(variance.mean()),
            "condensation": float((variance / scale).mean()),
        }


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
