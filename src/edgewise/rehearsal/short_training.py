"""One short training at one rate, on a copy of the model (in place if sharded), with real or synthetic batches.

A copy is drawn again for every rate, so that each starts from the same weights, buffers and Python state, and only one
exists at a time. FSDP2 cannot be copied: its shards are trained in place and put back from a snapshot, bit for bit.

Some batches are trained on, some held back; a model without data gets synthetic ones. Whatever hands the batches over
is left as it was: a loader's own random generators are put back, and a list or any other re-iterable object can be read
again. Only an iterator cannot be rewound; it is read once, and a note says so.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.files import Document, json_values, read_text, whole_file
from edgewise.landscape.evaluation import Batch, Loss, loss_of
from edgewise.models.inputs import HEADS, default_batch
from edgewise.models.state import back_in_shards, is_sharded, preserved
from edgewise.models.twin import independent_copy
from edgewise.models.unwrap import unwrap
from edgewise.optim.parallel import data_parallel_group, local
from edgewise.optim.wrapper import OptimizerWrapper
from edgewise.rehearsal.optimizers import (
    OptimizerSource,
    Rates,
    copied,
    factory_of,
    refuse_optimizer,
    trainable,
)
from edgewise.rehearsal.rate import Moment, Rehearsal, rehearsal_of
from edgewise.rehearsal.validation import Validation, View

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


FRESH = 6  # batches held back; their mean loss is what rates are compared by
NEXT = 4  # symbols that may follow another
MOST = 512  # symbols in use
NOTE = (
    "rehearsed on synthetic batches (a random Markov chain or noisy random images), so this is a first guess: give "
    "your own batches for a rate to train with"
)


@dataclass(frozen=True)
class BatchSplit:
    """Batches in memory: `train` in the order in which they are used, `fresh` held back."""

    train: tuple[Batch, ...]
    fresh: tuple[Batch, ...]
    notes: tuple[str, ...] = ()

    def at(self, step: int, accumulate: int) -> list[Batch]:
        """Return the batches of one optimizer step, in turn if there are fewer than the rehearsal takes."""
        return [self.train[(step * accumulate + part) % len(self.train)] for part in range(accumulate)]


def first_batches(batches: Iterable[Batch], count: int) -> list[Batch]:
    """Return the first batches of whatever the user has, those to be held back included.

    Refused where too few or empty.
    """
    rows = _read(batches, count + FRESH)
    if len(rows) < 2:
        raise BadInput(
            f"{len(rows)} batch{'es' * (len(rows) != 1)} came, and at least 2 are needed: one to train on and one to "
            "tell learning from memorizing. Give a list of batches, or a DataLoader."
        )
    for number, batch in enumerate(rows):
        tensors = [
            leaf
            for leaf in tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
            if isinstance(leaf, Tensor)
        ]
        if any(tensor.numel() == 0 for tensor in tensors):
            raise BadInput(
                f"batch {number} is empty (a tensor without entries): there is nothing to learn from."
            )
    return rows


def split_batches(batches: Iterable[Batch], rows: list[Batch], steps: int, accumulate: int) -> BatchSplit:
    """Return those of the first batches that some steps take; fresh ones come after those that are trained on."""
    needed, read = steps * accumulate, len(rows)
    rows = rows[: needed + FRESH]
    held = max(1, min(FRESH, len(rows) // 4))
    train, fresh = rows[:-held][:needed], rows[-held:]
    notes = []
    if len(train) < needed:
        notes.append(
            f"{len(rows)} batches came for {needed} steps of training: they were used in turn, and memorizing them "
            "looks like learning"
        )
    if isinstance(batches, Iterator):
        notes.append(
            f"the iterator was read: its first {read} batches are gone; a list or loader is not used up"
        )
    return BatchSplit(tuple(train), tuple(fresh), tuple(notes))


def _read(batches: Iterable[Batch], count: int) -> list[Batch]:
    if isinstance(batches, (Tensor, Mapping, str, bytes)) or not isinstance(batches, Iterable):
        raise BadInput(
            f"batches must be a list, a DataLoader or another iterable of batches, got a {type(batches).__name__}. "
            "A single batch is not enough: give at least two in a list."
        )
    with _generators_kept(batches):
        return list(islice(iter(batches), count))


@contextmanager
def _generators_kept(loader: object) -> Iterator[None]:
    """Leave the random generators that a DataLoader and its samplers own as they were."""
    states: list[tuple[torch.Generator, Tensor]] = []
    seen: set[int] = set()
    todo = [loader]
    while todo:
        owner = todo.pop()
        if id(owner) in seen or not hasattr(owner, "__dict__"):
            continue
        seen.add(id(owner))
        for name, value in vars(owner).items():
            if isinstance(value, torch.Generator):
                states.append((value, value.get_state()))
            elif "sampler" in name or name == "dataset":
                todo.append(value)
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def synthetic_batches(
    model: nn.Module, count: int, size: int = 16, tokens: int | None = None, seed: int = 0
) -> list[Batch]:
    """Return keyword arguments with labels, for a Hugging Face model; raise if a model has no loss of its own."""
    generator = torch.Generator().manual_seed(seed)
    accepted = inspect.signature(model.forward).parameters
    if "labels" not in accepted or getattr(model, "config", None) is None:
        raise BadInput(
            f"{type(model).__name__} is not a Hugging Face model with a loss of its own, so it cannot be rehearsed "
            "without data. Give batches and a loss; in the shell --batch file.py:name and --loss file.py:name."
        )
    example = default_batch(model, generator, tokens)
    if "pixel_values" in example:
        return _images(model, example["pixel_values"], count, size, generator)
    if not any(head in type(model).__name__ for head in HEADS):
        raise BadInput(
            f"synthetic batches for {type(model).__name__} do not exist. Give your own, and a loss."
        )
    return _texts(example["input_ids"], count, size, generator)


def _texts(example: Tensor, count: int, size: int, generator: torch.Generator) -> list[dict[str, Tensor]]:
    symbols = example.unique()[:MOST]
    follows = torch.randint(len(symbols), (len(symbols), NEXT), generator=generator)
    length = example.shape[1]
    batches = []
    for _ in range(count):
        rows = torch.empty(size, length, dtype=torch.long)
        rows[:, 0] = torch.randint(len(symbols), (size,), generator=generator)
        for t in range(1, length):
            choice = torch.randint(NEXT, (size,), generator=generator)
            rows[:, t] = follows[rows[:, t - 1], choice]
        ids = symbols[rows].to(example)
        batches.append({"input_ids": ids, "labels": ids.clone()})
    return batches


def _images(
    model: nn.Module, example: Tensor, count: int, size: int, generator: torch.Generator
) -> list[dict[str, Tensor]]:
    kinds = min(int(getattr(model.config, "num_labels", 10)), 10)
    patterns = torch.randn(kinds, *example.shape[1:], generator=generator)
    batches = []
    for _ in range(count):
        labels = torch.randint(kinds, (size,), generator=generator)
        noise = torch.randn(size, *example.shape[1:], generator=generator)
        batches.append(
            {"pixel_values": (patterns[labels] + noise).to(example), "labels": labels.to(example.device)}
        )
    return batches


DDP_SETTINGS = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers")
HALF_SCALE = 2.0**12
LARGEST_FILE = 100_000_000  # bytes of finished rehearsals
NO_GRADIENT = (
    "the loss does not depend on any trainable parameter of the model. Compute it with the model that loss(model, "
    "batch) is given, which is a copy, and outside torch.no_grad."
)


class ModelCopies:
    """Gives (model, optimizer) for one rehearsal at a time; afterwards all is as it was."""

    def __init__(self, model: nn.Module, optimizer: OptimizerSource | None) -> None:
        self.model, self.bare = model, unwrap(model)
        trainable(self.bare)
        back_in_shards(self.bare)
        self.sharded = any(is_sharded(module) for module in self.bare.modules())
        self.instance = optimizer if isinstance(optimizer, Optimizer) else None
        if self.instance is not None:
            refuse_optimizer(self.instance, self.bare)
            self.factory = None
        else:
            self.factory = factory_of(optimizer)
        if self.sharded and isinstance(optimizer, OptimizerWrapper):
            raise BadInput(
                f"a {type(optimizer).__name__} of a model in shards (FSDP2) cannot be copied. Give a function of the "
                "model that makes it."
            )
        # The processes that train this model together; None if it is trained alone.
        self.group: ProcessGroup | None = None
        if dist.is_available() and dist.is_initialized():
            own = data_parallel_group(model)
            self.group = dist.group.WORLD if own is None and self.sharded else own

    @contextmanager
    def open(self) -> Iterator[tuple[nn.Module, Optimizer]]:
        """Give a model at its start in training mode, wrapped as in training, and its optimizer without any state."""
        with self._in_place() if self.sharded else self._copy() as (model, optimizer):
            if not self.model.training:  # as from_pretrained leaves a model
                model.train()
            refuse_optimizer(optimizer, unwrap(model))
            optimizer.zero_grad(set_to_none=True)
            yield model, optimizer

    @contextmanager
    def _copy(self) -> Iterator[tuple[nn.Module, Optimizer]]:
        bare, memo = independent_copy(self.bare)
        model = _wrapped_again(self.model, bare)
        yield model, self._optimizer(model, memo)

    @contextmanager
    def _in_place(self) -> Iterator[tuple[nn.Module, Optimizer]]:
        gathered: list[Any] = [module for module in self.bare.modules() if is_sharded(module)]
        # after a pass without a backward one, whole weights stand in the place of their shards
        for module in gathered:
            module.reshard()
        parameters = list(self.bare.parameters())
        snapshot = [local(p).detach().clone() for p in parameters]
        with preserved(self.bare):
            for parameter in parameters:
                parameter.grad = None
            try:
                yield self.model, self._optimizer(self.model, {id(p): p for p in parameters})
            finally:
                for module in gathered:
                    module.reshard()
                with torch.no_grad():
                    for parameter, value in zip(parameters, snapshot, strict=True):
                        local(parameter).copy_(value)

    def _optimizer(self, model: nn.Module, memo: dict[int, object]) -> Optimizer:
        """Return the user's own settings for the parameters that `memo` names, or a new one from the function."""
        if self.instance is not None:
            return copied(self.instance, memo)
        assert self.factory is not None
        return self.factory(model)


def _wrapped_again(model: nn.Module, bare: nn.Module) -> nn.Module:
    """Return the copy inside what the model is inside: torch.compile with its settings, DistributedDataParallel."""
    if "_orig_mod" in model._modules:
        from torch._dynamo.eval_frame import OptimizedModule

        inner = _wrapped_again(model.get_submodule("_orig_mod"), bare)
        return OptimizedModule(inner, model.dynamo_ctx)  # type: ignore[arg-type]
    if "module" in model._modules and unwrap(model) is not model:
        inner = _wrapped_again(model.get_submodule("module"), bare)
        if type(model).__name__ != "DistributedDataParallel":
            raise BadInput(
                f"a model inside {type(model).__name__} is not rehearsed: use DistributedDataParallel or fully_shard "
                "(FSDP2), or give the model itself."
            )
        settings = {name: getattr(model, name) for name in DDP_SETTINGS if hasattr(model, name)}
        return nn.parallel.DistributedDataParallel(inner, process_group=model.process_group, **settings)
    return bare


@dataclass(frozen=True)
class TrainingSettings:
    """How the user trains, and for how many steps it is rehearsed."""

    loss: Loss
    batches: BatchSplit
    steps: int
    warmup: int = 0
    accumulate: int = 1
    clip: float | None = None
    autocast: torch.dtype | None = None
    seed: int = 0
    group: ProcessGroup | None = None  # the processes that train together

    @property
    def scale(self) -> float:
        """The factor of the loss on the way back: gradients in float16 would vanish otherwise."""
        return HALF_SCALE if self.autocast == torch.float16 else 1.0

    def rate(self, rate: float, step: int) -> float:
        """Return the rate of one step: a linear warm-up, then constant."""
        return rate * min(1.0, (step + 1) / self.warmup) if self.warmup else rate

    def looked_at(self, done: int) -> bool:
        """Return whether the network is measured after so many steps: 1, 2, 4, 8, ..., and the last two.

        If it is continued, half the steps of a rehearsal later, and so on.
        """
        doubling = done.bit_count() == 1 and done < self.steps
        return doubling or self.whole(done) or (done + 1) % self.steps == 0

    def whole(self, done: int) -> bool:
        """Return whether all fresh batches are read after so many steps."""
        return done % self.steps == 0 or (done > self.steps and done % self.steps == self.steps // 2)

    def identity(self, optimizer: str, rates: int, start: float) -> list[object]:
        """Return what has to be the same for a finished rehearsal to count."""
        settings = [self.steps, rates, self.warmup, self.accumulate, self.clip, str(self.autocast), self.seed]
        return [optimizer, settings, f"{start:.6g}"]

    def on_other_batches(self) -> TrainingSettings:
        """Return the same from the last batch to the first, with another dropout."""
        batches = replace(self.batches, train=self.batches.train[::-1])
        return replace(self, seed=self.seed + 1, batches=batches)

    def over_processes(self, value: float) -> float:
        """Return the mean over the processes that train together, so that all of them decide alike."""
        if self.group is None:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return float(total) / dist.get_world_size(self.group)


class KeptRehearsals:
    """Finished rehearsals in a file, by rate and seed, so that an interrupted search is continued."""

    def __init__(self, path: Path | None, identity: list[object]) -> None:
        self.path, self.identity, self.rows = path, identity, Document()
        if path is None or not path.exists():
            return
        try:
            found = json.loads(read_text(path, LARGEST_FILE))
            own, self.rows = found["of"], dict(found["rehearsals"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{path} does not hold rehearsals ({error}). Name another file.") from error
        if own != identity:
            raise BadInput(
                f"{path} holds rehearsals of another training: {own}, and this one is {identity}. Name another file, "
                "or delete it."
            )

    def get(self, rate: float, seed: int) -> Rehearsal | None:
        row = self.rows.get(f"{rate:.12g} {seed}")
        return None if row is None else rehearsal_of(row)

    def put(self, rehearsal: Rehearsal, seed: int) -> Rehearsal:
        """Keep it, and return it."""
        self.rows[f"{rehearsal.rate:.12g} {seed}"] = json_values(asdict(rehearsal))
        if self.path is not None:
            with whole_file(self.path) as file:
                file.write(json.dumps({"of": self.identity, "rehearsals": self.rows}).encode())
        return rehearsal


def rehearse(
    model: nn.Module,
    optimizer: Optimizer,
    rate: float,
    plan: TrainingSettings,
    validation: Validation,
    start: View,
    tell: Callable[[], None],
    continued: Callable[[Rehearsal], bool] = lambda _: False,
) -> Rehearsal:
    """Return the steps at one rate; it ends early if the loss is not finite. `tell` is called after every step.

    continued  says at the end, and half of the steps later each time, whether the same training is continued
    """
    torch.manual_seed(plan.seed)  # dropout is the same for every rate
    rates, stream, change = Rates(optimizer), start.stream, None
    losses, moments = list[float](), list[Moment]()
    while True:
        done = len(losses) + 1
        rates.set(plan.rate(rate, done - 1))
        value = training_step(model, optimizer, plan, done - 1)
        losses.append(value if math.isfinite(value) else math.inf)
        tell()
        if not math.isfinite(value):
            return Rehearsal(rate, tuple(losses), tuple(moments), None)
        if not plan.looked_at(done):
            continue
        view = validation.measure(model, None if plan.whole(done) else 1)
        moved = plan.over_processes(relative(view.stream, start.stream))
        moments.append(Moment(done, view.loss, moved, view.separation, view.output))
        if done >= plan.steps - 1 and done % plan.steps in (0, plan.steps - 1):
            change = plan.over_processes(relative(view.stream, stream)) if plan.steps > 1 else None
        stream = view.stream
        if done >= plan.steps and plan.whole(done):
            compared = None if done == plan.steps else plan.steps
            rehearsal = Rehearsal(rate, tuple(losses), tuple(moments), change, compared=compared)
            if not continued(rehearsal):
                return rehearsal


def training_step(model: nn.Module, optimizer: Optimizer | None, plan: TrainingSettings, step: int) -> float:
    """Return one step of the optimizer on the mean gradient of its batches.

    Returns the loss before it, over all processes.

    If the loss is not finite on any process, none of them steps.
    """
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
    batches, total = plan.batches.at(step, plan.accumulate), 0.0
    for batch in batches:
        total += backward(model, plan, batch)
    mean = plan.over_processes(total)
    if optimizer is not None and math.isfinite(mean):
        for parameter in model.parameters() if plan.scale != 1.0 else ():
            if parameter.grad is not None:
                parameter.grad /= plan.scale
        if plan.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
    return mean


def backward(model: nn.Module, plan: TrainingSettings, batch: Batch) -> float:
    """Add the gradient of one batch's share of the loss, times `plan.scale`; returns that share."""
    device = next(model.parameters()).device.type
    half = nullcontext() if plan.autocast is None else torch.autocast(device, dtype=plan.autocast)
    with torch.enable_grad(), half:
        value = loss_of(plan.loss, model, batch) / plan.accumulate
    if not value.requires_grad:
        raise BadInput(NO_GRADIENT)
    (value * plan.scale).backward()
    return float(value.detach())


def relative(one: Tensor, other: Tensor) -> float:
    """Return |one - other| / |other|; NaN if they cannot be compared."""
    if one.shape != other.shape:
        return math.nan
    length = torch.linalg.vector_norm(in_double(other))
    return float(torch.linalg.vector_norm(in_double(one - other)) / length) if length > 0 else math.nan
