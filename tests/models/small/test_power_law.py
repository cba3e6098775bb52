"""Numbers at full size from numbers at small ones, against laws that are known."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from transformers import BertConfig

from edgewise.errors import BadInput
from edgewise.models.small.full_size import FullNumbers, ModelSizes, NoPowerLaw, extrapolate
from edgewise.models.small.sizes import HEADS
from edgewise.models.small.small_model import Blueprint


def sizes(width: float, share: float, depth: float) -> ModelSizes:
    return ModelSizes(math.log(width), math.log(share), math.log(depth))


SMALL = [sizes(64, 1 / 4, 2), sizes(128, 1 / 4, 2), sizes(64, 1 / 8, 2), sizes(64, 1 / 4, 4)]
FULL = sizes(4096, 1 / 32, 48)
LAWS = {
    "one standard deviation": lambda w, s, d: 0.02 * math.sqrt(w),
    "scores": lambda w, s, d: 0.02**2 * w,
    "scores that are not divided": lambda w, s, d: 0.02**2 * w * math.sqrt(s * w),
    "GPT-2's projections": lambda w, s, d: 0.02 * math.sqrt(w) / math.sqrt(2 * d),
    "fan-in": lambda w, s, d: 1.3,
    "a negative multiplier": lambda w, s, d: -1 / math.sqrt(d),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=list(LAWS))
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_laws_of_initializations(law: object, noise: float) -> None:
    def value(point: ModelSizes) -> float:
        return law(*(math.exp(x) for x in (point.width, point.share, point.depth)))  # type: ignore[operator]

    values = [value(point) * (1 + noise * sign) for point, sign in zip(SMALL, (1, -1, -1, 1), strict=True)]
    assert extrapolate("a gain", SMALL, values, FULL) == pytest.approx(value(FULL), rel=noise + 1e-9)


def test_a_number_that_follows_no_power_is_refused_by_name() -> None:
    with pytest.raises(NoPowerLaw, match=r"the gain of h\.0 grows as the width to the power 0\.26"):
        extrapolate("the gain of h.0", SMALL, [1.0, 1.2, 1.0, 1.0], FULL)
    with pytest.raises(BadInput, match="zero or changes sign"):
        extrapolate("a gain", SMALL, [0.0, 1.2, 1.0, 1.0], FULL)
    with pytest.raises(BadInput, match="some sizes only"):
        extrapolate("a gain", SMALL, [None, 1.2, 1.0, 1.0], FULL)
    assert extrapolate("a gain", SMALL, [None] * 4, FULL) is None


@pytest.mark.parametrize(
    "pairs, small, full",
    [
        ([("num_heads", 12, 4)], 4, 12),
        ([], 1, 1),
        ([("num_heads", 12, 1)], 1, 12),
        ([("encoder_attention_heads", 8, 4), ("decoder_attention_heads", 12, 4)], 4, 8),
    ],
)
def test_a_number_of_heads_is_the_configs_or_one(
    pairs: list[tuple[str, int, int]], small: int, full: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an encoder where encoder and decoder differ; one head need not be in a config, two must be."""
    numbers = FullNumbers.__new__(FullNumbers)
    numbers.plan, numbers.tower = SimpleNamespace(narrow=True), SimpleNamespace(shrinks=True)
    numbers.first = SimpleNamespace(name="model.encoder.layers")
    monkeypatch.setattr(FullNumbers, "_pairs", lambda *_: iter(pairs))
    assert numbers._named(HEADS, small, "heads") == full
    with pytest.raises(
        BadInput, match=r"3 heads of model\.encoder\.layers in a small model could not be found"
    ):
        numbers._named(HEADS, 3, "heads")
    monkeypatch.setattr(FullNumbers, "_pairs", lambda *_: iter([]))
    with pytest.raises(BadInput, match="2 heads of"):
        numbers._named(HEADS, 2, "heads")


@pytest.mark.parametrize("listed, said, depth", [(3, 7, 7), (7, 3, 7), (0, 4, 4)])
def test_the_full_depth_is_that_of_the_longest_stack(listed: int, said: int, depth: int) -> None:
    """Lists of layers, and what the config says where layers share their weights."""
    config = BertConfig(num_hidden_layers=said)
    lists = {"layers": SimpleNamespace(kinds=[0] * listed)} if listed else {}
    assert Blueprint(None, config, {}, lists, 2, False).full_depth == depth  # type: ignore[arg-type]
