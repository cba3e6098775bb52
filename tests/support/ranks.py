"""Two real processes of one distributed job, forked from a server that has imported torch once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import torch

# What the workers use; importing it is most of what a process costs.
PRELOAD = [
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "edgewise.probe.measure",
    "edgewise.repair.initialize",
]
RANKS = 2


def run_ranks(work: Callable[[str], None], folder: Path) -> None:
    """work(folder) in every rank, inside a gloo process group; fails when one of them does."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    processes = [context.Process(target=_rank, args=(rank, work, str(folder))) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * RANKS


def _rank(rank: int, work: Callable[[str], None], folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS
    )
    try:
        work(folder)
    finally:
        torch.distributed.destroy_process_group()
