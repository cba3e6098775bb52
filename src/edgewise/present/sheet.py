"""A whole figure as plain numbers, drawn when it is shown: panels, a headline and the scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.nouns.card import Card, Curve, Panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Sheet:
    """A whole figure: panels side by side (or `columns` to a row), a headline above, the scale stated below."""

    title: str
    panels: tuple[Panel, ...]
    scale: str = ""
    columns: int | None = None

    def curve(self, panel: int, label: str) -> Curve:
        """Return the curve of that label, for reading numbers back."""
        return next(curve for curve in self.panels[panel].curves if curve.label == label)

    def draw(self) -> Figure:
        """Return a matplotlib figure, without touching pyplot's global state."""
        from edgewise.present.draw import draw_sheet

        return draw_sheet(self.title, self.panels, self.scale, self.columns)

    def save(self, path: str | Path) -> Path:
        """Write a .png, .svg or .pdf, whole or not at all."""
        from edgewise.present.draw import check_path, save_figure

        return save_figure(self.draw(), check_path(path))

    def _repr_png_(self) -> bytes:
        from edgewise.present.draw import figure_png

        return figure_png(self.draw())


def as_figure(card: Card) -> Sheet:
    """Return the card as a figure: its panels below the answer, its sentences at the foot."""
    if not card.figures:
        raise BadInput(
            f"this card has no numbers to draw: {card.title}. Its text is edgewise.present.as_text(card)."
        )
    title = f"{card.title}: {card.answer}" if card.answer else card.title
    return Sheet(title, card.figures, "\n".join((*card.warnings, *card.sentences)), min(len(card.figures), 3))


def finite_limit(values: Sequence[Array], share: float = 98.0) -> float:
    """Return a color limit that a few extreme points do not spoil: a percentile of the finite sizes."""
    sizes = np.concatenate([np.abs(array[np.isfinite(array)]) for array in values])
    return float(np.percentile(sizes, share)) if sizes.size and sizes.max() > 0 else 1.0
