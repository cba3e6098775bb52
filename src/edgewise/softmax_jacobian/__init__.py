"""Jacobian of a softmax row, J(s) = diag(s) - s s^T: eigenvalues and invariants without forming J.

    >>> import math, torch
    >>> from edgewise import softmax_jacobian as jacobian
    >>> ends = jacobian.extremes(torch.tensor([0.3, 0.7], dtype=torch.float64).log())
    >>> round(float(ends.largest.exp()), 12)
    0.42

Everything is in logarithms: the smallest entry of a row underflows long before its eigenvalue stops mattering.
Masked keys are removed (log-probability -inf), they are not zeros. Shapes: rows (..., n); one number per row (...).

Check     checked count
Product   product; helmert tangent_hessian (dense, for few keys)
Numbers   entropy trace frobenius log_determinant log_rest saturated mass_carrying
Spectrum  brackets extremes spectrum condition_estimate effective_condition Extremes Brackets extremes_of_rows
"""

from __future__ import annotations

from edgewise.softmax_jacobian.jacobian import (
    SATURATED,
    Brackets,
    Extremes,
    brackets,
    checked,
    condition_estimate,
    count,
    effective_condition,
    entropy,
    extremes,
    extremes_of_rows,
    frobenius,
    helmert,
    log_determinant,
    log_rest,
    mass_carrying,
    product,
    saturated,
    spectrum,
    tangent_hessian,
    trace,
)

__all__ = [
    "checked",
    "count",
    "product",
    "helmert",
    "tangent_hessian",
    "SATURATED",
    "entropy",
    "trace",
    "frobenius",
    "log_determinant",
    "log_rest",
    "saturated",
    "mass_carrying",
    "Brackets",
    "Extremes",
    "brackets",
    "condition_estimate",
    "effective_condition",
    "extremes",
    "extremes_of_rows",
    "spectrum",
]
