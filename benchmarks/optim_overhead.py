"""What a step in logits costs: LogitTrust and AttentionPreconditioner around AdamW, on a GPT-2-like model of 12 layers.

Two readings: whole steps in turn (with AdamW twice, which shows the noise), and the added work alone, by CPU time: the
optimizer's step with and without us, and the hooks of the forward pass. The second resolves what the first cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.clock import Task, Timing, interleaved
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise.optim import AttentionPreconditioner, LogitTrust

TRUST, PRECONDITIONER = 0.03, 0.10  # the project's goals, share of a step
Maker = Callable[[nn.Module], torch.optim.Optimizer]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-4)


MAKERS: dict[str, Maker] = {
    "AdamW": adamw,
    "AdamW again": adamw,
    "LogitTrust": lambda model: LogitTrust(adamw(model), model),
    "AttentionPreconditioner": lambda model: AttentionPreconditioner(adamw(model), model),
}


def run(quick: bool, tell: Tell) -> Findings:
    sequences, tokens = (2, 32) if quick else (16, 256)
    models = {name: _model(quick) for name in MAKERS}
    optimizers = {name: MAKERS[name](model) for name, model in models.items()}
    ids = torch.randint(0, 1024, (sequences, tokens), generator=torch.Generator().manual_seed(0))
    whole = {name: Task(lambda n=name: _step(models[n], optimizers[n], ids)) for name in MAKERS}
    steps = interleaved(whole, 1 if quick else 2, lambda f, what: tell(0.8 * f, what))
    tell(0.8, "optimizers alone")
    count = 3 if quick else 20
    # The mean over steps in a row, not a median: renewals of the inverses count with their share.
    alone = {name: Task(optimizers[name].step, calls=count) for name in MAKERS}
    parts = {name: timing.cpu for name, timing in interleaved(alone, 1 if quick else 3).items()}
    hooks = _hooks(optimizers["LogitTrust"], sequences, tokens, quick)
    base = steps["AdamW"].cpu
    rows = [_row(name, steps[name], parts, base, 0.0 if "AdamW" in name else hooks) for name in MAKERS]
    added = {row[0]: float(row[-1]) for row in rows}
    goals = [
        Goal(
            f"LogitTrust adds at most {TRUST:.0%} of a step",
            f"{added['LogitTrust']:.1%}",
            _met(added, 0, quick),
        ),
        Goal(
            f"AttentionPreconditioner adds at most {PRECONDITIONER:.0%}",
            f"{added['AttentionPreconditioner']:.1%}",
            _met(added, 1, quick),
        ),
    ]
    title = f"one step of {sequences} x {tokens} tokens, cpu seconds"
    columns = ("what", "whole step", "over AdamW", "scatter", "optimizer alone", "added share")
    notes = [
        "added share = (optimizer alone - AdamW's + forward hooks) / AdamW's whole step.",
        "256 sampled tokens per layer in both; the preconditioner renews its inverses every 10 steps, "
        "two of which are in every 20 timed ones.",
    ]
    return [Table(title, columns, rows)], goals, notes


def _met(added: dict[str, float], which: int, quick: bool) -> bool | None:
    name, most = (("LogitTrust", TRUST), ("AttentionPreconditioner", PRECONDITIONER))[which]
    return None if quick else added[name] <= most


def _row(name: str, step: Timing, parts: dict[str, float], base: float, hooks: float) -> list[Any]:
    extra = parts[name] - parts["AdamW"] + hooks
    return [name, step.cpu, step.cpu / base, step.scatter, parts[name], extra / base]


def _hooks(optimizer: Any, sequences: int, tokens: int, quick: bool) -> float:
    """CPU seconds of all hooks of one forward pass."""
    rings = optimizer.sample.all
    x = torch.randn(sequences, tokens, rings[0].tokens.shape[-1], requires_grad=True)

    def see() -> None:
        for ring in rings:
            ring._see(nn.Identity(), (x,), {})

    return interleaved({"hooks": Task(see)}, 3 if quick else 30)["hooks"].cpu


def _step(model: Any, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)  # gradients stay, as zeros, for the timing of the step alone


def _model(quick: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    depth = 2 if quick else 12
    config = GPT2Config(
        n_embd=256, n_layer=depth, n_head=4, vocab_size=1024, n_positions=256, resid_pdrop=0.0
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model
