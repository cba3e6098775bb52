"""The loss again with one part of the training changed: fields of the batch, outputs of the model, half of the samples.

What follows the model is replayed with the outputs that the model gave (no forward pass is made); what enters it is
run again. Facts ask which changes must matter, and which must not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from edgewise.models.state import RandomStreams
from edgewise.preflight.evidence import TrainingEvidence, rms, tolerance
from edgewise.preflight.fingerprint import tensors_in
from edgewise.preflight.observer import LossCall, Observation, Observer

Batch = Any  # whatever the user's loss takes
Output = Any  # whatever the user's model returns
FIELDS = 12  # of a batch that are inspected
RAYS = (1e1, 1e2, 1e3)  # how far outputs are moved downhill, in units of their size


@dataclass
class Relations:
    """What changes did to the loss; a list is empty, and a number None, if it could not be tried."""

    used: dict[str, bool] = field(default_factory=dict)  # whether a field of the batch changes anything
    assigned: dict[str, bool] = field(default_factory=dict)  # whether it matters which sample has which value
    entered: set[str] = field(default_factory=set)  # fields that the model is given
    own_label: tuple[str, int, bool] | None = (
        None  # field that an output sees and is asked for, row, at its place
    )
    falls: tuple[float, float] | None = None  # the loss, and what it is far downhill, if it has no end
    linear: bool = False  # of the outputs
    falling: float = 1.0  # share of single samples for which the loss falls without end
    crossed: str | None = None  # a label that is compared with outputs of other samples than its own
    unseen: list[str] = field(
        default_factory=list
    )  # fields that the model is given, and no output moves with
    half: bool | None = None  # whether half of the batch has the outputs it had in the whole


def fields(batch: Batch, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Return every tensor of a batch made of dictionaries, lists and tuples, with its keys."""
    if torch.is_tensor(batch):
        yield path, batch
    elif hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        for key in batch.keys():  # noqa: SIM118  not every mapping iterates over its keys
            yield from fields(batch[key], (*path, key))
    elif isinstance(batch, (list, tuple)):
        for i, item in enumerate(batch):
            yield from fields(item, (*path, i))


def named(batch: Batch) -> list[tuple[str, Tensor]]:
    """Every tensor of a batch with its name."""
    return [(name_of(path), tensor) for path, tensor in fields(batch)]


def unlabeled(batch: Batch) -> bool:
    """Return whether all labels of a batch are the ignore index."""
    whole = [t for t in tensors_in(batch) if not t.is_floating_point() and t.dim() >= 2 and t.numel()]
    return any(bool((t == -100).all()) for t in whole)


def replaced(batch: Batch, path: tuple[Any, ...], tensor: Tensor) -> Batch:
    """Return the batch with another tensor at this place."""
    if not path:
        return tensor
    inner = replaced(batch[path[0]], path[1:], tensor)
    if isinstance(batch, tuple):
        parts = [inner if i == path[0] else item for i, item in enumerate(batch)]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    new = batch.copy() if hasattr(batch, "copy") else dict(batch)
    new[path[0]] = inner
    return new


def samples_of(batch: Batch) -> int:
    """The size that most tensors of the batch begin with: the number of samples; 0 if there is none."""
    sizes = [t.shape[0] for _, t in fields(batch) if t.dim()]
    return max(set(sizes), key=sizes.count) if sizes else 0


def name_of(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path)) or "batch"


class LossReplay:
    """Calls of the model as they were in one pass, and the loss with parts of them changed."""

    def __init__(
        self,
        evidence: TrainingEvidence,
        model: nn.Module,
        loss: Callable[[Batch], Tensor],
        restore: Callable[[], None],
    ) -> None:
        self.evidence, self.model, self.loss, self.restore = evidence, model, loss, restore
        self.calls: list[tuple[list[Tensor], Output]] = []  # tensors that went in, and what came out
        self._streams: list[RandomStreams] = []  # after each call
        self.value = math.nan

    @contextmanager
    def _forward(self, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
        """Replace `model.forward` while inside."""
        had = self.model.__dict__.get("forward")
        try:
            self.model.forward = wraps(self.model.forward)(make(self.model.forward))
            yield
        finally:
            self.model.__dict__.pop("forward", None)
            if had is not None:
                self.model.forward = had

    @contextmanager
    def recording(self, calls: list[tuple[list[Tensor], Output]] | None = None) -> Iterator[None]:
        """Keep what goes into the model, and what comes out."""
        kept = self.calls if calls is None else calls

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                out = original(*args, **kwargs)
                given = [t.detach().clone() for t in tensors_in((args, kwargs))]
                kept.append((given, _detached(out)))
                if calls is None:
                    self._streams.append(RandomStreams(all_devices=torch.cuda.is_initialized()))
                return out

            return forward

        with self._forward(make):
            yield

    def run(
        self, batch: Batch, outputs: list[Output] | None = None, seed: int | None = None
    ) -> tuple[Tensor, list[list[Tensor]], LossCall | None]:
        """The loss with the model's outputs as they were, what the model was given, and the call of the loss.

        Random numbers are those of the recorded pass, or begin with a seed.
        """
        given: list[list[Tensor]] = []
        kept = [out for _, out in self.calls] if outputs is None else outputs

        def make(_: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                given.append(list(tensors_in((args, kwargs))))
                if seed is None:
                    self._streams[len(given) - 1].restore()
                return kept[len(given) - 1]

            return forward

        self.restore()
        if seed is not None:
            torch.manual_seed(seed)
        watch = Observer(
            self.evidence.model, hand=None if self.evidence.first is None else self.evidence.first.hand
        )
        hooks, before = self.model._forward_hooks, self.model._forward_pre_hooks
        try:
            self.model._forward_hooks, self.model._forward_pre_hooks = type(hooks)(), type(before)()
            with self._forward(make), watch:
                value = self.loss(batch)
        finally:
            self.model._forward_hooks, self.model._forward_pre_hooks = hooks, before
        return value, given, watch.seen.main_loss

    @property
    def possible(self) -> bool:
        """Return True if the loss is made of the outputs of whole calls, outside of the model."""
        if not self.calls or len(self.calls) > 8 or hasattr(self.model, "_orig_mod"):
            return False
        for _, out in self.calls:
            if any(t.dim() == 0 and t.is_floating_point() for t in tensors_in(out)):
                return False  # the model computes its own loss
        with torch.no_grad():
            value, given, _ = self.run(self.evidence.batches[0])
        self.value = float(value)
        same = len(given) == len(self.calls) and all(
            _equal(new, old) for new, (old, _) in zip(given, self.calls, strict=True)
        )
        return (
            same
            and math.isfinite(self.value)
            and abs(self.value - self._recorded()) <= 1e-5 * (1 + abs(self.value))
        )

    def _recorded(self) -> float:
        return float(self.evidence.facts.get("loss after", math.nan))

    # --- fields ------------------------------------------------------------------------------------------------------
    def fields(self, found: Relations) -> None:
        """Give the values of every field to other samples: does the loss, or what the model is given, change?"""
        batch = self.evidence.batches[0]
        samples = samples_of(batch)
        outputs, usual = None, None
        for path, tensor in list(fields(batch))[:FIELDS]:
            if not tensor.dim() or tensor.shape[0] != samples or samples < 2:
                continue
            if bool((tensor == tensor[:1]).all()):
                continue  # the same for every sample
            name = name_of(path)
            changed = replaced(batch, path, tensor.roll(1, 0))
            if self._enters(changed):
                found.entered.add(name)
                continue
            if usual is None:
                outputs, usual = self._usual(batch)
            moved = self._moves(changed, outputs, usual)
            if moved == "loss":
                found.used[name] = found.assigned[name] = True
            elif moved == "nothing":
                other = self._moves(replaced(batch, path, _other_values(tensor)), outputs, usual)
                if other in ("loss", "nothing"):
                    found.used[name], found.assigned[name] = other == "loss", False

    def _enters(self, batch: Batch) -> bool:
        """Return True if the model is given something else."""
        try:
            with torch.no_grad():
                given = self.run(batch)[1]
        except Exception:  # noqa: BLE001  values that a loss does not take are not evidence
            return False
        return len(given) != len(self.calls) or any(
            not _equal(new, old) for new, (old, _) in zip(given, self.calls, strict=True)
        )

    def _usual(self, batch: Batch) -> tuple[list[Output] | None, tuple[float, Tensor]]:
        """Outputs to compare at, and the answer there: with noise, if the loss takes it (not on probabilities)."""
        try:
            return (outputs := self._noisy()), self._answer(batch, outputs)
        except Exception:  # noqa: BLE001  the outputs as they were, then
            return None, self._answer(batch, None)

    def _noisy(self) -> list[Output]:
        """The outputs with noise: those of fresh weights may be the same for every sample."""
        draw = torch.Generator().manual_seed(3)

        def noisy(t: Tensor) -> Tensor:
            if not t.is_floating_point():
                return t
            return t + max(1.0, rms(t)) * torch.randn(t.shape, generator=draw).to(t)

        return self._built([[noisy(t) for t in tensors] for tensors in self._leaves()])

    def _answer(self, batch: Batch, outputs: list[Output] | None) -> tuple[float, Tensor]:
        """The loss, and its gradient at the outputs."""
        value, slopes = self._slopes(batch, outputs)
        parts = [g.reshape(-1).float() for g in slopes if g is not None]
        return value, torch.cat(parts) if parts else torch.zeros(1)

    def _slopes(self, batch: Batch, outputs: list[Output] | None) -> tuple[float, list[Tensor | None]]:
        """The loss, and its gradient at every floating output."""
        leaves = [[t.clone() for t in tensors] for tensors in self._leaves(outputs)]
        flat = [t.requires_grad_() for tensors in leaves for t in tensors if t.is_floating_point()]
        with torch.enable_grad():
            value = self.run(batch, self._built(leaves))[0]
            used = bool(flat) and torch.is_tensor(value) and value.requires_grad
            slopes = torch.autograd.grad(value, flat, allow_unused=True) if used else ()
        return float(value), [None if g is None else g.detach() for g in slopes]

    def _moves(self, batch: Batch, outputs: list[Output] | None, usual: tuple[float, Tensor]) -> str | None:
        """Return whether the "loss" changes with a changed batch, or "nothing"; None if it fails."""
        try:
            value, slope = self._answer(batch, outputs)
        except Exception:  # noqa: BLE001  values that a loss does not take are not evidence
            return None
        number, goal = usual
        same = abs(value - number) <= 1e-6 * (1e-3 + abs(number)) and slope.shape == goal.shape
        return "nothing" if same and float((slope - goal).norm()) <= 1e-5 * float(goal.norm()) else "loss"

    def whose(self, found: Relations) -> None:
        """Change one sample's inputs, then its label: the rows of outputs that they concern must be the same."""
        batch, samples = self.evidence.batches[0], samples_of(self.evidence.batches[0])
        known = dict(fields(batch))
        inputs = [p for p in known if name_of(p) in found.entered]
        labels = [p for p in known if found.used.get(name_of(p)) and found.assigned.get(name_of(p))]
        if samples < 4 or not inputs or not labels or len(known) > FIELDS:
            return
        sizes = [t.shape[:2] for given, out in self.calls for t in (*given, *tensors_in(out)) if t.dim()]
        if any(size[0] % samples or samples in size[1:] for size in sizes):
            return  # samples may be on another axis
        outputs = self._usual(batch)[0]
        usual = self._slopes(batch, outputs)[1]
        rows = sum(g.shape[0] for g in usual if g is not None and g.dim())
        for path in labels:
            tried = crossed = 0
            for b in range(0, samples, samples // 4):
                other = (b + samples // 2) % samples
                moved = batch
                for at in inputs:
                    moved = replaced(moved, at, _with(known[at], b, other))
                differ = [i for i in range(samples) if not torch.equal(known[path][i], known[path][b])]
                if not differ:
                    continue
                with torch.no_grad():
                    given = self.run(moved)[1]
                asked = self._slopes(replaced(batch, path, _with(known[path], b, differ[0])), outputs)[1]
                own = {
                    (k, r)
                    for k, (new, (old, _)) in enumerate(zip(given, self.calls, strict=True))
                    for r in _rows_moved(new, old)
                }
                its = {(k, r) for k, r in self._by_call(asked, usual)}
                if own and its and 2 * len(its) <= rows and 2 * len(own) <= rows:
                    tried, crossed = tried + 1, crossed + (not own <= its and not its <= own)
            if tried >= 3 and crossed > 0.7 * tried:
                found.crossed = name_of(path)
                return

    def _by_call(self, new: list[Tensor | None], old: list[Tensor | None]) -> Iterator[tuple[int, int]]:
        """Calls and rows whose gradient changed by more than a thousandth."""
        rest = iter(zip(new, old, strict=True))
        for k, tensors in enumerate(self._leaves()):
            pairs = [next(rest) for t in tensors if t.is_floating_point()]
            for a, b in pairs:
                if a is not None and b is not None and a.dim():
                    far = (a - b).abs() > 1e-3 * float(b.abs().max())
                    yield from ((k, int(r)) for r in far.flatten(1).any(1).nonzero() if far.dim() > 1)
                    yield from ((k, int(r)) for r in far.nonzero() if far.dim() == 1)

    def unseen(self, found: Relations, observe: Callable[[Batch], Observation]) -> None:
        """Give the values of a field that the model is given to other samples: some output must move."""
        batch, samples = self.evidence.batches[0], samples_of(self.evidence.batches[0])
        known = [(p, t) for p, t in fields(batch) if name_of(p) in found.entered and t.shape[0] == samples]
        known = [(p, t) for p, t in known if t.dtype != torch.bool and not t.unique().numel() <= 2]  # masks
        for path, tensor in known[:4] if len(known) > 1 and len(self.evidence.steps) > 1 else ():
            calls: list[tuple[list[Tensor], Output]] = []
            with self.recording(calls), torch.no_grad():
                seen = observe(replaced(batch, path, tensor.roll(1, 0)))
            if seen.error is None and len(calls) == len(self.calls):
                pairs = zip(calls, self.calls, strict=True)
                same = (
                    [list(tensors_in(a[1])) for a, _ in pairs],
                    [list(tensors_in(b[1])) for b in self.calls],
                )
                if all(_equal(a, b) for a, b in zip(*same, strict=True)):
                    found.unseen.append(name_of(path))

    # --- outputs -----------------------------------------------------------------------------------------------------
    def downhill(self, found: Relations) -> None:
        """Move the outputs far along minus the gradient of the loss: a loss has a least value."""
        leaves = [
            [t.clone().requires_grad_() if t.is_floating_point() else t for t in tensors]
            for tensors in self._leaves()
        ]
        flat = [t for tensors in leaves for t in tensors if t.is_floating_point()]
        if not flat or sum(t.numel() for t in flat) > 1 << 22:
            return
        with torch.enable_grad():
            value = self.run(self.evidence.batches[0], self._built(leaves))[0]
            slopes = torch.autograd.grad(value, flat, allow_unused=True)
        moving = [(t, g) for t, g in zip(flat, slopes, strict=True) if g is not None and g.any()]
        if not moving:
            return
        size = max(1.0, max(rms(t) for t, _ in moving))
        length = math.sqrt(
            sum(float(g.square().sum()) for _, g in moving) / sum(g.numel() for _, g in moving)
        )
        directions = {id(t): -g * (size / length) for t, g in moving}

        def along(distance: float, sample: int | None = None) -> float:
            shifted = []
            for tensors in leaves:
                row = []
                for t in tensors:
                    way = directions.get(id(t))
                    if way is not None and sample is not None:
                        way = way * _only(way, sample, samples)
                    row.append(t.detach() if way is None else t.detach() + distance * way)
                shifted.append(row)
            with torch.no_grad():
                return float(self.run(self.evidence.batches[0], self._built(shifted))[0])

        samples = samples_of(self.evidence.batches[0])
        start, path = float(value), [along(d) for d in RAYS]
        if not _falls(start, path):
            return
        back = along(-RAYS[0])
        found.linear = abs(path[0] + back - 2 * start) <= 1e-3 * abs(path[0] - back)
        each = range(0, samples, max(1, samples // 8)) if samples > 1 else ()
        alone = [
            _falls(start, [along(d * max(1, samples), b) for d in RAYS], 1 / max(1, samples)) for b in each
        ]
        found.falls, found.falling = (start, path[-1]), sum(alone) / len(alone) if alone else 1.0

    def _leaves(self, outputs: list[Output] | None = None) -> list[list[Tensor]]:
        kept = [out for _, out in self.calls] if outputs is None else outputs
        return [[t for t in pytree.tree_leaves(out) if torch.is_tensor(t)] for out in kept]

    def _built(self, leaves: list[list[Tensor]]) -> list[Output]:
        """Outputs with these tensors in the place of their own."""
        built = []
        for (_, out), tensors in zip(self.calls, leaves, strict=True):
            rest = iter(tensors)
            built.append(pytree.tree_map(lambda x, rest=rest: next(rest) if torch.is_tensor(x) else x, out))
        return built

    # --- real passes -------------------------------------------------------------------------------------------------
    def own_labels(
        self, found: Relations, observe: Callable[[Batch], Observation], base: Observation
    ) -> None:
        """Change the last entry of a field that the model is given, and that the labels come from, in every sample."""
        batch, call = self.evidence.batches[0], base.main_loss
        if call is None or call.outputs.dim() < 2 or call.labels.is_floating_point():
            return
        for path, tensor in fields(batch):
            name = name_of(path)
            if (
                name not in found.entered
                or tensor.is_floating_point()
                or tensor.dim() < 2
                or tensor.shape[1] < 2
            ):
                continue
            new = tensor.clone()
            new[:, -1] = new[:, -1].roll(1, 0)
            changed = replaced(batch, path, new)
            with torch.no_grad():
                try:
                    again = self.run(changed)[2]
                except Exception:  # noqa: BLE001  values that a loss does not take are not evidence
                    continue
            if again is None or again.labels.shape != call.labels.shape:
                continue
            asked = (again.labels != call.labels).reshape(-1)
            if not asked.any() or torch.equal(again.labels, call.labels):
                continue
            seen = observe(changed).main_loss
            rows = _rows(call.outputs, asked.numel())
            if seen is None or rows is None or seen.outputs.shape != call.outputs.shape:
                continue
            moved = (_rows(seen.outputs, asked.numel()) - rows).abs().amax(-1) > tolerance(rows)  # type: ignore[operator]
            if bool((moved & asked).sum() > 0.9 * asked.sum()) and bool(moved.sum() == (moved & asked).sum()):
                at = asked.nonzero().flatten()
                same = asked.numel() == tensor.numel() and bool(
                    (at % tensor.shape[1] == tensor.shape[1] - 1).all()
                )
                found.own_label = (name, int(at[0]), same)
                return

    def half(self, found: Relations, observe: Callable[[Batch], Observation], whole: Observation) -> None:
        """The last half of the samples alone, in another order: they must have the outputs of the whole."""
        batch = self.evidence.batches[0]
        samples = samples_of(batch)
        call = whole.main_loss
        if call is None or samples < 2:
            return
        sizes = [t.shape[:2] for _, t in fields(batch) if t.dim()]
        if any(samples not in size for size in sizes) or any(
            size.count(samples) > 1 for size in map(list, sizes)
        ):
            return  # the axis of the samples is not known
        new, chosen = batch, _other_half(batch, samples)
        for path, tensor in fields(batch):
            if tensor.dim():
                axis = list(tensor.shape).index(samples)
                new = replaced(new, path, tensor.index_select(axis, chosen.to(tensor.device)))
        calls: list[tuple[list[Tensor], Output]] = []
        with self.recording(calls):
            seen = observe(new)
        part = seen.main_loss
        if seen.error is not None or part is None:
            return
        size = part.outputs.numel()
        if not any(0.75 * t.numel() <= size <= t.numel() for _, out in calls for t in tensors_in(out)):
            return  # the loss selects outputs, of some samples more than of others
        for (few, _), (many, _) in zip(calls, self.calls, strict=False):
            for a, b in zip(few, many, strict=False):
                if a.dim() and a.shape != b.shape and not _within(a, b, chosen, samples, exact=True):
                    return  # the loss itself mixes samples before the model, as mixup does
        found.half = _within(part.outputs, call.outputs, chosen, samples)


def _other_half(batch: Batch, samples: int) -> Tensor:
    """The last half of the samples, backward; first one that differs from the first of the whole in what it has."""
    rows = torch.arange(samples - 1, samples - 1 - max(1, samples // 2), -1)
    marks = [t for _, t in fields(batch) if t.dim() == 1 and t.shape[0] == samples]
    differ = torch.zeros(len(rows))
    for t in marks:
        differ += (t[rows.to(t.device)] != t[0]).cpu()
    first = int(differ.argmax())
    return torch.cat([rows[first : first + 1], rows[:first], rows[first + 1 :]])


def _within(part: Tensor, whole: Tensor, chosen: Tensor, samples: int, exact: bool = False) -> bool | None:
    """Return whether the values of the chosen samples are those in the whole; None if shapes do not tell."""
    keep = len(chosen)
    if part.shape == whole.shape or part.dim() != whole.dim() or not part.numel():
        return None
    axes = [i for i in range(part.dim()) if part.shape[i] != whole.shape[i]]
    rows = whole.shape[axes[0]] if len(axes) == 1 else 0
    if not rows or rows % samples or part.shape[axes[0]] * samples != rows * keep:
        return None
    a, b = part.float().movedim(axes[0], 0), whole.float().movedim(axes[0], 0)
    if not bool(a.isfinite().all()) or not bool(b.isfinite().all()):
        return None
    each, limit = b.shape[0] // samples, 0.0 if exact else 10 * tolerance(whole)
    rest, chosen = b.shape[1:], chosen.to(b.device)
    orders = (  # samples first, or tokens first
        b.reshape(samples, each, *rest)[chosen].reshape(a.shape),
        b.reshape(each, samples, *rest)[:, chosen].reshape(a.shape),
    )
    return any(bool(((a - one).abs() <= limit).all()) for one in orders)


def _falls(start: float, path: list[float], share: float = 1.0) -> bool:
    """Return whether a loss falls without end, about in proportion to the distance."""
    if not all(map(math.isfinite, path)):
        return False
    a, b, c = path
    return (
        a < start
        and b < a
        and c < b
        and a - b > 0
        and b - c > 3 * (a - b)
        and c < -3 * share * (abs(start) + 1)
    )


def _with(tensor: Tensor, sample: int, other: int) -> Tensor:
    """Return the values with those of another sample in the place of one's own."""
    new = tensor.clone()
    new[sample] = tensor[other]
    return new


def _rows_moved(new: list[Tensor], old: list[Tensor]) -> set[int]:
    """Rows of what the model was given that differ."""
    pairs = [(a, b) for a, b in zip(new, old, strict=True) if a.dim() and a.shape == b.shape]
    return {int(r) for a, b in pairs for r in (a != b).reshape(a.shape[0], -1).any(1).nonzero()}


def _only(way: Tensor, sample: int, samples: int) -> Tensor:
    """One at the entries of a sample, zero elsewhere."""
    mask = torch.zeros(way.shape[0] if way.dim() else 1, *[1] * max(0, way.dim() - 1), device=way.device)
    each = max(1, mask.shape[0] // max(1, samples))
    mask[sample * each : (sample + 1) * each] = 1
    return mask


def _other_values(tensor: Tensor) -> Tensor:
    """Values of the same kind, which no sample had at its place."""
    if tensor.is_floating_point():
        return tensor * 0.5 + 0.25 * max(rms(tensor), 1e-3)
    if tensor.dtype == torch.bool:
        return ~tensor
    return tensor.flip(0) if tensor.dim() < 2 else tensor.flip(0).roll(1, 1)


def _rows(outputs: Tensor, count: int) -> Tensor | None:
    if outputs.dim() > 2:
        outputs = outputs.movedim(1, -1).flatten(0, -2)
    return outputs.float() if outputs.shape[0] == count else None


def _detached(out: Output) -> Output:
    return pytree.tree_map(lambda x: x.detach() if torch.is_tensor(x) else x, out)


def _equal(new: list[Tensor], old: list[Tensor]) -> bool:
    return len(new) == len(old) and all(torch.equal(a.detach(), b) for a, b in zip(new, old, strict=True))
