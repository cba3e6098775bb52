"""Compiled, sharded, checkpointed, scaled, quantized and partly empty models: checked, or said to be left out."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import edgewise
from experiments.preflight.networks import NETWORKS, setup
from tests.preflight.test_check import same, state


def kinds(made: dict[str, Any], **options: Any) -> set[str]:
    """What is found, after making sure that nothing was changed."""
    before = state(made)
    report = edgewise.check(**made, **options)
    assert same(before, state(made))
    return {f.kind for f in report.problems}


@pytest.mark.slow  # the compiler takes its time
@pytest.mark.parametrize("mistake", [False, True])
def test_a_compiled_model(mistake: bool) -> None:
    made = setup(NETWORKS[0])
    made["model"].blocks[1].attn.mistake = "no mask" if mistake else ""
    made["model"] = torch.compile(made["model"], backend="eager")
    assert kinds(made) == ({"leak"} if mistake else set())


@pytest.mark.parametrize("scaled", [True, False])
def test_autocast_with_a_scaler(scaled: bool) -> None:
    made = setup(NETWORKS[0])
    scaler, right = torch.amp.GradScaler("cpu", init_scale=1024.0), made["loss"]

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            value: Tensor = right(model, batch)
        return value.float()

    def step(model: nn.Module, optimizer: Any, batch: Tensor, k: int) -> Tensor:  # noqa: ARG001
        optimizer.zero_grad()
        value = loss(model, batch)
        scaler.scale(value).backward()
        if scaled:
            scaler.step(optimizer)
            scaler.update()
        else:  # a mistake: the gradient is still scaled
            optimizer.step()
        return value

    made |= {"loss": loss, "step": step, "also": [scaler]}
    assert kinds(made) == (set() if scaled else {"gradient at the step"})


def test_checkpointed_blocks() -> None:
    made = setup(NETWORKS[0])
    for block in made["model"].blocks:
        block.forward = lambda x, pad=None, f=block.forward: checkpoint(f, x, pad, use_reentrant=False)
    assert kinds(made) == set()
    for block in made["model"].blocks:  # a mistake: re-entrant checkpoints of inputs without a gradient
        block.requires_grad_(True)
    made["model"].tok.register_forward_hook(lambda m, a, out: out.detach())
    assert "no gradient" in kinds(made)


def test_parts_without_numbers() -> None:
    made = setup(NETWORKS[0])
    made["model"].blocks[1].up.weight = nn.Parameter(torch.empty(256, 64, device="meta"))
    report = edgewise.check(**made)
    assert report.problems[0].kind == "no numbers"
    assert "blocks.1.up.weight" in report.problems[0].places


def test_quantized_parts_are_left_out() -> None:
    made = setup(NETWORKS[0])
    packed = nn.Parameter(torch.randint(-8, 8, (64, 64), dtype=torch.int8), requires_grad=False)
    made["model"].blocks[0].register_parameter("packed", packed)
    made["model"].blocks[0].register_buffer("scales", torch.ones(64).to(torch.float8_e4m3fn))
    assert kinds(made) == set()


def _rank(rank: int, port: int, kind: str, results: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    made = setup(NETWORKS[0])
    if kind == "ddp":
        made["model"] = nn.parallel.DistributedDataParallel(made["model"])
    else:
        from torch.distributed.fsdp import fully_shard

        for block in made["model"].blocks:
            fully_shard(block)
        fully_shard(made["model"])
    made["optimizer"] = torch.optim.AdamW(made["model"].parameters(), lr=1e-3)
    before = [
        (p.to_local() if hasattr(p, "to_local") else p).detach().clone() for p in made["model"].parameters()
    ]
    report = edgewise.check(**made)
    after = [(p.to_local() if hasattr(p, "to_local") else p).detach() for p in made["model"].parameters()]
    equal = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    results[rank] = (equal, [f.kind for f in report.problems], [why for _, why in report.undecided])
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes(kind: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_rank, (port, kind, results), nprocs=2)
        found = dict(results)
    assert all(equal for equal, *_ in found.values()), found
    assert all(problems == [] for _, problems, _ in found.values()), found
