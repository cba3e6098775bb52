"""`--batch FILE.PY:NAME`: one option and one reader for every verb of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from edgewise.cli.main import edgewise as group
from edgewise.cli.main import run
from edgewise.cli.options import load_batches

FILE = """
import torch
from torch import nn
from torch.utils.data import DataLoader

def model():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

tensor = torch.ones(1, 6, 16)
pair = (torch.ones(1, 6, 16), torch.zeros(1))
several = [torch.full((1, 6, 16), float(k)) for k in range(3)]
loader = DataLoader(torch.ones(4, 6, 16), batch_size=2)
empty = []
words = {"src": torch.randn(1, 9, 16, generator=torch.Generator().manual_seed(0))}
def made():
    return several
def seeded(seed):
    return torch.full((1, 6, 16), float(seed))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("verb", ["measure", "describe", "fix", "rate", "report"])
def test_every_verb_of_a_model_has_the_same_option(verb: str) -> None:
    command = group.get_command(click.Context(group), verb)
    assert command is not None
    (option,) = [p for p in command.params if p.name == "batch"]
    assert option.opts == ["--batch"] and option.metavar == "FILE.PY:NAME"


@pytest.mark.parametrize(
    ("name", "shape", "value"),
    [
        ("tensor", (1, 6, 16), 1.0),
        ("several", (1, 6, 16), 0.0),
        ("loader", (2, 6, 16), 1.0),
        ("made", (1, 6, 16), 0.0),
        ("seeded", (1, 6, 16), 3.0),
    ],
)
def test_the_first_batch(file: Path, name: str, shape: tuple[int, ...], value: float) -> None:
    batches = load_batches(f"{file}:{name}")
    assert batches is not None
    first = batches.first(seed=3)
    assert tuple(first.shape) == shape and float(first.flatten()[0]) == value


def test_tuples_and_dicts_are_one_batch(file: Path) -> None:
    pair, words = load_batches(f"{file}:pair"), load_batches(f"{file}:words")
    assert pair is not None and len(pair.first()) == 2 and isinstance(pair.first()[0], torch.Tensor)
    assert words is not None and set(words.first()) == {"src"}
    assert load_batches(None) is None


def document(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    run([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_it_is_what_the_model_is_run_on(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = document(["measure", f"{file}:model", "--batch", f"{file}:words", "--seeds", "1"], capsys)
    assert measured["measured"]["architecture"]["tokens"] == 9
    described = document(["describe", f"{file}:model", "--batch", f"{file}:words"], capsys)
    assert described["structure"]["tokens"] == 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure", "{}:model", "--batch", "{}:empty"], "holds no batch"),
        (["measure", "{}:model", "--batch", "{}:tensor", "--tokens", "8"], "leave --text and --tokens out"),
        (["describe", "{}:model", "--batch", "tensor"], "is not file.py:name"),
        (["describe", "gpt2", "--batch", "{}:tensor"], "batch"),
        (["report", "{}:model", "--batch", "{}:tensor"], "use it with --measure"),
    ],
)
def test_bad_batches_are_rejected(
    words: list[str], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([word.format(file) for word in words]) == 64
    assert message in capsys.readouterr().err
