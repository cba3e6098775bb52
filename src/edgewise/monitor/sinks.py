"""Rows mirrored to TensorBoard, W&B and trackio: few curves, whatever the depth.

Of the run its columns, of sites and blocks the smallest and the largest value over depth. W&B and trackio are used
when a run of theirs is active; TensorBoard has no such thing, so its writer is given. A sink that fails is left
alone and said so; the others, and the training, continue.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import json_values
from edgewise.monitor.alarm import Alarm
from edgewise.monitor.columns import Column, slow_columns
from edgewise.monitor.hooks import weakly
from edgewise.monitor.instrument import Edge, Processes
from edgewise.monitor.places import WHOLE, Places, frozen
from edgewise.monitor.run_folder import RunFolder, versions

WEBHOOK_SECONDS = 10.0
Send = Callable[[dict[str, float], int], None]


class Sinks:
    """Where rows are mirrored to."""

    def __init__(
        self,
        columns: Sequence[Column],
        writers: Sequence[Any],
        complain: Callable[[str], None],
        webhook: Webhook | None = None,
        alert: bool = True,
    ) -> None:
        self._groups = _groups(columns)
        self._complain = complain
        given = {f"TensorBoard {number}": _tensorboard(writer) for number, writer in enumerate(writers, 1)}
        self.targets = given | _active()
        self.alerts: dict[str, Callable[[Alarm], None]] = _alerts() if alert else {}
        if webhook is not None and alert:
            self.alerts["the webhook"] = webhook
        self.webhook = webhook

    def alert(self, alarm: Alarm) -> None:
        """Send an alarm to people and programs: W&B and trackio alerts, a webhook."""
        for name, target in list(self.alerts.items()):
            try:
                target(alarm)
            except Exception as error:  # noqa: BLE001  a stranger's package: the training must not notice
                del self.alerts[name]
                self._complain(f"alarms are no longer sent to {name} ({type(error).__name__}: {error}).")

    def send(self, step: int, row: Array, alarms: Sequence[str]) -> None:
        """One row, and the alarms raised with it as counts."""
        if not self.targets:
            return
        values = curves(self._groups, row) | {f"edgewise/alarm/{kind}": 1.0 for kind in alarms}
        for name, target in list(self.targets.items()):
            try:
                target(values, step)
            except Exception as error:  # noqa: BLE001  a stranger's package: the training must not notice
                del self.targets[name]
                self._complain(f"rows are no longer mirrored to {name} ({type(error).__name__}: {error}).")

    def close(self) -> None:
        """Wait for alarms that are on their way to the webhook: the last one may be of the last step."""
        if self.webhook is not None:
            self.webhook.wait()


class Webhook:
    """POSTs an alarm as JSON to an address, in a thread of its own: the training does not wait for it.

    The first failure is reported with `complain`; later alarms are still tried.
    """

    def __init__(self, address: str, complain: Callable[[str], None]) -> None:
        self.address, self._complain = address, complain
        self.threads: list[threading.Thread] = []
        self._complained = False

    def __call__(self, alarm: Alarm) -> None:
        body = json.dumps({"text": str(alarm), "alarm": json_values(alarm.json())}).encode()
        thread = threading.Thread(target=self._post, args=(body,), name="edgewise webhook", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _post(self, body: bytes) -> None:
        request = urllib.request.Request(
            self.address, body, {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS) as answer:
                answer.read()
        except (OSError, ValueError, HTTPException) as error:
            if not self._complained:
                self._complained = True
                self._complain(
                    f"an alarm could not be sent to the webhook ({type(error).__name__}: {error})."
                )

    def wait(self) -> None:
        """Wait until every alarm was sent or given up, at most as long as one may take."""
        until = time.monotonic() + WEBHOOK_SECONDS
        for thread in self.threads:
            thread.join(max(until - time.monotonic(), 0.0))


def check_webhook(address: Any) -> str | None:
    """Return the address of a webhook; raise `BadInput` if it is none."""
    if address is None or (isinstance(address, str) and address.startswith(("http://", "https://"))):
        return address
    raise BadInput(f"webhook must be an address that begins with http:// or https://, got {address!r}.")


def _alerts() -> dict[str, Callable[[Alarm], None]]:
    """Alerts of packages that were imported and have a run."""
    found: dict[str, Callable[[Alarm], None]] = {}
    wandb, trackio = sys.modules.get("wandb"), sys.modules.get("trackio")
    run = getattr(wandb, "run", None)
    if run is not None and callable(getattr(run, "alert", None)):
        found["W&B"] = lambda alarm: run.alert(title=_title(alarm), text=str(alarm))
    active = trackio is not None and trackio.context_vars.current_run.get() is not None
    if trackio is not None and active and callable(getattr(trackio, "alert", None)):
        found["trackio"] = lambda alarm: trackio.alert(_title(alarm), text=str(alarm))
    return found


def _title(alarm: Alarm) -> str:
    return f"edgewise: {alarm.kind.value.replace('_', ' ')} at step {alarm.step}"


def _groups(columns: Sequence[Column]) -> dict[str, np.ndarray]:
    groups: dict[str, list[int]] = {}
    for place, column in enumerate(columns):
        groups.setdefault(
            column.statistic.name if column.place else f"run/{column.statistic.name}", []
        ).append(place)
    return {name: np.array(places) for name, places in groups.items()}


def curves(groups: dict[str, np.ndarray], row: Array) -> dict[str, float]:
    """By key: edgewise/loss, and edgewise/entropy/min and /max over depth; what is not finite is left out."""
    values: dict[str, float] = {}
    for name, places in groups.items():
        finite = row[places][np.isfinite(row[places])]
        if not len(finite):
            continue
        if name.startswith("run/"):
            values[f"edgewise/{name[4:]}"] = float(finite[0])
        else:
            values |= {
                f"edgewise/{name}/min": float(finite.min()),
                f"edgewise/{name}/max": float(finite.max()),
            }
    return values


def writers_of(mirror: Any) -> list[Any]:
    """The TensorBoard writers among which rows are mirrored: none, one or several were given."""
    writers = [] if mirror is None else list(mirror) if isinstance(mirror, (list, tuple)) else [mirror]
    for writer in writers:
        if not callable(getattr(writer, "add_scalar", None)):
            raise BadInput(
                f"mirror takes TensorBoard writers, got {type(writer).__name__}. W&B and trackio need not be given: "
                "they are used when a run of theirs is active."
            )
    return writers


def _tensorboard(writer: Any) -> Send:
    def send(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return send


def _active() -> dict[str, Send]:
    """Packages that were imported and have a run; none is imported for this."""
    targets: dict[str, Send] = {}
    wandb, trackio = sys.modules.get("wandb"), sys.modules.get("trackio")
    run = getattr(wandb, "run", None)
    if run is not None:
        # With the caller's next log, so that the two agree about the step.
        targets["W&B"] = lambda values, step: run.log({**values, "edgewise/step": step}, commit=False)
    if trackio is not None and trackio.context_vars.current_run.get() is not None:
        current = trackio.context_vars.current_run.get()
        targets["trackio"] = lambda values, step: current.log({**values, "edgewise/step": step})
    return targets


class RunLog:
    """Says sentences (the first process alone, and not if quiet) and writes events, if there is a folder."""

    def __init__(self, places: Places, ranks: Processes, edge: Edge | None, quiet: bool) -> None:
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
            complain=weakly(self.say),
            fail=weakly(self.say_always),
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
        """Say what is watched, at which price, and what is not."""
        p = self.places
        watched = (
            f"{p.depth} blocks{frozen(p)}, {len(p.attentions) + len(p.by_operation)} attentions"
            if p.depth
            else WHOLE
        )
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
        with suppress(OSError, ValueError):  # of a standard error that is closed: training continues
            print(f"edgewise: {sentence}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the folder."""
        if self.folder is not None:
            self.folder.close()
