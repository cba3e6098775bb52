"""How much of the input the stream forgets: the part of every sum that is not carried by the skip.

    F_l = sum over the branches up to block l of log( q_sum / (skip^2 q_before) )

q_before enters a branch, q_sum = skip^2 q_before + (branch)^2 q_branch leaves it before any norm, so exp(-F_L) is the
share of the last stream that is still a copy of the first. Exponents may cancel between attention and MLP; this cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgewise.architecture import Architecture
from edgewise.blocks import Branch
from edgewise.theory.simplex import Setting, apply_branch
from edgewise.theory.state import Simplex

Array = NDArray[np.float64]


def forgotten(architecture: Architecture, norms: Sequence[float], separations: Sequence[float]) -> Array:
    """F at the embedding and after every block (L + 1), from an orbit's norm and separation at the same places.

    Inside a block the token-symmetric map is used, which is exact without mask and positions.
    """
    setting = Setting(architecture.tokens, architecture.width)
    found = [0.0]
    for block, norm, separation in zip(architecture.blocks, norms[:-1], separations[:-1], strict=True):
        state, lost = Simplex(np.asarray(norm), np.asarray(norm * min(separation, 1.0))), 0.0
        for branch in block:
            lost += _lost(branch, state, setting)
            state = apply_branch(branch, state, setting).state
        found.append(found[-1] + lost)
    return np.array(found)


def _lost(branch: Branch, state: Simplex, setting: Setting) -> float:
    """log( q_sum / (skip^2 q_before) ) of one branch; infinite without a skip."""
    whole = apply_branch(replace(branch, norm=replace(branch.norm, outside=False)), state, setting).state.norm
    kept = branch.skip**2 * state.norm
    return float(np.log(whole / kept)) if kept > 0 else float("inf")
