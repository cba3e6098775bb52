"""The sentences of a verdict on profiles made by hand: every number of a sentence is the one of the profile."""

from __future__ import annotations

import math

import pytest

import edgewise
from edgewise.errors import BadInput
from edgewise.nouns.verdict import Probability, Profile, Remedy, Verdict
from edgewise.present import wording


def profile(start: float = 0.0, end: float = 0.5, depth: int = 12, **values: object) -> Profile:
    overlap = tuple(start + (end - start) * k / depth for k in range(depth + 1))
    return Profile(overlap, tuple(1 - c for c in overlap), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value, low, high, sentence",
    [
        (0.34, 0.316, 0.36, "about 34 % of such networks trained (32 to 36 %)"),
        (0.02, 0.0, 0.02, "about 2 % of such networks trained (1 to 2 %)"),
        (0.97, 0.97, 1.0, "about 97 % of such networks trained (97 to 99 %)"),
        (0.5, 0.5, 0.5, "about 50 % of such networks trained (50 %)"),
        (0.004, 0.0, 0.12, "almost none of such networks trained (up to 12 %)"),
        (0.001, 0.0, 0.004, "almost none of such networks trained (under 1 %)"),
        (0.996, 0.93, 1.0, "nearly all such networks trained (at least 93 %)"),
        (0.999, 0.996, 1.0, "nearly all such networks trained (over 99 %)"),
    ],
)
def test_shares(value: float, low: float, high: float, sentence: str) -> None:
    assert Probability(value, low, high).sentence == sentence


@pytest.mark.parametrize(
    "made, sentence",
    [
        (profile(), "Tokens stay distinct: two that start at right angles are 50 % alike at the output."),
        (profile(0.0, 0.03), "Tokens stay distinct: two that start at right angles still are at the output."),
        (
            profile(0.3, 0.0),
            "Tokens stay distinct: two that start 30 % alike are at right angles at the output.",
        ),
        (profile(0.0, 1.0), "Tokens merge: all of them are identical at the output."),
        (
            profile(0.0, 0.99, halving=2.0),
            "Tokens merge: two that start at right angles are 99.0 % alike at the "
            "output, and half of what tells them apart is lost every 2.0 blocks.",
        ),
        (
            profile(0.9, 0.2, halving=-1.0),
            "Tokens drift apart: two that start 90 % alike are 20 % alike at the output, "
            "and a small difference between two of them doubles every block.",
        ),
        (
            profile(halving=4.1),
            "Tokens stay distinct: two that start at right angles are 50 % alike at the output.",
        ),
        (
            profile(halving=0.5, depth=4),
            "Tokens merge: two that start at right angles are 50 % alike at the output, "
            "and half of what tells them apart is lost every 0.5 blocks.",
        ),
        (
            profile(halving=0.01, depth=2),
            "Tokens merge: two that start at right angles are 50 % alike at the output, "
            "and half of what tells them apart is lost every fraction of a block.",
        ),
    ],
)
def test_tokens(made: Profile, sentence: str) -> None:
    assert wording.tokens(made) == sentence


@pytest.mark.parametrize(
    "gradient, sentence",
    [
        ((1.04, 1.0, 1.0), "Gradients stay even: the first block gets as much as the last block."),
        ((0.94, 1.0, 1.0), "Gradients stay even: the first block gets 94 % of the last block's."),
        ((1.06, 2.0, 1.0), "Gradients stay even: the first block gets 106 % of the last block's."),
        (
            (0.2, 0.4, 1.0),
            "Gradients fade somewhat towards the input: the first block gets 20 % of the last block's.",
        ),
        ((0.02, 0.1, 1.0), "Gradients fade towards the input: the first block gets 2 % of the last block's."),
        (
            (0.04, 0.02, 1.0),
            "Gradients fade towards the input: the first block gets 4 % of the last block's, and block "
            "1 only 2 %.",
        ),
        (
            (14.2, 20.0, 1.0),
            "Gradients grow towards the input: the first block gets 14 times the last block's.",
        ),
        (
            (14.2, 30.0, 1.0),
            "Gradients grow towards the input: the first block gets 14 times the last block's, and "
            "block 1 even 30 times.",
        ),
        (
            (0.0001, 0.1, 1.0),
            "Gradients fade towards the input: the first block gets less than 0.1 % of the last block's.",
        ),
        (
            (2e6, 9.0, 1.0),
            "Gradients grow towards the input: the first block gets more than a million times the last "
            "block's.",
        ),
    ],
)
def test_gradients(gradient: tuple[float, ...], sentence: str) -> None:
    assert wording.gradients(profile(gradient=gradient)) == sentence


@pytest.mark.parametrize(
    "keys, visible, sentence",
    [
        (40.4, 64.0, "Attention looks at about 40 of 64 tokens."),
        (0.3, 64.0, "Attention is sharp: it looks at about 1 of 64 tokens."),
        (16.0, 32.0, "Attention looks at about 50 % of the tokens it may see."),
        (40.0, 32.0, "Attention looks at about 100 % of the tokens it may see."),
        (3.0, None, "Attention looks at about 3 tokens at a time."),
    ],
)
def test_attention(keys: float, visible: float | None, sentence: str) -> None:
    assert wording.attention(profile(keys=keys, visible=visible, tokens=64)) == sentence


@pytest.mark.parametrize(
    "separation, cell",
    [(0.0, "1"), (9e-5, ">0.9999"), (4e-4, "0.9996"), (0.004, "0.996"), (0.6, "0.40"), (1.0, "0.00")],
)
def test_overlaps_have_more_digits_the_nearer_they_are_to_one(separation: float, cell: str) -> None:
    assert wording.overlap(1 - separation, separation) == cell


def verdict_of(**knobs: object) -> Verdict:
    return edgewise.judge(
        edgewise.predict(edgewise.transformer(depth=2, tokens=8, width=32, heads=2, **knobs))
    )


def test_a_perceptron_is_explained_in_its_own_words() -> None:
    perceptron = edgewise.judge(edgewise.predict(edgewise.Perceptron("tanh", 1.5, 0.05, depth=4)))
    text = " ".join(line.text for line in (*wording.explain(perceptron), *wording.details(perceptron)))
    assert "inputs" in text and "tokens" not in text.lower() and "block" not in text
    of_tokens = " ".join(line.text for line in wording.explain(verdict_of()))
    assert "tokens" in of_tokens and "inputs" not in of_tokens


def test_attention_is_explained_by_its_numbers() -> None:
    """Unit logits over 8 keys: v / (2 log 8), as said."""
    verdict = verdict_of()
    text = " ".join(line.text for line in wording.explain(verdict))
    assert verdict.attention is not None and verdict.attention.condensation is not None
    assert verdict.attention.condensation == pytest.approx(1 / (2 * math.log(8)), rel=0.05)
    assert f"Condensation: at most {verdict.attention.condensation:.2f}." in text


def test_a_remedy_is_said_with_its_outcome() -> None:
    remedy = Remedy("Use pre-norm.", {"norm": "pre"}, edgewise.nouns.verdict.Outcome.TRAINS, 0.93)
    assert wording.then(remedy) == "trains, 93 %"


def test_two_values_of_a_head_can_be_rotated_and_one_cannot() -> None:
    assert edgewise.transformer(heads=1, head_width=2, width=2, rope=True).rope
    with pytest.raises(BadInput, match="cannot rotate"):
        edgewise.transformer(heads=1, head_width=2, width=2, rope=0.4)


@pytest.mark.parametrize(
    "gradient, text",
    [
        (2e6, ">999999"),
        (999_999.6, ">999999"),
        (999_999.0, "999999"),
        (10.0, "10"),
        (9.996, "10"),
        (9.99, "9.99"),
        (1.0, "1.00"),
        (0.1, "0.10"),
        (0.0996, "0.10"),
        (0.099, "0.099"),
        (0.0005, "0.001"),
        (0.00049, "<0.001"),
        (0.0, "<0.001"),
        (math.inf, ">999999"),
    ],
)
def test_sizes_have_three_digits_or_a_bound(gradient: float, text: str) -> None:
    assert wording.size(gradient) == text
