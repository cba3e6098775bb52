"""What a watched run says and writes: sentences on standard error, events in its folder, what it is about."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgewise.monitor.columns import Column, slow_columns
from edgewise.monitor.edge import Edge
from edgewise.monitor.places import WHOLE, Places, frozen
from edgewise.monitor.ranks import Ranks
from edgewise.monitor.run_folder import RunFolder, versions


class RunLog:
    """Says sentences (the first process alone, and not if quiet) and writes events, if there is a folder."""

    def __init__(self, places: Places, ranks: Ranks, edge: Edge | None, quiet: bool) -> None:
        self.places, self.ranks, self.edge, self.quiet = places, ranks, edge, quiet
        self.folder: RunFolder | None = None

    def open(self, to: str | Path, columns: tuple[Column, ...], share: float | None, first_step: int) -> None:
        """Begin to write into a folder; raises `BadInput` if it holds a run of another model."""
        about = self.about() | {"budget": share, "started": time.time(), "first_step": first_step}
        about |= {"versions": versions()}
        heads: Sequence[Column] = slow_columns(self.places.heads) if self.places.depth else ()
        self.folder = RunFolder(
            to,
            columns,
            tuple(heads),
            about=about,
            rank=self.ranks.rank,
            complain=self.say,
            fail=self.say_always,
        )

    def about(self) -> dict[str, Any]:
        """The model, as run.json and dossiers have it."""
        p = self.places
        return {
            "model": type(p.model).__name__,
            "depth": p.depth,
            "width": p.width,
            "heads": p.heads,
            "parameters": sum(x.numel() for x in p.model.parameters()),
            "processes": self.ranks.size,
            "blind": p.blind,
            "edge": None if self.edge is None else self.edge.json(),
        }

    def announce(self, share: float | None, step: int) -> None:
        """What is watched, at which price, and what is not."""
        p = self.places
        watched = f"{p.depth} blocks{frozen(p)}, {len(p.attentions)} attentions" if p.depth else WHOLE
        limit = "every step" if share is None else f"at most {share:.1%} of the training time"
        goal = "" if self.folder is None else f", into {self.folder.path}"
        self.tell("start", f"watching {type(p.model).__name__}: {watched}, {limit}{goal}.", step)
        for reason in p.blind:
            self.tell("blind", f"not watched: {reason}", step)

    def note_blind(self, sentence: str, step: int) -> None:
        """Something that is not watched, said once."""
        if sentence not in self.places.blind:
            self.places.blind.append(sentence)
            self.tell("blind", f"not watched: {sentence}", step)

    def tell(self, kind: str, sentence: str, step: int, **details: Any) -> None:
        """Say it and write it."""
        self.say(sentence)
        self.write(kind, sentence, step, **details)

    def write(self, kind: str, sentence: str, step: int, **details: Any) -> None:
        """Write an event."""
        if self.folder is not None:
            self.folder.event(kind, sentence, step, **details)

    def say(self, sentence: str) -> None:
        """Say it, unless the run is quiet."""
        if not self.quiet and self.ranks.rank == 0:
            self.say_always(sentence)

    def say_always(self, sentence: str) -> None:
        """Say it, also if the run is quiet."""
        with suppress(OSError, ValueError):  # of a standard error that is closed: training goes on
            print(f"edgewise: {sentence}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the folder."""
        if self.folder is not None:
            self.folder.close()
