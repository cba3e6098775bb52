"""The sentences of a verdict have the numbers of its profile, and the dialect in code and docs only falls."""

from __future__ import annotations

import math
import re
from pathlib import Path

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
        (profile(), "Tokens stay distinct: the overlap (cosine) of two goes from 0.00 to 0.50."),
        (profile(0.0, 0.03), "Tokens stay distinct: the overlap (cosine) of two goes from 0.00 to 0.03."),
        (
            profile(0.3, 0.0),
            "Tokens stay distinct: the overlap (cosine) of two goes from 0.30 to 0.00.",
        ),
        (profile(0.0, 1.0), "Tokens merge: all of them are identical at the output."),
        (
            profile(0.0, 0.99, halving=2.0),
            "Tokens merge: the overlap (cosine) of two goes from 0.00 to 0.99, "
            "and half of what tells them apart is lost every 2.0 blocks.",
        ),
        (
            profile(0.9, 0.2, halving=-1.0),
            "Tokens drift apart: the overlap (cosine) of two goes from 0.90 to 0.20, "
            "and a small difference between two of them doubles every block.",
        ),
        (
            profile(halving=4.1),
            "Tokens stay distinct: the overlap (cosine) of two goes from 0.00 to 0.50.",
        ),
        (
            profile(halving=0.5, depth=4),
            "Tokens merge: the overlap (cosine) of two goes from 0.00 to 0.50, "
            "and half of what tells them apart is lost every 0.5 blocks.",
        ),
        (
            profile(halving=0.01, depth=2),
            "Tokens merge: the overlap (cosine) of two goes from 0.00 to 0.50, "
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
            "Gradients fade on the way to the input: block 1 gets 2 % of the last block's, the first "
            "block 4 %.",
        ),
        (
            (14.2, 16.0, 1.0),
            "Gradients grow towards the input: the first block gets 14 times the last block's.",
        ),
        (
            (0.20, 0.135, 1.0),
            "Gradients fade somewhat on the way to the input: block 1 gets 14 % of the last block's, the "
            "first block 20 %.",
        ),
        (
            (14.2, 30.0, 1.0),
            "Gradients grow on the way to the input: block 1 gets 30 times the last block's, the first "
            "block 14 times.",
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
        (40.4, 64.0, "Each token attends to about 40 of 64 tokens (62 %)."),
        (0.3, 64.0, "Attention is sharp: each token attends to about 1 of 64 tokens (2 %)."),
        (16.0, 32.0, "Each token attends to about 50 % of the tokens it may see."),
        (40.0, 32.0, "Each token attends to about 100 % of the tokens it may see."),
        (3.0, None, "Each token attends to about 3 tokens."),
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


ROOT = Path(__file__).parents[1]
PATTERNS = {  # write: if, raises, "is not a", the passive, fix, again, default, compared with, continues, inspect
    "where for if": r"\bwhere (it|there|nothing|none|no|the|that|they|one)\b",
    "refuse": r"\brefus(e|es|ed|al|als|ing)\b",
    "is no": r"\b(is|are) no [a-z]",
    "nobody": r"\b(no|any|every)body\b",
    "mend": r"\bmend(s|ed|ing)?\b",
    "anew": r"\banew\b",
    "asked again": r"\b(asked again|measured again|carried over)\b",
    "as it comes": r"\bas (it|they) comes?\b",
    "in words": r"\bin words\b",
    "held against": r"\bheld against\b",
    "goes on": r"\bgo(es)? on\b",
    "look at": r"\blook(s|ed)? at\b",
    "leaves the numbers": r"\bleaves? the (range of )?numbers\b",
    "whatever": r"\bwhatever\b",
    "of its own": r"\bof (its|our|their) own\b",
    "British spelling": r"\b(normalis|initialis|recognis|materialis|memoris|summaris|vectoris|behaviour|colour)\w*\b",
}
SAID = {  # pattern: the most in src, and in docs and the pages of the root; a limit only falls
    "where for if": (122, 8),
    "refuse": (30, 0),
    "is no": (10, 3),
    "nobody": (2, 0),
    "mend": (0, 0),
    "anew": (0, 0),
    "asked again": (0, 0),
    "as it comes": (0, 0),
    "in words": (7, 0),
    "held against": (0, 0),
    "goes on": (0, 0),
    "look at": (8, 0),
    "leaves the numbers": (9, 0),
    "whatever": (60, 9),
    "of its own": (88, 12),
    "British spelling": (0, 0),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_dialect_only_falls(pattern: str) -> None:
    """A pattern that is gone from a text is taken off its limit, so that it cannot come back."""
    code = list((ROOT / "src/edgewise").rglob("*.py"))
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    counts = tuple(
        len(re.findall(PATTERNS[pattern], "\n".join(path.read_text() for path in paths), re.IGNORECASE))
        for paths in (code, pages)
    )
    said = SAID[pattern]
    assert all(count <= limit for count, limit in zip(counts, said, strict=True)), (
        f"{pattern!r} is in src {counts[0]} times (at most {said[0]}) and in docs {counts[1]} times (at most "
        f"{said[1]}); write it as PyTorch would"
    )
