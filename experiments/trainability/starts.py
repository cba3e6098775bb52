"""Starts of the forecast: three families of blocks, initialization knobs that span both phases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.stats import qmc

from edgewise.errors import BadInput
from edgewise.nets import Transformer
from edgewise.nets import build as network_of
from edgewise.nouns.architecture import Architecture, transformer
from edgewise.study.tasks import Task

Knobs = dict[str, Any]
DEPTHS = (8, 12, 18)
WIDTH = 48
DIMENSIONS = 7
READOUT_GAIN = 0.25


def _between(u: float, low: float, high: float) -> float:
    """Log-uniform from u in (0, 1), to three digits."""
    return float(f"{low * (high / low) ** u:.3g}")


def _skip(branch: float) -> float:
    return round(math.sqrt(1 - branch**2), 6)


def _paper(u: np.ndarray) -> Knobs:
    """Cowsik et al.: x <- sqrt(1 - a^2) x + a branch(LN x), tanh, one head [Cowsik 2024]."""
    attention, mlp = round(0.1 + 0.85 * float(u[1]), 3), round(0.1 + 0.85 * float(u[2]), 3)
    return {
        "heads": 1,
        "activation": "tanh",
        "attention_branch": attention,
        "attention_skip": _skip(attention),
        "mlp_branch": mlp,
        "mlp_skip": _skip(mlp),
        "mlp_in_gain": _between(u[3], 0.5, 6),
        "score_gain": _between(u[4], 0.3, 4),
    }


def _usual(u: np.ndarray) -> Knobs:
    """What GPT-2-like and Llama-like starts share: pre- or post-norm, skips of one or weaker, gains around one."""
    skip = 1.0 if u[1] < 0.4 else _between((u[1] - 0.4) / 0.6, 0.3, 1.0)
    branch = _between(u[2], 0.15, 2)
    return {
        "norm": "pre" if u[6] < 0.5 else "post",
        "attention_skip": skip,
        "mlp_skip": skip,
        "attention_branch": branch,
        "mlp_branch": branch,
        "value_gain": _between(u[3], 0.3, 3),
        "mlp_in_gain": _between(u[5], 0.5, 4),
        "mlp_out_gain": 1.5,
        "score_gain": _between(u[4], 0.3, 6),
    }


def _gpt(u: np.ndarray) -> Knobs:
    return {"heads": 2, "activation": "gelu"} | _usual(u)


def _llama(u: np.ndarray) -> Knobs:
    fixed: Knobs = {
        "heads": 2,
        "kv_heads": 1,
        "activation": "silu",
        "gated": True,
        "norm_kind": "rms",
        "rope": True,
    }
    return fixed | {"mlp_width": 64} | _usual(u)


FAMILIES: dict[str, Callable[[np.ndarray], Knobs]] = {"paper": _paper, "gpt": _gpt, "llama": _llama}


def starts(family: str, count: int) -> list[Knobs]:
    """The first points of one scrambled Sobol sequence [Owen 1998], as knobs of a family."""
    if family not in FAMILIES:
        raise BadInput(f"{family!r} is not a family of the forecast; the families are {', '.join(FAMILIES)}.")
    seed = list(FAMILIES).index(family)
    points = qmc.Sobol(DIMENSIONS, seed=np.random.default_rng(seed)).random_base2(math.ceil(math.log2(count)))
    return [_start(family, u) for u in points[:count]]


def _start(family: str, u: np.ndarray) -> Knobs:
    depth = DEPTHS[min(int(u[0] * len(DEPTHS)), len(DEPTHS) - 1)]
    return {"depth": depth, "width": WIDTH, "mlp_width": 2 * WIDTH} | FAMILIES[family](u)


def architecture(knobs: Knobs, task: Task) -> Architecture:
    """The description of a start on a task: text is read from left to right."""
    return transformer(**knobs, tokens=task.tokens, causal=not task.pooled)


def network(knobs: Knobs, task: Task) -> Transformer:
    """The network of a start on a task; its readout begins at the frequencies of the labels.

    Otherwise the first steps go into learning how often each byte occurs, which every network does, fastest at
    rates that later prove too large.
    """
    model = network_of(
        architecture(knobs, task),
        inputs=task.inputs,
        outputs=task.outputs,
        vectors=task.vectors,
        pooled=task.pooled,
        readout_gain=READOUT_GAIN,
    )
    with torch.no_grad():
        model.readout.bias.copy_(task.prior)
    return model
