"""Matrices that nobody has drawn: constant where others are random, not finite, or absurdly large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from edgewise.adapters.roles.record import ModelSites
from edgewise.audit.finding import AuditFinding, Kind, Severity, redraw
from edgewise.audit.weights import Look, siblings

if TYPE_CHECKING:
    from torch import Tensor, nn

HUGE = 1e3  # no recipe draws entries like this; memory that was never written often holds them


def never_initialized(model: nn.Module, sites: ModelSites, looks: Sequence[Look]) -> Iterator[AuditFinding]:
    drawn = [look.rms for look in looks if look.drawn and look.largest < HUGE]
    usual = median(drawn) if drawn else 0.02
    for group in siblings(looks):
        yield from _of_role(group, usual)
    for name in sites.embeddings:
        yield from _of_embedding(model, name, usual)


def _of_role(group: Sequence[Look], usual: float) -> Iterator[AuditFinding]:
    bad = [look for look in group if not look.drawn or look.largest >= HUGE]
    if not bad:
        return
    others = [look.rms for look in group if look not in bad]
    std = median(others) if others else usual
    # A whole role of zero output matrices is a known design: the branches start silent.
    silent = len(bad) == len(group) and bad[0].role.endswith(".output") and not any(look.rms for look in bad)
    severity = Severity.NOTE if silent else Severity.ERROR
    expected = "random entries, unless the branches start silent on purpose" if silent else (
        f"random entries of standard deviation near {std:.3g}, like its siblings" if others else "random entries"
    )  # fmt: skip
    names = tuple(name for look in bad for name in look.matrix.parameters)
    yield AuditFinding(
        Kind.NEVER_INITIALIZED, severity, names, _seen(bad[0]), expected, redraw([b.matrix for b in bad], std)
    )


def _seen(look: Look) -> str:
    if not look.finite:
        return f"{look.role}: entries that are not finite"
    if look.largest >= HUGE:
        return f"{look.role}: an entry as large as {look.largest:.3g}"
    return f"{look.role}: all entries are {'zero' if not look.rms else f'equal or vanishing, {look.rms:.3g}'}"


def _of_embedding(model: nn.Module, name: str, usual: float) -> Iterator[AuditFinding]:
    """Tables and positions: constant or not finite. One row alone is a token, which may well start at zero."""
    tensor, parameter = _tensor(model, name)
    if tensor.numel() == tensor.shape[-1] or (_finite(tensor) and float(tensor.std()) > 0):
        return
    constant = f"all entries are {float(tensor.flatten()[0]):.3g}" if _finite(tensor) else "entries not finite"
    yield AuditFinding(
        Kind.NEVER_INITIALIZED, Severity.WARNING if _finite(tensor) else Severity.ERROR, (parameter,), constant,
        "random entries, so that rows (tokens, positions) differ",
        f"torch.nn.init.normal_(model.get_parameter({parameter!r}), std={usual:.6g})",
    )  # fmt: skip


def _tensor(model: nn.Module, name: str) -> tuple[Tensor, str]:
    modules = dict(model.named_modules())
    parameter = f"{name}.weight" if name in modules else name
    return model.get_parameter(parameter).detach().double(), parameter


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
