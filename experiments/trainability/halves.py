"""Two halves of the held-out networks, and what is asked of new parts of the score; fixed before either was looked at.

A network belongs to the first half where the first byte of the SHA-256 of its line in `population.json` is even. New
parts are fitted on the 312 old runs and the first half, and reported on the second half, which nothing is fitted on.
Slow networks and those under a wrong rate are left out of both, as in the calibration.

The parts, none negative, each known before training:

    small   max(0, -log g), g the geometric mean of the gains of values and of both MLP matrices (rms times the square
            root of the fan-in): how far a step of AdamW, whose size does not follow the weights, outruns them
    loud    max(0, loss at step 0 / loss of chance - 1): a readout that is sure of itself before it has learned
    copies  log of the number of blocks where layers are copies of each other, 0 elsewhere

All subsets of the three are fitted with weights of at least zero; the one of the highest likelihood on the first half
and the old runs, by leaving out one family at a time, is the candidate. It is kept if on the second half

    1. AUROC of dead against trained within a task is higher by 0.02 at least, and
    2. dead networks called "trains" are fewer, and
    3. trained ones called "will not train" are at most 3 % or one network.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

KEYS = ("kind", "task", "depth", "width", "tokens", "seed", "initializer_range", "knobs", "norm")
PARTS = ("small", "loud", "copies")
GAIN, ALARMS = 0.02, 0.03


def first_half(case: dict[str, Any]) -> bool:
    """By the hash of what the list says of a network, whatever else a record adds."""
    line = json.dumps({key: case[key] for key in KEYS if key in case}, sort_keys=True)
    return hashlib.sha256(line.encode()).digest()[0] % 2 == 0
