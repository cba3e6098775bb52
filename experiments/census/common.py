"""What the recipes of the census share: cases from the list of types, the claim, and the picture."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from edgewise.present.draw import LINES, SETTINGS
from edgewise.study import Claim, Result

from .batches import find_batch
from .huggingface import build, preload
from .overruled import ALL_OUTCOMES, OUTSIDE, OVERRULED, decided
from .trial import Made, labels_of, try_model

TYPES = Path(__file__).with_name("types.json")
UNTRIED = ("not built",)
SENTENCES = (
    "why",
    "not measured",
    "trouble",
    "structure.prints",
)  # entries whose words may be improved any day


def types_of(*kinds: str) -> list[dict[str, Any]]:
    """The cases of all types that read such things; a label is part of its case, so that a new one is tried again."""
    rows = json.loads(TYPES.read_text())["types"]
    return [
        {"type": r["type"], "class": r["class"], "label": _digest(r["type"])}
        for r in rows
        if r["kind"] in kinds
    ]


def _digest(name: str) -> str | None:
    labels = labels_of(name)
    return hashlib.sha256(json.dumps(labels, sort_keys=True).encode()).hexdigest()[:8] if labels else None


def try_type(case: dict[str, Any]) -> dict[str, Any]:
    """Build the small model of a type, find it a batch, and hold what edgewise says against what is true."""

    preload()

    def make() -> Made:
        model = build(case)
        return model, *find_batch(model)

    return try_model(make, labels_of(case["type"]))


def counts(results: Sequence[Result]) -> dict[str, int]:
    """How many models came to which outcome, in the order of the page."""
    tally = Counter(decided({**result.case, **result.value})["outcome"] for result in results)
    return {outcome: tally[outcome] for outcome in ALL_OUTCOMES if tally[outcome]}


def judged(results: Sequence[Result], what: str) -> Claim:
    """Goals: nothing silently wrong, no raw traceback, nothing altered; of softmax models that build, 95 % measured
    and 90 % described right, or of the right structure where they are outside the theory."""
    tried = [decided({**r.case, **r.value}) for r in results if r.value["outcome"] not in UNTRIED]
    softmax = [v for v in tried if v.get("softmax")]
    found = counts(results)
    measured = sum(bool(v.get("measured")) for v in softmax)
    right = sum(v["outcome"] in ("right", OVERRULED) for v in softmax)
    outside = sum(v["outcome"] == OUTSIDE for v in softmax)
    altered = [r.case for r in results if r.value.get("altered")]
    held = (
        not found.get("silently wrong")
        and not found.get("raw traceback")
        and not altered
        and measured >= 0.95 * len(softmax)
        and right + outside >= 0.90 * len(softmax)
    )
    words = ", ".join(f"{count} {outcome}" for outcome, count in found.items())
    share = (
        f"of {len(softmax)} softmax models that build, {measured} are measured, {right} described right, {outside} "
        "have the right structure outside the theory"
    )
    return Claim(
        "(ours) A stranger's model is read right, or refused for the true reason; never silently wrong.",
        f"{len(results)} {what}: {words}; {share}; {len(altered)} left altered.",
        "4 layers, width 256 where the config allows, 4 sequences of 40 tokens or small images, own initialization",
        held if tried else None,
        {"counts": found, "softmax": len(softmax), "measured": measured, "right": right, "outside": outside},
    )


def bars(results: Sequence[Result], title: str) -> Figure:
    """Outcomes as bars."""
    found = counts(results)
    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        figure = Figure(figsize=(7, 1.2 + 0.3 * len(found)), layout="constrained")
        figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
        axes = figure.subplots()
        axes.bar_label(axes.barh(list(found), list(found.values()), color=LINES[0], height=0.7), padding=2)
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set_xlabel(f"models, of {len(results)}")
    return figure
