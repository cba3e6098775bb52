"""Alarms at random moments in read, measure, audit_initialization and critical_plan: does anything stay altered?

Twelve small models in train mode with gradients, a frozen parameter and a hook of the user's own. After every alarm
parameters, buffers, gradients, flags, modes, hooks, the config, random streams, torch's switches and signal handlers
are compared with those before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.report import Findings, Goal, Table, Tell
from edgewise.audit.inspect import audit_initialization
from edgewise.errors import BadInput
from edgewise.models.behavior.read import read
from edgewise.probe.measure import measure
from edgewise.repair.initialize import critical_plan
from tests.support.alarms import interrupted
from tests.support.models import FAMILIES, batch
from tests.support.unchanged import prepared

TRIES = 500
FAMILY_NAMES = (
    "gpt2",
    "llama",
    "gemma2",
    "phi",
    "olmo2",
    "qwen3moe",
    "bert",
    "modernbert",
    "t5",
    "vit",
    "falcon",
)
VERBS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "read": read,
    "measure": measure,
    "audit": lambda model, batch: audit_initialization(model),
    "plan": critical_plan,
}


def run(quick: bool, tell: Tell) -> Findings:
    tries = 60 if quick else TRIES
    rows, rang, altered = trial(tries, lambda fraction: tell(fraction, ""))
    goal = Goal(
        f"nothing altered after {tries} alarms at random moments",
        f"{altered} left something altered; {rang} rang before the work was done",
        altered == 0,
    )
    return [Table(f"{tries} alarms", ("verb", "tries", "rang inside", "altered", "what"), rows)], [goal], []


def trial(
    tries: int,
    tell: Callable[[float], None] = lambda fraction: None,
    verbs: Sequence[str] = tuple(VERBS),
    families: Sequence[str] = FAMILY_NAMES,
) -> tuple[list[list[Any]], int, int]:
    """(rows by verb, alarms that rang inside, tries that left something altered)."""
    torch.manual_seed(0)
    subjects = models(families)
    pairs = [(verb, name) for verb in verbs for name in subjects]
    counts = {verb: [0, 0, 0, ""] for verb in verbs}
    for number, (verb, name) in enumerate(pairs):
        tell(number / len(pairs))
        own = tries * (number + 1) // len(pairs) - tries * number // len(pairs)
        rang, altered = attempt(verb, *subjects[name], own, seed=number) if own else (0, [])
        old = counts[verb]
        what = ", ".join([str(old[3])] * bool(old[3]) + [f"{name}: {names[0]}" for names in altered[:1]])
        counts[verb] = [old[0] + own, old[1] + rang, old[2] + len(altered), what]
    rows: list[list[Any]] = [[verb, *values] for verb, values in counts.items()]
    return rows, sum(row[2] for row in rows), sum(row[3] for row in rows)


def attempt(verb: str, model: nn.Module, batch: Any, tries: int, seed: int) -> tuple[int, list[list[str]]]:
    """A model that the verb refuses is interrupted on the way to its refusal."""

    def work() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                VERBS[verb](model, batch)
        except BadInput:
            pass

    return interrupted(model, work, tries, seed)


def models(names: Sequence[str] = FAMILY_NAMES) -> dict[str, tuple[nn.Module, Any]]:
    """Families of Hugging Face and torch's own encoder, each with a batch that it takes."""
    families = {name: (prepared(FAMILIES[name]()), batch(name)) for name in names}
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return families | {"torch": (prepared(encoder), (torch.randn(2, 12, 16),))}


if __name__ == "__main__":
    print(*trial(TRIES)[0], sep="\n")
