"""audit_initialization: all that the weights can show to be wrong with an initialization."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edgewise.audit.finding import AuditFinding, Kind, Severity
from edgewise.audit.identical_layers import identical_layers
from edgewise.audit.never_initialized import never_initialized
from edgewise.audit.residual_scaling import residual_scaling
from edgewise.audit.standard_deviations import recipe_of, unlike_recipe, unlike_siblings
from edgewise.audit.ties import tied_weights
from edgewise.audit.truncation import useless_truncation
from edgewise.audit.vectors import biases_not_zero, norm_gains_not_one
from edgewise.audit.weights import MatrixSummary, summarise
from edgewise.errors import BadInput
from edgewise.interrupts import deferring
from edgewise.models.model_map import ModelMap

if TYPE_CHECKING:
    from torch import nn

ORDER = {severity: place for place, severity in enumerate((Severity.ERROR, Severity.WARNING, Severity.NOTE))}


@deferring
def audit_initialization(
    model: nn.Module, *, family_recipe: bool = True, truncated_at: float | None = None
) -> tuple[AuditFinding, ...]:
    """What is wrong with this initialization, worst first; for fresh weights, not for trained ones.

    model          a torch.nn.Module with a stack of transformer blocks
    family_recipe  compare with how the model's family publishes to draw its weights
    truncated_at   the number of standard deviations at which the weights should be cut, where no config says so

    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    >>> encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    >>> audit_initialization(encoder)[0].kind.value
    'layers start with identical weights'
    """
    where = ModelMap(model)
    if any(parameter.is_meta for parameter in where.model.parameters()):
        raise BadInput(
            "this model is on the meta device and has no weights to audit. Build it on a device first."
        )
    findings = list(_all(where, summarise(where.model, where.sites()), family_recipe, truncated_at))
    return tuple(sorted(_without_repetition(findings), key=lambda finding: ORDER[finding.severity]))


def _all(
    where: ModelMap, summaries: list[MatrixSummary], family_recipe: bool, truncated_at: float | None
) -> Iterator[AuditFinding]:
    model, model_sites, config = where.model, where.sites(), where.config
    architecture = where.family() if family_recipe and config else None
    recipe = None if architecture is None else recipe_of(config, architecture, model_sites)
    own = [summary for summary in summaries if summary.stack == model_sites.stacks[0].name]
    yield from identical_layers(model, summaries)
    yield from never_initialized(model, model_sites, summaries)
    yield from residual_scaling(recipe, model_sites.depth, own)
    yield from useless_truncation(config, summaries, truncated_at)
    yield from unlike_siblings(summaries)
    if recipe is not None:
        yield from unlike_recipe(recipe, own)
    yield from norm_gains_not_one(model, _published_norm_gain(config))
    yield from biases_not_zero(model)
    yield from tied_weights(where, model_sites)


def _published_norm_gain(config: dict[str, Any]) -> float:
    """One; T5 starts its norms at its factor."""
    return float(config.get("initializer_factor", 1.0)) if config.get("model_type") == "t5" else 1.0


def _without_repetition(findings: list[AuditFinding]) -> list[AuditFinding]:
    """A departure from the recipe that a more telling finding explains is not repeated."""
    telling = (Kind.RESIDUAL_SCALING_MISSING, Kind.RESIDUAL_SCALING_MISPLACED, Kind.DEPARTS_FROM_SIBLINGS)
    explained = {name for finding in findings if finding.kind in telling for name in finding.parameters}
    return [
        finding
        for finding in findings
        if finding.kind is not Kind.DEPARTS_FROM_RECIPE or not set(finding.parameters) <= explained
    ]


__all__ = ["AuditFinding", "Kind", "Severity", "audit_initialization"]
