"""What a source is: the same things for every verb, in Python and in the shell."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import edgewise
from edgewise.cli.main import run
from edgewise.errors import BadInput
from edgewise.models.source import ACCEPTED, read_source
from edgewise.present import measurement
from tests.support.models import build

Capture = pytest.CaptureFixture[str]
SCRIPT = """
import torch
from torch import nn

def make():
    layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

def nothing():
    return 3

number = 3
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of every kind that is a source."""
    folder = tmp_path_factory.mktemp("sources")
    build("llama").save_pretrained(folder / "checkpoint")
    (folder / "bare").mkdir()
    (folder / "bare" / "config.json").write_text((folder / "checkpoint" / "config.json").read_text())
    (folder / "mine.py").write_text(SCRIPT)
    (folder / "knobs.yaml").write_text("depth: 2\nwidth: 64\nheads: 2\ntokens: 8\n")
    return folder


MEASURED = ["torch-encoder", "{}/bare/config.json", "{}/checkpoint", "{}/mine.py:make", "{}/knobs.yaml"]


@pytest.mark.parametrize("template", MEASURED)
def test_measure_reads_the_same_subject_in_python_and_in_the_shell(
    template: str, place: Path, capsys: Capture
) -> None:
    source = template.format(place)
    run(["measure", source, "--tokens", "8", "--seeds", "1", "--json"])
    shell = json.loads(capsys.readouterr().out)["measured"]
    trace = edgewise.measure(source, tokens=8, seeds=1, readouts=("token", "own", "pooled"))
    python = measurement(trace, edgewise.judge(trace), None, None)["measured"]
    assert json.loads(json.dumps(python))["trace"] == shell["trace"]


PREDICTED = ["torch-encoder", "transformer", "mlp:tanh", *MEASURED[1:]]


@pytest.mark.parametrize("template", PREDICTED)
def test_predict_describes_the_same_network_in_python_and_in_the_shell(
    template: str, place: Path, capsys: Capture
) -> None:
    source = template.format(place)
    tokens = [] if source.startswith("mlp:") else ["--tokens", "8"]
    run(["predict", source, *tokens, "--json"])
    shell = json.loads(capsys.readouterr().out)
    network = edgewise.describe(source, tokens=8 if tokens else None)
    assert json.loads(json.dumps(network.to_dict())) == shell["architecture"] | {"name": network.name}
    assert edgewise.predict(network).blocks("norm").tolist() == shell["trace"]["blocks"]["norm"]


def test_weights_of_a_folder_are_measured_and_its_config_alone_is_initialised_anew(place: Path) -> None:
    read, config = (edgewise.measure(str(place / name), tokens=8, seeds=1) for name in ("checkpoint", "bare"))
    assert "weights as given" in read.source and "new initialization" in config.source
    with_path = edgewise.measure(place / "checkpoint", tokens=8, seeds=1)
    assert with_path.norm.tolist() == read.norm.tolist()


def test_knobs_are_measured_on_a_network_built_from_them(place: Path) -> None:
    network = edgewise.describe(place / "knobs.yaml")
    trace = edgewise.measure(network, tokens=8)
    assert trace.architecture is not None and trace.architecture.depth == 2 and trace.architecture.width == 64
    assert trace.depth == 2


def test_a_function_is_described_as_the_model_of_its_first_seed(place: Path) -> None:
    function = read_source(f"{place}/mine.py:make").factory
    assert function is not None
    before = torch.get_rng_state()
    network = edgewise.describe(function)
    assert torch.equal(before, torch.get_rng_state())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert network == edgewise.describe(function())


def test_presets_are_found_in_any_case() -> None:
    trace = edgewise.measure("Torch-Encoder", tokens=4, seeds=1)
    assert trace.depth == 6


VERBS: list[Callable[[Any], Any]] = [edgewise.predict, edgewise.measure]


@pytest.mark.parametrize("source", ["gtp2", "zzzz", "meta-llama/Llama-3-8B", "notes.txt", "nowhere.json"])
def test_every_verb_refuses_with_the_same_words(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("depth: 3")
    refusals = []
    for verb in VERBS:
        with pytest.raises(BadInput) as refusal:
            verb(source)
        refusals.append(str(refusal.value))
    for words in (["predict", source], ["measure", source]):
        assert run(words) == 64
        refusals.append(capsys.readouterr().err.strip().removeprefix("edgewise: "))
    assert len(set(refusals)) == 1


def test_help_lists_what_messages_list(capsys: Capture) -> None:
    for verb in ("predict", "measure"):
        run([verb, "--help"])
        assert " ".join(ACCEPTED.split()) in " ".join(capsys.readouterr().out.split())


class Bomb:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (Path.write_text, (self.file, "loaded"))


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pkl"])
def test_no_pickle_is_ever_loaded(suffix: str, place: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((place / "bare" / "config.json").read_text())
    file = tmp_path / f"pytorch_model{suffix}"
    file.write_bytes(pickle.dumps(Bomb(tmp_path / "proof")))
    for source in (file, str(file)):
        for verb in VERBS:
            with pytest.raises(BadInput, match=f"pytorch_model{suffix} is a pickle"):
                verb(source)
    with pytest.raises(BadInput, match="is a pickle"):
        edgewise.measure(tmp_path)
    assert edgewise.describe(tmp_path).depth == 3  # a description needs no weights
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mine.py", "write mine.py:function"),
        ("mine.py:number", "no function 'number'"),
        ("mine.py:nothing", "must return a torch.nn.Module, got a int"),
        ("missing.py:make", "missing.py does not exist"),
    ],
)
def test_refusals_of_python_files(
    words: str, message: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    for verb in VERBS:
        with pytest.raises(BadInput, match=message):
            verb(words)


def test_a_perceptron_is_predicted_and_not_measured() -> None:
    with pytest.raises(BadInput, match="a perceptron has no tokens to measure"):
        edgewise.measure("mlp:tanh")


def test_a_link_that_leads_nowhere_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(tmp_path / "model")
    with pytest.raises(BadInput, match="model is a link that leads to no file"):
        read_source(str(tmp_path / "model"))


def test_a_file_may_import_its_neighbors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python file.py` lets it, also later, inside the function."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "sizes_of_mine.py").write_text("WIDTH = 16\n")
    (tmp_path / "layers_of_mine.py").write_text("from torch.nn import Linear\n")
    (tmp_path / "train.py").write_text(
        "from sizes_of_mine import WIDTH\n"
        "def model():\n"
        "    from layers_of_mine import Linear\n"
        "    return Linear(WIDTH, WIDTH)\n"
    )
    made = read_source(f"{tmp_path}/train.py:model").factory
    assert made is not None and made().weight.shape == (16, 16)
