"""Families outside the bounds, again without the suspected cause: `python -m tests.agreement.without_the_cause`.

Each case changes the model after its own initialization (or its config), and theory predicts it again. Same sizes as
families.py, 4 seeds; recorded in without_the_cause.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgewise.probe.measure import measure
from edgewise.probe.subjects import build
from tests.agreement.families import NARROW, TOKENS, WIDTH, against_theory, config, misses
from tests.support.models import CONFIGS

RECORD = Path(__file__).with_name("without_the_cause.json")
SEEDS = 4
Change = Callable[[nn.Module], None]


def no_sinks(model: nn.Module) -> None:
    """A sink is one more logit in every softmax; far below the others it takes nothing."""
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            parameter.data.fill_(-1e4)


def no_shift(model: nn.Module) -> None:
    """gpt-oss multiplies by (linear half + 1); a bias of -1 in that half (every other row) takes the one away."""
    for name, parameter in model.named_parameters():
        if name.endswith("gate_up_proj_bias"):
            parameter.data[..., 1::2] = -1.0


def class_tokens_like_patches(model: nn.Module) -> None:
    """Zero tokens become random ones of the length of a patch, 0.02 sqrt(3 x 16) per coordinate."""
    for name, parameter in model.named_parameters():
        if name.endswith(("cls_token", "distillation_token")):
            nn.init.normal_(parameter.data, std=0.02 * 48**0.5)


CASES: dict[str, tuple[str, tuple[Change, ...], dict[str, Any]]] = {
    "gptoss, as it comes": ("gptoss", (), {}),
    "gptoss, no sinks": ("gptoss", (no_sinks,), {}),
    "gptoss, no shift": ("gptoss", (no_shift,), {}),
    "gptoss, all experts": ("gptoss", (), {"num_experts_per_tok": 4}),
    "gptoss, no sinks, no shift": ("gptoss", (no_sinks, no_shift), {}),
    "gptoss, none of the three": ("gptoss", (no_sinks, no_shift), {"num_experts_per_tok": 4}),
    "olmo2, epsilon 1e-14": ("olmo2", (), {"rms_norm_eps": 1e-14}),
    "mixtral, all experts": ("mixtral", (), {"num_experts_per_tok": 4}),
    "deit, as it comes": ("deit", (), {}),
    "deit, class tokens like patches": ("deit", (class_tokens_like_patches,), {}),
}


def compare(case: str, width: int = WIDTH) -> dict[str, Any]:
    name, changes, settings = CASES[case]

    def factory() -> nn.Module:
        model = build(config(name, width, **settings))
        for change in changes:
            change(model)
        return model

    tokens = None if "image_size" in CONFIGS[name][2] else TOKENS
    row = against_theory(measure(factory, tokens=tokens, seeds=SEEDS, readouts=("token",), pair=False))
    return row | {"width": width, "outside": misses(row)}


NARROW_CASES = ("olmo2, epsilon 1e-14", "mixtral, all experts")  # also outside at width 256


def main(chosen: list[str]) -> None:
    torch.set_num_threads(1)
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    jobs = [(case, case, WIDTH) for case in CASES]
    jobs += [(f"{case}, width {NARROW}", case, NARROW) for case in NARROW_CASES]
    for name, case, width in jobs:
        if chosen and name not in chosen:
            continue
        rows[name] = compare(case, width)
        print(name, json.dumps(rows[name]), flush=True)
        RECORD.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
