"""One block as a map of the plane (norm, separation), and its action on the two gradient modes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgewise.arrays import Array
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.blocks import Block, attentions
from edgewise.theory.simplex.recursion import Setting, apply_branch
from edgewise.theory.simplex.state import Gradient, Simplex, Step

TABULATED = 128.0  # logit variance: the table reaches 256, and a query may be longer than the mean


@dataclass(frozen=True)
class BlockMap:
    """The last block of a network, repeated without end."""

    block: Block
    setting: Setting

    @classmethod
    def of(cls, architecture: Architecture) -> BlockMap:
        return cls(architecture.blocks[-1], Setting(architecture.tokens, architecture.width))

    def steps(self, norm: Array, separation: Array) -> list[Step]:
        state, steps = Simplex(np.asarray(norm), np.asarray(norm * separation)), []
        for branch in self.block:
            steps.append(apply_branch(branch, state, self.setting))
            state = steps[-1].state
        return steps

    def __call__(self, norm: Array, separation: Array) -> tuple[Array, Array]:
        """(q, 1 - c) after the block."""
        state = self.steps(norm, separation)[-1].state
        return state.norm, state.separation

    def tabulated_norms(self, separation: Array, largest: float) -> Array:
        """The largest norm at which the logits of a separation stay within the moment table; 0 where none does.

        Beyond it every state costs a quadrature, and attention is condensed on few keys anyway.
        """
        norms = np.full_like(separation, largest)
        for branch in self.block:
            for layer in attentions((branch,)):
                bound = TABULATED / np.maximum(np.asarray(layer.score_gain) ** 2 * separation, 1e-300)
                free = layer.qk_norm or branch.norm.before or branch.norm.outside
                norms = np.minimum(norms, np.where(bound >= 1, largest, 0.0) if free else np.sqrt(bound))
        return norms

    def gradient_matrix(self, norm: float, separation: float) -> Array:
        """The 2 x 2 matrix that takes (gq, gp) at the block's output to its input."""
        steps = self.steps(np.array([norm, norm]), np.array([separation, separation]))
        gradient = Gradient(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
        for step in reversed(steps):
            gradient = step.pull(gradient)
        return np.stack([gradient.own, gradient.cross])
