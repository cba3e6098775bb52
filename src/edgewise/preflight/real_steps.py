"""Real steps: plain ones, or the user's own with what its calls do, in order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.overrides import TorchFunctionMode

from edgewise import interrupts
from edgewise.models.state import RandomStreams
from edgewise.preflight.evidence import Sample, StepRecord, TrainingEvidence, copied, flat, is_readable
from edgewise.preflight.fingerprint import tensors_in

AHEAD = 400  # steps for which a scheduler is asked
CLIPS = ("clip_grad_norm_", "clip_grad_value_")
KEPT = {"optimizer": torch.optim.Optimizer, "scheduler": LRScheduler, "scaler": GradScaler}  # over all steps


class RealSteps:
    """Make the steps of a check; the caller puts everything back."""

    def __init__(
        self,
        evidence: TrainingEvidence,
        model: nn.Module,
        schedulers: list[Any],
        loss: Callable[[Any], Tensor],
        start: RandomStreams,
    ) -> None:
        self.evidence, self.model, self.loss, self.start = evidence, model, loss, start
        self.schedulers = list({id(s): s for s in schedulers}.values())
        self._events = _Events(lambda: gradients(evidence))

    def run(self, steps: int) -> None:
        """Make the steps, and up to two more while a gradient is exactly zero."""
        evidence = self.evidence
        for k in range(steps + 2):
            if k >= steps and (evidence.step is not None or not self._sleeping()):
                break
            record = self._own(k) if evidence.step is not None else self._plain(k)
            if record is not None:
                evidence.steps.append(record)
            interrupts.check()
            if record is not None and not all(sample.finite for sample in record.after.values()):
                break
        if any("scheduler" in events for events in evidence.events):
            evidence.rates_ahead = self._rates_ahead()

    def _sleeping(self) -> bool:
        """Return True if some gradient was exactly zero in every step so far, though it exists."""
        every = self.evidence.gradients
        return any(
            every[0].get(n) is not None
            and not any((g := one.get(n)) is not None and g.alive for one in every)
            for n in self.evidence.trainable
        )

    def _plain(self, k: int) -> StepRecord | None:
        evidence, optimizer = self.evidence, self.evidence.optimizer
        value = evidence.facts["first loss"]
        if k:
            optimizer.zero_grad()
            try:
                loss = self.loss(evidence.batches[k % len(evidence.batches)])
                loss.backward()
            except Exception as error:  # noqa: BLE001  the user's model: reported as a finding
                evidence.problems.append(f"step {k + 1}: {type(error).__name__}: {error}")
                return None
            value = float(loss.detach())
            evidence.gradients.append(gradients(evidence))
        record = self._begin(k, evidence.gradients[-1])
        optimizer.step()
        record.loss, record.after = value, _weights(evidence)
        return record

    def _begin(self, k: int, slopes: dict[str, Sample | None]) -> StepRecord:
        groups = self.evidence.optimizer.param_groups
        rates = [float(group["lr"]) for group in groups if "lr" in group]
        first = not any(self.evidence.optimizer.state.values())
        # What the step before left is what this one begins with.
        before = self.evidence.steps[-1].after if self.evidence.steps else _weights(self.evidence)
        return StepRecord(k, math.nan, slopes, before, {}, rates, first)

    def _own(self, k: int) -> StepRecord | None:
        """One call of the user's step, with the gradients that its optimizer saw beside those of the loss."""
        evidence, optimizer, events = self.evidence, self.evidence.optimizer, self._events
        assert evidence.step is not None
        batch = evidence.batches[k % len(evidence.batches)]
        fresh: dict[str, Sample | None] | None
        if k == 0:
            clear_gradients(evidence)
            self.start.restore()
            fresh, left = evidence.gradients[0], None
        else:
            left = gradients(evidence)
            fresh = self._fresh_gradient(batch) if k == 1 else None
        record = self._begin(k, {})
        record.fresh, record.left = fresh, left
        self._averages("before")
        try:
            with self._listening():
                value = evidence.step(self.model, optimizer, copied(batch), k)
        except Exception as error:  # noqa: BLE001  the user's step: reported as a finding
            evidence.problems.append(f"step {k + 1}: {type(error).__name__}: {error}")
            return None
        if self._discarded(record):
            events.names.append("wiped")
        evidence.events.append(list(events.names))
        evidence.data.setdefault("made", []).append(list(events.made))
        if torch.is_tensor(value):
            record.loss = float(value.detach().float().mean())
        elif isinstance(value, (int, float)):
            record.loss = float(value)
        for scheduler, metric in (m[:2] for m in events.metrics if len(m) > 1):
            if math.isfinite(record.loss) and abs(float(metric) - record.loss) <= 1e-6 * abs(record.loss):
                evidence.data["plateau of the loss"] = scheduler
        if events.at_step:
            record.gradients = events.at_step[-1]
            evidence.gradients.append(record.gradients)
        self._averages("after")
        record.after, record.stepped, record.modes = _weights(evidence), events.stepped, list(events.modes)
        record.at_step, record.rates = events.weights, events.rates or record.rates
        record.optimizer_steps, record.backwards = len(events.at_step), events.names.count("backward")
        return record

    def _averages(self, when: str) -> None:
        """Sample every network of `also` whose tensors have the names and shapes of the model's weights."""
        weights = {n: p for n, p in self.evidence.trainable.items() if is_readable(p)}
        kept = self.evidence.data.setdefault("averages", [])
        if when == "before" and not kept:
            for other in self.evidence.data.get("also", ()):
                pairs = _counterparts(other, weights)
                if pairs:
                    shared = sum(a.data_ptr() == weights[n].data_ptr() for n, a in pairs.items())
                    kept.append({"name": type(other).__name__, "pairs": pairs, "shared": shared})
        for one in kept:
            one[when] = {n: Sample(a) for n, a in one["pairs"].items()}
            one["goal"] = {n: Sample(weights[n]) for n in one["pairs"]}

    def _fresh_gradient(self, batch: Any) -> dict[str, Sample | None] | None:
        """Gradients of the loss on this batch alone; those that are there stay."""
        streams = RandomStreams(all_devices=torch.cuda.is_initialized())
        kept = {n: p.grad for n, p in self.evidence.trainable.items()}
        for parameter in self.evidence.trainable.values():
            parameter.grad = None
        try:
            self.loss(batch).backward()
            return gradients(self.evidence)
        except Exception as error:  # noqa: BLE001  the user's model: the fact is undecided
            self.evidence.problems.append(f"gradient of the second batch: {type(error).__name__}: {error}")
            return None
        finally:
            for name, parameter in self.evidence.trainable.items():
                parameter.grad = kept[name]
            streams.restore()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Hear zero_grad, backward, clip, step and scheduler inside."""
        optimizer, events = self.evidence.optimizer, self._events
        events.begin()
        patched: list[tuple[Any, str, Any]] = []
        handles = [self.model.register_forward_pre_hook(events.forward)]

        def wrap(
            owner: Any,
            name: str,
            event: str,
            action: Callable[[], None] | None = None,
            with_arguments: Callable[[Any], None] | None = None,
        ) -> None:
            original = getattr(owner, name, None)
            if original is None:
                return

            def call(*args: Any, **kwargs: Any) -> Any:
                events.names.append(event)
                if action is not None:
                    action()
                if with_arguments is not None:
                    with_arguments((owner, *args, *kwargs.values()))
                return original(*args, **kwargs)

            patched.append((owner, name, vars(owner).get(name) if hasattr(owner, "__dict__") else None))
            setattr(owner, name, call)

        def at_step(_: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            events.names += ["step", "closure"] if callable((*args[1:], *kwargs.values(), 0)[0]) else ["step"]
            events.unused = False
            events.at_step.append(gradients(self.evidence))
            events.rates = [float(g["lr"]) for g in optimizer.param_groups if "lr" in g]
            if not events.weights:
                events.weights = _weights(self.evidence)

        def stepped(*_: object) -> None:
            events.stepped = _weights(self.evidence)
            if "closure" in events.names:
                events.at_step[-1] = gradients(self.evidence)

        inner = (
            optimizer if isinstance(optimizer, torch.optim.Optimizer) else getattr(optimizer, "optimizer", 0)
        )
        if isinstance(inner, torch.optim.Optimizer):
            handles += [inner.register_step_pre_hook(at_step), inner.register_step_post_hook(stepped)]
        else:
            wrap(optimizer, "step", "step", lambda: events.at_step.append(gradients(self.evidence)))
        wrap(optimizer, "zero_grad", "zero_grad", self._wiped)
        for other in self.evidence.data.get("optimizers", ()):
            if isinstance(other, torch.optim.Optimizer) and other is not inner and other is not optimizer:
                wrap(other, "zero_grad", f"zero_grad of {type(other).__name__}")
                handles.append(
                    other.register_step_pre_hook(
                        lambda o, *_: events.names.append(f"step of {type(o).__name__}")
                    )
                )
        wrap(self.model, "zero_grad", "zero_grad", self._wiped)
        for scheduler in self.schedulers:
            plateau = isinstance(scheduler, ReduceLROnPlateau)
            wrap(scheduler, "step", "scheduler", with_arguments=events.metrics.append if plateau else None)
        for name in CLIPS:
            wrap(torch.nn.utils, name, "clip")
        for name, kind in KEPT.items():
            patched.append((kind, "__init__", vars(kind)["__init__"]))
            told = _told(vars(kind)["__init__"], events.made, name, {id(p) for p in self.model.parameters()})
            setattr(kind, "__init__", told)  # noqa: B010
        try:
            with events:
                yield
        finally:
            for handle in handles:
                handle.remove()
            for owner, name, own in reversed(patched):
                if own is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, own)

    def _wiped(self) -> None:
        """Note that zero_grad takes away a gradient that no optimizer step has used."""
        events = self._events
        if events.unused:
            slopes = [g for g in gradients(self.evidence).values() if g is not None]
            if any(g.alive for g in slopes) and all(g.finite for g in slopes):
                if len(events.names) == 1:  # the first call of this step
                    events.names.append("wiped")
                else:
                    events.lost.append(_weights(self.evidence))
        events.unused = False

    def _discarded(self, record: StepRecord) -> bool:
        """Whether gradients wiped inside the step are in no update: of the same weights, and not in what is used."""
        events = self._events
        if events.probed or not events.lost or not events.at_step or not events.last:
            return False
        if any(not torch.equal(w[n].entries, record.before[n].entries) for w in events.lost for n in w):
            return False  # gradients at other weights were a means to move there and back (SAM)
        at, last = flat(events.at_step[-1]), flat(events.last)
        return at.shape == last.shape and float(at @ last) > 0.9999 * float(at.norm() * last.norm()) > 0

    def _rates_ahead(self) -> list[float]:
        """The largest rate of the next steps, as the schedulers that the step calls give it."""
        rates: list[float] = []
        plain = [s for s in self.schedulers if isinstance(s, LRScheduler)]
        plain = [s for s in plain if not isinstance(s, ReduceLROnPlateau)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for _ in range(AHEAD if plain else 0):
                    for scheduler in plain:
                        scheduler.step()
                    rates.append(max(float(g["lr"]) for g in self.evidence.optimizer.param_groups))
            except Exception as error:  # noqa: BLE001  a schedule that ends: what it gave until then counts
                self.evidence.facts["schedule ends"] = f"after {len(rates)} more steps: {error}"
        return rates


class _Events(TorchFunctionMode):
    """The calls of one user step, in order; `unused` lasts from one call to the next."""

    def __init__(self, gradients: Callable[[], dict[str, Sample | None]]) -> None:
        super().__init__()
        self.gradients = gradients
        self.unused = False  # a backward pass whose gradient no step has used
        self.begin()

    def begin(self) -> None:
        self.names: list[str] = []
        self.probed = False
        self.modes: list[bool] = []  # of the model in passes with gradients
        self.at_step: list[dict[str, Sample | None]] = []
        self.stepped: dict[str, Sample] = {}
        self.weights: dict[str, Sample] = {}  # when the optimizer first stepped
        self.rates: list[float] = []  # then
        self.metrics: list[tuple[Any, ...]] = []  # what a scheduler that waits for a plateau was given
        self.made: list[str] = []  # optimizers, schedulers and scalers made inside
        self.lost: list[dict[str, Sample]] = []  # weights when zero_grad wiped a gradient inside the step
        self.last: dict[str, Sample | None] = {}  # gradients after the last backward pass, if any was wiped

    def forward(self, model: nn.Module, given: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled():
            self.modes.append(model.training)
        self.probed |= any(t.requires_grad for t in tensors_in(given))  # the gradient at an input is asked

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") == "backward":
            self.names.append("backward")
            self.unused = True
            value = func(*args, **(kwargs or {}))
            self.last = self.gradients() if self.lost else {}
            return value
        return func(*args, **(kwargs or {}))


def _told(original: Callable[..., None], made: list[str], name: str, own: set[int]) -> Callable[..., None]:
    """Return a constructor that says that it was called for these parameters, not those of an adapted copy."""

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if getattr(self, "defaults", {}).get("momentum", 1) == 0:
            return  # it has no state
        groups = getattr(getattr(self, "optimizer", self), "param_groups", None)
        if groups is None or any(id(p) in own for g in groups for p in g["params"]):
            made.append(name)

    return init


def gradients(evidence: TrainingEvidence) -> dict[str, Sample | None]:
    """Return a sample of every gradient."""
    return {n: None if p.grad is None else Sample(p.grad) for n, p in evidence.trainable.items()}


def clear_gradients(evidence: TrainingEvidence) -> None:
    """Set every gradient of the model and of the optimizer to None."""
    groups = [] if evidence.optimizer is None else evidence.optimizer.param_groups
    for parameter in [*evidence.parameters.values(), *(p for g in groups for p in g["params"])]:
        parameter.grad = None


def _weights(evidence: TrainingEvidence) -> dict[str, Sample]:
    return {n: Sample(p) for n, p in evidence.parameters.items() if is_readable(p)}


def _counterparts(other: Any, weights: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """The tensors of another object that stand for the weights: by name, or in order, with the same shapes."""
    if isinstance(other, nn.Module):
        own: dict[str, Tensor] = dict(other.named_parameters())
    else:
        shadow = next(
            (
                v
                for v in vars(other).values()
                if isinstance(v, dict) and all(map(torch.is_tensor, v.values()))
            ),
            {},
        )
        own = {str(k): v for k, v in shadow.items()} if hasattr(other, "__dict__") else {}
    for prefix in ("", "module.", "ema.", "model.", "ema_model."):
        named = {n: own[prefix + n] for n in weights if prefix + n in own}
        if len(named) >= 0.5 * len(weights) and all(t.shape == weights[n].shape for n, t in named.items()):
            return {n: t for n, t in named.items() if t.is_floating_point()}
    return {}
