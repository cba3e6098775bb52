"""The picture of a rehearsal shows the numbers of its `Rate`."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from edgewise import present as view
from edgewise.rehearsal import Moment, Rate, Rehearsal


def rehearsal(rate: float, loss: float, separation: float | None, reason: str | None = None) -> Rehearsal:
    return Rehearsal(rate, (3.0, loss), (Moment(20, loss, 1.0, separation, 1.0),), 10 * rate, reason, 20)


def answer(best: float | None = 2e-3, apart: float | None = 0.5) -> Rate:
    rows = (
        rehearsal(1e-3, 2.5, apart),
        rehearsal(2.5e-3, 2.0, apart),
        rehearsal(6e-3, math.inf, None, "the loss was not finite"),
    )
    start = Moment(0, 3.0, 0.0, apart, 1.0)
    low, high = (None, None) if best is None else (best / 2, best * 2)
    return Rate(best, low, high, 4e-3 if best else None, rows, start, "AdamW", passes=60)


def test_every_number_is_where_it_belongs(tmp_path: Path) -> None:
    sheet = view.learning_rates(answer())
    loss, stream, tokens = sheet.panels
    assert sheet.title == "Use 2.0e-3 (1.0e-3 to 4.0e-3), edge 4.0e-3"
    np.testing.assert_allclose(sheet.curve(0, "learned").y, [2.5, 2.0])
    np.testing.assert_allclose(sheet.curve(0, "too large").x, [6e-3])
    assert np.isfinite(sheet.curve(0, "too large").y).all()  # drawn at the top, not left out
    assert loss.places == (1e-3, 2e-3, 4e-3, 4e-3) and loss.levels == (3.0,)
    assert "not finite" in loss.note
    np.testing.assert_allclose(stream.curves[0].y, [1e-2, 2.5e-2, 6e-2])
    assert tokens.levels == (0.5,)
    assert sheet.save(tmp_path / "rates.png").stat().st_size > 10_000


def test_without_a_rate_and_without_tokens() -> None:
    sheet = view.learning_rates(answer(best=None, apart=None))
    assert sheet.title == "No rate that was tried learned"
    assert sheet.panels[2].note == "tokens were not inspected" and sheet.panels[2].curves == ()
    sheet.draw()
