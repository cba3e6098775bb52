"""Embeddings, when asked: tables rescaled so that the first stream has mean square one."""

from __future__ import annotations

import math

from torch import nn

from edgewise.adapters.projections import Projection
from edgewise.critical.plan.constraints import Kept
from edgewise.critical.plan.plan import Change
from edgewise.critical.plan.recognised import Recognised


def embedding_changes(
    found: Recognised, start: tuple[float, float] | None, kept: Kept, notes: list[str]
) -> list[Change]:
    """Every table drawn anew with its standard deviation over sqrt(q_0); tied ones are left, and it is said."""
    q = start[0] if start else found.architecture.embedding_norm
    if abs(math.log(q)) < 0.1:
        return []
    names = [f"{n}.weight" if _module(found.model, n) is not None else n for n in found.sites.embeddings]
    tied = [name for name in names if name in kept.tied]
    if tied:
        notes.append(f"{tied[0]} is also the readout: all embeddings are left alone: the logits keep their size.")
        return []
    return [_change(found, name, q) for name in names if kept.allows(name)]


def _module(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:  # a bare parameter
        return None


def _change(found: Recognised, name: str, q: float) -> Change:
    parameter = found.model.get_parameter(name)
    fan_in = math.prod(parameter.shape[1:])
    place = Projection("embedding", (name,), fan_in, parameter.shape[0])
    if found.weightless:
        old = math.sqrt(found.architecture.embedding_norm / max(len(found.sites.embeddings), 1))
    else:
        old = float(parameter.detach().double().square().mean().sqrt())
    owner = found.model.get_submodule(name.rpartition(".")[0])
    padding = getattr(owner, "padding_idx", None)
    reason = f"the first stream has mean square {q:.3g}; with this it has one"
    return Change(place, old, old / math.sqrt(q), "normal", reason, zero_row=padding)
