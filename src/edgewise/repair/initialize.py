"""initialize_: write a plan into a module, in place, and undo it bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.interrupts import check, deferring
from edgewise.models.behavior.refusals import words
from edgewise.models.state import back_in_shards, preserved
from edgewise.models.unwrap import unwrap
from edgewise.repair.critical_plan import critical_plan
from edgewise.repair.draw import new_values
from edgewise.repair.layers import Layers, frozen_names
from edgewise.repair.meter import Meter
from edgewise.repair.plan import TOLERANCE, Plan, TotalChanges, frozen_in_words


def local(parameter: Tensor) -> Tensor:
    """This rank's part of a sharded parameter (DTensor), or the parameter itself."""
    part = getattr(parameter, "to_local", None)
    return part() if callable(part) else parameter


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
    plan: Plan | str = "critical",
    *,
    batch: Any = None,
    generator: torch.Generator | int | None = None,
    device: Any = None,
    keep: Sequence[str] = (),
    budget: float = 1.0,
    draw: str | None = None,
    embeddings: bool = False,
    tokens: int | None = None,
    frozen: bool = False,
) -> Applied:
    """Write a plan into the model, in place; the result says what was done and can `undo()` it.

    plan       a Plan from `critical_plan`, or a goal: then the plan is drawn up here
    generator  a torch.Generator or a seed; every parameter is drawn from (seed, its name), so that order, shards and
               processes do not matter. Default: a seed from torch's global stream.
    device     where a model on the meta device is materialised first, each part by its own class
    frozen     write parameters with requires_grad=False too; default: they are kept, and a warning names them
    batch, keep, budget, draw, embeddings, tokens   of a goal, as in `critical_plan`; a Plan is complete without them

    A goal that no gain reaches is written as near as possible, with a warning that says why. The new weights are
    measured once, on the plan's batch: `after` of the result has the totals, or `unmeasured` why there are none.
    Twice is once: the same plan and seed write the same bits, and a goal leaves a model alone that is there already.
    An error or an interrupt on the way leaves the weights as they were.
    Half precisions are drawn in float32 and rounded; sharded parameters (DTensor) get this rank's part.
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"initialize_ takes a torch.nn.Module, got {type(model).__name__}.")
    bare = unwrap(model)
    back_in_shards(bare)
    options: dict[str, Any] = {
        "keep": keep,
        "budget": budget,
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
            after = Meter(model, how.batch, Layers(how.layers, how.leaf), how.raw).read()
    except Exception as error:  # noqa: BLE001  a stranger's model; the weights are written, and what failed is said
        check()
        return replace(applied, unmeasured=f"{type(error).__name__}: {words(error)}")
    expected = plan.expected
    if (
        expected is not None
        and plan.reached
        and not after.worst <= plan.budget + 2 * TOLERANCE + expected.spread
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
    """A model partly on the meta device is materialised as a whole: frozen values would be lost."""
    lost = [name for name, p in model.named_parameters() if not p.requires_grad and not p.is_meta]
    if lost:
        raise BadInput(
            f"part of this {type(model).__name__} is on the meta device, and {len(lost)} frozen parameters have values "
            f"that would be overwritten ({lost[0]}). Materialise the model yourself, then call initialize_."
        )


def _refuse_options(batch: Any, options: dict[str, Any]) -> None:
    """A Plan was drawn up with its options; here they would be ignored."""
    defaults = {"keep": (), "budget": 1.0, "draw": None, "embeddings": False, "tokens": None}
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
            into = (shape[-2] if place.transposed else shape[-1]) if len(shape) < 4 else 0
            if matrix and into and into != place.fan_in:
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
    with torch.no_grad():
        for name, values in new_values(model, plan.changes, seed):
            if name in names:
                _write(model.get_parameter(name), values)
            check()


def _write(parameter: Tensor, values: Tensor) -> None:
    """All of a plain parameter, this rank's shard of a DTensor; the cast rounds to the parameter's precision."""
    if hasattr(parameter, "to_local"):
        from torch.distributed.tensor import distribute_tensor

        cast = values.to(device=local(parameter).device, dtype=parameter.dtype)
        # Every rank drew the same values: no communication is needed to cut out its own part.
        shard = distribute_tensor(cast, parameter.device_mesh, parameter.placements, src_data_rank=None)  # type: ignore[attr-defined]
        local(parameter).copy_(local(shard))
        return
    parameter.copy_(values)


def _materialise(model: nn.Module, device: Any, seed: int) -> None:
    """Give a meta model values, each module by its class; what none of them initialises is refused by name."""
    model.to_empty(device=device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for _, tensor in _tensors(model):
            tensor.fill_(torch.nan if tensor.is_floating_point() else 0)
        for module in reversed(list(model.modules())):
            _own_initialization(model, module)
    unset = [name for name, t in _tensors(model) if t.is_floating_point() and bool(t.isnan().any())]
    if unset:
        raise BadInput(
            f"{unset[0]} is on the meta device and {type(model).__name__} has no initialization for it "
            f"({len(unset)} such). Materialise the model yourself, then call initialize_."
        )


def _own_initialization(model: nn.Module, module: nn.Module) -> None:
    """Hugging Face's hook of the whole model, else the module's own reset_parameters."""
    hook = getattr(model, "_init_weights", None)
    if callable(hook):
        hook(module)
    elif any(True for _ in _own(module)):
        for name in ("reset_parameters", "_reset_parameters"):
            reset = getattr(module, name, None)
            if callable(reset):
                reset()
                return


def _tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    return (*model.named_parameters(), *model.named_buffers())


def _own(module: nn.Module) -> Iterable[Tensor]:
    return (p for p in module._parameters.values() if p is not None)
