"""The fifth blind list for `edgewise watch`: mistakes in small trainings, and unusual healthy ones.

Written from public bug reports by an author who has read the README and nothing of the monitor, nor of earlier lists.
Truths were written first (a bar separates alternatives, a plus joins words that must occur together, capitals stand for
a list that several share). `python -m experiments.mistakes.blind_five [NAME ...]` runs each training once, unwatched,
and keeps what its mistake costs: the loss at the end minus that of the twin, of new data where the list says how (a
training loss is low when the model sees the answer), else the mean of the last 20 steps; 10 if it is not a number.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from experiments.mistakes import blind_five_data, blind_five_loop

_TRUTHS = Path(__file__).with_name("blind_five_truths.json")
KNOWN: dict[str, Any] = json.loads(_TRUTHS.read_text())
ONLY = {name: [row["architecture"]] for name, row in KNOWN.items() if "architecture" in row}
ARCHITECTURES = tuple(sorted({architecture for (architecture,) in ONLY.values()}))


def alternatives(text: str) -> list[list[str]]:
    parts = [part.strip() for part in text.split("|")]
    return [
        words
        for part in parts
        for words in (alternatives(KNOWN[part]) if part in KNOWN else [part.split("+")])
    ]


def _case(name: str) -> Callable[..., dict[str, Any]]:
    make = getattr(blind_five_loop, name, None) or getattr(blind_five_data, name)
    if "cause" not in KNOWN[name]:
        return lambda architecture: make()
    truth = {key: alternatives(KNOWN[name][key]) for key in ("cause", "symptom")}
    truth["cost"] = KNOWN[name].get("cost")
    return lambda architecture, broken: make(broken) | {"truth": truth}


for _name in ONLY:
    globals()[("case_" if "cause" in KNOWN[_name] else "control_") + _name] = _case(_name)


def ran(name: str, *arguments: Any) -> tuple[float, float, float, float]:
    """The mean loss of steps 10 to 20 and of the last 20, the loss that is judged, and the seconds of the whole."""
    torch.manual_seed(0)
    began = time.perf_counter()
    case = globals()[name](*arguments)
    losses = [case["step"](k) for k in range(case["steps"])]
    seconds, late = time.perf_counter() - began, sum(losses[-20:]) / 20
    return sum(losses[10:20]) / 10, late, case["judge"]() if "judge" in case else late, seconds


def main() -> None:
    torch.set_num_threads(1)
    for name, (architecture,) in ONLY.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        kind = "case" if "cause" in KNOWN[name] else "control"
        runs = [
            ran(f"{kind}_{name}", architecture, *how)
            for how in ([(False,), (True,)] if kind == "case" else [()])
        ]
        row = {"early": runs[0][0], "end": runs[0][1]}
        if kind == "case":
            worse = runs[1][2] - runs[0][2]
            row |= {"mistake": runs[1][1], "cost": worse if math.isfinite(worse) else 10.0}
        row = {key: float(f"{x:.4g}") if math.isfinite(x) else None for key, x in row.items()}
        KNOWN[name] |= row
        print(f"{name:28} {architecture:10} {runs[0][3]:5.1f} s  {row}", flush=True)
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in KNOWN.items())
        _TRUTHS.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
