"""What a look inside costs: `measure` over one forward and backward pass, the cosine trick, streaming.

The memory of a streamed model is the peak of a fresh process, imports included (tests/support/memory.py).
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.clock import Task, interleaved
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise.models.inputs import default_batch
from edgewise.probe import observation
from edgewise.probe.geometry import separation
from edgewise.probe.measure import measure
from edgewise.probe.subjects import Measurable, seeded, subject
from tests.support.memory import BLOCK_MEGABYTES, streamed_peaks

ONE, ALL = 1.3, 3.2  # the project's goals
PRESETS, SEEDS = ("gpt2", "bert-base"), (2, 1)  # two seeds are what the command line measures


def run(quick: bool, tell: Tell) -> Findings:
    model, batch = _model(quick)
    cost = interleaved(_tasks(model, batch), 2 if quick else 7, lambda f, what: tell(0.7 * f, what))
    base = cost["forward and backward"].cpu
    rows: list[Any] = [[name, t.cpu, t.cpu / base, t.scatter] for name, t in cost.items()]
    ratio = {name: t.cpu / base for name, t in cost.items()}
    tell(0.75, "sum trick")
    trick = _trick(quick)
    depths = (2, 8) if quick else (2, 12, 48)
    peaks = zip(depths, streamed_peaks(*depths), strict=True)
    memory = [[depth, depth * BLOCK_MEGABYTES, peak] for depth, peak in peaks]
    one, everything = ratio["one readout"], ratio["everything, first time"]
    built = _built(quick, lambda f, what: tell(0.8 + 0.2 * f, what))
    worst = max(row[-1] for row in built if row[1] == SEEDS[0])
    goals = [
        Goal(
            f"a preset as the command line measures it, over building it and one forward and backward pass: at most "
            f"{ONE}",
            f"{worst:.2f}",
            None if quick else worst <= ONE,
        ),
        Goal(f"one readout, no nearby pair: at most {ONE}", f"{one:.2f}", None if quick else one <= ONE),
        Goal(f"everything: at most {ALL}", f"{everything:.2f}", None if quick else everything <= ALL),
    ]
    tables = [
        Table(
            "presets from nothing, cpu s",
            ("preset", "seeds", "built and one pass", "measured", "ratio"),
            built,
        ),
        Table("GPT-2, cost per seed", ("what", "cpu s", "over a pass", "scatter"), rows),
        Table(
            "mean cosine of n tokens, width 384", ("tokens", "sum trick, s", "Gram matrix, s", "ratio"), trick
        ),
        Table("streamed Llama", ("blocks", "weights, MB", "peak memory, MB"), memory),
    ]
    notes = [
        "`everything` is three readouts, matrices, attention and a nearby pair. The first time a model is measured at "
        "a shape, its output is compared with that of one more forward pass, without hooks."
    ]
    return tables, goals, notes


def _built(quick: bool, tell: Tell) -> list[list[Any]]:
    """A preset built and measured for the screen, over building it and one forward and backward pass, per seed."""
    rows: list[list[Any]] = []
    for preset in PRESETS[:1] if quick else PRESETS:
        target = subject(preset)
        for seeds in SEEDS[:1] if quick else SEEDS:
            tasks = {
                "plain": Task(lambda t=target, k=seeds: _plain(t, k)),
                "measured": Task(
                    lambda t=target, k=seeds: measure(t, seeds=k, readouts=("token",), pair=False)
                ),
            }
            found = interleaved(tasks, 1 if quick else 3, lambda f, what, at=preset: tell(f, f"{at}, {what}"))
            plain, measured = found["plain"].cpu, found["measured"].cpu
            rows.append([preset, seeds, plain, measured, measured / plain])
    return rows


def _plain(target: Measurable, seeds: int) -> None:
    assert target.factory is not None
    for seed in range(seeds):
        model = seeded(target.factory, seed)
        output = model(**default_batch(model, torch.Generator().manual_seed(seed), None))
        output.logits.square().mean().backward()


def _model(quick: bool) -> tuple[Any, dict[str, torch.Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    depth, tokens = (2, 32) if quick else (12, 128)
    model = GPT2LMHeadModel(
        GPT2Config(n_embd=384, n_layer=depth, n_head=6, vocab_size=1024, n_positions=128)
    ).eval()
    ids = torch.randint(0, 1024, (4, tokens), generator=torch.Generator().manual_seed(0))
    return model, {"input_ids": ids, "labels": ids}


def _tasks(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, Task]:
    def step() -> None:
        model(**batch).loss.backward()
        model.zero_grad()

    def first(**wanted: Any) -> None:
        observation._COMPARED.clear()  # compare every model again, as after the first import
        measure(model, batch, **wanted)

    one = {"pair": False, "readouts": ("token",)}
    return {
        "forward and backward": Task(step),
        "one readout, no attention": Task(lambda: measure(model, batch, attention=False, **one)),
        "one readout": Task(lambda: measure(model, batch, **one)),
        "one readout, first time": Task(lambda: first(**one)),
        "everything, first time": Task(first),
    }


def _trick(quick: bool) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for tokens in (128, 512) if quick else (128, 512, 2048):
        x = torch.randn(1, tokens, 384)

        def gram(x: torch.Tensor = x) -> float:
            unit = torch.nn.functional.normalize(x.double(), dim=-1)
            n = unit.shape[1]
            return float(1 - ((unit @ unit.transpose(1, 2)).sum() - n) / (n * (n - 1)))

        found = interleaved({"gram": Task(gram, 5), "trick": Task(lambda x=x: separation(x), 5)}, 5)
        rows.append([tokens, found["trick"].cpu, found["gram"].cpu, found["gram"].cpu / found["trick"].cpu])
    return rows
