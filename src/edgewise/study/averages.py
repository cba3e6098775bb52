"""What a figure shows of many networks: means over seeds with their standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgewise.study.recipe import Result


def select(results: Sequence[Result], **where: Any) -> list[Result]:
    """The results whose case has these values; refused where there is none."""
    selection = [r for r in results if all(r.case.get(key) == value for key, value in where.items())]
    if not selection:
        raise BadInput(f"no result has {where}; the cases do not cover it.")
    return selection


def over_seeds(
    results: Sequence[Result], name: str, **where: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean of a value over the selected cases, which differ in their seed, and its standard error (0 for one seed)."""
    import numpy as np

    values = np.array([r.value[name] for r in select(results, **where)], dtype=float)
    if len(values) == 1:
        return values[0], np.zeros_like(values[0])
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def seed_count(results: Sequence[Result]) -> int:
    """How many random networks stand behind a point."""
    return len({r.case["seed"] for r in results if "seed" in r.case})


def rounded(values: Any, digits: int = 6) -> Any:
    """The same nested numbers as lists with few digits, so that records stay small."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        return [rounded(value, digits) for value in values]
    return float(f"{values:.{digits}g}")
