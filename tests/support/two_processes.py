"""Two processes on gloo: replicas (DDP) and shards (FSDP2) under our optimizers; writes what the test compares."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from edgewise.errors import BadInput
from edgewise.optim import AttentionPreconditioner, LogitTrust
from edgewise.optim.parallel import whole
from tests.support.optim_subjects import batch, loss_of, small

SIZES = {"rows": 4, "positions": 8, "passes": 1}
STEPS = 3
MAKERS: dict[str, Callable[..., Any]] = {
    "trust": lambda model, sizes: LogitTrust(torch.optim.SGD(model.parameters(), 5.0), model, 0.03, **sizes),
    "preconditioner": lambda model, sizes: AttentionPreconditioner(
        torch.optim.SGD(model.parameters(), 0.1), model, 0.02, **sizes
    ),
}


def trained(model: nn.Module, maker: str, parts: list[torch.Tensor], sizes: dict[str, int]) -> list[float]:
    """A few numbers that fix the weights after some steps, each on its own part of the same batch."""
    optimizer = MAKERS[maker](model, sizes)
    for x in parts:
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
    return fingerprint(model)


def fingerprint(model: nn.Module) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    full = [whole(p) for p in model.parameters()]
    return [float((p.double() * torch.randn(p.shape, generator=generator).double()).sum()) for p in full]


def batches() -> list[torch.Tensor]:
    return [batch(t, sequences=8) for t in range(STEPS)]


def refusal_of_a_copy() -> str:
    """What a copy of an optimizer that averages over processes says."""
    model = DistributedDataParallel(small())
    try:
        copy.deepcopy(MAKERS["trust"](model, SIZES))
    except BadInput as refusal:
        return str(refusal)
    return "copied"


def work(folder: str) -> None:
    """In each of two processes: rank N writes FOLDER/N.json."""
    rank = dist.get_rank()
    mine = [x[4 * rank : 4 * rank + 4] for x in batches()]
    found: dict[str, Any] = {}
    for maker in MAKERS:
        found[f"ddp {maker}"] = trained(DistributedDataParallel(small()), maker, mine, SIZES)
        sharded = small()
        for block in sharded.blocks:
            fully_shard(block)
        fully_shard(sharded)
        found[f"fsdp {maker}"] = trained(sharded, maker, mine, SIZES)
    found["copies"] = refusal_of_a_copy()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
