"""The fourth blind list for `edgewise watch`: mistakes that show while a small transformer trains, and healthy runs.

Written from experience and public bug reports by an author who has read the README and nothing of the monitor.
Costs are measured by `blind_four_measure` and kept in `blind_four_costs.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.mistakes import blind_four_controls, blind_four_data, blind_four_loop
from experiments.mistakes.blind_four_kit import ARCHITECTURES as ARCHITECTURES

ONLY: dict[str, list[str]] = {}
_COSTS = Path(__file__).with_name("blind_four_costs.json")
_KNOWN = json.loads(_COSTS.read_text()) if _COSTS.exists() else {}


def _with_cost(
    name: str, make: Callable[[str, bool], dict[str, Any]]
) -> Callable[[str, bool], dict[str, Any]]:
    def made(architecture: str, broken: bool) -> dict[str, Any]:
        case = make(architecture, broken)
        case["truth"]["cost"] = _KNOWN.get(f"{name} {architecture}", {}).get("cost")
        return case

    return made


for _module in (blind_four_loop, blind_four_data, blind_four_controls):
    ONLY |= _module.ONLY
    for _name, _value in vars(_module).items():
        if _name.startswith("case_"):
            globals()[_name] = _with_cost(_name.removeprefix("case_"), _value)
        elif _name.startswith("control_"):
            globals()[_name] = _value
