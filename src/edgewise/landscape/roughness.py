"""Roughness of a landscape: curvature, distance from a quadratic, number of minima.

curvature   d²L at the centre along the axes, second differences of the grid
residual    root mean square distance of the grid from its best quadratic, over the range of the grid
minima      grid points inside the picture that lie below all their neighbours
rounding    the last place of the loss: a range of a few of them shows arithmetic, not the network
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array

NOISE = 1e-6, 8  # of the range, and roundings of the loss: a dip below it is arithmetic
VISIBLE = 100  # roundings that a range must have before its shape is the network's


@dataclass(frozen=True)
class Roughness:
    """What one grid says. `finite`: share of points with a finite loss; the others are left out."""

    centre: float
    range: float
    curvature: tuple[tuple[float, ...], ...]  # Hessian at the centre in the plane's own coordinates
    residual: float
    minima: int
    finite: float
    rounding: float = 0.0

    @property
    def visible(self) -> bool:
        """Whether the grid shows the network and not the last digits of its loss."""
        return self.range > VISIBLE * self.rounding

    @property
    def sharpness(self) -> float:
        """The largest eigenvalue of the curvature in absolute value."""
        return float(np.abs(np.linalg.eigvalsh(np.array(self.curvature))).max())

    def __str__(self) -> str:
        values = " ".join(f"{v:.3g}" for v in np.linalg.eigvalsh(np.array(self.curvature)))
        lost = "" if self.finite == 1 else f", {1 - self.finite:.1%} of points not finite"
        if not self.visible:
            return (
                f"range {self.range:.2g}, below {VISIBLE} roundings of the loss ({self.rounding:.1g}): the shape is "
                f"that of the arithmetic. Reach farther, or use float64{lost}"
            )
        return (
            f"range {self.range:.4g}, curvature {values}, residual from the best quadratic {self.residual:.2%} of the "
            f"range, {self.minima} interior minim{'um' if self.minima == 1 else 'a'}{lost}"
        )


def roughness(axes: tuple[Array, ...], losses: Array) -> Roughness:
    """Return the roughness of a line (losses (P,)) or a plane (losses (P, P), rows along the second axis)."""
    ok = np.isfinite(losses)
    middle = tuple(size // 2 for size in losses.shape)
    span, rounding = (float(np.ptp(losses[ok])) if ok.any() else np.nan), _rounding(losses[ok])
    return Roughness(
        centre=float(losses[middle]),
        range=span,
        curvature=_curvature(axes, losses, middle),
        residual=_residual(axes, losses, ok, span),
        minima=_minima(losses, span, rounding),
        finite=float(ok.mean()),
        rounding=rounding,
    )


def _rounding(losses: Array) -> float:
    """One last place of the largest loss: of float32 where every value is one, else of float64."""
    if not losses.size:
        return 0.0
    single = bool((losses.astype(np.float32) == losses).all())
    return float(np.finfo(np.float32 if single else np.float64).eps * np.abs(losses).max())


def _curvature(axes: tuple[Array, ...], L: Array, middle: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """Second differences over the three grid points around the centre."""
    if L.ndim == 1:
        (m,), h = middle, axes[0][1] - axes[0][0]
        return ((float((L[m + 1] - 2 * L[m] + L[m - 1]) / h**2),),)
    (i, j), hx, hy = middle, axes[0][1] - axes[0][0], axes[1][1] - axes[1][0]
    xx = (L[i, j + 1] - 2 * L[i, j] + L[i, j - 1]) / hx**2
    yy = (L[i + 1, j] - 2 * L[i, j] + L[i - 1, j]) / hy**2
    xy = (L[i + 1, j + 1] - L[i + 1, j - 1] - L[i - 1, j + 1] + L[i - 1, j - 1]) / (4 * hx * hy)
    return ((float(xx), float(xy)), (float(xy), float(yy)))


def _residual(axes: tuple[Array, ...], losses: Array, ok: NDArray[np.bool_], span: float) -> float:
    """Least squares with all monomials up to degree two."""
    scaled = [axis / max(np.abs(axis).max(), 1e-300) for axis in axes]
    grids = np.meshgrid(*scaled)
    monomials = [np.ones_like(grids[0]), *grids]
    monomials += [a * b for k, a in enumerate(grids) for b in grids[k:]]
    design = np.stack([m[ok] for m in monomials], 1)
    if len(design) <= design.shape[1] or not span > 0:
        return 0.0
    fitted = design @ np.linalg.lstsq(design, losses[ok], rcond=None)[0]
    return float(np.sqrt(np.mean((losses[ok] - fitted) ** 2)) / span)


def _minima(losses: Array, span: float, rounding: float) -> int:
    """Points not on the border, below every neighbour by more than rounding."""
    inner = losses[tuple(slice(1, -1) for _ in losses.shape)]
    noise = max(NOISE[0] * span, NOISE[1] * rounding)
    lowest = np.ones(inner.shape, bool)
    for shift in np.ndindex(*(3 for _ in losses.shape)):
        if any(s != 1 for s in shift):
            around = tuple(slice(s, s + size) for s, size in zip(shift, inner.shape, strict=True))
            lowest &= inner < losses[around] - noise
    return int(lowest.sum())
