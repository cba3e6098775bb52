"""`edgewise rate` on real files: words, JSON, picture and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from edgewise.cli.main import run
from edgewise.rehearsal import Rate

FILE = """
import torch
from tests.support import rehearsal_networks as networks

def model():
    return networks.small()

def batches():
    return networks.batches()

def one():
    return networks.batches(1)

def loss(model, batch):
    return networks.text_loss(model, batch)

def sgd(model):
    return torch.optim.SGD(model.parameters(), 1.0)
"""
SHORT = ["--steps", "5", "--rates", "4"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return str(path)


def ask(file: str, *options: str) -> list[str]:
    return ["rate", f"{file}:model", "--batch", f"{file}:batches", "--loss", f"{file}:loss", *SHORT, *options]


def test_words_and_a_picture(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "rates.png"
    assert run(ask(file, "--figure", str(picture))) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("USE ") and "on a copy" in printed.out
    assert "at most 20 training steps" in printed.err
    assert picture.stat().st_size > 10_000


def test_a_torch_without_muon_is_refused(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    assert run(ask(file, "--optimizer", "muon")) == 64
    assert "has no torch.optim.Muon" in capsys.readouterr().err


def test_the_loop_as_it_is_trained(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Clipping, accumulation, schedule and the user's own rate; a second call trains nothing again."""
    options = ["--clip", "1.0", "--accumulate", "2", "--schedule", "cosine", "--own", "1e-6", "--json"]
    options += ["--steps", "10", "--rates", "6", "--resume", str(tmp_path / "kept.json")]
    assert run(ask(file, *options)) in (0, 1)
    first = json.loads(capsys.readouterr().out)
    assert first["schedule"] == "cosine" and first["own"]["rate"] == 1e-6 and first["passes"] <= 60
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["of"][1][3:5] == [2, 1.0]
    assert run(ask(file, *options)) in (0, 1)
    again = json.loads(capsys.readouterr().out)
    assert again["best"] == first["best"] and again["seconds"] < first["seconds"]


HAS_MUON = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch before 2.9 has no Muon")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", pytest.param("muon", marks=HAS_MUON), "FILE:sgd"])
def test_json_of_every_optimizer(file: str, optimizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--optimizer", optimizer.replace("FILE", file), "--steps", "20" if "sgd" in optimizer else "5"]
    code = run(ask(file, "--json", *chosen, "--warmup", "2"))
    document = json.loads(capsys.readouterr().out)
    assert code in (0, 1)
    rate = Rate.from_json(json.dumps(document))
    assert rate.best is not None and rate.warmup == 2 and document["outlook"]["prospect"]
    assert ("SGD" in rate.optimizer) == ("sgd" in optimizer)


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--batch", "FILE:one"], "at least 2 are needed"),
        (["--batch", "nowhere.py:f"], "does not exist"),
        (["--batch", "batches"], "file.py:name"),
        (["--optimizer", "adam"], "must be one of"),
        (["--batch", "FILE:nothing"], "has no 'nothing'"),
        (["--steps", "1"], "at least 2"),
        (["--figure", "rates.txt"], ".png"),
    ],
)
def test_refusals(file: str, options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ask(file, *[word.replace("FILE", file) for word in options])) == 64
    assert sentence in capsys.readouterr().err


def test_without_data_it_says_what_that_is_worth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "gpt2",
                "n_layer": 2,
                "n_embd": 16,
                "n_head": 2,
                "vocab_size": 40,
                "n_positions": 16,
                "bos_token_id": 0,
                "eos_token_id": 0,
            }
        )
    )
    assert run(["rate", str(config), *SHORT]) in (0, 1)
    assert "synthetic batches" in " ".join(capsys.readouterr().out.split()).lower()


def test_a_model_without_a_loss_needs_data(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rate", f"{file}:model"]) == 64
    assert "Give" in capsys.readouterr().err
