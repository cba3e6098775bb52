"""What the loss says by itself, at steps of which the budget pays for no row.

A loss that jumps asks for a row, which then decides. Where none is taken within ten steps, the loss alone raises the
alarm, unless it has come back by then.
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
    """A loss that is up, or is not a number, at a step that was not sampled."""

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
        """What has been loud for ten steps and still is, once; loss: of a step without a row."""
        losses = self.bands.losses
        if self._loud is None and len(losses) and (losses.restless or not math.isfinite(loss)):
            self._loud = _loud(self.bands, step, loss)
        loud = self._loud
        if loud is None or step - loud.step < WAIT:
            return None
        self._loud = None
        back = math.isfinite(loss) and not losses.last(STAYS).min() > loud.floor
        return None if back else loud


def _loud(bands: Bands, step: int, loss: float) -> Loud | None:
    if not math.isfinite(loss):
        hit = Hit(AlarmKind.NOT_A_NUMBER, int(bands.at("loss")[0]), f"The loss is not finite since step {step}.")
        return Loud(step, step, math.inf, hit)
    spike = loss_spike(bands)
    if spike is None:
        return None
    past = bands.losses.last(FEWEST + STAYS)
    floor = float(np.median(past[:-STAYS]) + past[-STAYS:].min()) / 2
    return Loud(step, bands.losses.steps[-STAYS], floor, spike)
