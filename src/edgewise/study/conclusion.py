"""The end of a run: the claim and the figure, written beside the records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from edgewise.study.claim import Claim
from edgewise.study.json_values import dumps
from edgewise.study.plan import Outcome, Plan
from edgewise.study.record import versions

FILES = ("claim.json", "figure.png")


def conclude(plan: Plan, outcome: Outcome, folder: Path) -> Claim:
    """Judge and draw complete results; writes claim.json and figure.png into the folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    claim = plan.recipe.claim(outcome.results)
    _replace(folder / "claim.json", json.dumps(document(plan, outcome, claim), indent=1, ensure_ascii=False) + "\n")
    figure = plan.recipe.draw(outcome.results)
    unfinished = folder / "unfinished.png"
    figure.savefig(unfinished, dpi=150)
    os.replace(unfinished, folder / "figure.png")
    _close(figure)
    return claim


def withdraw(folder: Path) -> None:
    """Remove the claim and figure of earlier results: they do not belong to what the store holds now."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def document(plan: Plan, outcome: Outcome, claim: Claim | None) -> dict[str, Any]:
    """What claim.json and `--json` say of a run."""
    words: dict[str, Any] = {
        "recipe": plan.recipe.name, "title": plan.recipe.title, "at": plan.scale, "cases": len(plan.cases),
        "measured": len(outcome.results), "claim": None if claim is None else claim.to_dict(), "code": plan.code,
        "versions": versions(), "seconds": round(sum(result.seconds for result in outcome.results), 3),
    }  # fmt: skip
    return dict(json.loads(dumps(words)))  # numbers that are not finite by name, as in the store


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)


def _close(figure: Any) -> None:
    """A figure made through pyplot stays in memory until it is closed there."""
    import matplotlib.pyplot

    matplotlib.pyplot.close(figure)
