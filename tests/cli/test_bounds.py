"""Sizes, files and numbers are bounded before anything is computed: what cannot be answered is refused at once."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import edgewise
from edgewise.cli.main import run
from edgewise.errors import BadInput
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.gram import heads as gram_heads
from edgewise.theory.gram.drive import propagate_gram
from edgewise.theory.gram.heads import Sampling, default_samples

Capture = pytest.CaptureFixture[str]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "initializer_range": 0.02,
}
PAIRS = zip("abcdefghijk", "bcdefghijkl", strict=True)
BOMB = "a: &a [1, 1]\n" + "\n".join(f"{c}: &{c} [*{b}, *{b}, *{b}, *{b}]" for b, c in PAIRS)
MERGE_BOMB = "a: &a {x: 1}\nb: {<<: [*a, *a]}\n"


def refused(arguments: list[str], words: str, capsys: Capture) -> None:
    began = time.process_time()
    assert run(arguments) == 64
    assert words in capsys.readouterr().err
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["transformer", "--depth", "1000000"], "depth must be at most 10,000"),
        (["mlp:tanh", "--depth", "1000000"], "depth must be at most 10,000"),
        (["transformer", "--set", "score_gain=1e300"], "score_gain must be"),
        (["transformer", "--set", "mlp_branch=-1e300"], "mlp_branch must be"),
        (["mlp:tanh", "--set", "weight_variance=1e300"], "weight_variance must be"),
        (["transformer", "--set", "width=1" + "0" * 4400], "width must be"),
        (["transformer", "--set", "width=1" + "0" * 4000], "width must be at most"),
        (["transformer", "--set", "value_gain=" + "[" * 100_000], "nested too deeply"),
        (["transformer", "--set", "value_gain=[[1]]"], "value_gain"),
        (["transformer", "--tokens", "20000", "--set", "causal=true"], "would need"),
    ],
)
def test_numbers_beyond_reach_are_refused_at_once(words: list[str], message: str, capsys: Capture) -> None:
    refused(["predict", *words], message, capsys)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bomb.yaml", BOMB, "the alias *a"),
        ("merge.yaml", MERGE_BOMB, "the alias *a"),
        ("deep.yaml", "a: " + "[" * 5000, "nested too deeply"),
        ("deep.json", '{"depth": ' + "[" * 100_000, "nested too deeply"),
        ("digits.json", '{"width": ' + "1" * 5000 + "}", "not valid JSON"),
        ("digits.yaml", "width: " + "1" * 5000, "not valid YAML"),
        ("large.yaml", "# " + "x" * 600_000, "bytes"),
        ("rope.json", json.dumps(LLAMA | {"rope_scaling": 3}), "rope_scaling"),
        ("layers.json", json.dumps(LLAMA | {"num_hidden_layers": 10**7}), "at most 10,000"),
    ],
)
def test_files_beyond_reach_are_refused_at_once(
    name: str, text: str, message: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / name).write_text(text)
    refused(["predict", str(tmp_path / name)], message, capsys)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path, capsys: Capture) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "config.json").symlink_to("config.json")
    (tmp_path / "folder.json").mkdir()
    words = {
        "pipe.json": "a pipe",
        "zero.yaml": "a device",
        "config.json": "symbolic links",
        "folder.json": "has no",
    }
    for name, message in words.items():
        refused(["predict", str(tmp_path / name)], message, capsys)


def test_a_list_that_contains_itself_is_refused() -> None:
    values: list[object] = []
    values.append(values)
    with pytest.raises(BadInput, match="value_gain must be a list of single values"):
        edgewise.transformer(depth=1, value_gain=values)


def test_a_stream_without_norms_through_relu_squared_explodes(capsys: Capture) -> None:
    began = time.process_time()
    settings = ["--set", "norm=none", "--set", "activation=relu2"]
    assert run(["predict", "transformer", "--depth", "8", *settings, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert "exploding_gradient" in [finding["kind"] for finding in document["verdict"]["findings"]]
    assert time.process_time() - began < 20


def test_tanh_of_a_huge_variance_is_read_off_its_scaling() -> None:
    """Beyond the table E phi'(u) phi'(u') depends on q e (2 - e) over sqrt(q), against the slow quadrature."""
    averages = activation("tanh")._averages
    q, e = np.full(5, 4e8), np.array([0.0, 1e-9, 1e-6, 0.3, 1.9])
    np.testing.assert_allclose(averages.slope_product(q, e), averages.slope_product_directly(q, e), rtol=1e-4)
    slow = averages.chord_directly(q[:1], np.array([1e-8]))
    np.testing.assert_allclose(averages.chord(q[:1], np.array([1e-8])), slow, rtol=1e-4)


def test_a_perceptron_with_a_huge_variance_answers() -> None:
    """From the second layer on tanh is a sign: c' = 2/pi arcsin c."""
    began = time.process_time()
    trace = edgewise.predict(edgewise.Perceptron("tanh", weight_variance=1e10, depth=4), start_overlap=0.5)
    overlaps = trace.overlap[0]
    np.testing.assert_allclose(overlaps[2:], 2 / np.pi * np.arcsin(overlaps[1:-1]), rtol=1e-4)
    assert overlaps[1] > 0.4 and time.process_time() - began < 10


def test_the_estimate_of_memory_is_that_of_a_run() -> None:
    """The peak of numpy's arrays, within a factor of two."""
    network = edgewise.transformer(depth=2, tokens=256, width=64, heads=2, causal=True)
    tracemalloc.start()
    try:
        propagate_gram(network)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    estimate = gram_heads.cost(256, 2, 2, Sampling(default_samples(256, 2), np.float32, keep=True)).memory
    assert 0.5 < estimate / peak < 2


def test_the_refusal_of_long_masks_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The named length is accepted, and twice of it is not."""
    monkeypatch.setattr(gram_heads, "physical_memory", lambda: 24e9)
    sampling = Sampling(4, np.float32, keep=False)
    with pytest.raises(
        BadInput, match=r"would need [\d,.]+ GB and about \d.*tokens = (\d[\d,]*) needs"
    ) as refusal:
        gram_heads.affordable(20_000, 12, 2, sampling)
    fitting = int(str(refusal.value).split("tokens = ")[1].split(" needs")[0].replace(",", ""))
    gram_heads.affordable(fitting, 12, 2, sampling)
    with pytest.raises(BadInput):
        gram_heads.affordable(2 * fitting, 12, 2, sampling)
