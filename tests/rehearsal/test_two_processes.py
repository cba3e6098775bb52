"""Two real processes under DDP and FSDP2: they agree on the rate, and model and shards are as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import edgewise
from tests.support.ranks import run_ranks
from tests.support.rehearsal_networks import batches, small, text_loss

SHORT: dict[str, Any] = {"steps": 5, "rates": 4, "progress": False}


def local(parameter: torch.Tensor) -> torch.Tensor:
    return (parameter.to_local() if hasattr(parameter, "to_local") else parameter).detach().clone()


def asked(model: nn.Module) -> dict[str, Any]:
    """The answer on this process's own half of every batch, and whether the weights are the same bits."""
    rank = torch.distributed.get_rank()
    rows = [batch[4 * rank : 4 * rank + 4] for batch in batches()]
    before = [local(p) for p in model.parameters()]
    loss = float(text_loss(model, rows[0]).detach())
    rate = edgewise.learning_rate(model, rows, text_loss, **SHORT)
    same = all(torch.equal(a, local(p)) for a, p in zip(before, model.parameters(), strict=True))
    again = float(
        text_loss(model, rows[0]).detach()
    )  # shards gathered during the rehearsal would still be used
    clean = all(p.grad is None for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    text_loss(model, rows[0]).backward()  # training goes on
    optimizer.step()
    return {
        "best": rate.best,
        "edge": rate.edge,
        "losses": [r.losses for r in rate.rehearsals],
        "same": same,
        "clean": clean,
        "same_loss": loss == again,
        "rates": rate.tried,
    }


def work(folder: str) -> None:
    rank = torch.distributed.get_rank()
    sharded = small()
    for block in sharded.blocks:
        fully_shard(block)
    fully_shard(sharded)
    answers = {"ddp": asked(DistributedDataParallel(small())), "fsdp": asked(sharded)}
    Path(folder, f"rank{rank}.json").write_text(json.dumps(answers))


def test_processes_agree_and_are_one_large_batch(tmp_path: Path) -> None:
    run_ranks(work, tmp_path)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    alone = edgewise.learning_rate(small(), batches(), text_loss, **SHORT)
    for kind in ("ddp", "fsdp"):
        one, other = (answers[kind] for answers in ranks)
        assert one == other
        assert one["same"] and one["same_loss"] and one["clean"]
        assert one["best"] == pytest.approx(alone.best, rel=0.1)
        assert one["losses"][0][:2] == pytest.approx(alone.rehearsals[0].losses[:2], rel=0.02)
