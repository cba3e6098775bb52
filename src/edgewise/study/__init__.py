"""Recipes: cases, workers, an append-only store, claims; small real tasks, training, proofs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.study.proof import prove
    from edgewise.study.random_network import simulated, simulated_orbit, simulated_streams
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
    )
    from edgewise.study.results_file import recorded_results

# Names are fetched when first used: a proof imports torch, a claim does not.
_HOMES = {
    "Claim": "recipe",
    "Result": "recipe",
    "Recipe": "recipe",
    "load_recipe": "recipe",
    "find_recipes": "recipe",
    "over_seeds": "recipe",
    "rounded": "recipe",
    "seed_count": "recipe",
    "select": "recipe",
    "recorded_results": "results_file",
    "prove": "proof",
    "simulated": "random_network",
    "simulated_orbit": "random_network",
    "simulated_streams": "random_network",
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
        return getattr(import_module(f"edgewise.study.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'edgewise.study' has no attribute {name!r}")
