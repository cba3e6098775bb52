"""Truncation that cuts nothing: `trunc_normal_(std=0.02)` of torch cuts at +-2, which is 100 sigma."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from edgewise.audit.finding import AuditFinding, Kind, Severity
from edgewise.audit.weights import MatrixSummary, group_by
from edgewise.errors import BadInput
from edgewise.models.config.gains import truncated

CUTS_NOTHING = 4.0  # a normal number lies beyond it once in 16,000 draws
KEYS = ("initializer_cutoff_factor",)


def useless_truncation(
    config: dict[str, Any], summaries: Sequence[MatrixSummary], truncated_at: float | None
) -> Iterator[AuditFinding]:
    """Where the config (or the caller) says that entries are cut at c sigma, and they reach further.

    A normal cut at c has standard deviation f(c) s, so no entry exceeds c/f(c) standard deviations.
    """
    key = next((key for key in KEYS if config.get(key) is not None), None)
    cutoff = truncated_at if truncated_at is not None else (float(config[key]) if key else None)
    if cutoff is None:
        return
    if not cutoff > 0:
        raise BadInput(f"truncated_at must be a number of sigmas above 0, got {cutoff!r}.")
    source = f"the config's {key}" if truncated_at is None else "truncated_at"
    if cutoff >= CUTS_NOTHING:
        yield _says_nothing(cutoff, source, summaries)
        return
    for group in group_by([s for s in summaries if s.random], lambda s: (s.stack, s.role)):
        beyond = [summary for summary in group if _reach(summary) > _limit(cutoff) * (1 + 4 * summary.error)]
        if beyond:
            yield _finding(cutoff, source, beyond)


def _limit(cutoff: float) -> float:
    return cutoff / truncated(1.0, cutoff)


def _reach(summary: MatrixSummary) -> float:
    return summary.largest / summary.rms


def _says_nothing(cutoff: float, source: str, summaries: Sequence[MatrixSummary]) -> AuditFinding:
    names = tuple(summary.parameter for summary in summaries[:1])
    return AuditFinding(
        Kind.TRUNCATION_CUTS_NOTHING,
        Severity.WARNING,
        names,
        f"{source} cuts at {cutoff:g} sigma",
        "a cut near 2 or 3 sigma; beyond 4 it changes nothing",
        f"model.config.{KEYS[0]} = 2.0; model.init_weights()",
    )


def _finding(cutoff: float, source: str, beyond: Sequence[MatrixSummary]) -> AuditFinding:
    names = tuple(name for summary in beyond for name in summary.matrix.parameters)
    std = beyond[0].rms
    repair = (
        f"for name in {names!r}: torch.nn.init.trunc_normal_(model.get_parameter(name), std={std:.6g}, "
        f"a={-cutoff * std:.6g}, b={cutoff * std:.6g})"
    )
    return AuditFinding(
        Kind.TRUNCATION_CUTS_NOTHING,
        Severity.WARNING,
        names,
        f"{beyond[0].role} reaches {max(map(_reach, beyond)):.2f} standard deviations",
        f"at most {_limit(cutoff):.2f}, as {source} cuts at {cutoff:g} sigma; a and b of trunc_normal_ are "
        "numbers, not multiples of std",
        repair,
    )
