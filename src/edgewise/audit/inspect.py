"""audit_initialization: all that the weights can show to be wrong with an initialization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edgewise.audit.checks import (
    biases_not_zero,
    identical_layers,
    never_initialized,
    norm_gains_not_one,
    recipe_of,
    residual_scaling,
    tied_weights,
    unlike_recipe,
    unlike_siblings,
    useless_truncation,
)
from edgewise.audit.finding import AuditFinding, AuditKind, AuditSeverity, MatrixSummary, by_names, summarize
from edgewise.errors import BadInput
from edgewise.interrupts import deferring
from edgewise.models.model_map import ModelMap
from edgewise.models.names.model_sites import ModelSites

if TYPE_CHECKING:
    from torch import nn

ORDER = {
    severity: place
    for place, severity in enumerate((AuditSeverity.ERROR, AuditSeverity.WARNING, AuditSeverity.NOTE))
}


@deferring
def audit_initialization(
    model: nn.Module | ModelMap,
    batch: object = None,
    *,
    family_recipe: bool = True,
    truncated_at: float | None = None,
) -> tuple[AuditFinding, ...]:
    """Return what is wrong with this initialization, worst first; for fresh weights, not for trained ones.

    model          a torch.nn.Module with a stack of transformer blocks
    batch          what the model accepts, if names do not tell its matrices apart; default: made from its signature
    family_recipe  compare with how the model's family publishes to draw its weights
    truncated_at   the number of standard deviations at which the weights should be cut, if no config says so

    If the roles of the matrices are not known, matrices of the same name in different layers are compared, and a note
    says which checks were left out.

    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    >>> encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    >>> audit_initialization(encoder)[0].kind.value
    'layers start with identical weights'
    """
    where = ModelMap.of(model)
    if any(parameter.is_meta for parameter in where.model.parameters()):
        raise BadInput("this model is on the meta device and has no weights to audit. Build it first.")
    try:
        sites: ModelSites | None = (found := where.sites(batch))
        summaries = summarize(where.model, found)
        findings = list(_with_roles(where, found, summaries, family_recipe))
    except BadInput as error:
        sites, summaries = None, by_names(where.model)
        unchecked = (
            "matrices whose role is known; the residual scaling, the family's recipe and the embeddings were not "
            "checked"
        )
        advice = "give batch=, the arguments of a forward pass, if none was given"
        kind, why = AuditKind.ROLES_UNKNOWN, str(error).rstrip(".")
        findings = [AuditFinding(kind, AuditSeverity.NOTE, (), why, unchecked, advice)]
    if not summaries:
        raise BadInput(
            f"{type(where.model).__name__} has no matrix of floating-point numbers to audit; expected a model with "
            "weights."
        )
    findings += _of_all(where, sites, summaries, truncated_at)
    return tuple(sorted(_without_repetition(findings), key=lambda finding: ORDER[finding.severity]))


def _with_roles(
    where: ModelMap, sites: ModelSites, summaries: list[MatrixSummary], family_recipe: bool
) -> Iterator[AuditFinding]:
    """Return what needs to know which matrix is which."""
    architecture = where.family() if family_recipe and where.config else None
    recipe = None if architecture is None else recipe_of(where.config, architecture, sites)
    first = sites.stacks[0]
    own = [summary for summary in summaries if summary.stack == first.name]
    yield from residual_scaling(recipe, len(first.blocks), own)
    if recipe is not None:
        yield from unlike_recipe(recipe, own)


def _of_all(
    where: ModelMap, sites: ModelSites | None, summaries: list[MatrixSummary], truncated_at: float | None
) -> Iterator[AuditFinding]:
    model, config = where.model, where.config
    yield from identical_layers(model, summaries)
    yield from never_initialized(model, () if sites is None else sites.embeddings, summaries)
    yield from useless_truncation(config, summaries, truncated_at)
    yield from unlike_siblings(summaries)
    yield from norm_gains_not_one(model, _published_norm_gain(config))
    yield from biases_not_zero(model)
    yield from tied_weights(where, sites)


def _published_norm_gain(config: Mapping[str, Any]) -> float:
    """One; T5 starts its norms at its factor."""
    return float(config.get("initializer_factor", 1.0)) if config.get("model_type") == "t5" else 1.0


def _without_repetition(findings: list[AuditFinding]) -> list[AuditFinding]:
    """A departure from the recipe that a more telling finding explains is not repeated."""
    telling = (
        AuditKind.RESIDUAL_SCALING_MISSING,
        AuditKind.RESIDUAL_SCALING_MISPLACED,
        AuditKind.DEPARTS_FROM_SIBLINGS,
    )
    explained = {name for finding in findings if finding.kind in telling for name in finding.parameters}
    return [
        finding
        for finding in findings
        if finding.kind is not AuditKind.DEPARTS_FROM_RECIPE or not set(finding.parameters) <= explained
    ]


__all__ = ["AuditFinding", "AuditKind", "AuditSeverity", "audit_initialization"]
