"""critical_plan makes a plan, initialize_ writes it into a module in place and undoes it bit for bit.

A plan is by theory if the architecture is recognized, and by measurement if not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.interrupts import check, deferring
from edgewise.models.model_map import ModelMap
from edgewise.models.readable import refuse_infinite, words
from edgewise.models.state import back_in_shards, preserved, random_streams
from edgewise.models.unwrap import unwrap
from edgewise.optim.parallel import like_shard, local
from edgewise.repair.by_measurement import mean_of, plan_by_measurement, scheme_by_measurement
from edgewise.repair.by_theory import plan_by_theory
from edgewise.repair.layers import Exclusions, anatomy_of, frozen_names, has_norms, layers_of, matrix_changes
from edgewise.repair.meter import Meter, as_bad_input, batch_for
from edgewise.repair.new_values import new_values, refuse_goal
from edgewise.repair.plan import TOLERANCE, Plan, TotalChanges, frozen_in_words, with_frozen
from edgewise.repair.recognized import Recognized, recognize

TRIALS = 2  # networks drawn to check what the theory predicts
UNSEEN = "The frozen weights were not measured: the expected totals take them as the config draws them."
DRAWS = ("normal", "uniform", "orthogonal")


@deferring
def critical_plan(
    model: nn.Module | ModelMap,
    batch: object = None,
    *,
    keep: Sequence[str] = (),
    goal: str = "critical",
    limit: float = 1.0,
    draw: str | None = None,
    embeddings: bool = False,
    tokens: int | None = None,
    frozen: bool = False,
) -> Plan:
    """Plan which matrices get which gain, and why; the model is not changed.

    batch       whatever the model accepts; default: random ids, pixels or vectors, if the model shows which
    keep        parameters, modules or patterns that must stay as they are
    goal        critical, or a published scheme to compare with: deepnorm, depth-mup, gpt2, xavier, torch, orthogonal
    limit      the total log-change over depth, of angle and of gradient, that neither may exceed
    draw        normal, uniform or orthogonal; default: orthogonal, but normal where layers with skips are planned by
                measurement, and mirrored pairs if they make an MLP or a layer without skips linear
    embeddings  set them too, so that the first stream has mean square one (never where tied to the readout)
    tokens      length of the random input; default: 64
    frozen      write parameters with requires_grad=False too; default: they stay, and `kept` of the plan names them

    Left alone in any case: skip structure and multipliers, the scale of attention scores, norms that do not end a
    branch, the readout. The layers are those that `measure` reads, if it can read the model.

    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    >>> critical_plan(model, torch.randn(2, 8, 16)).goal
    'critical'
    """
    _refuse(model, goal, limit, draw)
    where = ModelMap.of(model)
    bare = where.model
    with as_bad_input(f"no plan is possible for this {type(bare).__name__}"), preserved(bare):
        refuse_infinite(bare, batch)
        exclusions = Exclusions.of(where, keep, frozen)
        plan = _plan(where, batch, exclusions, goal, limit, draw, embeddings, tokens)
        kept = [name for name, _ in bare.named_parameters() if name in exclusions.left]
        return replace(_without_frozen(plan, tuple(kept)), frozen=frozen)


SCALES = (0.1, 0.3, 1.7, 3.0, 10.0)  # of the matrices of the blocks, those of the atlas
GAINED = 1.2  # times fewer steps, from which on another scale is planned


@deferring
def plan_of_scale(
    model: nn.Module,
    batch: object,
    keep: Sequence[str],
    frozen: bool,
    steps: Callable[[nn.Module], float | None],
) -> Plan:
    """Plan the scale of the blocks' matrices with the fewest expected steps; none if they are not a fifth fewer.

    steps  what a network is expected to need, over a well initialized one; None if that is not known
    """
    _refuse(model, "critical", 1.0, None)
    where = ModelMap.of(model)
    bare = where.model
    with as_bad_input(f"no plan is possible for this {type(bare).__name__}"), preserved(bare):
        refuse_infinite(bare, batch)
        batch = batch_for(bare) if batch is None else batch
        layers, exclusions = layers_of(where, batch), Exclusions.of(where, keep, frozen)
        paths = anatomy_of(bare, batch, layers).matrices
        found = matrix_changes(bare, layers, paths, exclusions, "normal", "the scale with the fewest steps")
        meter, copy = Meter(bare, batch, layers, raw=not has_norms(bare, layers)), deepcopy(bare)
        before = meter.read()
        here = steps(bare)
        if here is None:
            raise BadInput("how many steps this network needs is not known: measure(model) says why.")
        costs = {1.0: here}
        for scale in SCALES:
            changes = tuple(replace(change, new_std=change.new_std * scale) for change in found)
            with torch.no_grad():
                for name, values in new_values(bare, changes, seed=0):
                    copy.get_parameter(name).copy_(values)
            cost = steps(copy)
            costs |= {} if cost is None else {scale: cost}
    best = min(costs, key=lambda scale: (costs[scale], abs(scale - 1)))
    if here < GAINED * costs[best]:
        best = 1.0
    said = ", ".join(f"{scale:g}: {costs[scale]:.2f}" for scale in sorted(costs))
    changes = tuple(replace(change, new_std=change.new_std * best) for change in found if best != 1)
    kept = tuple(name for name, _ in bare.named_parameters() if name in exclusions.left)
    return Plan(
        "fastest",
        changes,
        before,
        None,
        layers.depth,
        meter.width,
        1.0,
        "steps expected from the atlas",
        passes=2 + len(SCALES),
        diagnosis=f"Steps over those of a well initialized network, by the scale of the blocks' matrices: {said}. "
        + ("No scale needs a fifth fewer." if best == 1 else f"They become {best:g} times as large."),
        kept=kept,
        frozen=frozen,
    )


def _without_frozen(plan: Plan, kept: tuple[str, ...]) -> Plan:
    """The plan with the frozen parameters that it leaves alone; if they stand in the way, its diagnosis says so."""
    if not kept:
        return plan
    if not plan.reached and plan.before is not None:
        after = plan.expected if plan.changes else None
        plan = replace(
            plan, diagnosis=with_frozen(plan.before, after, plan.limit), expected=after or plan.before
        )
    return replace(plan, kept=kept)


def _plan(
    where: ModelMap,
    batch: object,
    exclusions: Exclusions,
    goal: str,
    limit: float,
    draw: str | None,
    embeddings: bool,
    tokens: int | None,
) -> Plan:
    bare, recognized = where.model, recognize(where, tokens, batch)
    if isinstance(recognized, Recognized) and recognized.weightless:
        plan = plan_by_theory(recognized, None, None, exclusions, goal, limit, draw, embeddings)
        return replace(plan, notes=(*plan.notes, UNSEEN)) if exclusions.left else plan
    if isinstance(recognized, str) and any(p.is_meta or hasattr(p, "to_local") for p in bare.parameters()):
        raise BadInput(
            f"no plan is possible: {recognized}. Plan on a whole model with weights: names are the same."
        )
    batch = batch_for(bare, tokens) if batch is None else batch
    if isinstance(recognized, str):
        return _by_measurement(where, batch, exclusions, goal, limit, draw, f"Not by theory: {recognized}")
    meter = Meter(bare, batch, layers_of(where, batch), raw=False)
    before = meter.read()
    if tokens is None and meter.tokens >= 2:  # as many as the batch has
        recognized = replace(recognized, architecture=recognized.architecture.replace(tokens=meter.tokens))
    plan = plan_by_theory(recognized, before, meter.start, exclusions, goal, limit, draw, embeddings)
    plan = replace(plan, measured=meter.measured)
    if not plan.changes:
        return replace(plan, passes=meter.passes)
    trial = _trial(plan, meter)
    assert plan.expected is not None
    off = max(abs(trial.angle - plan.expected.angle), abs(trial.gradient - plan.expected.gradient))
    if exclusions.left:  # the theory is of layers drawn at random, and frozen ones are what they are
        if trial.worst <= limit + TOLERANCE:
            return replace(
                plan, passes=meter.passes, expected=trial, source="theory, totals measured", reached=True
            )
    elif off <= TOLERANCE + plan.expected.spread:
        return replace(plan, passes=meter.passes)
    why = f"Not by theory: it predicts {plan.expected}, and a trial draw has {trial}."
    return _by_measurement(where, batch, exclusions, goal, limit, draw, why, meter.passes)


def _refuse(model: object, goal: str, limit: float, draw: str | None) -> None:
    refuse_goal(goal)
    if not isinstance(model, (nn.Module, ModelMap)):
        raise BadInput(f"critical_plan takes a torch.nn.Module, got {type(model).__name__}.")
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < 100:
        raise BadInput(f"limit must be a total log-change between 0 and 100, for example 1, got {limit!r}.")
    if draw not in (None, *DRAWS):
        raise BadInput(f"draw must be one of {', '.join(DRAWS)}, got {draw!r}.")


def _by_measurement(
    where: ModelMap,
    batch: object,
    exclusions: Exclusions,
    goal: str,
    limit: float,
    draw: str | None,
    why: str,
    spent: int = 0,
) -> Plan:
    model, layers = where.model, layers_of(where, batch)
    if goal == "critical":
        plan = plan_by_measurement(model, batch, layers, exclusions, limit, draw, spent)
    else:
        plan = scheme_by_measurement(model, batch, layers, exclusions, limit, goal, spent)
    return replace(plan, notes=(*plan.notes, why))


def _trial(plan: Plan, meter: Meter) -> TotalChanges:
    """The mean totals of networks drawn by the plan, to hold against what it expects."""
    draws = []
    for seed in range(TRIALS):
        values = new_values(meter.model, plan.changes, seed)
        draws.append(meter.read({name: v.to(meter.model.get_parameter(name)) for name, v in values}, seed))
    return mean_of(draws)


@dataclass(eq=False)
class Applied:
    """An applied plan; `undo()` restores the weights. It holds a copy of each written parameter until dropped."""

    plan: Plan
    seed: int
    model: nn.Module
    originals: (
        Mapping[str, Tensor] | None
    )  # None for a model that came from the meta device and had no values
    kept: tuple[str, ...] = ()  # frozen parameters (requires_grad=False) that were not written
    after: TotalChanges | None = None  # total changes measured once with the new weights
    unmeasured: str = ""  # why they were not

    @deferring
    def undo(self) -> None:
        """The weights from before, bit for bit; raises when the model had none."""
        if self.originals is None:
            raise BadInput(
                "there is nothing to restore: before initialize_ this model was on the meta device."
            )
        with torch.no_grad():
            for name, values in self.originals.items():
                local(self.model.get_parameter(name)).copy_(values)

    def __repr__(self) -> str:
        return f"<Applied {self.plan!r} with seed {self.seed}; undo() restores the weights>"

    def __str__(self) -> str:
        late = [
            name for name in self.plan.parameters if name in self.kept
        ]  # frozen after the plan was drawn up
        count = len(self.plan.parameters) - len(late)
        written = f"Written with seed {self.seed}: {count} parameters." if count else "Nothing was written."
        came = [f"Measured after the change:            {self.after}"] if self.after is not None else []
        came += [f"Not measured after the change: {self.unmeasured}."] if self.unmeasured else []
        return "\n".join([str(self.plan), *([frozen_in_words(late)] if late else []), written, *came])


@deferring
def initialize_(
    model: nn.Module,
    batch: object = None,
    *,
    plan: Plan | str = "critical",
    generator: torch.Generator | int | None = None,
    device: torch.device | str | None = None,
    keep: Sequence[str] = (),
    limit: float = 1.0,
    draw: str | None = None,
    embeddings: bool = False,
    tokens: int | None = None,
    frozen: bool = False,
) -> Applied:
    """Write a plan into the model, in place; the result says what was done and can `undo()` it.

    batch      of a goal: what the model is measured on, (a cut of) what it accepts; default: made from its signature
    plan       a Plan from `critical_plan`, or a goal: then the plan is drawn up here
    generator  a torch.Generator or a seed; every parameter is drawn from (seed, its name), so that order, shards and
               processes do not matter. Default: a seed from torch's global stream.
    device     where a model on the meta device is materialized first, each part by its own class
    frozen     write parameters with requires_grad=False too; default: they are kept, and a warning names them
    keep, limit, draw, embeddings, tokens   of a goal, as in `critical_plan`; a Plan is complete without them

    A goal that no gain reaches is written as near as possible, with a warning that says why. The new weights are
    measured once, on the plan's batch: `after` of the result has the totals, or `unmeasured` why there are none.
    Twice is once: the same plan and seed write the same bits, and a goal leaves a model alone that is there already.
    An error or an interrupt on the way leaves the weights as they were.
    Half precisions are drawn in float32 and rounded; sharded parameters (DTensor) get this rank's part.

    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    >>> applied = initialize_(model, torch.randn(2, 8, 16), generator=0)
    >>> applied.plan.reached
    True
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"initialize_ takes a torch.nn.Module, got {type(model).__name__}.")
    if isinstance(batch, Plan | str):
        raise BadInput("the second argument of initialize_ is the batch. Give the plan by name: plan=plan.")
    bare = unwrap(model)
    back_in_shards(bare)
    options: dict[str, Any] = {
        "keep": keep,
        "limit": limit,
        "draw": draw,
        "embeddings": embeddings,
        "tokens": tokens,
    }
    if isinstance(plan, Plan):
        _refuse_options(batch, options)
    else:
        plan = critical_plan(bare, batch, goal=plan, frozen=frozen, **options)
        _warn_of(plan)
    _refuse_other(bare, plan)
    late = [] if frozen or plan.frozen else _frozen_of(bare, plan)
    weightless = any(parameter.is_meta for parameter in bare.parameters())
    if weightless and not (frozen or plan.frozen):
        _refuse_values(bare)
    stream = generator if isinstance(generator, torch.Generator) else torch.default_generator
    numbers = stream.get_state()
    seed = _seed(generator, bare)
    if weightless:
        _materialise(bare, "cpu" if device is None else device, seed)
    names = [name for name in plan.parameters if name not in late]
    originals = {name: local(bare.get_parameter(name)).detach().clone() for name in names}
    applied = Applied(plan, seed, bare, originals, (*plan.kept, *late))
    try:
        _write_all(bare, plan, seed, names)
        applied = _measured(applied) if names else applied
    except BaseException:
        applied.undo()
        stream.set_state(numbers)
        raise
    return replace(applied, originals=None) if weightless else applied


def _measured(applied: Applied) -> Applied:
    """With the totals of the new weights, on what the plan was measured on: one pass; a warning if they miss it."""
    plan, model, how = applied.plan, applied.model, applied.plan.measured
    if how is None:
        return replace(applied, unmeasured="the plan was drawn up without a measurement")
    try:
        with preserved(model):
            after = Meter(model, how.batch, how.layers, how.raw).read()
    except Exception as error:  # noqa: BLE001  a stranger's model; the weights are written, and what failed is said
        check()
        return replace(applied, unmeasured=f"{type(error).__name__}: {words(error)}")
    expected = plan.expected
    if (
        expected is not None
        and plan.reached
        and not after.worst <= plan.limit + 2 * TOLERANCE + expected.spread
    ):
        warnings.warn(
            f"With the new weights the totals are {after}; the plan expected {expected}. undo() restores the old ones.",
            stacklevel=4,
        )
    return replace(applied, after=after)


def _warn_of(plan: Plan) -> None:
    """Say what came of a goal: who names one has not read the plan."""
    if not plan.reached:
        did = "The nearest gains are written; undo() restores." if plan.changes else "Nothing is written."
        warnings.warn(f"{plan.diagnosis} {did}", stacklevel=4)
    if plan.kept:
        warnings.warn(plan.kept_in_words, stacklevel=4)


def _frozen_of(model: nn.Module, plan: Plan) -> list[str]:
    """Parameters that the plan lists and this model has frozen, with a warning: the plan expects them to be written."""
    frozen = frozen_names(model)
    late = [name for name in plan.parameters if name in frozen]
    if late:
        warnings.warn(
            f"{frozen_in_words(late)} The plan expects them to be written, so what it expects does not hold: make a "
            "plan of the model as it is now, or give frozen=True.",
            stacklevel=4,
        )
    return late


def _refuse_values(model: nn.Module) -> None:
    """A model partly on the meta device is materialized as a whole: frozen values would be lost."""
    lost = [name for name, p in model.named_parameters() if not p.requires_grad and not p.is_meta]
    if lost:
        raise BadInput(
            f"part of this {type(model).__name__} is on the meta device, and {len(lost)} frozen parameters have values "
            f"that would be overwritten ({lost[0]}). Materialize the model yourself, then call initialize_."
        )


def _refuse_options(batch: object, options: dict[str, object]) -> None:
    """A Plan was drawn up with its options; here they would be ignored."""
    defaults = {"keep": (), "limit": 1.0, "draw": None, "embeddings": False, "tokens": None}
    names = ["batch"] if batch is not None else []
    names += [name for name, value in options.items() if value != defaults[name]]
    if names:
        raise BadInput(f"a Plan is complete: give {', '.join(names)} to critical_plan instead.")


def _refuse_other(model: nn.Module, plan: Plan) -> None:
    """The plan must be of this model: every parameter is there, in the shape its rows and fan-in say."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    missing = [name for name in plan.parameters if name not in names]
    if missing:
        raise BadInput(
            f"the plan is of another model: {missing[0]} is not in this {type(model).__name__} "
            f"({len(missing)} of {len(plan.parameters)} are missing). Draw up a plan of this model."
        )
    for change in plan.changes:
        place = change.projection
        for name in place.parameters:
            shape = tuple(model.get_parameter(name).shape)
            matrix = len(shape) > 1 and change.draw not in ("zero", "constant")
            if (
                matrix
                and place.flat(model.get_parameter(name)).shape[-2 if place.transposed else -1]
                != place.fan_in
            ):
                raise BadInput(
                    f"the plan is of another model: {name} is {shape}, expected fan-in {place.fan_in}."
                )


def _seed(generator: torch.Generator | int | None, model: nn.Module) -> int:
    """One number for all parameters; ranks that share a sharded model take that of rank 0."""
    if isinstance(generator, int) and not isinstance(generator, bool):
        return generator
    if generator is not None and not isinstance(generator, torch.Generator):
        raise BadInput(f"generator must be a torch.Generator or a whole number, got {generator!r}.")
    device = "cpu" if generator is None else generator.device
    seed = torch.randint(2**62, (), generator=generator, device=device)
    sharded = any(hasattr(parameter, "to_local") for parameter in model.parameters())
    if generator is None and sharded and torch.distributed.is_initialized():
        torch.distributed.broadcast(seed, src=0)
    return int(seed)


def _write_all(model: nn.Module, plan: Plan, seed: int, names: Sequence[str]) -> None:
    """All of a plain parameter, this rank's shard of a DTensor; the cast rounds to the parameter's precision."""
    with torch.no_grad():
        for name, values in new_values(model, plan.changes, seed):
            if name in names:
                parameter = model.get_parameter(name)
                target = local(parameter)
                # Every rank drew the same values: no communication is needed to cut out its own part.
                target.copy_(local(like_shard(values.to(target), parameter)))
            check()


def _materialise(model: nn.Module, device: torch.device | str, seed: int) -> None:
    """Give a meta model values, each module by its class; raise if a value is left uninitialized."""
    model.to_empty(device=device)
    with random_streams(), torch.no_grad():
        torch.manual_seed(seed)
        for _, tensor in _tensors(model):
            tensor.fill_(torch.nan if tensor.is_floating_point() else 0)
        for module in reversed(list(model.modules())):
            _own_initialization(model, module)
    unset = [name for name, t in _tensors(model) if t.is_floating_point() and bool(t.isnan().any())]
    if unset:
        raise BadInput(
            f"{unset[0]} is on the meta device and {type(model).__name__} has no initialization for it "
            f"({len(unset)} such). Materialize the model yourself, then call initialize_."
        )


def _own_initialization(model: nn.Module, module: nn.Module) -> None:
    """Hugging Face's hook of the whole model, else the module's own reset_parameters."""
    hook = getattr(model, "_init_weights", None)
    if callable(hook):
        hook(module)
    elif any(parameter is not None for parameter in module._parameters.values()):
        for name in ("reset_parameters", "_reset_parameters"):
            reset = getattr(module, name, None)
            if callable(reset):
                reset()
                return


def _tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    return (*model.named_parameters(), *model.named_buffers())
