"""Recipes: cases, workers, an append-only store, claims; small real tasks, training, proofs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.nets.build import simulated, simulated_streams
    from edgewise.study.proof import prove
    from edgewise.study.recipe import (
        Claim,
        Recipe,
        Result,
        find_recipes,
        load_recipe,
        over_seeds,
        rounded,
        seed_count,
        select,
        simulated_orbit,
    )
    from edgewise.study.results_file import recorded_results

# Names are fetched when first used: a proof imports torch, a claim does not.
_HOMES = {
    "Claim": "study.recipe",
    "Result": "study.recipe",
    "Recipe": "study.recipe",
    "load_recipe": "study.recipe",
    "find_recipes": "study.recipe",
    "over_seeds": "study.recipe",
    "rounded": "study.recipe",
    "seed_count": "study.recipe",
    "select": "study.recipe",
    "recorded_results": "study.results_file",
    "prove": "study.proof",
    "simulated": "nets.build",
    "simulated_orbit": "study.recipe",
    "simulated_streams": "nets.build",
}

__all__ = [
    "Claim",
    "Recipe",
    "Result",
    "find_recipes",
    "load_recipe",
    "over_seeds",
    "prove",
    "recorded_results",
    "rounded",
    "seed_count",
    "select",
    "simulated",
    "simulated_orbit",
    "simulated_streams",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"edgewise.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'edgewise.study' has no attribute {name!r}")
