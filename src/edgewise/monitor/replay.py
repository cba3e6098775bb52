"""The step of an alarm once more, in other ways, to see which explanation survives.

as run           the same weights, batch, random state and autocast
float32          without autocast and in single precision: was it the number format?
other attention  another implementation of attention: was it the kernel?
batch before     the batch of the sample before on the same weights: was it this batch?
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgewise.errors import BadInput
from edgewise.files import open_regular, read_text
from edgewise.models.behavior.refusals import words
from edgewise.monitor.documents import LARGEST, about_alarm
from edgewise.probe.isolation import random_streams

CRITERION = {"call": "criterion", "before": "criterion_before"}  # what the criterion was called with
ALIKE = 0.02  # relative difference of two losses that half precision alone may make
LARGER = 3.0  # factor between two gradients that is not the scatter of batches
LOUDER = 1.5  # and between two losses: large inputs saturate a network, and their gradient is small


@dataclass(frozen=True)
class Try:
    """One repetition: its loss and the norm of its whole gradient."""

    name: str
    loss: float
    gradient: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient)


@dataclass(frozen=True)
class Replay:
    """All repetitions of a step, and what they say about each explanation."""

    step: int
    alarm: str
    stored_loss: float
    usual_loss: float  # median of the rows before
    tries: tuple[Try, ...]
    statements: tuple[tuple[str, bool | None, str], ...]  # explanation, whether it survives, why

    def __str__(self) -> str:
        lines = [
            f"Step {self.step} ({self.alarm.replace('_', ' ')}), stored loss {self.stored_loss:.6g}, before it "
            f"{self.usual_loss:.4g}."
        ]
        lines += [f"  {t.name:16s} loss {t.loss:<12.6g} gradient {t.gradient:.4g}" for t in self.tries]
        words = {True: "survives", False: "is refuted", None: "is undecided"}
        lines += [f"  {name} {words[held]}: {why}" for name, held, why in self.statements]
        return "\n".join(lines)


def replay(dossier: str | Path, model: nn.Module, criterion: Callable[..., Tensor] | None = None) -> Replay:
    """Repeat the step of a dossier.

    dossier    a folder that an alarm left in runs/.../dossiers
    model      a model of the same architecture; its weights are replaced by those of the dossier
    criterion  the loss, where the model does not return it
    """
    path = Path(dossier)
    about, batch = about_alarm(path), _batch(path / "batch.pt")
    rows = _rows(path / "rows.csv")
    _load_weights(path, model, about)
    step = _Step(model, criterion, batch)
    tries = [
        step.run("as run", "call", step.autocast()),
        step.run("float32", "call", nullcontext(), single=True),
    ]
    with other_attention(model):
        tries.append(step.run("other attention", "call", step.autocast()))
    if batch["before"] is not None:
        tries.append(step.run("batch before", "before", step.autocast()))
    losses = [row["loss"] for row in rows if row["step"] < about["alarm"]["step"]]
    usual = float(np.median(losses[-20:])) if losses else math.nan
    stored = next((r["loss"] for r in rows if r["step"] == about["alarm"]["step"]), math.nan)
    statements = tuple(_statements({t.name: t for t in tries}, stored, usual, about))
    return Replay(about["alarm"]["step"], about["alarm"]["kind"], stored, usual, tuple(tries), statements)


class _Step:
    """One model and one dossier: forward, loss, backward, without leaving a trace in `.grad`."""

    def __init__(
        self, model: nn.Module, criterion: Callable[..., Tensor] | None, batch: Mapping[str, Any]
    ) -> None:
        self.model, self.criterion, self.batch = model, criterion, batch

    def autocast(self) -> AbstractContextManager[Any]:
        kind = self.batch["autocast"]
        return nullcontext() if kind is None else torch.autocast("cpu", getattr(torch, kind))

    def run(self, name: str, which: str, mode: AbstractContextManager[Any], single: bool = False) -> Try:
        call = self.batch[which]
        with random_streams(), torch.enable_grad(), _precision(self.model, single):
            torch.set_rng_state(self.batch["random"])
            with mode:
                loss = self._loss(self.model(*call["inputs"], **call["named"]), CRITERION[which])
            weights = [p for p in self.model.parameters() if p.requires_grad]
            gradients = torch.autograd.grad(loss.float(), weights, allow_unused=True)
        squares = [float(g.double().square().sum()) for g in gradients if g is not None]
        total = sum(squares)
        return Try(name, float(loss.detach()), math.sqrt(total) if math.isfinite(total) else math.inf)

    def _loss(self, output: Any, criterion: str) -> Tensor:
        loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor):
            return loss
        seen = self.batch[criterion]
        if self.criterion is None or seen is None:
            raise BadInput(
                "the model returns no loss. Let the function return (model, criterion), and watch with loss=criterion, "
                "so that a dossier knows the targets."
            )
        prediction, *others = seen["inputs"]
        return self.criterion(output.reshape(prediction.shape), *others, **seen["named"])


@contextmanager
def _precision(model: nn.Module, single: bool) -> Iterator[None]:
    kinds = {p.dtype for p in model.parameters()} if single else {torch.float32}
    if kinds == {torch.float32}:
        yield
        return
    before = next(iter(kinds))
    model.float()
    try:
        yield
    finally:
        model.to(before)


@contextmanager
def other_attention(model: nn.Module) -> Iterator[None]:
    """Hugging Face models in eager attention (or fused where they were eager), others with torch's plain kernel."""
    config, change = getattr(model, "config", None), getattr(model, "set_attn_implementation", None)
    name = getattr(config, "_attn_implementation", None)
    if name is None or not callable(change):
        with sdpa_kernel(SDPBackend.MATH):
            yield
        return
    change("sdpa" if name == "eager" else "eager")
    try:
        yield
    finally:
        change(name)


def _statements(
    tries: Mapping[str, Try], stored: float, usual: float, about: Mapping[str, Any]
) -> Iterator[tuple[str, bool | None, str]]:
    run, single, other = tries["as run"], tries["float32"], tries["other attention"]
    same = _alike(run.loss, stored) or (not run.finite and not math.isfinite(stored))
    yield "That the step is reproduced", same, f"its loss is {run.loss:.6g}, stored was {stored:.6g}"
    held = single.finite and (not run.finite or not _alike(run.loss, single.loss))
    yield (
        "The number format",
        held,
        f"in float32 the loss is {single.loss:.6g}, the gradient {single.gradient:.3g}",
    )
    held = other.finite and (not run.finite or not _alike(run.loss, other.loss))
    yield "The attention kernel", held, f"with the other one the loss is {other.loss:.6g}"
    before = tries.get("batch before")
    if before is None or not about.get("state"):
        return
    high = math.isfinite(before.loss) and math.isfinite(usual) and before.loss > 1.2 * usual
    larger = run.gradient > LARGER * before.gradient or (not run.finite and before.finite)
    louder = (
        run.finite
        and run.loss > LOUDER * before.loss > 0
        and (run.loss > LOUDER * usual or math.isnan(usual))
    )
    ratio, times = (
        a / b if b else math.inf for a, b in ((run.gradient, before.gradient), (run.loss, before.loss))
    )
    seen = f"its loss is {times:.2g} times that of the batch before, its gradient {ratio:.2g} times, same weights"
    yield "The batch", (larger or louder) and not high, seen
    yield (
        "That the weights were bad already",
        high,
        f"the batch before has a loss of {before.loss:.4g} on them",
    )


def _alike(one: float, other: float) -> bool:
    return (
        math.isfinite(one)
        and math.isfinite(other)
        and abs(one - other) <= ALIKE * max(abs(one), abs(other), 1e-12)
    )


def _load(path: Path) -> dict[str, Any]:
    """Tensors and plain values only: nothing in the file is executed."""
    with open_regular(path) as file:
        try:
            values = torch.load(file, weights_only=True)
        except Exception as error:
            raise BadInput(
                f"{path} cannot be read ({words(error)}). Was it cut? Replay another dossier."
            ) from error
    if not isinstance(values, dict):
        raise BadInput(f"{path} holds a {type(values).__name__} and not the parts of a step. Was it changed?")
    return values


def _batch(path: Path) -> dict[str, Any]:
    batch = _load(path)
    missing = [name for name in (*CRITERION, *CRITERION.values(), "random", "autocast") if name not in batch]
    if missing or not all(
        _is_call(batch[name]) for name in CRITERION if name != "before" or batch[name] is not None
    ):
        raise BadInput(
            f"{path} does not hold the batch of a step ({', '.join(missing) or 'its calls are changed'})."
        )
    return batch


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("inputs"), list)
        and isinstance(value.get("named"), dict)
    )


def _rows(path: Path) -> list[dict[str, float]]:
    try:
        table = csv.DictReader(read_text(path, LARGEST).splitlines())
        rows = [{name: float(value) for name, value in row.items()} for row in table]
    except (TypeError, ValueError, csv.Error) as error:
        raise BadInput(f"{path} is not a table of numbers ({error}). Was it changed?") from error
    if any("step" not in row or "loss" not in row for row in rows):
        raise BadInput(f"{path} has no columns step and loss, so the step cannot be found. Was it changed?")
    return rows


def _load_weights(path: Path, model: nn.Module, about: Mapping[str, Any]) -> None:
    if not (path / "state.pt").is_file():
        known = f" The last checkpoint was {about['checkpoint']}." if about.get("checkpoint") else ""
        raise BadInput(
            f"{path} holds no weights: they were above the size limit, or in shards.{known} Raise the limit with "
            "state_limit=."
        )
    try:
        model.load_state_dict(_load(path / "state.pt")["model"])
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"the model does not fit the dossier: {words(error)}. Give its own.") from error
    model.train()
