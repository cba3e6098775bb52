"""`prove`: train a model as it is and with a plan on the same data and seeds, compare; effect size, p-value, paragraph.

For a module that brings no data there is something to learn: digits for streams, vectors and images, bytes for token
ids. A module that takes (inputs, labels) is trained as it is. Any other gets an entrance (one matrix) if its input is
not the task's, and a readout (one matrix) if its output has no logits; both are the same in both arms of a proof.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgewise.errors import BadInput
from edgewise.files import Document
from edgewise.landscape.evaluation import loss_of
from edgewise.models.inputs import call, tensors
from edgewise.models.state import preserved
from edgewise.nouns.architecture import Shown
from edgewise.nouns.verdict import finite
from edgewise.progress import progress_bar
from edgewise.repair.initialize import critical_plan, initialize_
from edgewise.repair.meter import batch_for
from edgewise.repair.plan import Plan
from edgewise.study.tasks import Task, task
from edgewise.study.train import TRAINS, Schedule, Tuned, seeded, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SURE = 0.05  # of the p-value


@dataclass(frozen=True)
class Arm:
    """One way to start: per seed the losses step by step, the rate that was chosen, and the final loss."""

    name: str
    losses: tuple[tuple[float, ...], ...]
    rates: tuple[float, ...]
    finals: tuple[float, ...]

    def trained(self, chance: float) -> int:
        return sum(final < TRAINS * chance for final in self.finals)

    def json(self) -> Document:
        thinned = [[finite(x) for x in losses[:: max(1, len(losses) // 50)]] for losses in self.losses]
        return {
            "name": self.name,
            "rates": list(self.rates),
            "finals": [finite(f) for f in self.finals],
            "losses": thinned,
        }


@dataclass(frozen=True)
class Difference:
    """Paired over seeds: final loss as it is minus with the plan; positive when the plan is better.

    effect is Cohen's d of the pairs, mean/sd of the differences; p_value is of the paired t-test [Student 1908].
    """

    mean: float
    interval: tuple[float, float]
    effect: float | None
    p_value: float | None


def compare(plain: Sequence[float], planned: Sequence[float]) -> Difference:
    """Return differences of finite final losses; one pair alone has neither effect size nor p-value."""
    gap = np.asarray(plain, float) - np.asarray(planned, float)
    mean = float(gap.mean())
    if len(gap) < 2:
        return Difference(mean, (math.nan, math.nan), None, None)
    deviation = float(gap.std(ddof=1))
    if deviation == 0:
        return Difference(
            mean, (mean, mean), math.copysign(math.inf, mean) if mean else 0.0, 0.0 if mean else 1.0
        )
    from scipy import stats  # takes seconds to import

    half = float(stats.t.ppf(0.975, len(gap) - 1)) * deviation / math.sqrt(len(gap))
    return Difference(
        mean, (mean - half, mean + half), mean / deviation, float(stats.ttest_1samp(gap, 0.0).pvalue)
    )


@dataclass(frozen=True)
class Proof(Shown):
    """Does the plan help? `print(proof)` says it, `proof.json()` stores it, `proof.draw()` shows both bands."""

    plain: Arm
    planned: Arm
    difference: Difference
    chance: float
    steps: int
    plan: str
    task: str

    @property
    def verdict(self) -> str:
        """helps, hurts, or no difference shown."""
        p = self.difference.p_value
        if p is None or p >= SURE:
            return "no difference shown"
        return "helps" if self.difference.mean > 0 else "hurts"

    @property
    def rescued(self) -> bool:
        """Most seeds train with the plan and most did not without."""
        count = len(self.plain.finals)
        return 2 * self.plain.trained(self.chance) < count < 2 * self.planned.trained(self.chance)

    def json(self) -> Document:
        c = self.difference
        return {
            **{
                name: getattr(self, name)
                for name in ("verdict", "rescued", "chance", "steps", "task", "plan")
            },
            "difference": finite(c.mean),
            "interval": [finite(x) for x in c.interval],
            "effect": finite(c.effect),
            "p_value": finite(c.p_value),
            "plain": self.plain.json(),
            "planned": self.planned.json(),
        }

    def report(self, path: str | Path) -> Path:
        """Write a page that needs nothing else: the answer, both arms seed by seed, the plan, what repeats it.

        path  an .html file
        """
        from edgewise import present

        return present.write_proof(self, path)

    def __repr__(self) -> str:
        return f"<Proof on {self.task[:80]}, {self.steps} steps: {self.verdict}; print it>"

    def __str__(self) -> str:
        c, count = self.difference, len(self.plain.finals)
        seeds = f"{count} seed{'s' * (count > 1)}"
        lines = [
            f"The plan {self.verdict}." if self.verdict in ("helps", "hurts") else "No difference is shown.",
            f"Task {self.task}, {self.steps} steps, {seeds}, the same data in both arms, rates tuned in each; "
            f"chance is {self.chance:.3f}.",
            f"As it is the final loss is {spread(self.plain.finals)} ({self.plain.trained(self.chance)} of {count} "
            f"train); with the plan {spread(self.planned.finals)} ({self.planned.trained(self.chance)} of {count}).",
        ]
        if c.p_value is not None:
            effect = "unbounded" if c.effect is None or math.isinf(c.effect) else f"{c.effect:.2f}"
            low, high = c.interval
            lines.append(
                f"Difference {c.mean:+.3f} (95 % between {low:+.3f} and {high:+.3f}), effect size {effect}, "
                f"p = {c.p_value:.2g} (paired t-test)."
            )
        return " ".join(lines)

    def draw(self) -> Figure:
        """Return loss against step: the mean over seeds as a line, all seeds as a band."""
        from edgewise import present

        return present.proof_sheet(self, "Loss in training, before and after the plan").draw()


def spread(finals: Sequence[float]) -> str:
    """Return mean and standard deviation of some final losses, as text."""
    middle = float(np.mean(finals))
    return f"{middle:.3f}" if len(finals) < 2 else f"{middle:.3f} ± {float(np.std(finals, ddof=1)):.3f}"


Pair = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Pair], Tensor]
Batches = Callable[[int], Iterable[Pair]]  # a seed to its batches
RATES = (3e-4, 1e-3, 3e-3)
MOST_BATCHES = 10_000  # of a list; an iterator may have no end


def prove(
    factory: Callable[[], nn.Module],
    plan: Plan | str = "critical",
    batches: Batches | Sequence[Pair] | None = None,
    *,
    steps: int = 200,
    seeds: int = 3,
    rates: Sequence[float] = RATES,
    optimizer: str = "adamw",
    size: int = 32,
    loss: Loss | None = None,
    first_seed: int = 0,
    progress: Callable[[float], None] | None = None,
    trial: float = 0.25,
    second_look: float | None = None,
    schedule: Schedule | None = None,
    clip: float | None = None,
) -> Proof:
    """Train both arms on the same batches and compare their final losses, seed by seed.

    factory   makes the model; it is seeded before each call, so that both arms start from the same draw
    plan      a Plan of such a model, or a goal for which one is made from the first model
    batches   a function of the seed, or a list, of (inputs, labels); default: a built-in task that fits the model
    loss      of (model, batch), as everywhere, a batch being (inputs, labels); default: cross-entropy of its output
    rates     tried in each arm and seed by successive halving; the best continues
    progress  called with the fraction done; without it a bar is shown on a terminal
    trial, second_look, schedule, clip  for both arms, as in `edgewise.study.train.train`
    """
    if steps < 2 or seeds < 1:
        raise BadInput(
            f"steps must be at least 2 and seeds at least 1, got steps = {steps}, seeds = {seeds}."
        )
    first = seeded(factory, first_seed)()
    learner, stream, chance, name = _task(first, batches, size, loss)
    plan = plan if isinstance(plan, Plan) else _plan(learner(first), stream, plan)
    tuned: dict[str, list[Tuned]] = {"as it is": [], plan.goal: []}
    runs = [(seed, arm) for seed in range(first_seed, first_seed + seeds) for arm in tuned]
    with progress_bar(progress, "prove") as tell:
        for done, (seed, arm) in enumerate(runs):
            start = partial(_start, factory, learner, seed, plan if arm == plan.goal else None)
            run = train(
                start,
                partial(stream, seed),
                optimizer=optimizer,
                rates=rates,
                steps=steps,
                trial=trial,
                second_look=second_look,
                schedule=schedule,
                clip=clip,
            )
            tuned[arm].append(run)
            tell((done + 1) / len(runs))
    arms = []
    # a run that diverged learned nothing: its final loss is its first
    for name_of_arm, tried in tuned.items():
        best = [run.best for run in tried]
        finals = [run.losses[0] if math.isinf(final := run.final()) else final for run in best]
        losses, rates_of_arm = tuple(tuple(run.losses) for run in best), tuple(run.rate for run in best)
        arms.append(Arm(name_of_arm, losses, rates_of_arm, tuple(finals)))
    chance = chance if chance is not None else max(losses[0] for arm in arms for losses in arm.losses)
    return Proof(arms[0], arms[1], compare(arms[0].finals, arms[1].finals), chance, steps, str(plan), name)


class _Own(nn.Module):
    """The user's model and loss as (inputs, labels) to (loss,)."""

    def __init__(self, core: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.core, self.loss = core, loss

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor]:
        value = loss_of(self.loss, self.core, (inputs, labels))
        if torch.is_grad_enabled() and not value.requires_grad:
            raise BadInput(
                "the loss does not depend on any trainable parameter of the model, so nothing can learn."
            )
        return (value,)


def _task(
    first: nn.Module, batches: Batches | Sequence[Pair] | None, size: int, loss: Loss | None
) -> tuple[Callable[[nn.Module], nn.Module], Batches, float | None, str]:
    """How a model becomes a learner, the batches of a seed, the loss of a guess (or None), and the task's name."""
    if batches is None:
        fit = lesson(first)
        return fit.wrap, fit.batches(size), fit.task.chance, fit.task.name
    own = loss or _default_loss
    if callable(batches):
        return (lambda core: _Own(core, own)), lambda seed: map(_pair, batches(seed)), None, "given batches"
    if isinstance(batches, Tensor) or not isinstance(batches, Iterable):
        raise BadInput(f"batches must be a list of (inputs, labels), got a {type(batches).__name__}.")
    given = [_pair(batch) for batch in islice(batches, MOST_BATCHES)]
    if not given:
        raise BadInput("batches is empty: expected at least one (inputs, labels).")

    def stream(seed: int) -> Iterable[Pair]:
        """Return the list again and again, begun at the seed's place."""
        start = seed % len(given)
        return cycle([*given[start:], *given[:start]])

    return (lambda core: _Own(core, own)), stream, None, "given batches"


def _pair(batch: Any) -> Pair:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        kind = f"{len(batch)} values" if isinstance(batch, (tuple, list)) else f"a {type(batch).__name__}"
        raise BadInput(f"each of the batches must be (inputs, labels), got {kind}.")
    return batch[0], batch[1]


def _default_loss(model: nn.Module, batch: Pair) -> Tensor:
    """Cross-entropy of the model's output, tokens and samples alike; -100 marks labels that do not count."""
    inputs, labels = batch
    logits = first_output(model(inputs))
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


def _plan(learner: nn.Module, stream: Batches, goal: str) -> Plan:
    """Return the plan of the core, on what the task gives it."""
    inputs = next(iter(stream(0)))[0]
    core = getattr(learner, "core", learner)
    with torch.no_grad():
        batch: Any = learner.core_input(inputs) if isinstance(learner, Learner) else inputs
    return critical_plan(core, batch, goal=goal)


def _start(
    factory: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module], seed: int, plan: Plan | None
) -> nn.Module:
    """Make the seed's model, wrapped, with the plan written into it; entrance and readout are those of both arms."""
    core = seeded(factory, seed)()
    model = seeded(wrap, 10_000 + seed, core)()
    if plan is not None:
        initialize_(core, plan=plan, generator=seed)
    return model.train()


class Learner(nn.Module):
    """entrance, core, readout: (inputs, labels) to (loss,), whatever the core takes and gives."""

    def __init__(
        self, core: nn.Module, entrance: nn.Module, readout: nn.Module | None, per_token: bool
    ) -> None:
        super().__init__()
        self.core, self.entrance, self.readout, self.per_token = core, entrance, readout, per_token

    def features(self, inputs: Tensor) -> Tensor:
        """Return what the readout reads: (B, f), or (B, n, f) where every token has a label."""
        out = first_output(call(self.core, self.core_input(inputs)))
        if out.ndim > 3:
            return out.flatten(2).mean(-1)
        return out if self.per_token or out.ndim == 2 else out.mean(1)

    def core_input(self, inputs: Tensor) -> Any:
        """Return the task's inputs as the core takes them."""
        stream = self.entrance(inputs)
        return {"pixel_values": stream} if _takes(self.core, "pixel_values") else stream

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor]:
        logits = self.features(inputs)
        logits = logits if self.readout is None else self.readout(logits)
        return (F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten()),)


class _Fold(nn.Module):
    """Bytes folded into a smaller vocabulary."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(self, ids: Tensor) -> Tensor:
        return ids % self.vocabulary


class _Positioned(nn.Module):
    """Patches (B, 16, 4) to a stream (B, 16, d) of unit mean square, half of it from positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch, self.position = _matrix(4, width), nn.Parameter(torch.randn(16, width))

    def forward(self, patches: Tensor) -> Tensor:
        return (self.patch(patches) + self.position) / math.sqrt(2)


class _Image(nn.Module):
    """Patches (B, 16, 4) back to one 8 x 8 image, repeated over channels and enlarged to a side."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.channels, self.side = channels, side

    def forward(self, patches: Tensor) -> Tensor:
        image = patches.reshape(-1, 4, 4, 2, 2).transpose(2, 3).reshape(-1, 1, 8, 8)
        return F.interpolate(image, size=(self.side, self.side)).expand(-1, self.channels, -1, -1)


@dataclass(frozen=True)
class Lesson:
    """A task and the way a core becomes a Learner of it."""

    task: Task
    wrap: Callable[[nn.Module], nn.Module]

    def batches(self, size: int) -> Callable[[int], Iterator[Pair]]:
        return lambda seed: self.task.batches(size, seed)


def lesson(model: nn.Module) -> Lesson:
    """Return what this module can learn here; raise `BadInput` if no kind of input fits it."""
    if _takes(model, "labels") and not hasattr(model, "config"):
        return Lesson(task("digits"), lambda core: core)
    try:
        batch = batch_for(model)
    except BadInput as error:
        raise BadInput(f"no built-in task fits {type(model).__name__}: {error} Give batches.") from error
    with preserved(model, gradients=True), torch.no_grad():
        out = first_output(call(model, batch))
    inputs = next(tensors(batch))
    if inputs.is_floating_point():
        return _digits(inputs, out)
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    tables = (m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding))
    return _text(int(size or max(tables)), out)


def _text(vocabulary: int, out: Tensor) -> Lesson:
    logits = out.ndim == 3 and out.shape[-1] >= 256

    def wrap(core: nn.Module) -> nn.Module:
        readout = None if logits else _matrix(out.shape[-1], 256)
        return Learner(core, _Fold(vocabulary), readout, per_token=True)

    return Lesson(task("bytes", tokens=32), wrap)


def _digits(inputs: Tensor, out: Tensor) -> Lesson:
    """Streams take 16 patches of 4 numbers, vectors all 64, images 8 x 8."""
    width = out.shape[1] if out.ndim > 3 else out.shape[-1]

    def entrance() -> nn.Module:
        if inputs.ndim == 4:
            return _Image(inputs.shape[1], inputs.shape[-1] if inputs.shape[-1] > 8 else 8)
        if inputs.ndim == 3:
            return _Positioned(inputs.shape[-1])
        return nn.Sequential(nn.Flatten(1), _matrix(64, inputs.shape[-1]))

    return Lesson(task("digits"), lambda core: Learner(core, entrance(), _matrix(width, 10), per_token=False))


def _matrix(fan_in: int, fan_out: int) -> nn.Linear:
    layer = nn.Linear(fan_in, fan_out)
    nn.init.normal_(layer.weight, std=1 / math.sqrt(fan_in))
    nn.init.zeros_(layer.bias)
    return layer


def first_output(output: object) -> Tensor:
    """Return logits, the last hidden state, or the first tensor of an output."""
    for name in ("logits", "last_hidden_state"):
        tensor = getattr(output, name, None)
        if isinstance(tensor, Tensor):
            return tensor
    return next(tensors(output))


def _takes(model: nn.Module, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters
