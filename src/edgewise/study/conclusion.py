"""The end of a run: the claim and the figure, written beside the records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from edgewise.study.claim import Claim
from edgewise.study.plan import Outcome, Plan
from edgewise.study.record import versions


def conclude(plan: Plan, outcome: Outcome) -> tuple[Claim, dict[str, Any]]:
    """Judge and draw complete results; writes <scale>/claim.json and <scale>/figure.png below the run's folder."""
    folder = plan.folder / plan.scale
    folder.mkdir(parents=True, exist_ok=True)
    claim = plan.recipe.claim(outcome.results)
    document = {
        "recipe": plan.recipe.name, "title": plan.recipe.title, "cases": len(outcome.results), "at": plan.scale,
        "claim": claim.to_dict(), "code": plan.code, "versions": versions(),
        "seconds": round(sum(result.seconds for result in outcome.results), 3),
    }  # fmt: skip
    _replace(folder / "claim.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    figure = plan.recipe.draw(outcome.results)
    figure.savefig(folder / "unfinished.png", dpi=150)
    os.replace(folder / "unfinished.png", folder / "figure.png")
    return claim, document


def _replace(path: Path, text: str) -> None:
    """Whole or not at all, whatever happens meanwhile."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
