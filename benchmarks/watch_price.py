"""What watching costs: every step and by default, beside TensorBoard, wandb.watch and hooks written by hand.

On torch's encoder (4 layers, width 128) and a Hugging Face GPT-2 (12 layers, width 384).

Whole steps are timed in turn, the plain one twice, whose difference is the noise of the comparison. The monitor's own
reading is its thread time inside hooks and steps, against that of the training around it, in steps of that one alone;
it resolves what the comparison cannot.

    every step   past what happens once (buffers, the first sample): the encoder over 100 steps, GPT-2 over 3
    default      the encoder from the moment it is attached to step 300, because rows are taken ahead at the start and
                 paid back by step 200, then 100 steps more; GPT-2, whose step takes six seconds, over its first 10
                 steps and over 10 more

Goals of the default are judged on the encoder's 300 steps from the start, and on the later 10 of GPT-2: its first rows
would be paid back by step 200 too, which would take twenty minutes. All readings are in the table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.clock import Task, interleaved
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise import watch
from edgewise.monitor.watch import Watch

PROMISES = {"encoder 4 x 128": (0.04, 0.02), "GPT-2 12 x 384": (0.015, 0.005)}  # everything; default

ROUNDS = (
    (10, 100, 300, 100),
    (2, 3, 10, 10),
)  # timed rounds; then alone: everything; default from its start, and on
JUDGED = ("from the start", "later")  # which reading of the default is held against its goal


Make = Callable[[], tuple[nn.Module, Callable[[nn.Module], Tensor]]]


class Loop:
    """One model with its optimizer and batch, stepping."""

    def __init__(self, make: Make) -> None:
        self.model, self.loss = make()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.after: Callable[[], None] = lambda: None

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model).backward()
        self.optimizer.step()
        self.after()


def run(quick: bool, tell: Tell) -> Findings:
    tables, goals = [], []
    subjects = {"encoder 4 x 128": _encoder, "GPT-2 12 x 384": _gpt2}
    for number, (name, make) in enumerate(subjects.items()):
        sizes = (2, 2, 4, 4) if quick else ROUNDS[number]
        own, counts = _own(lambda make=make: make(quick), sizes)
        columns = ("what", "step, cpu s", "over plain", "scatter")
        tables.append(
            Table(f"one step of {name}", columns, _in_turn(lambda make=make: make(quick), sizes[0], tell))
        )
        rows = [[what, counts[what], share] for what, share in own.items()]
        tables.append(Table(f"own share of the monitor, {name}", ("what", "steps", "own share"), rows))
        kinds = ("everything every step", "default"), ("everything", f"default, {JUDGED[number]}")
        for promise, words, key in zip(PROMISES[name], *kinds, strict=True):
            goals.append(
                Goal(
                    f"{name}, {words}: at most {promise:.1%}",
                    f"{own[key]:.2%}",
                    None if quick else own[key] <= promise,
                )
            )
    notes = [
        "over plain: whole steps of all in turn. own share: thread time inside the monitor over that of the training "
        "around it, in steps of that one alone.",
        "default writes to a folder, with dossiers; everything does not write. "
        f"Judged: encoder {JUDGED[0]}, GPT-2 {JUDGED[1]}.",
    ]
    return tables, goals, notes


def _own(make: Make, sizes: tuple[int, int, int, int]) -> tuple[dict[str, float], dict[str, int]]:
    """(own share, steps) of every reading."""
    once, *counts = sizes
    loop, own = Loop(make), []
    with watch(loop.model, everything=True, quiet=True) as handle:
        _steps(loop, once)  # past what happens once
        own.append(_share(loop, handle, counts[0]))
    loop = Loop(make)
    with watch(loop.model, quiet=True, to=Path(tempfile.mkdtemp()) / "run") as handle:
        own += [_share(loop, handle, steps) for steps in counts[1:]]
    names = ("everything", *(f"default, {part}" for part in JUDGED))
    return dict(zip(names, own, strict=True)), dict(zip(names, counts, strict=True))


def _share(loop: Loop, handle: Watch, steps: int) -> float:
    handle.budget.restart()
    _steps(loop, steps)
    return handle.price


def _steps(loop: Loop, count: int) -> None:
    for _ in range(count):
        loop.step()


def _in_turn(make: Make, rounds: int, tell: Tell) -> list[list[Any]]:
    """Whole steps of all contenders."""
    folder = Path(tempfile.mkdtemp())
    loops = {name: Loop(make) for name in ("plain", "plain again", "everything", "default", "hooks")}
    handles = [
        watch(loops["everything"].model, everything=True, quiet=True),
        watch(loops["default"].model, quiet=True, to=folder / "run"),
    ]
    _computing_hooks(loops["hooks"])
    for name, attach in (("TensorBoard histograms", _histograms), ("wandb.watch", _wandb)):
        loop = Loop(make)
        if attach(loop, folder):
            loops[name] = loop
    timings = interleaved(
        {name: Task(loop.step) for name, loop in loops.items()}, rounds, lambda f, what: tell(f, what)
    )
    for handle in handles:
        handle.close()
    base = timings["plain"].cpu
    return [[name, t.cpu, t.cpu / base, t.scatter] for name, t in timings.items()]


def _encoder(quick: bool) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, 0.1, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(256, 128),
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        nn.Linear(128, 256),
    )
    x = torch.randint(0, 256, (8 if quick else 16, 64))
    return model, lambda m: nn.functional.cross_entropy(m(x).flatten(0, 1), x.flatten())


def _gpt2(quick: bool) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    depth, tokens = (2, 32) if quick else (12, 256)
    config = GPT2Config(
        n_embd=384, n_layer=depth, n_head=6, vocab_size=8192, n_positions=256, bos_token_id=0, eos_token_id=0
    )
    model: Any = GPT2LMHeadModel(config)
    x = torch.randint(0, 8192, (2 if quick else 8, tokens))
    return model, lambda m: m(input_ids=x, labels=x).loss


def _computing_hooks(loop: Loop) -> None:
    """What people write by hand: mean, norm and largest entry of every module's output, asked at once."""
    for module in loop.model.modules():
        if not list(module.children()):
            module.register_forward_hook(_ask)


def _ask(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001
    if isinstance(output, Tensor) and output.is_floating_point():
        for number in (output.mean(), output.norm(), output.abs().max()):
            number.item()


def _histograms(loop: Loop, folder: Path) -> bool:
    if find_spec("tensorboard") is None:
        return False
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "board"))

    def after() -> None:
        for name, parameter in loop.model.named_parameters():
            writer.add_histogram(name, parameter.detach(), 0)
            writer.add_histogram(f"{name}.grad", parameter.grad, 0)

    loop.after = after
    return True


def _wandb(loop: Loop, folder: Path) -> bool:
    if find_spec("wandb") is None:
        return False
    import wandb

    with suppress(
        Exception
    ):  # an offline run needs nothing but a folder; where it cannot start it is left out
        run = wandb.init(mode="offline", dir=str(folder), reinit=True, settings=wandb.Settings(silent=True))
        run.watch(loop.model, log="all", log_freq=1)
        loop.after = lambda: run.log({"x": 1})
        return True
    return False
