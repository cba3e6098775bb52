"""A whole figure as data: panels side by side with a headline and a scale, drawn and saved on request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.view.panel import Curve, Panel

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
        """The curve of that label, for reading numbers back."""
        return next(curve for curve in self.panels[panel].curves if curve.label == label)

    def draw(self) -> Figure:
        """A matplotlib figure, without touching pyplot's global state."""
        from edgewise.view.draw import draw

        return draw(self.title, self.panels, self.scale, self.columns)

    def save(self, path: str | Path) -> Path:
        """Write a .png, .svg or .pdf, whole or not at all."""
        from edgewise.view.files import check_path, save

        return save(self.draw(), check_path(path))

    def _repr_png_(self) -> bytes:
        from edgewise.view.files import png

        return png(self.draw())
