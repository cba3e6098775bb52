"""`edgewise fix` from the shell: the plan, the outcome before and after, code, proof, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import referencing

from edgewise.cli.main import run
from tests.cli.test_measurement_schema import loaded

MODELS = """
import torch
from torch import nn

def encoder():
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)

def frozen():
    return encoder().requires_grad_(False)

def partly():
    model = encoder()
    for layer in model.layers[:6]:
        layer.requires_grad_(False)
    return model

def healthy():
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0, norm_first=True) for _ in range(2)]
    model = nn.TransformerEncoder(layers[0], 2, enable_nested_tensor=False)
    model.layers = nn.ModuleList(layers)
    return model

def plain():
    return nn.Sequential(*(part for _ in range(12) for part in (nn.Linear(16, 16), nn.Tanh())))

def batches(seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(16, 16, generator=generator)
        yield x, (x[:, 0] > 0).long()

pairs = [(torch.randn(4, 16), torch.zeros(4, dtype=torch.long))]
number = 3
singles = [torch.randn(4, 16)]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MODELS)
    return path


def test_the_plan_the_outcomes_and_the_code(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fix", f"{models}:encoder", "--tokens", "8"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^Now   (WILL NOT TRAIN|RISKY)", printed, re.MULTILINE)
    assert re.search(r"^Then  TRAINS", printed, re.MULTILINE)
    assert re.search(r"^  Plan for layers\.0-11 +std now +then +drawn$", printed, re.MULTILINE)
    assert re.search(r"^    linear2\.weight +0\.\d+ +0\.\d+ +orthogonal", printed, re.MULTILINE)
    assert "    edgewise.initialize_(model)\n" in printed
    assert "\x1b[" not in printed
    assert max(len(line) for line in printed.splitlines() if "--write" not in line) <= 88


def test_json_follows_its_schema_and_the_module_is_written(models: Path, tmp_path: Path, capsys) -> None:
    schema = referencing.Resource.from_contents(loaded("prediction"))
    registry = referencing.Registry().with_resources([(loaded("prediction")["$id"], schema)])
    module = tmp_path / "init.py"
    assert run(["fix", f"{models}:encoder", "--tokens", "8", "--json", "--write", str(module)]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(loaded("fix"), registry=registry).validate(document)
    assert document["now"]["outcome"] != "trains" == document["then"]["outcome"]
    assert document["proof"] is None
    assert "import edgewise" not in module.read_text() and "def initialize_" in module.read_text()


def test_a_proof_trains_both_arms_on_ones_own_data(models: Path, tmp_path: Path, capsys) -> None:
    figure = tmp_path / "proof.svg"
    words = [
        "fix",
        f"{models}:plain",
        "--batch",
        f"{models}:batches",
        "--prove",
        "--steps",
        "6",
        "--seeds",
        "2",
    ]
    code = run([*words, "--figure", str(figure)])
    printed = capsys.readouterr().out
    verdict = re.search(r"Proof: (The plan helps|The plan hurts|No difference is shown)", printed)
    assert code == {"The plan helps": 0, "No difference is shown": 1, "The plan hurts": 2}[verdict[1]]
    rows = {
        line.split("  ")[1].strip(): line.split()[-3:] for line in printed.splitlines() if "with plan" in line
    }
    assert len(rows) == 1 and "<svg" in figure.read_text()
    assert "Now: from input to output differences shrink" in printed


@pytest.mark.slow
def test_a_built_in_task_is_found(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["fix", f"{models}:encoder", "--tokens", "8", "--prove", "--steps", "2", "--seeds", "1", "--json"])
    proof = json.loads(capsys.readouterr().out)["proof"]
    assert proof["task"] == "digits" and proof["steps"] == 2
    assert proof["plain"]["losses"][0][0] != proof["planned"]["losses"][0][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["healthy", "--tokens", "8"],
            "there is nothing to fix in the weights of healthy. It is judged as: trains",
        ),
        (["plain", "--batch", "{}:number"], "must give batches (inputs, labels) here, got int"),
        (["plain", "--batch", "{}:nothing"], "has no 'nothing'"),
        (["plain", "--batch", "{}"], "is not file.py:name"),
        (["plain", "--batch", "{}:singles"], "must give batches (inputs, labels) here, got Tensor"),
        (["plain", "--batch", "{}:pairs", "--figure", "p.png"], "use it with --prove"),
        (["plain", "--write", "init.txt"], "must end in .py"),
        (["encoder", "--goal", "best"], "goal"),
    ],
)
def test_refusals_name_what_is_wrong(words: list[str], message: str, models: Path, capsys) -> None:
    name, *rest = words
    assert run(["fix", f"{models}:{name}", *(word.format(models) for word in rest), "--json"]) == 64
    printed = capsys.readouterr()
    assert message.format(models) in printed.err
    assert json.loads(printed.out)["exit_code"] == 64


def test_depth_is_that_of_a_network_of_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    knobs = tmp_path / "small.yaml"
    knobs.write_text("{depth: 2, width: 16, heads: 2, mlp_width: 32, tokens: 8, norm: post}")
    assert run(["fix", str(knobs), "--depth", "16", "--tokens", "8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["plan"]["depth"] == 16 and answer["plan"]["before"]["angle"] < -1


def test_a_perceptron_of_knobs_is_told_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fix", "mlp:tanh"]) == 64
    assert "a perceptron has no tokens to measure" in capsys.readouterr().err


def test_frozen_weights_are_kept_and_named(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["fix", f"{models}:partly", "--tokens", "8", "--write", str(tmp_path / "init.py")])
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"\d+ frozen parameters \(requires_grad=False\) stay as they are: layers\.\{0\.\.5\}", printed
    )
    assert run(["fix", f"{models}:partly", "--tokens", "8", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["plan"]["kept"] and not document["plan"]["frozen"]
    written = {name for change in document["plan"]["changes"] for name in change["parameters"]}
    assert {int(name.split(".")[1]) for name in written} == set(range(6, 12))
    assert "range(6, 12)" in (tmp_path / "init.py").read_text()


def test_frozen_weights_alone_cannot_be_fixed(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fix", f"{models}:frozen", "--tokens", "8"]) == 64
    refusal = capsys.readouterr().err
    assert "nothing in frozen can be changed." in refusal and "--frozen" in refusal
    assert run(["fix", f"{models}:frozen", "--tokens", "8", "--frozen"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^Then  TRAINS", printed, re.MULTILINE)
    assert (
        "edgewise.initialize_(model, frozen=True)" in printed
        and ":frozen --frozen --write init.py" in printed
    )
