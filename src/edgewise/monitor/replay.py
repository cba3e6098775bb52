"""The step of an alarm once more, in other ways, to see which explanation survives.

as run           the same weights, batch, random state and autocast
float32          without autocast and in single precision: was it the number format?
other attention  another implementation of attention: was it the kernel?
batch before     the batch of the sample before on the same weights: was it this batch?
"""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from edgewise.arrays import Array, in_double
from edgewise.errors import BadInput
from edgewise.files import open_regular, read_text, require_unpacked, whole_file
from edgewise.models.readable import words
from edgewise.models.state import random_streams
from edgewise.monitor.alarm import Alarm
from edgewise.monitor.capture import BatchMemory, Call
from edgewise.monitor.causes import Diagnosis
from edgewise.monitor.columns import Column, Statistic
from edgewise.monitor.read_run import Run
from edgewise.monitor.run_folder import LARGEST, about_alarm
from edgewise.monitor.series import History

ROWS, MOST = 40, 5  # rows in a dossier; dossiers of a run
SUFFIXES = (".pt", ".ckpt", ".safetensors", ".bin", ".pth")


class Dossiers:
    """Copies weights and optimizer before every sampled step, if they are small enough, and writes them at an alarm."""

    def __init__(self, run: Path | None, model: nn.Module, limit: int, checkpoints: Path | None) -> None:
        self.run, self.model, self.limit, self.checkpoints = run, model, limit, checkpoints
        self.rows: deque[tuple[int, Array]] = deque(maxlen=ROWS)
        self.paths: list[Path] = []
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        sharded = any(hasattr(p, "to_local") for p in model.parameters())
        self.keeps_state = run is not None and not sharded and 3 * size <= limit
        self._model: dict[str, Tensor] = {}
        self._optimizer: dict[str, Any] = {}

    def before_step(self, optimizer: Optimizer) -> None:
        """Copy the state that the step begins with, into the same memory every time."""
        if self.keeps_state and len(self.paths) < MOST:
            self._model = copied(self.model.state_dict(), self._model)
            self._optimizer = copied(optimizer.state_dict(), self._optimizer)

    def write(
        self, alarm: Alarm, columns: Sequence[str], batch: BatchMemory, about: Mapping[str, Any]
    ) -> Path | None:
        """One folder for one alarm; None without a run folder, or when there are enough."""
        if self.run is None or len(self.paths) >= MOST:
            return None
        path = self.run / "dossiers" / f"{alarm.step:06d}-{alarm.kind.value}"
        path.mkdir(parents=True, exist_ok=True)
        names = ("call", "before", "criterion", "criterion_before")
        calls = {name: plain(getattr(batch, name)) for name in names}
        _save(path / "batch.pt", {**calls, "random": batch.random, "autocast": batch.autocast})
        if self.keeps_state and self._model:
            _save(path / "state.pt", {"model": self._model, "optimizer": self._optimizer})
        details = {
            **about,
            "alarm": alarm.json(),
            "checkpoint": self._checkpoint(),
            "state": self.keeps_state,
        }
        _write(path / "about.json", json.dumps(details, indent=1, default=str))
        lines = [
            ",".join(["step", *columns]),
            *(f"{s}," + ",".join(map(repr, r.tolist())) for s, r in self.rows),
        ]
        _write(path / "rows.csv", "\n".join(lines) + "\n")
        command = f"edgewise replay {shlex.quote(str(path))} file.py:model"
        _write(path / "README.txt", f"{alarm}\n\nReplay this step: {command}\n")
        self.paths.append(path)
        return path

    def _checkpoint(self) -> str | None:
        """The newest file of weights below the folder that was given."""
        if self.checkpoints is None or not self.checkpoints.exists():
            return None
        files = [f for f in self.checkpoints.rglob("*") if f.suffix in SUFFIXES and "dossiers" not in f.parts]
        newest = max(files, key=_moment, default=None)
        return None if newest is None or not _moment(newest) else str(newest)


def _moment(file: Path) -> float:
    """When it was written; 0 where a link leads nowhere, or the file has just been deleted."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def copied(value: Any, into: Any) -> Any:
    """The same structure with its tensors copied, into the memory of an earlier copy if it fits."""
    if isinstance(value, Tensor):
        if isinstance(into, Tensor) and into.shape == value.shape and into.dtype == value.dtype:
            return into.copy_(value.detach())
        return value.detach().clone()
    if isinstance(value, Mapping):
        old = into if isinstance(into, Mapping) else {}
        return {key: copied(item, old.get(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        same = isinstance(into, (list, tuple)) and len(into) == len(value)
        return type(value)(copied(item, into[i] if same else None) for i, item in enumerate(value))
    return value


def plain(call: Call | None) -> Any:
    """Tensors, numbers, strings, lists and dicts of a call; other objects are left out, by name."""
    return None if call is None else {"inputs": _plain(list(call[0])), "named": _plain(call[1])}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return f"(a {type(value).__name__} was left out)"


def _save(path: Path, value: Any) -> None:
    content = io.BytesIO()
    torch.save(value, content)  # into the file, it raises RuntimeError on a full disk
    with whole_file(path) as file:
        file.write(content.getbuffer())


def _write(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode())


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
    criterion  the loss, if the model does not return it
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
        squares = [float(in_double(g).square().sum()) for g in gradients if g is not None]
        total = sum(squares)
        return Try(name, float(loss.detach()), math.sqrt(total) if math.isfinite(total) else math.inf)

    def _loss(self, output: Any, criterion: str) -> Tensor:
        loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor):
            return loss
        seen = self.batch[criterion]
        if self.criterion is None or seen is None:
            raise BadInput(
                "the model returns no loss. Let the function return (model, criterion), and watch with "
                "criterion=criterion, so that a dossier knows the targets."
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
    """Hugging Face models in eager attention (or fused if they were eager), others with torch's plain kernel."""
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
            require_unpacked(file)
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


NO_HEADS = np.zeros((0, 0, 0))  # numbers per head are not in these rows, so no head is named


def alarms_again(folder: str | Path, *, rank: int = 0) -> list[Alarm]:
    """The alarms that today's detectors raise on the stored rows of a run.

    folder  of a watched run
    rank    of which process
    """
    run = Run(folder)
    rows = run.rows(rank=rank)
    return list(_alarms(_columns(run.schema()), rows.step, rows.values))


def _alarms(columns: Sequence[Column], steps: Array, values: Array) -> Iterator[Alarm]:
    history = History(columns)
    diagnosis = Diagnosis(history)
    for step, row in zip(steps.tolist(), values, strict=True):
        if _seen(columns, row):
            history.see(step, row)
            yield from diagnosis.see(step, NO_HEADS)


def _seen(columns: Sequence[Column], row: Array) -> bool:
    """Return whether hooks were reached: a loss without a stream is a pass that went past them."""
    norms = [i for i, column in enumerate(columns) if column.statistic.name == "norm"]
    loss = next(i for i, column in enumerate(columns) if column.name == "loss")
    return not norms or bool(np.isfinite(row[norms]).any()) or not np.isfinite(row[loss])


def _columns(schema: Sequence[dict[str, Any]]) -> tuple[Column, ...]:
    names = {field.name for field in fields(Statistic)}
    return tuple(Column(Statistic(**{n: line[n] for n in names}), line["place"]) for line in schema)
