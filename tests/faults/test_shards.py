"""A model in shards after a forward pass without a backward one: some of its weights lie gathered, others do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edgewise
from tests.monitor.subjects import batches, encoder, hugging_face, loss_of
from tests.support.ranks import run_ranks

MAKERS = {"gpt2": lambda: hugging_face("gpt2"), "encoder": encoder, "in one group": encoder}


def sharded(kind: str, forward: bool = True) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    from torch.distributed.fsdp import fully_shard

    model: Any = MAKERS[kind]()
    for block in {"gpt2": lambda: model.transformer.h, "encoder": lambda: model[1].layers}.get(kind, list)():
        fully_shard(block)
    fully_shard(model)
    optimizer, x = torch.optim.SGD(model.parameters(), 0.1), next(iter(batches(1)))
    if forward:
        loss_of(model, x)
        assert any(not hasattr(p, "to_local") for p in model.parameters()), (
            "torch leaves nothing gathered any more"
        )
    return model, optimizer, x


def whole(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield (
            name,
            parameter.full_tensor().detach() if hasattr(parameter, "full_tensor") else parameter.detach(),
        )


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    for x in batches(2, seed=5):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
    return dict(whole(model))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def work(folder: str) -> None:  # noqa: ARG001
    """In each of two processes."""
    for kind, make in MAKERS.items():
        untouched = trained(*sharded(kind)[:2])
        batch = {"input_ids": next(iter(batches(1)))} if kind == "gpt2" else next(iter(batches(1)))

        model, optimizer, _ = sharded(kind)
        fresh = edgewise.measure(sharded(kind, forward=False)[0], batch)
        assert np.array_equal(edgewise.measure(model, batch).norm, fresh.norm)
        assert same(trained(model, optimizer), untouched)

        rows = []
        for forward in (False, True):
            model, optimizer, _ = sharded(kind, forward)
            with edgewise.watch(model, quiet=True, everything=True) as handle:
                assert same(trained(model, optimizer), untouched)
                assert handle.error == ""
                rows.append(handle.row())
        assert rows[0]["gradient_norm"] > 0 and np.array_equal(
            *(list(row.values()) for row in rows), equal_nan=True
        )

        model, optimizer, _ = sharded(kind)
        like = make()
        plan = edgewise.critical_plan(like, batch, goal="depth-mup", embeddings=True)
        applied = edgewise.initialize_(model, plan=plan, generator=3)
        edgewise.initialize_(like, plan=plan, generator=3)
        for module in model.modules():  # what was written into gathered copies alone would be gone now
            getattr(module, "reshard", lambda: None)()
        assert plan.changes and same(dict(whole(model)), dict(whole(like)))
        applied.undo()
        assert same(trained(model, optimizer), untouched)


@pytest.mark.slow
def test_a_forward_pass_without_a_backward_one_changes_nothing_for_the_verbs(tmp_path: Path) -> None:
    """What is measured, watched or written is the same as before it, and so is the training afterwards."""
    run_ranks(work, tmp_path)
