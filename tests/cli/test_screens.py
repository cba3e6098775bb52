"""The screens of eight networks as a person sees them, kept as text.

`python -m tests.cli.test_screens` writes them anew.

Measured ones are of one seed and few tokens, so that their digits are those of any machine.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from edgewise.cli.main import run
from edgewise.nouns.verdict import Probability
from edgewise.present import wording
from edgewise.present.wording import group

HERE = Path(__file__).parent / "screens"
MODELS = "tests/support/screen_models.py"
SCREENS = {
    "good": ["predict", "bert-base"],
    "risky": ["predict", "bert-large"],
    "dead": ["predict", "torch-encoder", "--depth", "48", "--tokens", "64"],
    "copied_layers": ["measure", f"{MODELS}:copies", "--tokens", "16", "--seeds", "1"],
    "causal": ["predict", "gpt2", "--tokens", "64"],
    "mixture_of_experts": ["predict", "mixtral-8x7b", "--tokens", "32"],
    "perceptron": ["predict", "mlp:tanh", "--set", "weight_variance=3"],
    "unknown_module": ["measure", f"{MODELS}:unknown", "--tokens", "16", "--seeds", "1"],
}
# Words of the papers that a stranger does not know.
JARGON = re.compile(
    r"exponent|lyapunov|e\^|nats|condens|entropy|phase|ordered|chaotic|kurtosis|jacobian|readout|eigen|\bq\b|[α-ωΑ-Ω]"
)


def shown(words_: list[str], columns: int = 88) -> str:
    """What a command prints, without how long it took."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        assert run(words_) in (0, 1, 2)
    return re.sub(r" +(theory|measured), \d+\.\d s", r"   \1, 0.0 s", out.getvalue())


@pytest.mark.parametrize("name", SCREENS)
def test_the_screen_is_the_recorded_one(name: str) -> None:
    assert shown(SCREENS[name]) == (HERE / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", SCREENS)
def test_a_stranger_understands_every_word(name: str) -> None:
    """No notation, no colour, no letters that a screen reader spells out, and nothing wider than the screen."""
    text = (HERE / f"{name}.txt").read_text()
    assert not JARGON.search(text), JARGON.search(text)
    assert "\x1b[" not in text
    assert not [c for c in text if unicodedata.category(c) in ("So", "Sm") and c not in "=+<>|~"]
    assert max(len(line) for line in text.splitlines()) <= 88
    sentences = [line for line in text.splitlines() if re.match(r"  [A-Z]", line) and "Fix" not in line]
    assert 2 <= len(sentences) <= 6


@pytest.mark.parametrize("name", ["good", "dead", "causal"])
def test_forty_columns_are_enough(name: str) -> None:
    lines = shown(SCREENS[name], 40).splitlines()
    assert max(len(line) for line in lines) <= 40
    narrow, wide = (
        " ".join(" ".join(x).split()) for x in (lines, (HERE / f"{name}.txt").read_text().splitlines())
    )
    for sentence in re.findall(r"(?:Tokens|Gradients|Attention)[^.]*(?:\.\d[^.]*)*\.", wide):
        assert sentence in narrow


def test_an_output_without_these_letters_gets_plain_ones() -> None:
    """In a pipe whose encoding is ASCII nothing becomes a question mark."""
    command = [
        sys.executable,
        "-m",
        "edgewise",
        "predict",
        "transformer",
        "--depth",
        "2",
        "--tokens",
        "8",
        "--verbose",
    ]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(command, capture_output=True, env=environment, check=False).stdout.decode("ascii")
    assert "2 blocks - pre-norm" in output and "+/-" in output and "?" not in output


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.34, 0.32, 0.36, "about 34 % of such networks trained (32 to 36 %)"),
        (0.001, 0.0, 0.003, "almost none of such networks trained (under 1 %)"),
        (0.001, 0.0, 0.034, "almost none of such networks trained (up to 3 %)"),
        (0.999, 0.94, 1.0, "nearly all such networks trained (at least 94 %)"),
        (0.98, 0.9601, 0.9999, "about 98 % of such networks trained (96 to 99 %)"),
    ],
)
def test_shares_are_never_nothing_or_all(value: float, low: float, high: float, expected: str) -> None:
    assert Probability(value, low, high).sentence == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((0.12, 0.4, 1.0), "fade somewhat towards the input: the first block gets 12 % of the last block's."),
        ((0.02, 0.4, 1.0), "fade towards the input: the first block gets 2 % of the last block's."),
        (
            (1.49, 0.17, 1.0),
            "fade somewhat on the way to the input: block 1 gets 17 % of the last block's, the first block 149 %.",
        ),
        ((14.2, 3.0, 1.0), "grow towards the input: the first block gets 14 times the last block's."),
        (
            (float("inf"), 3e7, 1.0),
            "grow towards the input: the first block gets more than a million times the last block's.",
        ),
        (
            (0.0, 0.4, 1.0),
            "fade towards the input: the first block gets less than 0.1 % of the last block's.",
        ),
        ((0.97, 1.1, 1.0), "stay even: the first block gets as much as the last block."),
    ],
)
def test_gradients_in_words(row: tuple[float, ...], expected: str) -> None:
    assert (
        wording.gradients(wording.Profile((0.0, 0.1, 0.2), (1.0, 0.9, 0.8), row)) == f"Gradients {expected}"
    )


def test_overlaps_get_more_digits_near_one() -> None:
    separations = (1.0, 0.6, 0.004, 0.0004, 1e-9, 0.0)
    shown_ = [wording.overlap(1 - separation, separation) for separation in separations]
    assert shown_ == ["0.00", "0.40", "0.996", "0.9996", ">0.9999", "1"]


def test_groups_of_parameters() -> None:
    copies = [f"layers.{i}.{part}" for part in ("attn.q", "mlp.w") for i in range(1, 24)]
    assert group(copies) == "layers.1-23"
    assert group(["encoder.layers.0.mlp.b", "encoder.layers.2.mlp.b"]) == "encoder.layers.0,2.mlp.b"
    assert group([f"{i}.weight" for i in range(0, 40, 2)]) == "0..38.weight"
    assert (
        group([f"1.layers.{i}.linear1.bias" for i in range(24)]) == "1.layers.0-23.linear1.bias"
    )  # in a Sequential
    assert group(["layers.3.mlp.a", "layers.3.attn.a"]) == "layers.3.*.a"
    assert group(["head.weight"]) == "head.weight"
    assert group(["head.weight", "embedding.weight"]) == "head.weight and 1 more"


if __name__ == "__main__":
    for name, words_ in SCREENS.items():
        (HERE / f"{name}.txt").write_text(shown(words_))
