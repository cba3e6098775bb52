"""Facts beside trends: states that no healthy training has, each with its limit and its reason. They need no past.

    every step      the learning rate, the loss
    sampled steps   whether the gradient of a step is its own (at one small parameter), levels of the stream
    audited rows    every parameter: has it a gradient, and does its entry with the largest gradient move?

An audited row is the second, fourth and seventh, then every tenth.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappush, heappushpop
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from edgewise.arrays import in_double
from edgewise.monitor.alarm import AlarmKind, Detection
from edgewise.monitor.hooks import ModelHook, Switch, guarded, guarded_beside

RATE_STEPS = 10  # steps with a rate of 0: a warm-up begins with one, a restart touches it
GONE, QUARTER = 0.02, 0.25  # of the largest rate, which are the end of a schedule, and a part of the way back
FADED, FALLEN = 30, 1e-3  # steps for which the rate is below so much of its largest
REMEMBERED = 120  # steps whose rates are remembered
AT_ONCE = 0.1  # of the first loss: what is learned falls to zero from below that
SAME = 20  # losses that are the same number: a batch of its own changes the seventh digit
AGREE = 3  # rows or audits that must agree
SPAN = 10  # steps that the audits must cover
PARALLEL, APART = 0.9999, 0.99  # cosine between gradients that are one direction, and that are not
CHANGED = 0.5  # below it a gradient is another one: clipping by value leaves more
WIDE, LATE, LOST = 24, 16, 0.5  # parameters, and steps, at which that is asked; entries that underflow
UNDERFLOW = 6e-5  # below it numbers of half precision have few digits, and from 6e-8 on none
AGAIN = 40  # rows between two such looks
ROUNDED = 0.5  # of the entries with a gradient keep their value: more is lost than learned
UPHILL = 0.3  # cosine of update and gradient: a step that descends has a negative one
LARGE = 0.1  # of the parameters that train: what is smaller may be unused on purpose
GUARDED = 16  # parameters of which an entry is remembered from step to step
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg")
FOLLOWED, ENTRIES = 8, 256  # matrices, and entries of each, that are followed from step to step
TAKEN, OPPOSITE = 0.5, 0.7  # of a step is taken back; and the cosine with it
APART_FROM = 3.0  # other changes, in steps
FEW_STATES = 3  # parameters of whose moments an entry is remembered
NEVER = 40  # backward passes without a step, and twenty times the usual, after which steps have stopped
FEWEST_SCALE = 2.0  # of the loss, from which it is a scale
LITTLE = 0.5  # of the first loss: a run that ends above it may have made too few steps
OFTEN = 5  # steps for each change of the weights between them: more often it is meant (a bound, a norm)
SELDOM = 12  # and more often it is a part of the training (slow weights that fast ones go back to)
IDLE_AUDITS = 6  # audited rows in which one expert has everything
FROZEN = 0.5  # of what trained does not any more


def audited(stored: int) -> bool:
    """Return whether every parameter is inspected in the row that so many are stored before."""
    return stored in (1, 3, 6) or stored % 10 == 9


class RateSeries:
    """The largest learning rate of every step: where it was raised, and how far it has fallen."""

    def __init__(self) -> None:
        self._top = self._bottom = self._low = (
            0  # the last steps at which it was largest, and next to nothing
        )
        self._rose = 0  # the step to which it climbed at first
        self._largest: list[float] = []  # rates, a heap
        self.returned = False  # whether it climbs again as slowly as it fell
        self.steps = self.low = 0  # steps in all, and in a row at which it was far below its largest
        self.most = self.now = 0.0
        self.recent: deque[float] = deque(maxlen=REMEMBERED)

    def see(self, rate: float) -> None:
        """Take in the rate of a step."""
        if not math.isfinite(rate):
            return
        if rate < GONE * self.most:
            self._bottom = self._low = self.steps
        if rate >= self.most:
            self._top = self.steps
        if rate < QUARTER * self.most:
            self._low = self.steps
        fell, climbed = self._bottom - self._top, self._low - self._bottom
        if not self._bottom and self.recent and self.recent[0] < QUARTER * self.most:
            self._rose = self._top  # a run that begins with such a climb is one of cycles
        self.returned = fell > 0 and climbed > max(OFTEN, fell / 8) and rate > QUARTER * self.most
        self.returned &= self._rose < 0.75 * fell
        self.steps, self.now, self.most = self.steps + 1, rate, max(self.most, rate)
        self.low = self.low + 1 if 0 < rate < FALLEN * self.most else 0
        self.recent.append(rate)
        (heappush if len(self._largest) < SAME else heappushpop)(self._largest, rate)

    @property
    def faded(self) -> bool:
        """Return whether the rate was next to nothing for long, which is not an end of a schedule."""
        return self.low >= FADED and self.low > 0.25 * self.steps

    @property
    def warming(self) -> bool:
        """Return whether the rate has risen at every step that is remembered."""
        past = list(self.recent)
        return len(past) == REMEMBERED and all(a < b for a, b in pairwise(past))

    @property
    def beyond(self) -> float:
        """Return the rate of now over the largest that the run has made twenty steps with; 1 if it made fewer."""
        return self.now / self._largest[0] if len(self._largest) == SAME and self._largest[0] > 0 else 1.0

    def raised(self, within: int) -> float:
        """Return the rate of now over its median of the first half of the last steps; 1 with few."""
        past = [rate for rate in list(self.recent)[-within:] if rate > 0]
        before = sorted(past[: len(past) // 2])
        return self.now / before[len(before) // 2] if before else 1.0


@dataclass
class StepFacts:
    """What the rate and the loss of every step show."""

    cross_entropy: bool = False  # the criterion is torch's cross-entropy
    still: int = 0  # steps in a row with a rate of 0
    rates: RateSeries = field(default_factory=RateSeries)
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=SAME))
    negative: bool = False  # the rate was
    moved: bool = False  # the loss was not always zero
    _first: float = 0.0
    _fell: float = 0.0  # the last one that was not zero
    _zeros: int = 0  # in a row since

    @property
    def solved(self) -> bool:
        """Return whether the loss is exactly zero and was not always: nothing is left to learn, and no gradient."""
        return self.moved and bool(self.losses) and self.losses[-1] == 0

    def see(self, rates: Sequence[float], loss: float | None) -> Iterator[Detection]:
        """Take in one step."""
        self.rates.see(max(rates, default=math.nan))
        self.still = self.still + 1 if rates and max(map(abs, rates)) == 0 else 0
        if self.rates.low >= FADED and self.rates.faded:
            yield Detection(
                AlarmKind.NOT_LEARNING,
                f"The learning rate is {self.rates.now:.2g}, and was {self.rates.most:.2g}: for "
                f"{self.rates.low} of {self.rates.steps} steps it is below a thousandth of that.",
                "the learning rate has decayed to next to nothing: it is too low for the rest of the run "
                "(a schedule that is too short, or stepped too often)",
                "Make the schedule as long as the training, and step it as often as it counts.",
            )
        if self.rates.returned:
            yield Detection(
                AlarmKind.MISTAKE,
                f"The learning rate had fallen below a fiftieth of its largest, and has climbed back to "
                f"{self.rates.now:.2g} as slowly.",
                "the schedule of the learning rate is shorter than the training: after its end the rate rises again "
                "(a cosine that is stepped beyond its T_max)",
                "Make the schedule as long as the training, or restart it at once if cycles are meant.",
                topic="schedule returns",
            )
        if rates and min(rates) < 0 and not self.negative:
            self.negative = True
            yield Detection(
                AlarmKind.MISTAKE,
                f"The learning rate is {min(rates):.2g}.",
                "the learning rate is negative: the optimizer goes up the gradient (a schedule without a lower "
                "bound, stepped beyond its end)",
                "Let the schedule end at 0 or above: max(0, ...), or make it as long as the training.",
                topic="rate negative",
            )
        if self.still == RATE_STEPS:
            yield Detection(
                AlarmKind.RATE_ZERO,
                f"The learning rate was 0 in the last {RATE_STEPS} steps.",
                "the learning rate is 0 (lr of every parameter group), so no step changes anything",
                topic="rate zero",
            )
        if loss is None or not math.isfinite(loss):
            return
        self._first = self._first or loss
        self._fell, self._zeros = (self._fell, self._zeros + 1) if not loss else (loss, 0)
        self.losses.append(loss)
        self.moved |= loss != 0
        if self._zeros == SAME and self._fell > AT_ONCE * self._first > 0:
            yield Detection(
                AlarmKind.LOSS_CONSTANT,
                f"The loss was {self._fell:.3g}, and is exactly 0 in each of the {SAME} steps since.",
                "the loss is exactly zero from one step on, and so is the gradient: nothing is compared any more (a "
                "batch of one row without negatives, a mask or a selection that is empty, a weight of 0)",
                "Check the size of the batch, the masks and the weights of the loss from that step on.",
            )
        if len(self.losses) == SAME and len(set(self.losses)) == 1 and not (self.still or self.solved):
            self.losses.clear()
            yield Detection(
                AlarmKind.LOSS_CONSTANT, f"The loss was {loss:.6g} in each of the last {SAME} steps."
            )
        if self.cross_entropy and loss < -1e-6:
            yield Detection(
                AlarmKind.LOSS_IMPOSSIBLE,
                f"The loss is {loss:.3g}, and a cross-entropy is never below 0.",
                "the loss has the wrong sign, or is not the cross-entropy that the criterion computes",
            )
            self.cross_entropy = False


class GradientProbe(ModelHook):
    """Return whether the gradient that a step uses is the one of its own backward passes, at one small parameter.

    Noise or decay may drown the gradient of one parameter and not that of the network: what is not the sum of known
    gradients is asked at entries of all of them, step by step, before it is said.
    """

    def __init__(self, model: nn.Module, switch: Switch, blocks: Iterable[str]) -> None:
        self.switch, self.model = switch, model
        self.name, self.parameter = _probe(model, tuple(blocks))
        self.handles: list[Any] = []
        self.seen: deque[str] = deque(maxlen=AGREE)
        self.scale = math.nan  # of the gradient that is used, over that of the backward passes
        self.scales: deque[float] = deque(maxlen=AGREE)
        self._fresh: Tensor | None = None
        self._left: Tensor | None = None
        self._known = False  # whether what was left of the step before is known
        self.everywhere: GradientSample | None = None
        self._quiet = 0  # rows before the next look at all parameters
        if self.parameter is not None:
            self.handles.append(self.parameter.register_hook(guarded(switch, self._hear)))

    def _hear(self, gradient: Tensor) -> None:
        if self.switch.on:
            fresh = gradient.detach().float()
            self._fresh = fresh.clone() if self._fresh is None else self._fresh + fresh

    def after_step(self) -> None:
        """Remember what the step leaves in .grad; call it if the next step is sampled."""
        self._fresh = None
        gradient = None if self.parameter is None else self.parameter.grad
        self._left = None if gradient is None else gradient.detach().float().clone()
        self._known = True

    def before_step(self) -> None:
        """Compare the gradient that is used with those that arrived."""
        if self.parameter is None or not self._known:
            return
        used, fresh, left = self.parameter.grad, self._fresh, self._left
        self._known = False
        self.seen.append(self._state(None if used is None else used.detach().float(), fresh, left))

    def _state(self, used: Tensor | None, fresh: Tensor | None, left: Tensor | None) -> str:
        if fresh is None:
            return "none"
        if not bool(fresh.isfinite().all()) or not bool(fresh.any()):
            return "unknown"
        if used is None or not bool(used.any()):
            return "cleared"
        self.scale = float(used.norm() / fresh.norm())
        self.scales.append(self.scale)
        if _cosine(used, fresh) > PARALLEL:
            return "fresh"
        if left is not None and bool(left.any()) and _cosine(used, fresh) < APART:
            if _cosine(used, left + fresh) > PARALLEL:
                return "adds up"
            if _cosine(used, left) > PARALLEL:
                return "old"
        return "changed" if _cosine(used, fresh) < CHANGED else "unknown"

    @property
    def divided(self) -> float:
        """Return the number that gradients are multiplied by before each step, 1 if it changes as clipping does."""
        known = list(self.scales)
        same = len(known) == AGREE and all(abs(s - known[0]) < 1e-3 * known[0] for s in known)
        return known[0] if same else 1.0

    def detection(self) -> Detection | None:
        """Return what the last rows agree on, if it is wrong."""
        if self.everywhere is not None and self.everywhere.complete:
            found, self.everywhere = self.everywhere.detection(), None
            self._quiet = AGAIN
            self.seen.clear()
            return found
        self._quiet -= 1
        if len(self.seen) < AGREE or len(set(self.seen)) > 1 or self.seen[-1] not in WRONG:
            return None
        if self.seen[-1] in ("changed", "cleared"):
            if self.everywhere is None and self._quiet < 0:
                self.everywhere = GradientSample(self.model, self.switch)
            return None
        kind, sentence, cause, advice = WRONG[self.seen[-1]]
        at = f"at {self.name}, in the last {AGREE} rows"
        return Detection(kind, f"{sentence} ({at}).", cause, advice, module=self.name)


class GradientSample(ModelHook):
    """Some entries of the gradients of all parameters, as they arrive and as they are used, in some steps in a row."""

    def __init__(self, model: nn.Module, switch: Switch) -> None:
        self.clock = switch.clock
        known = [p for _, p in _local(model)]
        self.parameters = known[:: len(known) // WIDE + 1]
        self._fresh: list[Tensor | None] = [None] * len(self.parameters)
        self._past: deque[Tensor] = deque(maxlen=LATE)  # of the steps so far, the last one last
        self._cosines: list[float] = []
        self._late: list[int] = []  # steps ago at which the gradient that is used arrived
        self._small = 0.0  # the largest of all entries
        self._lost: list[float] = []  # share of the entries that are exactly zero when they are used
        self.handles = [
            p.register_hook(guarded_beside(switch, partial(self._hear, i)))
            for i, p in enumerate(self.parameters)
        ]

    def _hear(self, place: int, gradient: Tensor) -> None:
        fresh, before = _few_entries(gradient), self._fresh[place]
        self._fresh[place] = fresh.clone() if before is None else before + fresh  # .grad may be written over

    @property
    def complete(self) -> bool:
        """Return whether enough steps were seen."""
        none = len(self._lost) == AGREE and min(self._lost) == 1.0 and self._small > UNDERFLOW
        return len(self._cosines) >= LATE or none

    def step(self) -> None:
        """A step begins."""
        if self.complete:
            return
        arrived, self._fresh = self._fresh, [None] * len(self.parameters)
        if any(fresh is None for fresh in arrived):
            return
        fresh = torch.cat([fresh for fresh in arrived if fresh is not None])
        used = torch.cat(
            [
                torch.zeros_like(a) if p.grad is None else _few_entries(p.grad)
                for p, a in zip(self.parameters, arrived, strict=True)
                if a is not None
            ]
        )
        self._past.append(fresh)
        self._cosines.append(_cosine(used, fresh))
        there = fresh != 0
        self._lost.append(float((there & (used == 0)).sum() / there.sum().clamp_min(1)))
        self._small = max(self._small, float(fresh.abs().max()))
        past = [_cosine(used, each) > PARALLEL for each in self._past]
        if any(past) and not past[-1]:
            self._late.append(len(past) - 1 - past.index(True))
        if self.complete:
            for handle in self.handles:
                handle.remove()

    def detection(self) -> Detection | None:
        """Return what becomes of the gradients of the network."""
        rows = f"at {len(self.parameters)} parameters, in {len(self._cosines)} steps"
        if len(self._late) >= AGREE and len(set(self._late[-AGREE:])) == 1:
            return Detection(
                AlarmKind.MISTAKE,
                f"The gradient that a step uses is the one that arrived {self._late[-1]} steps before ({rows}).",
                f"gradients are stale: the optimizer steps with old gradients, of {self._late[-1]} steps ago (a delay "
                "or a queue between the backward pass and the step)",
                "Step with the gradient of the same weights, or lower the learning rate by the delay.",
            )
        middle, lost = float(np.median(self._cosines)), float(np.median(self._lost))
        if lost == 1.0 and self._small > UNDERFLOW:
            return Detection(*WRONG["cleared"][:1], f"{WRONG['cleared'][1]} ({rows}).", *WRONG["cleared"][2:])
        if lost > LOST:
            return Detection(
                AlarmKind.NO_GRADIENT,
                f"{lost:.0%} of the entries of gradients that arrive are exactly zero when they are used ({rows}).",
                "gradients underflow between the backward pass and the step: they are rounded to half precision, "
                "where what is this small becomes zero (a loss scale that is too small?)",
                "Keep gradients in float32 or bfloat16, or raise the loss scale; a scale that falls must rise again.",
            )
        if middle < CHANGED:
            kind, _, cause, advice = WRONG["changed"]
            return Detection(
                kind,
                f"The gradient that is used has a cosine of {middle:.2g} with the one that arrived ({rows}).",
                cause,
                advice,
                topic="gradient changed",
            )
        return None


def _few_entries(gradient: Tensor) -> Tensor:
    flat = gradient.detach().reshape(-1)
    return flat[:: -(-flat.numel() // ENTRIES)].float()


WRONG = {  # states of a gradient that no step may have: symptom, what was seen, cause, advice
    "adds up": (
        AlarmKind.GRADIENT_ADDS_UP,
        "The gradient of a step is that of its own backward pass plus what the step before left",
        "gradients are not cleared between steps: optimizer.zero_grad() is missing, or comes too rarely",
        "",
    ),
    "old": (
        AlarmKind.GRADIENT_ADDS_UP,
        "The gradient of a step is the one that the step before used",
        "the optimizer steps with gradients of an earlier batch: its step comes before the backward pass",
        "Call optimizer.step() after loss.backward().",
    ),
    "changed": (
        AlarmKind.MISTAKE,
        f"The gradient that is used has a cosine below {CHANGED} with the one that arrived",
        "gradients are changed between the backward pass and the step (noise, masks, an exchange between parameters): "
        "the step does not follow the gradient of the loss",
        "Check what is done with .grad after loss.backward().",
    ),
    "cleared": (
        AlarmKind.NO_GRADIENT,
        "A gradient arrives in the backward pass, and is zero or gone when the optimizer steps",
        "gradients are cleared between the backward pass and the step: zero_grad() is called too late",
        "Call optimizer.zero_grad() before loss.backward(), not between it and optimizer.step().",
    ),
}


def _local(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that train, but for those in shards."""
    trains = [(n, p) for n, p in model.named_parameters() if p.requires_grad and p.is_leaf]
    return [(n, p) for n, p in trains if p.is_floating_point() and not hasattr(p, "to_local")]


def _probe(model: nn.Module, blocks: tuple[str, ...]) -> tuple[str, nn.Parameter | None]:
    """A small parameter of a block that trains: the smallest of the last block, else of the model."""
    trains = [(n, p) for n, p in _local(model) if p.numel() >= 8]
    inside = [(n, p) for n, p in trains if blocks and n.startswith(f"{blocks[-1]}.")]
    return min(inside or trains, key=lambda pair: pair[1].numel(), default=("", None))


def _cosine(a: Tensor, b: Tensor) -> float:
    """Without torch's epsilon, which takes gradients below 1e-8 for none."""
    a, b = in_double(a.flatten()), in_double(b.flatten())
    size = float(a.norm()) * float(b.norm())
    return float(a @ b) / size if size > 0 else 0.0


class ParameterAudit:
    """Which parameters have no gradient, or do not move, in the audited rows."""

    def __init__(self, model: nn.Module, modules: Sequence[str]) -> None:
        self.model, self.modules = model, tuple(modules)
        self.seen: dict[str, deque[str]] = {}
        self.steps: deque[int] = deque(maxlen=AGREE)
        self._before: list[tuple[str, nn.Parameter, Tensor, Tensor]] = []
        self._told: set[str] = set()
        self._frozen: Detection | None = None
        self._reached: set[str] = set()  # that have had a gradient
        self._lately: dict[str, deque[str]] = {}
        self._alike = _siblings(
            model
        )  # of each parameter of an entry of a list: the same one of its like entries

    def _of_frozen(self, names: list[str], step: int) -> Detection | None:
        """Most of what trained does not any more, and nothing else has taken its place."""
        sizes = {n: p.numel() for n, p in self.model.named_parameters()}
        share = sum(sizes[n] for n in names) / max(sum(sizes[n] for n in self.seen), 1)
        others = sum(
            p.numel() for n, p in self.model.named_parameters() if p.requires_grad and n not in self.seen
        )
        turns = others > 0.2 * sum(sizes[n] for n in names)  # parts of the model train one after the other
        if share < FROZEN or turns or all(self.seen[n][-1] in ("none", "zero") for n in names):
            return None
        since = self.steps[-1] if self.steps else 0
        return Detection(
            AlarmKind.PARAMETERS_STILL,
            f"{_listed(names)} ({share:.0%} of what trained) do not require a gradient any more, since a step "
            f"between {since + 1} and {step}.",
            "parameters were frozen while the model trains (requires_grad is False): they learn nothing further",
            "Undo it after an evaluation: requires_grad_(True); or use torch.no_grad() there.",
            module=names[0],
        )

    def before_step(self, step: int) -> None:
        """Read all gradients, and remember the entry that each moves most."""
        self._before, now = [], {}
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad or not parameter.is_floating_point():
                continue
            gradient = parameter.grad
            if gradient is None or gradient.layout is not torch.strided or hasattr(gradient, "to_local"):
                now[name] = "none" if gradient is None else "moves"
                continue
            largest = gradient.detach().abs().flatten().argmax()
            size = gradient.detach().flatten()[largest]
            if not bool(size != 0):
                now[name] = "zero"
            else:
                value = parameter.detach().flatten()[largest].clone()
                self._before.append((name, parameter, largest, value))
        gone = self.seen.keys() - now.keys() - {b[0] for b in self._before}
        if len(now) + len(self._before) and gone:
            self._frozen = self._of_frozen(sorted(gone), step)
            self.seen.clear()  # other parameters train now
            self.steps.clear()
        self._note(now)
        self.steps.append(step)

    def glance(self) -> None:
        """Note which of the parameters without a gradient in the audits have one in this row."""
        for name, states in self.seen.items():
            if states[-1] in ("none", "zero") and name not in self._reached:
                gradient = self.model.get_parameter(name).grad
                if gradient is not None and bool((gradient != 0).any()):
                    self._reached.add(name)

    def after_step(self, waiting: Container[int] = ()) -> None:
        """Record what has moved; waiting: parameters whose optimizer steps now and then, and not this time."""
        self._note(
            {
                name: "moves" if bool(parameter.detach().flatten()[place] != value) else "still"
                for name, parameter, place, value in self._before
                if id(parameter) not in waiting
            }
        )
        self._before = []

    def _note(self, states: dict[str, str]) -> None:
        for name, state in states.items():
            self.seen.setdefault(name, deque(maxlen=AGREE)).append(state)
            self._lately.setdefault(name, deque(maxlen=IDLE_AUDITS)).append(state)
            if state in ("moves", "still"):
                self._reached.add(name)

    def held(self, optimizers: Sequence[Optimizer]) -> list[nn.Parameter]:
        """The parameters that train, if the optimizers have all of them."""
        known = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return trained if all(id(p) in known for p in trained) else []

    def detection(
        self, optimizers: Sequence[Optimizer], backwards: int = 1, idle: Sequence[Optimizer] = ()
    ) -> Detection | None:
        """Return what the last audits agree on, if it is wrong; each of it once.

        backwards: passes that were heard; idle: those of the optimizers that have not stepped lately
        """
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            return self._once("frozen", frozen)
        if len(self.steps) < AGREE or self.steps[-1] - self.steps[0] < SPAN or not self.seen:
            return None
        agreed = {
            name: states[0]
            for name, states in self.seen.items()
            if len(states) == AGREE == states.count(states[0])
        }
        sizes = {n: p.numel() for n, p in self.model.named_parameters() if n in self.seen}
        if all(agreed.get(name) in ("none", "zero") for name in self.seen):
            return self._once("all", _no_gradient(backwards))
        held = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
        stuck = [name for name, state in agreed.items() if state == "still"]
        outside = [name for name in stuck if id(self.model.get_parameter(name)) not in held]
        active = {id(p) for o in optimizers if o not in idle for g in o.param_groups for p in g["params"]}
        waiting = {id(p) for o in idle for g in o.param_groups for p in g["params"]} - active
        stopped = [name for name in stuck if id(self.model.get_parameter(name)) in waiting]
        if found := self._about(stopped, sizes, _stopped, 0.0):
            return found
        found = self._about(outside, sizes, _outside, 0.0) or self._about(
            [name for name in stuck if name not in outside], sizes, _still, LARGE
        )
        unreached = [n for n, s in agreed.items() if s in ("none", "zero")]
        skipped = {n for n in unreached if self._by_turns(n, set(unreached))}
        return (
            found
            or self._about([n for n in unreached if n not in skipped], sizes, _unreached, LARGE)
            or self._unbalanced()
        )

    def _by_turns(self, name: str, unreached: set[str]) -> bool:
        """Return whether a parameter had a gradient before, or is of an expert or a layer whose like has one now."""
        if name in self._reached:
            return True
        if not any(other not in unreached and other in self.seen for other in self._alike.get(name, ())):
            return False
        return len(self._lately[name]) < IDLE_AUDITS or not self._whole_block(name, unreached)

    def _whole_block(self, name: str, unreached: set[str]) -> bool:
        """Return whether nothing of its block has a gradient."""
        block = next((b for b in self.modules if name.startswith(f"{b}.")), None)
        return block is not None and all(n in unreached for n in self.seen if n.startswith(f"{block}."))

    def _unbalanced(self) -> Detection | None:
        """All of three or more experts but one without a gradient, in the last audits."""
        idle, groups = [], 0
        for name, others in self._alike.items():
            every = (name, *others)
            known = [self._lately.get(n, ()) for n in every]
            if len(every) < 3 or min(map(len, known)) < IDLE_AUDITS:
                continue
            used = ["moves" in states or "still" in states for states in known]
            groups += 1
            if sum(used) == 1 and not used[0]:
                idle.append(name)
        if not idle or not groups:
            return None
        return self._once(
            "unbalanced",
            Detection(
                AlarmKind.PARAMETERS_STILL,
                f"In the last {IDLE_AUDITS} audited rows one expert has had all gradients, and the others none "
                f"({_listed(idle)} and its siblings).",
                "the router gives everything to one expert, and the others are unused: routing is not balanced",
                "Check the sign and the weight of the balance loss, and how the router begins.",
                module=idle[0].rpartition(".")[0],
            ),
        )

    def _about(self, names: list[str], sizes: dict[str, int], words: Any, least: float) -> Detection | None:
        """A detection about parameters that are a large part of the model, or all matrices of one part of a block."""
        matrices = [n for n in names if self.model.get_parameter(n).dim() > 1]
        share = sum(sizes[n] for n in names) / max(sum(sizes.values()), 1)
        parts = [part for part in self._parts() if part and all(n in names for n in part)]
        if not matrices or (share < max(least, 0.01) and not parts):
            return None
        return self._once(",".join(names[:3]), words(names, share))

    def _parts(self) -> list[list[str]]:
        """The matrices of every block: those blocks whose gradients all miss are not unused on purpose."""
        trained = [n for n, p in self.model.named_parameters() if p.requires_grad and p.dim() > 1]
        return [[n for n in trained if n.startswith(f"{block}.")] for block in self.modules]

    def _once(self, key: str, detection: Detection) -> Detection | None:
        if key in self._told:
            return None
        self._told.add(key)
        return detection


def _siblings(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Parameters of the entries of a list of modules inside of blocks, each with the same one of the other entries."""
    names = {name for name, _ in model.named_parameters()}
    found: dict[str, tuple[str, ...]] = {}
    for place, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) < 2 or len({type(m) for m in module}) > 1:
            continue
        for name in (n for n in names if n.startswith(f"{place}.")):
            entry, _, rest = name.removeprefix(f"{place}.").partition(".")
            others = [f"{place}.{k}.{rest}" for k in range(len(module)) if str(k) != entry]
            if all(o in names for o in others):
                found[name] = tuple(others)  # of the innermost list, which comes last
    return found


def _no_gradient(backwards: int) -> Detection:
    sentence = (
        f"No parameter has a gradient, or all are exactly zero, when the optimizer steps ({AGREE} rows)."
    )
    if not backwards:
        return Detection(
            AlarmKind.NO_GRADIENT,
            f"{sentence} No backward pass was heard.",
            "there is no gradient because backward() is never called: it is missing, or the loss is detached "
            "from the model (detach, item, no_grad)",
            "Call loss.backward() on the loss that the model's output leads to, before optimizer.step().",
        )
    return Detection(
        AlarmKind.NO_GRADIENT,
        sentence,
        could_be=(
            "the loss does not depend on the model (detach, no_grad, argmax): loss.grad_fn is None or leads past it",
            "zero_grad() stands between backward and step: print a .grad just before optimizer.step()",
        ),
    )


def _left_out(cause: str, advice: str, topic: str, names: list[str], share: float) -> Detection:
    return Detection(
        AlarmKind.PARAMETERS_STILL,
        f"{_listed(names)} ({share:.1%} of what requires a gradient) have gradients and keep their values.",
        cause,
        advice,
        module=names[0],
        topic=topic,
    )


_outside = partial(
    _left_out,
    "these parameters are not in any optimizer that steps: it was given others, or was made before they were",
    "Give them to the optimizer (make it after the model is complete), or freeze them if that is meant.",
    "outside",
)
_stopped = partial(
    _left_out,
    "the optimizer that holds these parameters has stopped: it has stepped before, and its step() is no longer "
    "called, while another optimizer steps",
    "Check the condition under which each optimizer's step() is called.",
    "stopped",
)


def _still(names: list[str], share: float) -> Detection:
    return Detection(
        AlarmKind.PARAMETERS_STILL,
        f"{_listed(names)} ({share:.1%} of what requires a gradient) are in the optimizer, have gradients, and keep "
        "their values.",
        could_be=(
            "their group has a rate of 0: print the lr of every param_group",
            "the step is smaller than half a unit in the last place: compare lr with the size of the weights "
            "times 2^-9 in bfloat16, 2^-24 in float32",
        ),
        module=names[0],
    )


def _unreached(names: list[str], share: float) -> Detection:
    return Detection(
        AlarmKind.PARAMETERS_STILL,
        f"No gradient reaches {_listed(names)} ({share:.1%} of what requires a gradient).",
        "the loss does not depend on them: they are not used in the forward pass, are detached, or are "
        "multiplied by zero",
        "Look for detach(), no_grad() or .data on the way from there to the loss, and for layers left out.",
        module=names[0],
        topic="unreached",
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more parameters" if len(names) > 3 else "")


class RowFacts:
    """Facts of several rows that are not trend: lost updates, steps uphill."""

    def __init__(self) -> None:
        self.rounded: deque[float] = deque(maxlen=AGREE)
        self.uphill: deque[float] = deque(maxlen=2 * AGREE)

    def see(self, rounded: float, uphill: float, held: Sequence[nn.Parameter]) -> Iterator[Detection]:
        """Take in an audited row: the share of entries whose update was lost, and cos(update, gradient).

        held: the parameters, if an optimizer with a rate above 0 has all of them
        """
        if math.isfinite(rounded) and held:
            self.rounded.append(rounded)
        if math.isfinite(uphill):
            self.uphill.append(uphill)
        if len(self.rounded) == AGREE and min(self.rounded) > ROUNDED:
            self.rounded.clear()
            half = any(p.dtype in (torch.bfloat16, torch.float16) for p in held)
            cause = "the weights are kept in half precision, in which steps of this size round to nothing"
            low = "the learning rate is so low that steps round to nothing even in single precision"
            yield Detection(
                AlarmKind.UPDATE_ROUNDED_AWAY,
                f"At least {ROUNDED:.0%} of the entries that have a gradient keep their value in a step.",
                cause if half else low,
                "" if half else "Raise the learning rate.",
                topic="rounded",
            )
        if len(self.uphill) == 2 * AGREE and min(self.uphill) > UPHILL:
            self.uphill.clear()
            yield Detection(
                AlarmKind.MISTAKE,
                "Steps go up the gradient: their cosine with it was above "
                f"{UPHILL} in {2 * AGREE} audited rows.",
                "the loss is maximized: its sign, or maximize=True of the optimizer, is wrong",
                "Minimize the loss: check its sign and the optimizer's maximize.",
                topic="uphill",
            )


class Custody:
    """Whether weights and optimizer state keep their values from the end of a step to the next: one entry of a few."""

    def __init__(self, model: nn.Module) -> None:
        known = [p for p in model.parameters() if p.is_floating_point() and not hasattr(p, "to_local")]
        known = [p for p in known if p.dtype == known[0].dtype and p.device == known[0].device and p.numel()]
        self._chosen = known[:: len(known) // GUARDED + 1]
        self._entries = [p.detach().reshape(-1)[p.numel() // 2 :][:1] for p in self._chosen]
        self._left: tuple[Tensor, list[tuple[Tensor, int]]] | None = None
        self._stepped: Optimizer | None = None
        self._remembered: Tensor | None = None
        self._steps = self._changes = 0
        self.changed = -1  # the last step before which they did not
        self.what = ""  # of them changed then
        self._sizes: list[float] = []  # of the second moments, as a sampled step ended
        self.replaced = ""  # how they have changed since, and not by a step
        self.often = 0  # times that the loss rose with it, in a row

    def remember(self) -> None:
        """From now on `moved` says whether the weights have."""
        self._remembered = torch.cat(self._entries) if self._entries else None

    @property
    def moved(self) -> bool:
        return self._remembered is not None and not torch.equal(self._remembered, torch.cat(self._entries))

    def _state(self, optimizer: Optimizer) -> list[tuple[Tensor, int]]:
        """Return the moments of a few parameters, and how often they were written to."""
        states = [optimizer.state.get(p) or {} for p in self._chosen[:FEW_STATES]]
        moments = [s[name] for s in states for name in MOMENTS if isinstance(s.get(name), Tensor)]
        return [(moment, moment._version) for moment in moments]

    def _second_moments(self, optimizer: Optimizer) -> list[float]:
        states = [optimizer.state.get(p) or {} for p in self._chosen[:FEW_STATES]]
        return [float(s["exp_avg_sq"].norm()) for s in states if isinstance(s.get("exp_avg_sq"), Tensor)]

    def leave(self, optimizer: Optimizer, *, sampled: bool = False) -> None:
        """A step has ended."""
        if sampled:
            self._sizes = self._second_moments(optimizer)
        self._left = (torch.cat(self._entries), self._state(optimizer)) if self._entries else None
        self._stepped = optimizer
        self._steps += 1

    def enter(self, optimizer: Optimizer, step: int) -> None:
        """A step begins, and its gradients are complete."""
        left, self._left = self._left, None
        if left is None or not bool(left[0].isfinite().all()):
            return
        if not torch.equal(left[0], torch.cat(self._entries)):
            self._changes += 1
            if self.rare:
                self.changed, self.what = step, "weights"
        elif optimizer is self._stepped and left[1] and _others(left[1], self._state(optimizer)):
            self.changed, self.what = step, "the optimizer's state"
            now = self._second_moments(optimizer)
            if len(now) == len(self._sizes):
                far = [b / a for a, b in zip(self._sizes, now, strict=True) if a > 0 and not 0.2 < b / a < 5]
                self.replaced = f"second moments are {far[0]:.2g} times what they were" if far else ""

    @property
    def rare(self) -> bool:
        """Return whether values change so seldom that it is an event and not a part of the training."""
        return self._changes == 1 or self._changes * SELDOM < self._steps

    def costs(self, step: int, rise: float, restless: bool) -> bool:
        """Return whether the loss jumped as weights changed, or rose at each of the last three times."""
        if self.changed != step:
            return False
        self.often = self.often + 1 if rise > 2.0 else 0
        return restless or self.often >= AGREE or bool(self.replaced)


def _others(before: list[tuple[Tensor, int]], now: list[tuple[Tensor, int]]) -> bool:
    """Return whether tensors were written to, or have others in their place that are not equal."""
    if len(before) != len(now):
        return True
    return any(
        version != old if a is b else a.shape != b.shape or not torch.equal(a, b.to(a))
        for (a, old), (b, version) in zip(before, now, strict=True)
    )


class Aftermath:
    """What becomes of a step until the next one begins, at some entries of a few matrices: nothing may.

    A little may be taken back on purpose (a bound, a norm), but not most of the step, and not by another rate.
    """

    def __init__(self, model: nn.Module) -> None:
        known = [
            p
            for p in model.parameters()
            if p.is_floating_point() and not hasattr(p, "to_local") and p.dim() > 1
        ]
        known = [p for p in known if p.requires_grad and p.device.type == "cpu" and p.numel()]
        self._chosen = known[:: len(known) // FOLLOWED + 1]
        self._before: Tensor | None = None
        self._after: Tensor | None = None
        self.seen: deque[tuple[str, float]] = deque(maxlen=2 * AGREE)

    def _values(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1)[:ENTRIES].double() for p in self._chosen])

    def begin(self) -> None:
        """A sampled step begins."""
        self._before = self._values() if self._chosen else None

    def end(self) -> None:
        """It has ended."""
        self._after = None if self._before is None else self._values()

    def next(self) -> Detection | None:
        """The step after it begins."""
        before, after, self._before, self._after = self._before, self._after, None, None
        if before is None or after is None:
            return None
        now = self._values()
        if not before.shape == after.shape == now.shape:  # parameters were given another size
            return None
        step, change = after - before, now - after
        own, other = float(step.norm()), float(change.norm())
        if not (own > 0 and other > TAKEN * own and math.isfinite(other)):
            self.seen.append(("", 0.0))
            return None
        back = -float(change @ step) / own**2
        if float(change @ step) < -OPPOSITE * own * other:
            halves = [d for d in (torch.bfloat16, torch.float16) if bool((now.to(d).double() == now).all())]
            full = all(p.dtype.itemsize > 2 for p in self._chosen)
            self.seen.append((f"rounded {halves[0]}" if halves and full else "undone", back))
        elif other > APART_FROM * own and abs(float(change @ after)) > 0.99 * other * float(after.norm()):
            self.seen.append(
                ("shrunk" if float(change @ after) < 0 else "grown", other / float(after.norm()))
            )
        else:
            self.seen.append(("", 0.0))
        kinds = {kind for kind, _ in self.seen}
        if len(self.seen) < 2 * AGREE or len(kinds) > 1 or kinds == {""}:
            return None
        return _aftermath(*self.seen[-1])


def _aftermath(kind: str, size: float) -> Detection:
    rows = f"in each of the last {2 * AGREE} steps that were inspected"
    if kind in ("grown", "shrunk"):
        way = "grow" if kind == "grown" else "shrink"
        return Detection(
            AlarmKind.MISTAKE,
            f"Between a step and the next one weights {way} by {size:.2%} of themselves, far more than a step moves "
            f"them ({rows}).",
            "weights are multiplied by a number above 1 after each step, outside of the optimizer (a decay of the "
            "wrong sign): they grow without end"
            if kind == "grown"
            else "weights decay outside of the optimizer, and far faster than they learn: they are multiplied by a "
            "number below 1 after each step, which is not multiplied by the learning rate",
            "Leave decay to the optimizer (AdamW's weight_decay), or correct its sign, or multiply it by the rate.",
            topic="decay",
        )
    if kind.startswith("rounded"):
        which = kind.removeprefix("rounded torch.")
        return Detection(
            AlarmKind.UPDATE_ROUNDED_AWAY,
            f"{size:.0%} of what a step does is gone when the next one begins; weights are numbers of {which} "
            f"({rows}).",
            f"weights are rounded to {which} (half precision) after each step, and steps of this size are lost",
            "Keep the weights in float32, and round only what is computed with (autocast).",
            topic="rounded",
        )
    return Detection(
        AlarmKind.MISTAKE,
        f"{size:.0%} of what a step does to the weights is undone when the next one begins ({rows}).",
        "weights are changed between steps, and not by the optimizer, so that most of each update is lost: "
        "they are overwritten with an average, an earlier copy or a masked one",
        "Look for what writes to parameters after optimizer.step(): copy_ of an average (EMA), load_state_dict, a "
        "mask; keep averages in a model of their own.",
        topic="undone",
    )


class BackwardFacts:
    """What backward passes begin at, against the loss of the criterion, and how many there are to a step."""

    def __init__(self) -> None:
        self.count = 0
        self.since = 0  # the last step
        self.passes: deque[int] = deque(maxlen=AGREE)  # of the last steps
        self.last = math.nan  # the value that the last one began at
        self.broken = 0.0  # where a backward pass began though the loss is finite, if that is not
        # of what backward() begins at over the criterion's loss
        self.factors: deque[float] = deque(maxlen=AGREE)
        self._weights: dict[str, deque[float]] = {}  # of what may be added to the loss
        self._told = False
        self.steps = self.unused = 0  # in all; passes since the last one whose gradients were cleared
        self._opening: list[float] = []  # the first values, and the last ones
        self._values: deque[float] = deque(maxlen=SAME)

    def begins(self, cleared: bool = False) -> Detection | None:
        """A backward pass begins; say so once if steps have stopped; cleared: the gradient of a pass before was."""
        self.last = math.nan  # until it is read, which on another device it is in sampled steps only
        self.count += 1
        self.unused += cleared and self.since > 0
        self.since += 1
        most = max(self.passes, default=0)
        skipped = self.unused >= NEVER
        if self._told or not (skipped or self.since >= (max(NEVER, 20 * most) if most else 15 * NEVER)):
            return None
        self._told = True
        if skipped:
            return Detection(
                AlarmKind.PARAMETERS_STILL,
                f"The gradients of {self.unused} backward passes in a row were cleared, and no step was made with "
                "them"
                + (
                    f"; backward() begins at {self.factor:.3g} times the loss."
                    if self.factor > FEWEST_SCALE
                    else "."
                ),
                "all steps are skipped: gradients are computed and cleared, and optimizer.step() is not called between "
                "(gradients that overflow at this loss scale, so that a scaler skips; another check that never passes)",
                "Lower the loss scale, and look whether gradients are finite; print the condition of optimizer.step().",
            )
        return Detection(
            AlarmKind.GRADIENT_ADDS_UP,
            f"{self.since} backward passes have gone by without a step; "
            + (
                f"before, there were {most} to a step." if most else "no optimizer of this model has stepped."
            ),
            "optimizer.step() is not called any more: gradients add up, and the weights do not change",
            "Check the condition under which optimizer.step() is called (accumulation, a scaler, a flag).",
        )

    def stepped(self) -> None:
        """A step begins."""
        self.steps += 1
        if self.since:
            self.passes.append(self.since)
        self.since = self.unused = 0

    def rare(self) -> Detection | None:
        """A run ends: most of its backward passes were made for a handful of steps, and little was learned."""
        many = self.count >= 5 * NEVER and self.count > NEVER / 2 * self.steps > 0
        if self._told or not many or len(self._values) < SAME:
            return None
        first, now = sum(self._opening) / len(self._opening), sum(self._values) / SAME
        if not now > LITTLE * first > 0:
            return None
        return Detection(
            AlarmKind.NOT_LEARNING,
            f"{self.count} backward passes were made for {self.steps} steps, and the loss is {now / first:.0%} of what "
            "it began with.",
            f"updates are rare: the gradients of {max(self.passes)} passes are accumulated for each "
            "step, so that there are few steps in a run of this length",
            "Accumulate fewer passes for a step, or train for as many steps as the schedule counts.",
        )

    def see(self, value: float, loss: float, terms: Mapping[str, float] | None = None) -> None:
        """Take in a backward pass that begins at a value, if the loss is known, and what may be added to it."""
        self.last = value
        self._values.append(value)
        if len(self._opening) < AGREE:
            self._opening.append(value)
        if math.isfinite(loss) and not math.isfinite(value):
            self.broken = value
        if math.isfinite(value) and math.isfinite(loss) and abs(loss) > 1e-6:
            self.factors.append(value / loss)
            for name, term in (terms or {}).items():
                weights = self._weights.setdefault(name, deque(maxlen=AGREE))
                weights.append((value - loss) / term if abs(term) > 1e-9 else math.nan)

    @property
    def extra(self) -> tuple[str, float]:
        """Return what is added to the loss with a constant weight, if it is one of the known terms, and the weight."""
        for name, weights in self._weights.items():
            first = weights[0]
            same = len(weights) == AGREE and all(abs(w - first) < 2e-3 * abs(first) for w in weights)
            if same and abs(first) > 1e-6 and self.factor == 1.0 and abs(self.factors[-1] - 1) > 1e-4:
                return name, first
        return "", 0.0

    @property
    def faithful(self) -> bool:
        """Return whether backward() begins at the known loss, or at a constant multiple of it."""
        known = list(self.factors)
        return len(known) < AGREE or all(abs(f - known[0]) < 0.1 * abs(known[0]) for f in known)

    @property
    def outweighed(self) -> float:
        """Return where backward() begins over the known loss, if that changes as no scale of a loss does; else 1."""
        known = list(self.factors)
        steps = [abs(math.log2(b / a)) for a, b in pairwise(known) if a > 0 and b > 0]
        own = len(steps) == AGREE - 1 and all(1e-3 < step < 0.5 for step in steps)
        return min(known) if own else 1.0

    @property
    def factor(self) -> float:
        """Return by what the loss is multiplied before backward(); 1 if that changes or is not known."""
        known = list(self.factors)
        same = len(known) == AGREE and all(abs(f - known[0]) < 1e-4 * abs(known[0]) for f in known)
        return known[0] if same else 1.0

    @property
    def undivided(self) -> int:
        """Return how many passes a step takes, if their losses are known not to be divided by it; else 1."""
        same = len(self.passes) == AGREE and len(set(self.passes)) == 1
        return self.passes[0] if same and len(self.factors) == AGREE and abs(self.factor - 1) < 0.01 else 1

    def detection(self) -> Detection | None:
        """A loss that is negated."""
        if self.factor >= 0:
            return None
        return Detection(
            AlarmKind.MISTAKE,
            f"backward() begins at {self.factor:.3g} times the loss of the criterion ({AGREE} rows).",
            "the loss is maximized: it has the wrong sign when backward() is called",
            "Call backward() on the loss itself: remove the minus.",
            topic="uphill",
        )
