"""Arrays of double precision, and the range within which their products stay numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LARGEST = 1e150  # of a mean square: beyond it products overflow double precision
