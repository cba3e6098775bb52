"""What an alarm leaves behind, so that its step can be looked at again: `runs/a/dossiers/000231-bad_batch/`.

README.txt   the alarm in words, and how to replay it
about.json   the alarm, versions, autocast, loss scale, the last checkpoint
rows.csv     the last rows
batch.pt     what the model and the criterion were called with, this time and the time before, and the random state
state.pt     weights and optimizer as the step began, where they fit below the limit
"""

from __future__ import annotations

import json
import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from edgewise.arrays import Array
from edgewise.files import whole_file
from edgewise.monitor.alarm import Alarm
from edgewise.monitor.aside import BatchMemory, Call

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
    """The same structure with its tensors copied, into the memory of an earlier copy where it fits."""
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
    with whole_file(path) as file:
        torch.save(value, file)


def _write(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode())
