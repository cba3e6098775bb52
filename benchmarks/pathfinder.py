"""Pathfinder images per second of one core, and what the distance of the two dots alone gets right."""

from __future__ import annotations

from typing import Any

from benchmarks.clock import once
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise.study import load_recipe

pathfinder = load_recipe("papers/song2024kernels/pathfinder").module.pathfinder
PADDLES = (9, 6, 4)
RATE, SHORTCUT = 400.0, 0.55  # the project's goals, with nine paddles


def run(quick: bool, tell: Tell) -> Findings:
    count = 200 if quick else 4000
    rows: list[list[Any]] = []
    for place, paddles in enumerate(PADDLES):
        tell(place / len(PADDLES), f"{paddles} paddles")
        pathfinder(50, paddles=paddles, seed=0)  # a warm-up
        made, timing = once(lambda p=paddles: pathfinder(count, paddles=p, seed=1))
        rows.append(
            [paddles, count, count / timing.cpu, count / timing.wall, made.shortcut, *made.ink, made.share]
        )
    nine = rows[0]
    goals = [
        Goal(
            f"nine paddles at {RATE:g} images per second of one core or more",
            f"{nine[2]:.0f}",
            None if quick else nine[2] >= RATE,
        ),
        Goal(
            f"the shortcut by the distance of the dots at most {SHORTCUT:.0%} with nine paddles",
            f"{nine[4]:.1%}",
            None if quick else nine[4] <= SHORTCUT,
        ),
    ]
    columns = (
        "paddles",
        "images",
        "per cpu second",
        "per wall second",
        "shortcut",
        "ink, label 0",
        "ink, label 1",
        "layouts kept",
    )
    notes = [
        "32 x 32 pixels, seed 1; the shortcut is the best window on the distance of the dots (chance 0.5), found on "
        "the images themselves, so it is a little optimistic.",
    ]
    return [Table("images from a seed", columns, rows)], goals, notes
