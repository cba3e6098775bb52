"""The numbers of sentences and pictures, from both sides of every change of words."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgewise
from edgewise.errors import BadInput
from edgewise.judgement.profile import _visible
from edgewise.nouns.verdict import Profile
from edgewise.present import planes, wording
from edgewise.stability.lyapunov import LateChange, Severity, depth_scale, growth, severity, signs


def profile(**changes: Any) -> Profile:
    known = {
        "overlap": (0.2, 0.4), "separation": (0.8, 0.6), "gradient": (1.0, 1.0), "halving": None, "keys": None,
        "visible": None, "tokens": None, "norm": "pre", "measured": False, "left_out": "",
    }  # fmt: skip
    return Profile(**known | changes)


TOWARDS = "Gradients {} somewhat towards the input: the first block gets {} the last block's."
DOUBLES = ", and a small difference between two of them doubles every 4.0 blocks."
WAY = "Gradients {} somewhat on the way to the input: block 1 gets {} the last block's, the first block {}."
GOES = "the overlap (cosine) of two goes from 0.20 to 0.40"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((0.5, 1.0), "Gradients stay even: the first block gets 50 % of the last block's."),
        ((0.49, 1.0), TOWARDS.format("fade", "49 % of")),
        ((2.0, 1.0), "Gradients stay even: the first block gets 2.0 times the last block's."),
        ((2.1, 1.0), "Gradients grow somewhat towards the input: the first block gets 2.1 times the last block's."),
        ((10.1, 1.0), "Gradients grow towards the input: the first block gets 10 times the last block's."),
        ((9.9, 1.0), "Gradients grow somewhat towards the input: the first block gets 9.9 times the last block's."),
        ((0.099, 1.0), "Gradients fade towards the input: the first block gets 10 % of the last block's."),
        ((1.0, 5.0, 1.0), WAY.format("grow", "5.0 times", "100 %")),
        ((4.1, 5.0, 1.0), TOWARDS.format("grow", "4.1 times")),
        ((3.9, 5.0, 1.0), WAY.format("grow", "5.0 times", "3.9 times")),
        ((5.0, 0.1, 1.0), WAY.format("fade", "10 % of", "5.0 times")),
    ],
)  # fmt: skip
def test_gradients_in_words(rows: tuple[float, ...], words: str) -> None:
    assert wording.gradients(profile(gradient=rows)) == words


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (0.00049, "less than 0.1 % of the last block's"),
        (0.0051, "0.5 % of the last block's"),
        (0.0101, "1 % of the last block's"),
        (0.949, "95 % of the last block's"),
        (0.951, "as much as the last block"),
        (1.049, "as much as the last block"),
        (1.051, "105 % of the last block's"),
        (1.99, "199 % of the last block's"),
        (2.01, "2.0 times the last block's"),
        (999_999, "999 999 times the last block's"),
        (1_000_001, "more than a million times the last block's"),
    ],
)
def test_ratios_in_words(ratio: float, words: str) -> None:
    assert wording.of_the_last(ratio) == words


@pytest.mark.parametrize(
    ("halving", "words"),
    [
        (1 / 2.99 * 12, f"Tokens stay distinct: {GOES}."),
        (1 / 3.01 * 12, f"Tokens merge: {GOES}, and half of what tells them apart is lost every 4.0 blocks."),
        (-1 / 3.01 * 12, f"Tokens drift apart: {GOES}{DOUBLES}"),
        (1.04, f"Tokens merge: {GOES}, and half of what tells them apart is lost every block."),
        (0.94, f"Tokens merge: {GOES}, and half of what tells them apart is lost every 0.9 blocks."),
        (0.04, f"Tokens merge: {GOES}, and half of what tells them apart is lost every fraction of a block."),
    ],
)  # fmt: skip
def test_tokens_in_words(halving: float, words: str) -> None:
    rows = (0.2, *[0.3] * 11, 0.4)
    made = profile(overlap=rows, separation=tuple(1 - x for x in rows), halving=halving)
    assert made.depth == 12
    assert wording.tokens(made) == words


@pytest.mark.parametrize(
    ("keys", "visible", "tokens", "words"),
    [
        (20.4, 99.0, 100, "Each token attends to about 20 of 100 tokens (20 %)."),
        (9.95, 100.0, 100, "Attention is sharp: each token attends to about 10 of 100 tokens (10 %)."),
        (20.4, 98.0, 100, "Each token attends to about 21 % of the tokens it may see."),
        (9.7, 98.0, 100, "Attention is sharp: each token attends to about 10 % of the tokens it may see."),
        (0.2, None, 100, "Each token attends to about 1 tokens."),
        (120.0, 100.0, 100, "Each token attends to about 120 of 100 tokens (100 %)."),
    ],
)
def test_attention_in_words(keys: float, visible: float | None, tokens: int, words: str) -> None:
    assert wording.attention(profile(keys=keys, visible=visible, tokens=tokens)) == words


def test_numbers_in_words() -> None:
    assert [wording.number(x) for x in (9.94, 9.96, 1234567.0)] == ["9.9", "10", "1 234 567"]
    assert [wording.size(x) for x in (9.99, 9.996, 0.0996, 0.0994, 0.00051, 0.00049)] == [
        "9.99", "10", "0.10", "0.099", "0.001", "<0.001"]  # fmt: skip
    assert [wording.size(x) for x in (999_999, 1_000_000)] == ["999999", ">999999"]
    assert wording.overlap(0.989, 0.011) == "0.99" and wording.overlap(0.991, 0.009) == "0.991"
    assert wording.overlap(0.99891, 0.00109) == "0.999" and wording.overlap(0.99909, 0.00091) == "0.9991"
    assert wording.overlap(0.9999, 1.01e-4) == "0.9999" and wording.overlap(0.9999, 0.99e-4) == ">0.9999"
    assert wording.overlap(-0.001, 1.001) == "0.00"
    assert wording.title(SimpleNamespace(profile=profile(tokens=64), perceptron=None, name="x")) == (
        "x · 1 block · pre-norm · 64 tokens"
    )


# --- the numbers behind them -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("knobs", "counts"),
    [
        ({"tokens": 6}, [6] * 6),
        ({"tokens": 6, "causal": True}, [1, 2, 3, 4, 5, 6]),
        ({"tokens": 6, "causal": True, "window": 3}, [1, 2, 3, 3, 3, 3]),
        ({"tokens": 6, "window": 2}, [3] * 6),
        ({"tokens": 6, "window": 5}, [6] * 6),
    ],
)
def test_how_many_tokens_can_be_seen_is_their_geometric_mean(
    knobs: dict[str, Any], counts: list[int]
) -> None:
    assert _visible(edgewise.transformer(depth=2, **knobs)) == pytest.approx(math.prod(counts) ** (1 / 6))


def test_growth_over_depth_and_over_its_second_half() -> None:
    logs = np.array([[0.0, 1.0, 3.0, 4.0, 4.5, 8.0], [0.0, 2.0, 3.0, 5.0, 6.5, 10.0]])
    found = growth(logs, width=50.0)
    late = np.array([(8.0 - 3.0) * 5 / 3, (10.0 - 3.0) * 5 / 3])
    assert found.rate == pytest.approx(9 / 5)
    assert found.change.scalar == pytest.approx(late.mean())
    assert found.change.error == pytest.approx(late.std(ddof=1) / math.sqrt(2))
    assert found.error == pytest.approx(max(1.0, math.sqrt(2 * 5 / 50)) / 5)
    one = growth(logs[:1], width=50.0)
    assert one.error == pytest.approx(math.sqrt(0.2) / 5)
    assert one.change.error == pytest.approx(math.sqrt(0.2) * math.sqrt(5 / 3))
    assert growth(logs[:1], width=50.0, sampled=False).change.error == 0.0
    assert growth(np.array([[0.0, -math.inf]])).rate == -math.inf
    assert depth_scale(0.0) == math.inf and depth_scale(math.nan) is None and depth_scale(0.5) == 2.0


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (3.99, 0.0, Severity.FINE),
        (4.01, 0.0, Severity.RISKY),
        (-4.01, 0.0, Severity.RISKY),
        (7.01, 0.0, Severity.FAILS),
        (7.5, 0.6, Severity.RISKY),
        (5.5, 1.6, Severity.UNDECIDED),
        (5.5, 1.4, Severity.RISKY),
        (3.5, 3.6, Severity.UNDECIDED),
        (3.5, 3.4, Severity.FINE),
        (math.nan, 1.0, Severity.FAILS),
        (-math.inf, 1.0, Severity.FAILS),
        (5.0, math.nan, Severity.RISKY),
    ],
)
def test_a_late_change_and_its_limits(value: float, error: float, expected: Severity) -> None:
    assert severity(LateChange(value, error)) is expected
    assert severity(LateChange(0.0), LateChange(value, error)) is expected
    assert list(signs([-0.2, 0.1, 0.3, math.nan], 0.1)) == [-1, 0, 1, 0]


def test_axes_and_scales_of_planes() -> None:
    assert planes.geometric(np.array([1.0, 2, 4, 8])) and not planes.geometric(np.array([1.0, 2, 3, 4]))
    assert not planes.geometric(np.array([1.0, 2])) and not planes.geometric(np.array([0.0, 0, 0]))
    assert planes._apart((1.0, 2.0)) == (1.0, 2.0) and planes._apart((-3.0, -3.0)) == (-3.003, -2.997)
    assert planes._apart((0.0, 0.0)) == (-1e-6, 1e-6)
    assert list(planes._variances("x", (0.0, 1.0, 3))) == [0.0, 0.5, 1.0]
    assert planes._range(SimpleNamespace(losses=np.array([[2.0, math.nan], [5.0, 3.0]]))) == (2.0, 5.0)
    for bounds in ((-0.1, 1.0, 3), (1.0, 1.0, 3), (0.0, math.inf, 3), (0.0, 1.0, 1)):
        with pytest.raises(BadInput, match="x must be"):
            planes._variances("x", bounds)
    assert planes.script_json({"a": "</script>&"}) == '{"a": "\\u003c/script\\u003e\\u0026"}'
    field = SimpleNamespace(
        norm=np.array([1.0, math.e]),
        overlap=np.array([0.0, 0.5]),
        d_log_norm=np.array([0.3, 0.0]),
        d_overlap=np.array([0.2, 0.0]),
    )
    arrows = planes._arrows(field)  # type: ignore[arg-type]
    assert arrows.u == pytest.approx([0.6, 0.0]) and arrows.v == pytest.approx(
        [0.8, 0.0]
    )  # 0.3 / 1 and 0.2 / 0.5
    assert arrows.speed == pytest.approx([math.hypot(0.3, 0.2), 0.0])
