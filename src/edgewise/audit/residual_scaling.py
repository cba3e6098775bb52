"""The 1/sqrt(2 depth) of GPT-2 on the two output matrices: missing, on one of them, or on others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from edgewise.audit.finding import AuditFinding, Kind, Severity, redraw
from edgewise.audit.weights import MatrixSummary, group_by

OUTPUTS = ("attention.output", "mlp.output")
BACK = (*OUTPUTS, "cross.output", "shared.output")  # all that lead back to the stream
CLOSE = 0.1  # in log: within a tenth of the factor looked for
LEAST_DEPTH = 3  # below, 1/sqrt(2 depth) cannot be told from other factors


def residual_scaling(
    recipe: dict[tuple[str, int], float] | None, depth: int, summaries: Sequence[MatrixSummary]
) -> Iterator[AuditFinding]:
    """With a family's recipe: what it scales and is not. Without: the scaling where it does not belong."""
    factor = 1 / math.sqrt(2 * depth)
    first = [group for group in _by_role(summaries) if len(group) == depth]
    if depth < LEAST_DEPTH or not first:
        return
    stds = {group[0].role: median(summary.rms for summary in group) for group in first}
    groups = {group[0].role: group for group in first}
    base = _common(stds)
    if base is None:
        return
    scaled = {role for role, std in stds.items() if _near(std, base * factor)}
    targets = _scaled_by(recipe, factor) if recipe else ({*OUTPUTS} if scaled else set())
    yield from _findings(groups, scaled, targets & set(stds), base, base * factor)


def _by_role(summaries: Sequence[MatrixSummary]) -> list[list[MatrixSummary]]:
    return group_by([s for s in summaries if s.random and s.stack == summaries[0].stack], lambda s: s.role)


def _common(stds: dict[str, float]) -> float | None:
    """The standard deviation of most matrices that read the stream; None where a recipe goes by fan-in."""
    inward = [std for role, std in stds.items() if role not in BACK]
    middle = median(inward)
    agree = sum(_near(std, middle) for std in inward)
    return middle if 2 * agree > len(inward) else None


def _near(value: float, target: float) -> bool:
    return abs(math.log(value / target)) < CLOSE


def _scaled_by(recipe: dict[tuple[str, int], float], factor: float) -> set[str]:
    """The output roles that the recipe scales."""
    plain = median(std for (role, _), std in recipe.items() if role not in BACK)
    return {role for role in OUTPUTS if (role, 0) in recipe and _near(recipe[role, 0], plain * factor)}


def _findings(
    groups: dict[str, list[MatrixSummary]], scaled: set[str], targets: set[str], base: float, small: float
) -> Iterator[AuditFinding]:
    misplaced, missing = sorted(scaled - {*BACK}), sorted(targets - scaled)
    for role in misplaced:
        yield _finding(
            Kind.RESIDUAL_SCALING_MISPLACED,
            groups[role],
            base,
            f"{role} is smaller by 1/sqrt(2 depth): {small:.4g}",
            f"{base:.4g} here; the factor belongs to the output matrices of both branches",
        )
    for role in missing:
        near = [summary for summary in groups[role] if _near(summary.rms, base)]
        if len(near) == len(groups[role]):
            yield _finding(
                Kind.RESIDUAL_SCALING_MISSING,
                near,
                small,
                f"{role} has standard deviation {near[0].rms:.4g}",
                f"{small:.4g}: 1/sqrt(2 depth) of the other matrices, on the output matrices of both branches",
            )


def _finding(
    kind: Kind, group: Sequence[MatrixSummary], std: float, observation: str, expected: str
) -> AuditFinding:
    names = tuple(name for summary in group for name in summary.matrix.parameters)
    return AuditFinding(
        kind, Severity.WARNING, names, observation, expected, redraw([g.matrix for g in group], std)
    )
