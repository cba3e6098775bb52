"""Results as something to look at: text, HTML, JSON and figures, each result in the same sentences.

Figures are data first: every function that makes one returns a `Sheet`, numbers that can be read, tested and drawn.
Methods of results (`print(verdict)`, `verdict.report`) import this package inside the method, and nothing else of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.nouns.figure import Arrows, Curve, Dots, Map, Marker, Panel, Sheet, finite_limit
    from edgewise.present.cards import notebook_card as notebook_card
    from edgewise.present.depth_curves import beside, block_numbers, depth_profile, overlap
    from edgewise.present.documents import comparison, measurement, prediction
    from edgewise.present.draw import check_path
    from edgewise.present.draw import draw_sheet as draw_sheet
    from edgewise.present.draw import figure_png as figure_png
    from edgewise.present.draw import save_figure as save_figure
    from edgewise.present.html_report import write_plan as write_plan
    from edgewise.present.html_report import write_proof as write_proof
    from edgewise.present.html_report import write_verdict as write_verdict
    from edgewise.present.planes import perceptron_plane, phase_diagram, vector_field
    from edgewise.present.rate_card import learning_rates
    from edgewise.present.relief import Relief, landscape, landscape_line
    from edgewise.present.text import verdict_text as verdict_text

# The last of these are for the methods of results; users call the methods.
_HOMES = {
    "Arrows": "nouns.figure",
    "Curve": "nouns.figure",
    "Dots": "nouns.figure",
    "Map": "nouns.figure",
    "Marker": "nouns.figure",
    "Panel": "nouns.figure",
    "Relief": "present.relief",
    "Sheet": "nouns.figure",
    "beside": "present.depth_curves",
    "block_numbers": "present.depth_curves",
    "check_path": "present.draw",
    "comparison": "present.documents",
    "depth_profile": "present.depth_curves",
    "draw_sheet": "present.draw",
    "figure_png": "present.draw",
    "finite_limit": "nouns.figure",
    "landscape": "present.relief",
    "landscape_line": "present.relief",
    "learning_rates": "present.rate_card",
    "measurement": "present.documents",
    "notebook_card": "present.cards",
    "overlap": "present.depth_curves",
    "perceptron_plane": "present.planes",
    "phase_diagram": "present.planes",
    "prediction": "present.documents",
    "save_figure": "present.draw",
    "vector_field": "present.planes",
    "verdict_text": "present.text",
    "write_plan": "present.html_report",
    "write_proof": "present.html_report",
    "write_verdict": "present.html_report",
}
__all__ = [
    "Arrows",
    "Curve",
    "Dots",
    "Map",
    "Marker",
    "Panel",
    "Relief",
    "Sheet",
    "beside",
    "block_numbers",
    "check_path",
    "comparison",
    "depth_profile",
    "finite_limit",
    "landscape",
    "landscape_line",
    "learning_rates",
    "measurement",
    "overlap",
    "perceptron_plane",
    "phase_diagram",
    "prediction",
    "vector_field",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"edgewise.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
