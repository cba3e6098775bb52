"""Two processes on gloo: replicas and shards train bit for bit the same when they are watched."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch import nn

import edgewise
from edgewise.monitor.instrument import joined, largest, mean, total
from edgewise.monitor.watch import Watch
from edgewise.monitor.watched_steps import KINDS
from tests.monitor.subjects import batches, encoder, hugging_face, loss_of
from tests.monitor.test_masks import Hiding, padded
from tests.support.ranks import run_ranks

STEPS = 3


def weights(model: nn.Module) -> bytes:
    from edgewise.optim.parallel import whole

    return b"".join(whole(p).contiguous().numpy().tobytes() for p in model.parameters())


def shard(model: Any, checkpointed: bool) -> Any:
    from torch.distributed.fsdp import fully_shard

    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    return model


def replicated() -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(hugging_face("gpt2", dropout=0.1))


MAKERS = {
    "ddp": replicated,
    "ddp encoder": lambda: _parallel(encoder(dropout=0.1)),
    "fsdp2": lambda: shard(hugging_face("gpt2", dropout=0.1), False),
    "fsdp2 checkpointed": lambda: shard(hugging_face("gpt2", dropout=0.1), True),
}


def _parallel(model: nn.Module) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model)


def work(folder: str) -> None:
    rank, outcome = dist.get_rank(), {}
    for name, make in MAKERS.items():
        ends = []
        for watched in (False, True):
            model = make()
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            torch.manual_seed(rank)
            to = Path(folder) / name.replace(" ", "-")
            handle = edgewise.watch(model, everything=True, to=to, quiet=True) if watched else None
            losses = []
            for x in batches(STEPS, sequences=8):
                optimizer.zero_grad()
                loss = loss_of(model, x[4 * rank : 4 * rank + 4])
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
            ends.append((weights(model), losses, torch.get_rng_state().tolist()))
            if handle is not None:
                handle.close()
                outcome[name] = {"error": handle.error, "row": handle.row(), "losses": losses}
        outcome[name]["same"] = ends[0] == ends[1]
    Path(folder, f"rank{rank}.json").write_text(json.dumps(outcome))


@pytest.mark.slow
def test_replicas_and_shards_train_bit_for_bit_the_same(tmp_path: Path) -> None:
    run_ranks(work, tmp_path)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for name in MAKERS:
        outcomes = [rank[name] for rank in ranks]
        assert all(o["same"] and o["error"] == "" for o in outcomes), (name, [o["error"] for o in outcomes])
        frames = [edgewise.read(tmp_path / name.replace(" ", "-"), rank=rank) for rank in range(2)]
        assert [list(frame.index) for frame in frames] == [list(range(STEPS))] * 2
        if name != "ddp encoder":  # its criterion is a function, which is not watched
            assert frames[0]["loss"].iloc[-1] == pytest.approx(
                np.mean([o["losses"][-1] for o in outcomes]), rel=1e-5
            )
        row, other = outcomes[0]["row"], outcomes[1]["row"]
        assert row["block.1.norm"] != other["block.1.norm"]  # of all processes, and of one
        for column in ("entropy", "gradient", "softmax_gain", "update_ratio.mlp"):
            assert np.isfinite(row[f"block.1.{column}"]), (name, column)
    whole, parts = (ranks[0][name]["row"] for name in ("ddp", "fsdp2"))
    assert parts["weight_norm"] == pytest.approx(whole["weight_norm"], rel=0.1)
    assert parts["gradient_norm"] == pytest.approx(whole["gradient_norm"], rel=0.3)


def spread(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for block in model.inner[1].layers:
        fully_shard(block)
    return fully_shard(model)


def work_padded(folder: str) -> None:
    """One process has padding in its first batch, the other in its second; then neither."""
    rank, outcome = dist.get_rank(), {}
    x = next(iter(batches(1)))
    hides: list[torch.Tensor | None] = [None] * 3
    hides[rank] = padded(x) == 0
    for name, wrap in {"replicas": _parallel, "shards": spread}.items():
        bare = Hiding()
        expected = [bare.entropies(x, hide) for hide in hides]
        model = wrap(bare)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        with edgewise.watch(model, everything=True, quiet=True) as handle:
            rows = []
            for hide in hides:
                model(x, hide).square().mean().backward()
                optimizer.step()
                rows.append([handle.row()[f"block.{i}.entropy"] for i in range(2)])
        outcome[name] = {
            "expected": expected,
            "rows": rows,
            "error": handle.error,
            "blind": handle.places.blind,
        }
    Path(folder, f"padded{rank}.json").write_text(json.dumps(outcome))


@pytest.mark.slow
def test_padding_of_one_process_alone(tmp_path: Path) -> None:
    """Each reads its own masks; the first stores the row of all. One that looks closer must not wait for the other."""
    run_ranks(work_padded, tmp_path)
    ranks = [json.loads((tmp_path / f"padded{rank}.json").read_text()) for rank in range(2)]
    for name in ("replicas", "shards"):
        assert [(rank[name]["error"], rank[name]["blind"]) for rank in ranks] == [("", [])] * 2
        expected = np.array([rank[name]["expected"] for rank in ranks])
        assert expected[0, 0] == pytest.approx(expected[1, 1]) and (expected[0, 0] < expected[0, 1]).all()
        np.testing.assert_allclose(ranks[0][name]["rows"], expected.mean(0), rtol=1e-4)
        np.testing.assert_allclose(ranks[1][name]["rows"], expected[1], rtol=1e-4)


def test_rows_are_joined_part_by_part() -> None:
    each = torch.tensor([[1.0, 2.0, 3.0, 4.0], [3.0, 8.0, 1.0, 6.0]])
    assert joined(each, [1, 2, 1], [mean, largest, total]).tolist() == [2.0, 8.0, 3.0, 10.0]
    assert (
        joined(torch.tensor([[1.0], [float("nan")]]), [1], [mean]).isnan().all()
    )  # one bad process is enough


@pytest.mark.parametrize("rank", [0, 1])
def test_the_longest_wait_is_everybodys_and_alarms_of_others_are_raised_here(rank: int) -> None:
    """What is gathered is the row, the wait and the alarms, in this order; the first process stores the row of all."""
    own, other = [3.0, 0.0], [7.0, float(1 << 2)]
    raised: list[Any] = []

    def gather(flat: torch.Tensor) -> torch.Tensor:
        assert flat.tolist() == [1.0, 2.0, *own]
        return torch.stack([flat, torch.tensor([5.0, 8.0, *other])])

    watch = SimpleNamespace(
        budget=SimpleNamespace(proposal=lambda: 3),
        ranks=SimpleNamespace(size=2, rank=rank, gather=gather),
        _raised=0,
        _stored=0,
        instrument=SimpleNamespace(
            rules=lambda: [mean, largest],
            after_step=lambda join, audited: join(torch.tensor([1.0, 2.0]), [1, 1]),
        ),
        alarms=[],
        step=11,
        _raise=raised.append,
    )
    watch._join_alarms = lambda bits: Watch._join_alarms(watch, bits)  # type: ignore[arg-type]
    row, gap = Watch._sample(watch)  # type: ignore[arg-type]
    assert gap == 7 and row.tolist() == ([1.0, 2.0] if rank else [3.0, 8.0])
    assert [(alarm.kind, alarm.step) for alarm in raised] == [(KINDS[2], 11)] and "Process 1" in raised[
        0
    ].what
