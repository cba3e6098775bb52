"""Matrices that were never drawn: constant where others are random, not finite, or absurdly large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from edgewise.audit.finding import AuditFinding, Kind, Severity, redraw
from edgewise.audit.weights import MatrixSummary, siblings
from edgewise.models.names.record import ModelSites

if TYPE_CHECKING:
    from torch import Tensor, nn

HUGE = 1e3  # no recipe draws entries like this; memory that was never written often holds them


def never_initialized(
    model: nn.Module, sites: ModelSites, summaries: Sequence[MatrixSummary]
) -> Iterator[AuditFinding]:
    """One finding per role with bad matrices, and per bad embedding."""
    usable = [s.rms for s in summaries if s.random and s.largest < HUGE]
    usual = median(usable) if usable else 0.02
    for group in siblings(summaries):
        yield from _of_role(group, usual)
    for name in sites.embeddings:
        yield from _of_embedding(model, name, usual)


def _of_role(group: Sequence[MatrixSummary], usual: float) -> Iterator[AuditFinding]:
    bad = [summary for summary in group if not summary.random or summary.largest >= HUGE]
    if not bad:
        return
    others = [summary.rms for summary in group if summary not in bad]
    std = median(others) if others else usual
    # A whole role of zero output matrices is a known design: the branches start silent.
    silent = (
        len(bad) == len(group) and bad[0].role.endswith(".output") and not any(summary.rms for summary in bad)
    )
    severity = Severity.NOTE if silent else Severity.ERROR
    expected = (
        "random entries, unless the branches start silent on purpose"
        if silent
        else (
            f"random entries of standard deviation near {std:.3g}, like its siblings"
            if others
            else "random entries"
        )
    )
    names = tuple(name for summary in bad for name in summary.matrix.parameters)
    yield AuditFinding(
        Kind.NEVER_INITIALIZED,
        severity,
        names,
        _observation(bad[0]),
        expected,
        redraw([b.matrix for b in bad], std),
    )


def _observation(summary: MatrixSummary) -> str:
    if not summary.finite:
        return f"{summary.role}: entries that are not finite"
    if summary.largest >= HUGE:
        return f"{summary.role}: an entry as large as {summary.largest:.3g}"
    return f"{summary.role}: all entries are {'zero' if not summary.rms else f'equal or vanishing, {summary.rms:.3g}'}"


def _of_embedding(model: nn.Module, name: str, usual: float) -> Iterator[AuditFinding]:
    """Tables and positions: constant or not finite. One row alone is a token, which may well start at zero."""
    tensor, parameter = _tensor(model, name)
    if tensor.numel() == tensor.shape[-1] or (_finite(tensor) and float(tensor.std()) > 0):
        return
    constant = (
        f"all entries are {float(tensor.flatten()[0]):.3g}" if _finite(tensor) else "entries not finite"
    )
    yield AuditFinding(
        Kind.NEVER_INITIALIZED,
        Severity.WARNING if _finite(tensor) else Severity.ERROR,
        (parameter,),
        constant,
        "random entries, so that rows (tokens, positions) differ",
        f"torch.nn.init.normal_(model.get_parameter({parameter!r}), std={usual:.6g})",
    )


def _tensor(model: nn.Module, name: str) -> tuple[Tensor, str]:
    modules = dict(model.named_modules())
    parameter = f"{name}.weight" if name in modules else name
    return model.get_parameter(parameter).detach().double(), parameter


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
