"""The fifth blind list for `edgewise check`: mistakes of an engineer's week, each with its twin, and healthy controls.

Written from experience and public bug reports by an author who has read the README and nothing of the check.
Costs are measured by `blind_five_measure` and kept in `blind_five_costs.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.preflight import (
    blind_five_classes,
    blind_five_controls,
    blind_five_other,
    blind_five_signals,
    blind_five_steps,
    blind_five_text,
)

_COSTS = Path(__file__).with_name("blind_five_costs.json")
_KNOWN = json.loads(_COSTS.read_text()) if _COSTS.exists() else {}
CASES: dict[str, Callable[[bool], dict[str, Any]]] = {}


def _with_cost(name: str, case: Callable[[bool], dict[str, Any]]) -> Callable[[bool], dict[str, Any]]:
    def made(broken: bool) -> dict[str, Any]:
        setup = case(broken)
        setup["truth"]["cost"] = _KNOWN.get(name.removeprefix("case_"), {}).get("cost")
        return setup

    return made


for _module in (
    blind_five_text,
    blind_five_classes,
    blind_five_other,
    blind_five_signals,
    blind_five_steps,
    blind_five_controls,
):
    for _name, _value in vars(_module).items():
        if _name.startswith("case_"):
            CASES[_name] = _with_cost(_name, _value)
        elif _name.startswith("control_"):
            globals()[_name] = _value
globals().update(CASES)
