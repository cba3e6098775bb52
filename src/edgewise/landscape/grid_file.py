"""A grid on disk, row by row: written whole each time, continued after a kill, refused for another grid."""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.landscape.direction import Direction
from edgewise.landscape.evaluation import plain
from edgewise.whole_file import whole_file

CLOSE = 1e-5  # relative: losses at the centre on two machines


class GridFile:
    """losses (rows, ...) with NaN where not done, the number of finished rows, and what they are of."""

    def __init__(self, path: str | Path, facts: Mapping[str, Any]) -> None:
        self.path, self.facts = Path(path), dict(facts)
        if self.path.suffix != ".npz" or not self.path.parent.is_dir():
            raise BadInput(f"file must be a name ending in .npz in a folder that exists, got {str(path)!r}.")

    def read(self) -> tuple[Array, int] | None:
        """What is finished, or None; a file of something else is refused, saying what differs."""
        if not self.path.exists():
            return None
        losses, rows, facts = read_grid(self.path)
        for name, value in self.facts.items():
            if not _same(facts.get(name), value):
                raise BadInput(
                    f"{self.path} holds the grid of another {name}: {_short(facts.get(name))} there, {_short(value)} "
                    "here. Give another file, or remove it."
                )
        return losses, rows

    def write(self, losses: Array, rows: int) -> None:
        with whole_file(self.path) as file:
            np.savez(file, losses=losses, rows=rows, facts=json.dumps(self.facts))


def read_grid(path: str | Path) -> tuple[Array, int, dict[str, Any]]:
    try:
        with np.load(path) as stored:
            return stored["losses"], int(stored["rows"]), json.loads(str(stored["facts"]))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} cannot be read as a landscape: {error}") from error


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """16 digits that change with any name, shape or number."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def facts_of(
    model: nn.Module, loss: Any, batches: list[Any], directions: list[Direction], centre: float, grid: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that decides the numbers of a grid, by the name a refusal uses."""
    state = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    leaves = [leaf for batch in batches for leaf in tree_leaves(plain(batch)) if isinstance(leaf, Tensor)]
    return {
        "model": fingerprint(state),
        "batch": fingerprint({str(k): t for k, t in enumerate(leaves)}),
        "loss": f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__name__)}",
        "loss at the centre": centre,
        "directions": [f"{d.name} {fingerprint(d.tensors)}" for d in directions],
        **grid,
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-12)
    return bool(one == other)


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) < 60 else text[:57] + "..."
