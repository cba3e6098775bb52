"""Matrices whose standard deviation is not the one their family publishes, or not that of the other layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from edgewise.audit.finding import AuditFinding, Kind, Severity, redraw
from edgewise.audit.weights import MatrixSummary, group_by, siblings
from edgewise.models.names.record import ModelSites
from edgewise.nouns.architecture import Architecture


def recipe_of(
    config: dict[str, Any], architecture: Architecture, sites: ModelSites
) -> dict[tuple[str, int], float]:
    """Standard deviation by (role, block) of the primary stack, from the gains its config translates to.

    Queries, keys and values are drawn alike in every family (T5: queries smaller by sqrt(d_kv)); the gains of
    a description include the norms' gains, which T5 starts at its factor f.
    """
    f = float(config.get("initializer_factor", 1.0)) if config["model_type"] == "t5" else 1.0
    t5_query = 1 / math.sqrt(architecture.head_width) if config["model_type"] == "t5" else 1.0
    recipe: dict[tuple[str, int], float] = {}
    for index, block in enumerate(sites.blocks):
        value, output, inward, out = (
            _at(architecture, name, index)
            for name in ("value_gain", "output_gain", "mlp_in_gain", "mlp_out_gain")
        )
        if not output or not inward:
            continue
        s = value / output / f / math.sqrt(block.attention.value.fan_in)
        t, back = inward / f / math.sqrt(block.mlp.input.fan_in), out / math.sqrt(block.mlp.output.fan_in)
        o = output / math.sqrt(block.attention.output.fan_in)
        attention = {
            "query": s * t5_query,
            "key": s,
            "value": s,
            "output": o,
            "query_down": s,
            "key_value_down": s,
            "key_rotated": s,
        }
        recipe |= {(f"attention.{role}", index): std for role, std in attention.items()}
        for owner in ("mlp", "shared"):
            mlp = {"gate": t, "input": t, "router": t, "output": back}
            recipe |= {(f"{owner}.{role}", index): std for role, std in mlp.items()}
    return recipe


def _at(architecture: Architecture, name: str, index: int) -> float:
    value = getattr(architecture, name)
    return float(value[index] if isinstance(value, tuple) else value)


def unlike_recipe(
    recipe: dict[tuple[str, int], float], summaries: Sequence[MatrixSummary]
) -> Iterator[AuditFinding]:
    """One finding per role and expected value: all the layers that depart from it."""
    listed = [s for s in summaries if s.random and (s.role, s.block) in recipe]
    wrong = [s for s in listed if s.departs_from(recipe[s.role, s.block])]
    for group in group_by(wrong, lambda s: (s.role, recipe[s.role, s.block], s.matrix.rows)):
        yield _recipe_finding(group, recipe[group[0].role, group[0].block])


def _recipe_finding(group: Sequence[MatrixSummary], expected: float) -> AuditFinding:
    first = group[0]
    return AuditFinding(
        Kind.DEPARTS_FROM_RECIPE,
        Severity.WARNING,
        tuple(n for s in group for n in s.matrix.parameters),
        f"{first.role} has standard deviation {first.rms:.4g}",
        f"{expected:.4g}, which the family publishes",
        redraw([summary.matrix for summary in group], expected),
    )


def unlike_siblings(summaries: Sequence[MatrixSummary]) -> Iterator[AuditFinding]:
    """Robust z of log rms against the median of the layers, whose own error is small beside one layer's.

    Where more than a third of the layers depart, the depth has a schedule (some recipes shrink with the layer)
    and no layer is the odd one.
    """
    for group in siblings([s for s in summaries if s.random]):
        if len(group) < 3:
            continue
        middle = median(summary.rms for summary in group)
        odd = [summary for summary in group if summary.departs_from(middle)]
        if 0 < len(odd) <= len(group) / 3:
            yield from (_sibling_finding(summary, middle) for summary in odd)


def _sibling_finding(summary: MatrixSummary, middle: float) -> AuditFinding:
    place, errors = (
        f"{summary.role} of block {summary.block}",
        abs(math.log(summary.rms / middle)) / summary.error,
    )
    return AuditFinding(
        Kind.DEPARTS_FROM_SIBLINGS,
        Severity.WARNING,
        summary.matrix.parameters,
        f"{place} has standard deviation {summary.rms:.4g} ({errors:.0f} sampling errors away)",
        f"{middle:.4g}, as in the other blocks",
        redraw([summary.matrix], middle),
    )
