"""How much of the input the stream forgets.

    F_l = sum over the branches up to block l of log( q_sum / (skip^2 q_before) )

q_before enters a branch, q_sum = skip^2 q_before + (branch)^2 q_branch leaves it before any norm, so exp(-F_L) is the
share of the last stream that is still a copy of the first. Exponents may cancel between attention and MLP; this cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import SearchBudget
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.blocks import Attention, Block, Branch, fold
from edgewise.theory.simplex.state import Setting, SimplexState
from edgewise.theory.simplex.step import step


def forgotten(
    architecture: Architecture,
    norms: Sequence[float],
    separations: Sequence[float],
    budget: SearchBudget | None = None,
) -> Array:
    """F at the embedding and after every block (L + 1), from an orbit's norm and separation at the same places.

    Inside a block the token-symmetric map is used, which is exact without mask and positions; all blocks at once.
    """
    setting = Setting(architecture.tokens, architecture.width, budget=budget)
    norm = np.asarray(norms[:-1], dtype=float)
    state = SimplexState(norm, norm * np.minimum(separations[:-1], 1.0))
    lost = np.zeros(architecture.depth)
    for branch in _all_blocks(architecture):
        lost = lost + _lost(branch, state, setting)
        state = step(state, branch, setting).state
    return np.concatenate([[0.0], np.cumsum(lost)])


def written_by_attention(
    architecture: Architecture, norms: Sequence[float], separations: Sequence[float]
) -> float:
    """The part of F over the whole depth that attention alone has: 1 - exp(-it) of a token comes from other tokens."""
    setting = Setting(architecture.tokens, architecture.width)
    norm = np.asarray(norms[:-1], dtype=float)
    state = SimplexState(norm, norm * np.minimum(separations[:-1], 1.0))
    total = 0.0
    for branch in _all_blocks(architecture):
        heads = tuple(layer for layer in branch.layers if isinstance(layer, Attention))
        if heads:
            total += float(
                np.broadcast_to(_lost(replace(branch, layers=heads), state, setting), norm.shape).sum()
            )
        state = step(state, branch, setting).state
    return total


def _all_blocks(architecture: Architecture) -> Block:
    """One block whose gains are arrays over depth; the token-symmetric map sees no window."""
    knobs = architecture.knobs() | {"depth": 1, "window": None}
    return fold(
        {name: np.array(value) if isinstance(value, tuple) else value for name, value in knobs.items()}
    )[0]


def _lost(branch: Branch, state: SimplexState, setting: Setting) -> Array:
    """log( q_sum / (skip^2 q_before) ) of one branch in every block; infinite without a skip."""
    whole = step(state, replace(branch, norm=replace(branch.norm, outside=False)), setting).state.norm
    carried = branch.skip**2 * state.norm
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(carried > 0, np.log(whole) - np.log(carried), np.inf))
