"""critical_plan: by theory where the architecture is recognised, by measurement where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from edgewise.errors import BadInput
from edgewise.interrupts import deferring
from edgewise.models.finite import refuse_infinite
from edgewise.models.model_map import ModelMap
from edgewise.models.state import preserved
from edgewise.repair.by_measurement import mean_of, plan_by_measurement, scheme_by_measurement
from edgewise.repair.by_theory import plan_by_theory
from edgewise.repair.diagnosis import with_frozen
from edgewise.repair.draw import new_values
from edgewise.repair.layers import Exclusions, layers_of
from edgewise.repair.meter import Meter, batch_for, refusing
from edgewise.repair.plan import TOLERANCE, Plan, TotalChanges
from edgewise.repair.recognised import Recognised, recognise
from edgewise.repair.schemes import refuse_goal

TRIALS = 2  # networks drawn to check what the theory predicts
UNSEEN = "The frozen weights were not measured: the expected totals take them as the config draws them."
DRAWS = ("normal", "uniform", "orthogonal")


@deferring
def critical_plan(
    model: nn.Module | ModelMap,
    batch: Any = None,
    *,
    keep: Sequence[str] = (),
    goal: str = "critical",
    budget: float = 1.0,
    draw: str | None = None,
    embeddings: bool = False,
    tokens: int | None = None,
    frozen: bool = False,
) -> Plan:
    """Which matrices get which gain, and why, as a table; the model is not touched.

    batch       whatever the model accepts; default: random ids, pixels or vectors, where the model shows which
    keep        parameters, modules or patterns that must stay as they are
    goal        critical, or a published scheme to compare with: deepnorm, depth-mup, gpt2, xavier, torch, orthogonal
    budget      the total log-change over depth, of angle and of gradient, that neither may exceed
    draw        normal, uniform or orthogonal; default: orthogonal, but normal where layers with skips are planned by
                measurement, and mirrored pairs where they make an MLP or a layer without skips linear
    embeddings  set them too, so that the first stream has mean square one (never where tied to the readout)
    tokens      length of the random input; default: 64
    frozen      write parameters with requires_grad=False too; default: they stay, and `kept` of the plan names them

    Left alone in any case: skip structure and multipliers, the scale of attention scores, norms that do not end a
    branch, the readout. The layers are those that `measure` reads, where it can read the model.
    """
    _refuse(model, goal, budget, draw)
    where = ModelMap.of(model)
    bare = where.model
    with refusing(f"no plan is possible for this {type(bare).__name__}"), preserved(bare):
        refuse_infinite(bare, batch)
        exclusions = Exclusions.of(bare, keep, frozen)
        plan = _plan(where, batch, exclusions, goal, budget, draw, embeddings, tokens)
        kept = [name for name, _ in bare.named_parameters() if name in exclusions.left]
        return replace(_without_frozen(plan, tuple(kept)), frozen=frozen)


def _without_frozen(plan: Plan, kept: tuple[str, ...]) -> Plan:
    """The plan with the frozen parameters that it leaves alone; where they stand in the way, its diagnosis says so."""
    if not kept:
        return plan
    if not plan.reached and plan.before is not None:
        after = plan.expected if plan.changes else None
        plan = replace(
            plan, diagnosis=with_frozen(plan.before, after, plan.budget), expected=after or plan.before
        )
    return replace(plan, kept=kept)


def _plan(
    where: ModelMap,
    batch: Any,
    exclusions: Exclusions,
    goal: str,
    budget: float,
    draw: str | None,
    embeddings: bool,
    tokens: int | None,
) -> Plan:
    bare, recognised = where.model, recognise(where, tokens, batch)
    if isinstance(recognised, Recognised) and recognised.weightless:
        plan = plan_by_theory(recognised, None, None, exclusions, goal, budget, draw, embeddings)
        return replace(plan, notes=(*plan.notes, UNSEEN)) if exclusions.left else plan
    if isinstance(recognised, str) and any(p.is_meta or hasattr(p, "to_local") for p in bare.parameters()):
        raise BadInput(
            f"no plan is possible: {recognised}. Plan on a whole model with weights: names are the same."
        )
    batch = batch_for(bare, tokens) if batch is None else batch
    if isinstance(recognised, str):
        return _by_measurement(where, batch, exclusions, goal, budget, draw, f"Not by theory: {recognised}")
    meter = Meter(bare, batch, recognised.layers, raw=False)
    before = meter.read()
    recognised = _at_length(recognised, meter.tokens) if tokens is None else recognised
    plan = plan_by_theory(recognised, before, meter.start, exclusions, goal, budget, draw, embeddings)
    plan = replace(plan, measured=meter.measured)
    if not plan.changes:
        return replace(plan, passes=meter.passes)
    trial = _trial(plan, meter)
    assert plan.expected is not None
    off = max(abs(trial.angle - plan.expected.angle), abs(trial.gradient - plan.expected.gradient))
    if exclusions.left:  # the theory is of layers drawn at random, and frozen ones are what they are
        if trial.worst <= budget + TOLERANCE:
            return replace(
                plan, passes=meter.passes, expected=trial, source="theory, totals measured", reached=True
            )
    elif off <= TOLERANCE + plan.expected.spread:
        return replace(plan, passes=meter.passes)
    why = f"Not by theory: it predicts {plan.expected}, and a trial draw has {trial}."
    return _by_measurement(where, batch, exclusions, goal, budget, draw, why, meter.passes)


def _refuse(model: Any, goal: str, budget: float, draw: str | None) -> None:
    refuse_goal(goal)
    if not isinstance(model, (nn.Module, ModelMap)):
        raise BadInput(f"critical_plan takes a torch.nn.Module, got {type(model).__name__}.")
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 < budget < 100:
        raise BadInput(f"budget must be a total log-change between 0 and 100, for example 1, got {budget!r}.")
    if draw not in (None, *DRAWS):
        raise BadInput(f"draw must be one of {', '.join(DRAWS)}, got {draw!r}.")


def _by_measurement(
    where: ModelMap,
    batch: Any,
    exclusions: Exclusions,
    goal: str,
    budget: float,
    draw: str | None,
    why: str,
    spent: int = 0,
) -> Plan:
    model, layers = where.model, layers_of(where, batch)
    if goal == "critical":
        plan = plan_by_measurement(model, batch, layers, exclusions, budget, draw, spent)
    else:
        plan = scheme_by_measurement(model, batch, layers, exclusions, budget, goal, spent)
    return replace(plan, notes=(*plan.notes, why))


def _at_length(recognised: Recognised, tokens: int) -> Recognised:
    """The description at the number of tokens that the batch has."""
    if tokens == recognised.architecture.tokens or tokens < 2:
        return recognised
    return replace(recognised, architecture=recognised.architecture.replace(tokens=tokens))


def _trial(plan: Plan, meter: Meter) -> TotalChanges:
    """The mean totals of networks drawn by the plan, to hold against what it expects."""
    draws = []
    for seed in range(TRIALS):
        values = new_values(meter.model, plan.changes, seed)
        draws.append(meter.read({name: v.to(meter.model.get_parameter(name)) for name, v in values}, seed))
    return mean_of(draws)
