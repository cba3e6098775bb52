"""torch.compile: one graph, no break, no recompilation, the same bits; and what happens when we come too late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import edgewise
from edgewise.monitor.read_run import Run
from tests.monitor.subjects import batches, encoder, hugging_face, loss_of
from tests.monitor.test_innocence import fingerprint


def train_compiled(
    model: nn.Module, backend: str, watched: bool, when: str = "before"
) -> tuple[Any, int, Any]:
    """(what training leaves, number of graphs, handle) after four steps of the compiled model."""
    torch._dynamo.reset()
    optimizer, counter = torch.optim.AdamW(model.parameters(), 1e-3), CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    torch.manual_seed(7)
    handle, losses = None, []
    if watched and when == "before":
        handle = edgewise.watch(model, everything=True, quiet=True)
    for step, x in enumerate(batches(5)):
        if watched and when == "late" and step == 1:
            handle = edgewise.watch(compiled, everything=True, quiet=True)
        optimizer.zero_grad()
        own = hasattr(model, "config")
        loss = compiled(input_ids=x, labels=x).loss if own else loss_of(compiled, x)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    prints = fingerprint(model, optimizer, losses)
    if handle is not None:
        handle.close()
    return prints, counter.frame_count, handle


MODELS: dict[str, Callable[[], nn.Module]] = {
    "encoder": lambda: encoder(dropout=0.1),
    "gpt2": lambda: hugging_face("gpt2", dropout=0.1),
    "llama": lambda: hugging_face("llama"),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", MODELS)
def test_one_graph_and_the_same_bits(name: str, backend: str) -> None:
    plain, graphs, _ = train_compiled(MODELS[name](), backend, watched=False)
    seen, watched_graphs, handle = train_compiled(MODELS[name](), backend, watched=True)
    assert (graphs, watched_graphs) == (1, 1)
    assert [part for part in plain if plain[part] != seen[part]] == []
    assert handle.error == ""
    row = handle.row()
    for column in ("norm", "separation", "gradient", "entropy", "softmax_gain", "update_ratio.mlp"):
        assert np.isfinite(row[f"block.1.{column}"]), column


@pytest.mark.slow
@pytest.mark.parametrize("watched", [False, True])
def test_blocks_compiled_one_by_one_train(watched: bool) -> None:
    """Each has a graph of its own, and every backward pass writes to a buffer that another graph has a part of."""
    torch._dynamo.reset()
    model = hugging_face("llama")
    handle = edgewise.watch(model, everything=True, quiet=True) if watched else None
    for block in model.model.layers:
        block.compile(backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for x in batches(2):
        optimizer.zero_grad()
        model(input_ids=x, labels=x).loss.backward()
        optimizer.step()
    if handle is not None:
        handle.close()
        assert handle.error == ""
        assert np.isfinite([handle.row()[f"block.{i}.softmax_gain"] for i in range(2)]).all()


def test_what_backward_passes_write_to_is_counted_apart() -> None:
    """torch refuses a backward pass where a kept tensor has changed, and views of one buffer share their count."""
    with edgewise.watch(encoder(), everything=True, quiet=True) as handle:
        hooks = [
            h for block in handle.places.blocks for h in _hooks(handle.places.model.get_submodule(block.name))
        ]
        norms = [hook.__self__.hook.__self__.norm.buffer for hook in hooks]
        norms[1].fill_(1.0)
        assert len(norms) == 2 and norms[0]._version == 0
        assert float(handle.instrument.gradients[2]) == 1.0  # it is still the same memory


def _hooks(module: nn.Module) -> list[Any]:
    return [hook for hook in module._forward_hooks.values() if hasattr(hook, "__self__")]


@pytest.mark.slow
def test_compiled_statistics_are_those_of_the_eager_run() -> None:
    rows = []
    for compiled in (True, False):
        model = encoder()
        if compiled:
            rows.append(train_compiled(model, "aot_eager", watched=True)[2].row())
        else:
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            with edgewise.watch(model, everything=True, quiet=True) as handle:
                for x in batches(5):
                    optimizer.zero_grad()
                    loss_of(model, x).backward()
                    optimizer.step()
            rows.append(handle.row())
    for name in rows[0]:
        if "headroom" not in name:
            assert rows[0][name] == pytest.approx(rows[1][name], rel=2e-3, abs=1e-5, nan_ok=True), name


@pytest.mark.slow
def test_attached_too_late_it_says_so_once_and_measures_aside() -> None:
    plain, _, _ = train_compiled(encoder(dropout=0.1), "aot_eager", watched=False)
    seen, graphs, handle = train_compiled(encoder(dropout=0.1), "aot_eager", watched=True, when="late")
    assert graphs == 1
    assert [part for part in plain if plain[part] != seen[part]] == []
    assert handle.error == ""
    columns = ("norm", "gradient", "entropy", "update_ratio.mlp")
    assert np.isfinite([handle.row()[f"block.1.{name}"] for name in columns]).all()


class Detour(nn.Module):
    """Runs past the hooks of its blocks, as a compiled model does that was watched too late."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = encoder()
        self.past = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not (self.past and self.training):
            return self.inner(x)
        hidden = self.inner[0](x)
        for layer in self.inner[1].layers:
            hidden = layer.forward(hidden)  # not a call: hooks do not run
        return self.inner[2](hidden)


def test_a_model_that_runs_past_its_hooks_is_measured_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prints = []
    for watched in (False, True):
        model = Detour()
        model.past = True
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        torch.manual_seed(3)
        handle = edgewise.watch(model, everything=True, to=tmp_path / "run") if watched else None
        losses = []
        for x in batches(4):
            optimizer.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        prints.append(fingerprint(model, optimizer, losses))
    assert prints[0] == prints[1]
    assert handle is not None
    handle.close()
    assert handle.error == ""
    assert capsys.readouterr().err.count("does not run through its hooks") == 1
    assert [e["kind"] for e in Run(tmp_path / "run").events()].count("aside") == 1
    frame = edgewise.read(tmp_path / "run")
    assert frame[["block.1.norm", "block.1.entropy", "block.1.gradient", "update_ratio"]].notna().all().all()
