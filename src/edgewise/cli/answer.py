"""What `edgewise predict` found, and its two ways out: JSON for machines, text for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import edgewise
from edgewise.cli import human
from edgewise.cli.critical_setting import critical_setting
from edgewise.critical.comparison import Comparison
from edgewise.critical.critical_point import CriticalPoint
from edgewise.trace import Trace
from edgewise.verdict import Verdict


@dataclass(frozen=True)
class Answer:
    """One entry per source; a comparison when there were two, critical settings when they were asked for."""

    traces: tuple[Trace, ...]
    verdicts: tuple[Verdict, ...]
    compared: Comparison | None = None
    criticals: tuple[CriticalPoint, ...] = ()


def answer(
    networks: Sequence[Any], how: Mapping[str, Any], critical: bool, progress: Callable[[float], None] | None = None
) -> Answer:
    """Predict and judge one network, or compare two."""
    compared = edgewise.compare(*networks, **how, progress=progress) if len(networks) == 2 else None
    traces = (edgewise.predict(networks[0], **how, progress=progress),) if compared is None else compared.traces
    verdicts = (edgewise.judge(traces[0]),) if compared is None else compared.verdicts
    points = [critical_setting(n, v, how) for n, v in zip(networks, verdicts, strict=True) if critical]
    return Answer(traces, verdicts, compared, tuple(points))


def draw(found: Answer, path: Path) -> None:
    edgewise.view.depth_profile(found.traces, found.verdicts).save(path)


def print_json(found: Answer) -> None:
    points = found.criticals or (None,) * len(found.traces)
    rows = zip(found.traces, found.verdicts, points, strict=True)
    documents = [edgewise.view.prediction(trace, verdict, point) for trace, verdict, point in rows]
    document = documents[0] if found.compared is None else edgewise.view.comparison(found.compared, documents)
    click.echo(json.dumps(document, allow_nan=False))


def print_text(found: Answer, seconds: float) -> None:
    lines = [str(point) for point in found.criticals]
    if found.compared is None:
        human.show_prediction(found.traces[0], found.verdicts[0], "".join(lines), seconds)
    else:
        human.show_comparison(found.compared, lines, seconds)
