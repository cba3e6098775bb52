"""Models as people wrap them: DistributedDataParallel in two real processes, torch.compile, another device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from edgewise.nouns.trace import Trace
from edgewise.probe.measure import measure
from tests.support.probe_networks import Net, ids
from tests.support.ranks import run_ranks


def arrays(trace: Trace) -> dict[str, np.ndarray]:
    named = {
        name: getattr(trace, name) for name in ("norm", "separation", "log_gradient", "attention_entropy")
    }
    assert trace.attention_entropy is not None, trace.source
    return {name: np.asarray(value) for name, value in (named | dict(trace.statistics)).items()}


def assert_same(first: dict[str, np.ndarray], second: dict[str, np.ndarray], **tolerance: float) -> None:
    assert set(first) == set(second)
    for name, values in first.items():
        np.testing.assert_allclose(values, second[name], err_msg=name, **({"rtol": 0, "atol": 0} | tolerance))


def work(folder: str) -> None:
    """In each of two processes: measure the wrapped model, then a training step whose gradients gloo averages."""
    rank = torch.distributed.get_rank()
    wrapped = DistributedDataParallel(Net().eval())  # no dropout: gradients are compared too
    np.savez(f"{folder}/trace{rank}.npz", **arrays(measure(wrapped, ids())))
    wrapped(ids() if rank == 0 else ids().flip(0, 1)).square().sum().backward()
    np.save(f"{folder}/gradient{rank}.npy", wrapped.module.blocks[0].mlp.fc1.weight.grad.numpy())


def test_distributed_data_parallel_in_two_processes(tmp_path: Path) -> None:
    """Every rank reads what the bare module gives, bit for bit, and still averages its gradients afterwards."""
    run_ranks(work, tmp_path)
    bare = arrays(measure(Net(), ids()))
    for rank in (0, 1):
        assert_same(dict(np.load(tmp_path / f"trace{rank}.npz")), bare)
    averaged = [np.load(tmp_path / f"gradient{rank}.npy") for rank in (0, 1)]
    np.testing.assert_array_equal(*averaged)
    alone = []
    for batch in (ids(), ids().flip(0, 1)):
        net = Net().eval()
        net(batch).square().sum().backward()
        alone.append(net.blocks[0].mlp.fc1.weight.grad.numpy())
    np.testing.assert_allclose(averaged[0], np.mean(alone, axis=0), rtol=1e-4, atol=1e-6)


def compiled_whole(backend: str) -> nn.Module:
    return torch.compile(Net().eval(), backend=backend)  # type: ignore[return-value]


def compiled_in_place(backend: str) -> nn.Module:
    net = Net().eval()
    net.compile(backend=backend)
    return net


def compiled_blocks(backend: str) -> nn.Module:
    """As training scripts do it: every block on its own."""
    net = Net().eval()
    for block in net.blocks:
        block.compile(backend=backend)
    return net


def replaced_blocks(backend: str) -> nn.Module:
    net = Net().eval()
    for index, block in enumerate(net.blocks):
        net.blocks[index] = torch.compile(block, backend=backend)  # type: ignore[assignment]
    return net


@pytest.mark.parametrize("make", [compiled_whole, compiled_in_place, compiled_blocks, replaced_blocks])
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_models_give_the_same_numbers(make: Any, backend: str) -> None:
    """inductor: gcc compiles for half a minute. The compiled code still gives what it gave, afterwards."""
    torch._dynamo.reset()
    model = make(backend)
    before = model(ids())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert_same(arrays(measure(model, ids())), arrays(measure(Net(), ids())))
    assert torch.equal(model(ids()), before)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_graphics_processor(dtype: torch.dtype) -> None:
    cuda = measure(Net().to("cuda", dtype), ids().cuda())
    cpu = measure(Net().to(dtype), ids())
    assert_same(arrays(cuda), arrays(cpu), rtol=0.1 if dtype == torch.bfloat16 else 1e-2, atol=0.2)


def work_sharded(folder: str) -> None:
    """In each of two processes: measure the sharded model, then a step that still finds its shards."""
    rank = torch.distributed.get_rank()
    net = Net().eval()
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    before = [parameter.to_local().clone() for parameter in net.parameters()]
    np.savez(f"{folder}/trace{rank}.npz", **arrays(measure(net, ids())))
    assert all(torch.equal(a, p.to_local()) for a, p in zip(before, net.parameters(), strict=True))
    net(ids()).square().sum().backward()
    np.save(f"{folder}/gradient{rank}.npy", net.blocks[0].mlp.fc1.weight.grad.full_tensor().numpy())


def test_sharded_in_two_processes(tmp_path: Path) -> None:
    """FSDP2: every rank reads what the whole module gives, its shards stay, and training goes on."""
    run_ranks(work_sharded, tmp_path)
    whole = {k: v for k, v in arrays(measure(Net(), ids())).items() if not k.startswith("weight_gradient")}
    for rank in (0, 1):
        assert_same(dict(np.load(tmp_path / f"trace{rank}.npz")), whole)
    net = Net().eval()
    net(ids()).square().sum().backward()
    for rank in (0, 1):
        gradient = np.load(tmp_path / f"gradient{rank}.npy")
        np.testing.assert_allclose(gradient, net.blocks[0].mlp.fc1.weight.grad.numpy(), rtol=1e-4, atol=1e-6)
