"""Run folders read with care, for the report and for the explorer: they may come from anywhere.

Before anything is read, every file of a run must be a regular one of a bounded size that lies below the folder that
was given. In the explorer a run is named by its path from that folder, and must be among those that were found there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from edgewise.errors import BadInput
from edgewise.monitor.read_run import Run
from edgewise.monitor.storage import Rows

MOST_RUNS, DEEPEST_FOLDER, MOST_FOLDERS = 200, 4, 2000
MOST_BLOCKS = 1000
LARGEST = {
    "run.json": 2**20,
    "schema-": 2**24,
    "events-": 2**24,
    "rank": 2**28,
}  # bytes, by how the name begins
ENDS = (".json", ".jsonl", ".rows")
WRONG = (
    ValueError,
    TypeError,
    KeyError,
    OSError,
    OverflowError,
)  # of an event whose values are of another kind
Fingerprint = tuple[tuple[str, int, int], ...]


def names(folder: Path | None) -> list[str]:
    """The runs below a folder, as paths from it; a folder that is a run itself is called by its own name."""
    return [] if folder is None else sorted(_walk(folder.resolve()))[:MOST_RUNS]


def _walk(root: Path) -> Iterator[str]:
    for seen, (place, folders, files) in enumerate(os.walk(root, followlinks=False)):
        depth = len(Path(place).relative_to(root).parts)
        if depth >= DEEPEST_FOLDER or seen > MOST_FOLDERS:
            folders.clear()
        if "run.json" in files:
            folders.clear()  # what lies below a run belongs to it
            yield Path(place).relative_to(root).as_posix()


def run_of(folder: Path | None, name: str) -> Run:
    """A run of the list, once its files are known to be harmless."""
    if folder is None or name not in names(folder):
        raise BadInput(f"{name[:80]!r} is not among the runs of this page. Choose one of the list.")
    root = folder.resolve()
    return _harmless(root / name, root, name)


def given(folder: Path) -> Run:
    """The run that a folder itself is, in messages by the name it was given."""
    return _harmless(folder.resolve(), folder.resolve(), str(folder))


def _harmless(place: Path, root: Path, name: str) -> Run:
    for path in _files(place):
        _refuse_strange(path, root, name)
    run = Run(place)
    with told(run, name):
        if run.about["depth"] > MOST_BLOCKS:
            raise BadInput(
                f"{name} has {run.about['depth']:,} blocks; this page draws at most {MOST_BLOCKS:,}."
            )
    return run


def _files(folder: Path) -> list[Path]:
    """What a reader of the run opens."""
    beginnings = (*LARGEST, "heads-rank")
    return sorted(p for p in folder.iterdir() if p.name.startswith(beginnings) and p.name.endswith(ENDS))


def _refuse_strange(path: Path, root: Path, name: str) -> None:
    shown = f"{name}/{path.name}"
    if not path.resolve().is_relative_to(root):
        raise BadInput(f"{shown} leads out of the folder that was given, and is not followed.")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(f"{shown} is not a regular file. A run folder holds only such files.")
    most = next((size for begin, size in LARGEST.items() if path.name.startswith(begin)), LARGEST["rank"])
    if status.st_size > most:
        raise BadInput(
            f"{shown} has {status.st_size:,} bytes; this page reads at most {most:,}. `edgewise export` reads all."
        )


@contextmanager
def told(run: Run, name: str) -> Iterator[None]:
    """Whatever is wrong with a run is said in a sentence, by its name and without the path of the folder."""
    try:
        yield
    except BadInput as refusal:
        raise BadInput(str(refusal).replace(str(run.path), name)) from refusal
    except WRONG as error:
        reason = str(error)[:300].replace(str(run.path), name)
        raise BadInput(
            f"{name} cannot be read as a run: {reason}. Was it written by edgewise.watch?"
        ) from error


def fingerprint(run: Run) -> Fingerprint:
    """Changes whenever the run has grown."""
    files = [path for path in _files(run.path) if not path.name.startswith("heads-")]
    return tuple(
        (path.name, status.st_size, status.st_mtime_ns) for path in files for status in [path.stat()]
    )


def rows(run: Run, rank: int) -> Rows:
    """All rows of a rank, kept until the files change."""
    return _rows(str(run.path), rank, fingerprint(run))


@lru_cache(maxsize=4)
def _rows(path: str, rank: int, _: Fingerprint) -> Rows:
    return Run(path).rows(rank=rank)
