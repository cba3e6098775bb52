"""The 1/sqrt(2 depth) of GPT-2 on the two output matrices: missing, on one of them, or on others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from edgewise.audit.finding import AuditFinding, Kind, Severity, redraw
from edgewise.audit.weights import Look, by

OUTPUTS = ("attention.output", "mlp.output")
BACK = (*OUTPUTS, "cross.output", "shared.output")  # all that lead back to the stream
CLOSE = 0.1  # in log: within a tenth of the factor looked for
LEAST_DEPTH = 3  # below, 1/sqrt(2 depth) is not told from other factors


def residual_scaling(
    recipe: dict[tuple[str, int], float] | None, depth: int, looks: Sequence[Look]
) -> Iterator[AuditFinding]:
    """With a family's recipe: what it scales and is not. Without: the scaling found where it does not belong."""
    factor = 1 / math.sqrt(2 * depth)
    first = [group for group in _by_role(looks) if len(group) == depth]
    if depth < LEAST_DEPTH or not first:
        return
    stds = {group[0].role: median(look.rms for look in group) for group in first}
    groups = {group[0].role: group for group in first}
    base = _common(stds)
    if base is None:
        return
    scaled = {role for role, std in stds.items() if _near(std, base * factor)}
    wanted = _scaled_by(recipe, factor) if recipe else ({*OUTPUTS} if scaled else set())
    yield from _findings(groups, scaled, wanted & set(stds), base, base * factor)


def _by_role(looks: Sequence[Look]) -> list[list[Look]]:
    return by([look for look in looks if look.drawn and look.stack == looks[0].stack], lambda look: look.role)


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
    groups: dict[str, list[Look]], scaled: set[str], wanted: set[str], base: float, small: float
) -> Iterator[AuditFinding]:
    misplaced, missing = sorted(scaled - {*BACK}), sorted(wanted - scaled)
    for role in misplaced:
        yield _finding(
            Kind.RESIDUAL_SCALING_MISPLACED, groups[role], base,
            f"{role} is smaller by 1/sqrt(2 depth): {small:.4g}",
            f"{base:.4g} here; the factor belongs to the output matrices of both branches",
        )  # fmt: skip
    for role in missing:
        near = [look for look in groups[role] if _near(look.rms, base)]
        if len(near) == len(groups[role]):
            yield _finding(
                Kind.RESIDUAL_SCALING_MISSING, near, small, f"{role} has standard deviation {near[0].rms:.4g}",
                f"{small:.4g}: 1/sqrt(2 depth) of the other matrices, on the output matrices of both branches",
            )  # fmt: skip


def _finding(kind: Kind, group: Sequence[Look], std: float, seen: str, expected: str) -> AuditFinding:
    names = tuple(name for look in group for name in look.matrix.parameters)
    return AuditFinding(kind, Severity.WARNING, names, seen, expected, redraw([g.matrix for g in group], std))
