"""How far to look: until the loss has changed by half of what it is, never further than the weights are long."""

from __future__ import annotations

import math
from itertools import product

from edgewise.landscape.fast_surface import Evaluated

RISE = 0.5  # of the loss at the centre
SMALLEST = 2.0**-8


def automatic_reach(surface: Evaluated, axes: int, centre: float, most: float) -> float:
    """The smallest reach, doubling, at which the loss on the edge differs by RISE of the centre; at most `most`.

    A loss that is zero at the centre has no scale of its own: then `most` is taken.
    """
    edge = [c for c in product((-1.0, 0.0, 1.0), repeat=axes) if any(c)]
    wanted, before = RISE * abs(centre), 0.0
    reach = SMALLEST * most
    if not wanted > 0:
        return most
    while reach < most:
        change = max(_change(surface.at([reach * c for c in point]), centre) for point in edge)
        if change >= wanted:
            return _between(reach, before, change, wanted)
        before, reach = change, 2 * reach
    return most


def _change(loss: float, centre: float) -> float:
    return abs(loss - centre) if math.isfinite(loss) else math.inf


def _between(reach: float, before: float, change: float, wanted: float) -> float:
    """Between reach/2 and reach, in the logarithm; two digits, so that rounding does not change the grid."""
    if before <= 0 or not math.isfinite(change):
        return float(f"{reach / 2:.2g}")
    share = math.log(wanted / before) / math.log(change / before)
    return float(f"{reach * 2 ** (share - 1):.2g}")
