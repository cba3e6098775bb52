"""Present results: text, HTML, JSON and figures, each result in the same sentences.

Figures are data first: every function that makes one returns a `Sheet`, numbers that can be read, tested and drawn.
Methods of results (`print(verdict)`, `verdict.report`) import this package inside the method, and nothing else of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.nouns.card import Arrows, Card, Curve, Dots, Map, Marker, Panel
    from edgewise.present.cards import card_of
    from edgewise.present.draw import check_path
    from edgewise.present.figures import Sheet, as_figure, beside, depth_profile, finite_limit, overlap
    from edgewise.present.html import as_html
    from edgewise.present.html_report import write_plan as write_plan
    from edgewise.present.html_report import write_proof as write_proof
    from edgewise.present.html_report import write_verdict as write_verdict
    from edgewise.present.json_documents import block_numbers, comparison, measurement, prediction
    from edgewise.present.plan_card import proof_sheet as proof_sheet
    from edgewise.present.planes import (
        Relief,
        landscape,
        landscape_line,
        perceptron_plane,
        phase_diagram,
        vector_field,
    )
    from edgewise.present.rate_card import learning_rates
    from edgewise.present.text import as_text

# The last of these are for the methods of results; users call the methods.
_HOMES = {
    "Arrows": "nouns.card",
    "Card": "nouns.card",
    "Curve": "nouns.card",
    "Dots": "nouns.card",
    "Map": "nouns.card",
    "Marker": "nouns.card",
    "Panel": "nouns.card",
    "Relief": "present.planes",
    "Sheet": "present.figures",
    "as_figure": "present.figures",
    "as_html": "present.html",
    "as_text": "present.text",
    "beside": "present.figures",
    "block_numbers": "present.json_documents",
    "card_of": "present.cards",
    "check_path": "present.draw",
    "comparison": "present.json_documents",
    "depth_profile": "present.figures",
    "finite_limit": "present.figures",
    "landscape": "present.planes",
    "landscape_line": "present.planes",
    "learning_rates": "present.rate_card",
    "measurement": "present.json_documents",
    "overlap": "present.figures",
    "perceptron_plane": "present.planes",
    "phase_diagram": "present.planes",
    "prediction": "present.json_documents",
    "proof_sheet": "present.plan_card",
    "vector_field": "present.planes",
    "write_plan": "present.html_report",
    "write_proof": "present.html_report",
    "write_verdict": "present.html_report",
}
__all__ = [
    "Arrows",
    "Card",
    "Curve",
    "Dots",
    "Map",
    "Marker",
    "Panel",
    "Relief",
    "Sheet",
    "as_figure",
    "as_html",
    "as_text",
    "beside",
    "block_numbers",
    "card_of",
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
