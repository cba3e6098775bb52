"""What the loss says by itself, at steps of which the budget pays for no row.

A loss that is not finite raises the alarm at once. One that jumps asks for a row, which then decides; where none is
taken within ten steps, the loss alone raises the alarm, unless it has come back by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edgewise.monitor.alarm import AlarmKind
from edgewise.monitor.bands import Bands
from edgewise.monitor.hit import STAYS, Hit
from edgewise.monitor.loss_detectors import loss_spike
from edgewise.monitor.trend import FEWEST

WAIT = 10  # steps in which a row is waited for


@dataclass(frozen=True)
class Loud:
    """A loss that is up at a step that was not sampled, or one that is not finite."""

    step: int
    since: int
    floor: float  # its logarithm, below which it has come back
    hit: Hit


class LossAlone:
    """Remembers a loud loss until a row is taken, or ten steps have gone by."""

    def __init__(self, bands: Bands) -> None:
        self.bands = bands
        self._loud: Loud | None = None

    def forget(self) -> None:
        """A row was taken, and decides."""
        self._loud = None

    def hear(self, step: int, loss: float) -> Loud | None:
        """A loss that is not finite, or what has been loud for ten steps and still is."""
        losses = self.bands.losses
        if not math.isfinite(loss):
            self._loud = None
            return _broken(
                self.bands, step, f"The loss is {loss} at step {step}, which is not a finite number."
            )
        if self._loud is None and len(losses) and losses.restless:
            self._loud = _loud(self.bands, step)
        loud = self._loud
        if loud is None or step - loud.step < WAIT:
            return None
        self._loud = None
        return loud if losses.last(STAYS).min() > loud.floor else None

    def broken_before(self, step: int, since: int) -> Loud:
        """A loss between two rows that was not finite; which of them is not known."""
        return _broken(
            self.bands, step, f"A loss of the steps {since} to {step} was not a finite number.", since
        )


def _broken(bands: Bands, step: int, sentence: str, since: int | None = None) -> Loud:
    hit = Hit(AlarmKind.NOT_A_NUMBER, int(bands.at("loss")[0]), sentence)
    return Loud(step, step if since is None else since, math.inf, hit)


def _loud(bands: Bands, step: int) -> Loud | None:
    spike = loss_spike(bands)
    if spike is None:
        return None
    past = bands.losses.last(FEWEST + STAYS)
    floor = float(np.median(past[:-STAYS]) + past[-STAYS:].min()) / 2
    return Loud(step, bands.losses.steps[-STAYS], floor, spike)
