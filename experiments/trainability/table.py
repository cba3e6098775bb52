"""One row per trained network: what was computed before training, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from edgewise.study import Result, recorded_results

from .scores import changes, forgetting, own_readout
from .training_report import trains

DIVERGED = 2.0  # shares of the chance loss that a diverged run counts as: it ranks last


@dataclass(frozen=True)
class Row:
    """A run and the geometry of its start."""

    task: str
    family: str
    start: int
    optimizer: str
    depth: int
    geometry: dict[str, Any]
    run: dict[str, Any]

    @property
    def loss(self) -> float:
        """Final training loss as a share of the chance loss."""
        final = self.run["final"]
        return DIVERGED if final is None else float(final / self.run["chance"])

    @property
    def held_out_loss(self) -> float:
        """Loss on examples never trained on, the same for every network, as a share of the chance loss.

        The last training losses are of other batches for every start, which blurs the order of stuck networks.
        """
        loss = self.run["validation"]
        return DIVERGED if loss is None or self.run["final"] is None else float(loss / self.run["chance"])

    @cached_property
    def failed(self) -> bool:
        return not trains(Result({}, self.run))

    @property
    def cluster(self) -> tuple[str, str, int]:
        """Both optimizers start from the same weights: their runs are drawn together in a bootstrap."""
        return self.task, self.family, self.start

    def changes(
        self, source: str = "theory", readout: str | None = None, relative: bool = True, span: str = "total"
    ) -> tuple[float, float]:
        """The signed log-changes of angle and gradient; default readout: the task's own."""
        return changes(self.geometry[source], readout or own_readout(self.task), relative, span)

    def forgetting(self, span: str = "total") -> float:
        """How much of the input the stream forgets, by theory."""
        return forgetting(self.geometry["theory"], span)


def table(geometries: Sequence[Result], runs: Sequence[Result]) -> list[Row]:
    """Runs joined with the geometry of their starts; runs of other starts are left out."""
    by_start = {(r.case["task"], r.case["family"], r.case["start"]): r for r in geometries}
    rows = []
    for run in runs:
        case = run.case
        start = by_start.get((case["task"], case["family"], case["start"]))
        if start is not None and start.case["knobs"] == case["knobs"]:
            knobs = case["knobs"]
            place = (case["task"], case["family"], case["start"], case["optimizer"], knobs["depth"])
            rows.append(Row(*place, geometry=start.value, run=run.value))
    return rows


def recorded_runs(path: Path) -> list[Result]:
    """The recorded sweep."""
    return recorded_results(path)
