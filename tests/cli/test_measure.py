"""`edgewise measure` from the shell: sources, text, JSON, figures, refusals."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from edgewise.cli.main import run
from edgewise.models.small.small_model import model_classes
from edgewise.nouns.verdict import Outcome
from edgewise.probe.subjects import as_config, model_class
from tests.support.models import build

MODEL = """
import torch
from tests.support.probe_networks import Net

def make():
    return Net(seed=int(torch.randint(1 << 30, ())))

def wide():
    net = make()
    net.embedding = torch.nn.Embedding(256, 16)
    return net

def bare():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

number = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a tiny Llama as people have it on disk."""
    place = tmp_path_factory.mktemp("checkpoint")
    build("llama", vocab_size=256).save_pretrained(place)
    return place


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    return path


def test_function_as_json(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "m.svg"
    code = run(["measure", f"{script}:make", "--tokens", "12", "--json", "--figure", str(figure)])
    document = json.loads(capsys.readouterr().out)
    assert code == Outcome(document["measured"]["verdict"]["outcome"]).exit_code
    assert (
        len(document["measured"]["trace"]["blocks"]["norm"]) == len(document["standard_errors"]["norm"]) == 4
    )
    assert document["standard_errors"]["norm"][-1] > 0  # two initializations
    assert document["measured"]["trace"]["readout"] == "token"
    assert document["predicted"]["architecture"]["depth"] == 3
    assert "<svg" in figure.read_text()


def test_checkpoint_with_text(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "sample.txt"
    text.write_text("it was the best of times, it was the worst of times")
    run(["measure", str(folder), "--text", str(text), "--tokens", "20", "--seeds", "1", "--verbose"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "20 tokens, 1 readout directions, weights as given" in printed
    assert "Initialization audit" in printed and "theory" in printed


def test_text_for_a_model_of_ones_own(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its forward takes ids by position, under a name of its own."""
    assert run(["measure", f"{script}:wide", "--text", str(script), "--tokens", "20", "--seeds", "1"]) in (
        0,
        1,
        2,
    )
    assert "20 tokens" in capsys.readouterr().out


def test_config_streamed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["measure", str(folder / "config.json"), "--stream", "--tokens", "8", "--seeds", "1", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert "streamed" in document["measured"]["trace"]["source"]
    assert document["audit"] is None


@pytest.mark.parametrize("name", ["model.ckpt", "weights.pkl", "weights.PICKLE", "tf_model.h5", "model.gguf"])
def test_a_folder_with_weights_that_are_not_read_is_not_measured_as_a_new_draw(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / name).write_bytes(b"weights")
    assert run(["measure", str(tmp_path), "--tokens", "8"]) == 64
    printed = capsys.readouterr().err
    assert name in printed and "to safetensors" in printed


def test_pickles_are_refused_by_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert run(["measure", str(tmp_path)]) == 64
    assert "pytorch_model.bin is a pickle" in capsys.readouterr().err
    assert run(["measure", str(tmp_path / "pytorch_model.bin")]) == 64


def test_incomplete_and_broken_checkpoints_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers would draw what is missing at random and go on."""
    weights = load_file(folder / "model.safetensors")
    lost = "model.layers.1.mlp.down_proj.weight"
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(
        {name: value for name, value in weights.items() if name != lost},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    assert run(["measure", str(tmp_path)]) == 64
    assert f"no weights for {lost}" in capsys.readouterr().err
    (tmp_path / "model.safetensors").write_bytes(b"not a header")
    assert run(["measure", str(tmp_path)]) == 64
    assert "cannot be loaded" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, said",
    [
        (["nobody"], "Presets:"),
        (["missing.py:make"], "does not exist"),
        (["{script}:number"], "no function 'number'"),
        (["{script}:make", "--seeds", "0"], "seeds"),
        (["{script}:make", "--stream"], "stream=True needs"),
        (["{script}:make", "--figure", "m.bmp"], "m.bmp"),
        (["{script}:make", "--text", "{script}"], "largest table of Net has 40"),
        (["{script}:bare", "--text", "{script}"], "has no embedding table"),
        (["{script}:wide", "--text", "nowhere.txt"], "cannot be read"),
    ],
)
def test_refusals(words: list[str], said: str, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["measure", *(word.format(script=script) for word in words)]) == 64
    assert said in capsys.readouterr().err


def test_repair_is_a_file_that_mends_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The copies of the encoder get values of their own by a file that needs only torch."""
    import importlib.util

    import torch

    from edgewise import audit_initialization
    from tests.support.screen_models import copies

    path = tmp_path / "repair.py"
    run(
        [
            "measure",
            "tests/support/screen_models.py:copies",
            "--tokens",
            "8",
            "--seeds",
            "1",
            "--repair",
            str(path),
        ]
    )
    printed = capsys.readouterr()
    assert "layers.1-23" in printed.out and "torch.nn.init" not in printed.out
    assert f"Wrote {path} (1 repairs)" in printed.err
    assert "edgewise." not in path.read_text().replace("by edgewise", "")
    spec = importlib.util.spec_from_file_location("repair", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    model = copies()
    assert any(finding.severity.value == "warning" for finding in audit_initialization(model))
    module.repair(model)
    assert not any(finding.severity.value == "warning" for finding in audit_initialization(model))


@pytest.mark.parametrize(
    ("name", "message"), [("repair.txt", "must end in .py"), ("no/folder/repair.py", "does not exist")]
)
def test_a_repair_that_cannot_be_written_is_refused_first(name: str, message: str, capsys) -> None:
    assert run(["measure", "gpt2", "--repair", name]) == 64
    assert message in capsys.readouterr().err


def test_a_model_that_the_audit_does_not_know_is_measured(tmp_path: Path, capsys) -> None:
    words = ["measure", "tests/support/screen_models.py:unknown", "--tokens", "8", "--seeds", "1"]
    assert run([*words, "--explain"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "Initialization audit:" in printed
        and "were not checked" in printed.partition("Initialization audit:")[2]
    )
    assert run([*words, "--repair", str(tmp_path / "repair.py")]) == 0
    assert "(0 repairs)" in capsys.readouterr().err


def test_every_seed_builds_its_model_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "counted.py"
    path.write_text(MODEL + "\n\ndef counted():\n    print('built')\n    return bare()\n")
    run(["measure", f"{path}:counted", "--tokens", "8", "--seeds", "2", "--explain"])
    printed = capsys.readouterr()
    assert printed.err.count("built") == 2
    assert "layers start with identical weights" in " ".join(printed.out.split()).lower()


RUNS = "from pathlib import Path\nPath({marker!r}).write_text('ran')\n"


@pytest.fixture
def _yes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who answers every question with yes; modules that transformers copies stay in the folder."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_yes")
def test_the_code_of_a_tokenizer_is_never_run(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place, marker, text = tmp_path / "checkpoint", tmp_path / "marker", tmp_path / "text.txt"
    shutil.copytree(folder, place)
    text.write_text("it was the best of times")
    own = {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}, "tokenizer_class": "Own"}
    (place / "tokenizer_config.json").write_text(json.dumps(own))
    code = RUNS.format(marker=str(marker)) + (
        "from transformers import PreTrainedTokenizer\n\nclass Own(PreTrainedTokenizer):\n"
        "    def __init__(self, **options):\n        super().__init__(**options)\n"
    )
    (place / "tokenization_own.py").write_text(code)
    assert run(["measure", str(place), "--text", str(text), "--tokens", "12", "--seeds", "1"]) == 64
    printed = capfd.readouterr()
    assert not marker.exists()
    assert "is not run" in printed.err
    assert "[y/N]" not in printed.out + printed.err


@pytest.mark.usefixtures("_yes")
def test_the_code_of_a_model_is_never_run(folder: Path, tmp_path: Path) -> None:
    """`auto_map` of the config, and the generation code that some versions of transformers load unasked."""
    place, marker = tmp_path / "checkpoint", tmp_path / "marker"
    shutil.copytree(folder, place)
    config = json.loads((place / "config.json").read_text())
    names = {name: f"own.{name}" for name in ("AutoConfig", "AutoModel", "AutoModelForCausalLM")}
    (place / "config.json").write_text(json.dumps(config | {"auto_map": names}))
    (place / "custom_generate").mkdir()
    for file in (place / "own.py", place / "custom_generate" / "generate.py"):
        file.write_text(
            RUNS.format(marker=str(marker)) + "def generate(model, **options):\n    return None\n"
        )
    assert run(["measure", str(place), "--tokens", "12", "--seeds", "1"]) in (0, 1, 2)
    assert not marker.exists()


@pytest.mark.slow
def test_code_is_not_run_by_a_process_that_reads_yes(folder: Path, tmp_path: Path) -> None:
    """The same with a real standard input; what is in this process is for the two tests above."""
    place, marker = tmp_path / "checkpoint", tmp_path / "marker"
    shutil.copytree(folder, place)
    config = json.loads((place / "config.json").read_text())
    names = {name: f"own.{name}" for name in ("AutoConfig", "AutoModel", "AutoModelForCausalLM")}
    (place / "config.json").write_text(json.dumps(config | {"auto_map": names}))
    (place / "own.py").write_text(RUNS.format(marker=str(marker)))
    command = [sys.executable, "-m", "edgewise", "measure", str(place), "--tokens", "12", "--seeds", "1"]
    home = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, input="y\n" * 20, capture_output=True, text=True, timeout=300, env=os.environ | home
    )
    assert done.returncode in (0, 1, 2), done.stderr
    assert not marker.exists()


@pytest.mark.parametrize("name", ["pipeline", "AutoModel", "PretrainedConfig", "logging", "set_seed"])
def test_architectures_name_models_only(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another name is passed over, as one that the installed transformers does not have."""
    config = build("llama", vocab_size=256).config.to_dict() | {"architectures": [name]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_class(as_config(config)).__name__ == "LlamaForCausalLM"
    assert "Llama" in next(iter(model_classes(as_config(config)))).__name__
    assert run(["measure", str(tmp_path / "config.json"), "--tokens", "12", "--seeds", "1"]) in (0, 1, 2)
    assert "internal error" not in capsys.readouterr().err


def test_attention_code_of_the_hub_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = build("llama", vocab_size=256).config.to_dict() | {"attn_implementation": "somebody/kernel"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(["measure", str(tmp_path / "config.json")]) == 64
    assert "code from the Hub, which is not run here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"num_hidden_layers": 10**9},
            "num_hidden_layers must be at most 10,000 in a config, got 1000000000",
        ),
        ({"rope_parameters": {"rope_theta": "x"}}, "TypeError|rope_theta in a llama config"),
        ({"hidden_act": "no"}, "cannot be built from this config: KeyError"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
            "needs|requires|available",
        ),
    ],
)
def test_what_transformers_raises_on_a_config_is_told(
    changes: dict[str, object], words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """These were internal errors; the first would have made a thousand million layers."""
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | changes))
    if "quantization_config" in changes:
        shutil.copy(folder / "model.safetensors", place)
    assert run(["measure", str(place), "--tokens", "8"]) == 64
    assert re.search(words, capsys.readouterr().err)
