"""Compiled, wrapped, sharded, scripted, in half precision: read all the same, or refused with the reason."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.behavior.read import read
from edgewise.models.behavior.record import Stack
from tests.models.behavior.strangers import DEPTH, Words, blocks, ids

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def essence(stack: Stack) -> tuple[object, ...]:
    assert not stack.not_read, stack.not_read
    return (
        stack.depth,
        stack.norm,
        stack.norm_kind,
        stack.causal,
        stack.window,
        stack.positions,
        stack.qk_norm,
        stack.activation,
        stack.gated,
        stack.parallel,
    )


@pytest.fixture
def model() -> nn.Module:
    return blocks(window=5, turn=True)


@pytest.fixture
def plain(model: nn.Module) -> tuple[object, ...]:
    return essence(read(model, ids()).stacks[0])


def test_compiled_whole_or_in_parts(model: nn.Module, plain: tuple[object, ...]) -> None:
    stance = torch._dynamo.eval_frame._stance
    assert essence(read(torch.compile(model, backend="eager"), ids()).stacks[0]) == plain
    model.stuff[1].compile(backend="eager")
    assert essence(read(model, ids()).stacks[0]) == plain
    model.stuff[0] = torch.compile(model.stuff[0], backend="eager")
    stack = read(model, ids()).stacks[0]
    assert essence(stack) == plain and stack.name == "stuff"
    assert torch._dynamo.eval_frame._stance is stance


def test_data_parallel(model: nn.Module, plain: tuple[object, ...]) -> None:
    assert essence(read(nn.DataParallel(model), ids()).stacks[0]) == plain


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(model: nn.Module, plain: tuple[object, ...], dtype: torch.dtype) -> None:
    model = model.to(dtype)
    reading = read(model, ids())
    assert essence(reading.stacks[0]) == plain and reading.notes == ()
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_a_model_that_insists_on_its_precision_is_read_in_it() -> None:
    class Strict(Words):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.start(ids)
            if x.dtype != torch.bfloat16:
                raise TypeError("bfloat16 only")
            return super().forward(ids)

    reading = read(Strict(*blocks().stuff).bfloat16(), ids())
    assert reading.notes == ("read in half precision: the model does not run in single precision",)
    assert reading.stacks[0].norm == "pre" and reading.stacks[0].depth == DEPTH


def test_a_model_with_its_own_autocast() -> None:
    class Casting(Words):
        def forward(self, ids: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(ids)

    plain = blocks(turn=True)
    stack = read(Casting(*plain.stuff), ids()).stacks[0]
    assert essence(stack) == essence(read(plain, ids()).stacks[0])


def test_scripts_are_refused_by_name(model: nn.Module) -> None:
    traced = torch.jit.trace(nn.Linear(4, 4), torch.randn(2, 4))
    with pytest.raises(BadInput, match="TorchScript"):
        read(traced)
    model.extra = traced
    with pytest.raises(BadInput, match="extra is TorchScript"):
        read(model, ids())


def test_weights_without_numbers_are_refused(model: nn.Module) -> None:
    with pytest.raises(BadInput, match="meta device"):
        read(model.to("meta"))
    with pytest.raises(BadInput, match="lazy module"):
        read(nn.Sequential(nn.LazyLinear(3)))
    with torch.inference_mode():
        made = blocks()
    with pytest.raises(BadInput, match="inference_mode"):
        read(made, ids())
    with pytest.raises(BadInput, match="not a model"):
        read("gpt2")  # type: ignore[arg-type]


def test_inside_inference_mode(model: nn.Module, plain: tuple[object, ...]) -> None:
    with torch.inference_mode():
        assert essence(read(model, ids()).stacks[0]) == plain
        assert torch.is_inference_mode_enabled()


def test_another_thread(model: nn.Module, plain: tuple[object, ...]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, model, ids()).result()
    assert essence(reading.stacks[0]) == plain


SHARDED = """
    import os, sys, torch
    sys.path.insert(0, {root!r})
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel
    from edgewise.models.behavior.read import read
    from tests.models.behavior.strangers import blocks, ids
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://{file}", rank=0, world_size=1)
    def essence(reading):
        stack = reading.stacks[0]
        assert not stack.not_read, stack.not_read
        return stack.depth, stack.norm, stack.causal, stack.window, stack.positions, stack.activation
    torch.manual_seed(0)
    plain = blocks(window=5, turn=True)
    expected = essence(read(plain, ids()))
    assert essence(read(DistributedDataParallel(plain), ids())) == expected
    torch.manual_seed(0)
    sharded, mesh = blocks(window=5, turn=True), init_device_mesh("cpu", (1,))
    for block in sharded.stuff:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    before = [p.to_local().clone() for p in sharded.parameters()]
    assert essence(read(sharded, ids())) == expected
    assert all(torch.equal(a, p.to_local()) for a, p in zip(before, sharded.parameters()))
    sharded(ids()).sum().backward()
    dist.destroy_process_group()
    print("same")
"""


@pytest.mark.slow
def test_sharded_and_distributed(tmp_path: Path) -> None:
    script = textwrap.dedent(SHARDED).format(root=str(ROOT), file=tmp_path / "rendezvous")
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert run.stdout.strip() == "same", run.stderr[-2000:]
