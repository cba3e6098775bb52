"""What a process does that writes rows as fast as it can and says which are acknowledged; the tests kill it."""

from __future__ import annotations

from multiprocessing.connection import Connection

import numpy as np

from edgewise.monitor.columns import fast_columns, slow_columns
from edgewise.monitor.run_folder import HEADS, RunFolder

DEPTH, N_HEADS = 4, 2


def values_of(step: int, count: int) -> np.ndarray:
    """A row that can be checked: every number follows from the step."""
    return (np.arange(count) + step % 1000).astype(np.float32)


def write(path: str, acknowledged: Connection) -> None:
    """Append rows until killed; send how many of them the operating system has."""
    columns, heads = fast_columns(DEPTH), slow_columns([N_HEADS] * DEPTH)
    folder = RunFolder(path, columns, heads, about={"depth": DEPTH, "model": "none"})
    step = said = 0
    while True:
        folder.append(step, values_of(step, len(columns)))
        if step % 10 == 0:
            folder.append(step, values_of(step, len(heads)), HEADS)
        step += 1
        if step % 50 == 0:
            folder.flush()
        if folder.written > said:
            said = int(folder.written)
            acknowledged.send(said)
