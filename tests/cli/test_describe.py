"""`edgewise describe`: the structure of a model, the description of everything else."""

from __future__ import annotations

import json

from edgewise.cli.main import run

MODELS = "tests/support/screen_models.py"


def test_a_model_that_theory_covers(capsys) -> None:
    assert run(["describe", "tests/support/screen_models.py:short"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "TransformerEncoder, stack layers: 2 blocks of width 64, read on 47 tokens"
    assert lines[2] == "    attention: 4 heads, sees all tokens, no positions inside, layer norm post"
    assert lines[-1] == "Theory covers it: edgewise predict says whether it will train."


def test_a_model_outside_the_theory_is_no_error(capsys) -> None:
    assert run(["describe", f"{MODELS}:unknown"]) == 0
    printed = capsys.readouterr().out
    assert "blocks 0 to 7\n    mixer: sees all tokens" in printed
    assert "Outside the theory: 8 of the 8 blocks of layers mix tokens without softmax attention" in printed
    assert printed.splitlines()[-1].startswith("Theory does not cover it: edgewise measure")


def test_json_is_one_document(capsys) -> None:
    assert run(["describe", f"{MODELS}:unknown", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["description"] is None and document["structure"]["depth"] == 8
    assert document["structure"]["blocks"][0][0]["kind"] == "mixer" and document["structure"]["outside"]


def test_a_preset_has_a_description(capsys) -> None:
    assert run(["describe", "gpt2"]) == 0
    assert "  depth = 12\n" in capsys.readouterr().out
    assert run(["describe", "gpt2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["structure"] is None and document["description"]["norm"] == "pre"


def test_a_stack_that_is_not_there_is_refused(capsys) -> None:
    assert run(["describe", f"{MODELS}:unknown", "--stack", "tower"]) == 64
    assert "stack = 'tower' is not a stack of Convolutions: it has layers" in capsys.readouterr().err


MASKED = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Batch:
    words: torch.Tensor
    name: str = "first"

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(31, 24)
        layer = nn.TransformerEncoderLayer(24, 3, 40, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    def forward(self, batch):
        return self.layers(self.table(batch.words))

def make():
    torch.manual_seed(0)
    return Whole()

def batch():
    return Batch(torch.arange(2 * 11).view(2, 11) % 31)
"""


def test_every_verb_that_runs_a_model_takes_a_batch(tmp_path, capsys) -> None:
    """A dataclass that the model takes whole, which no default batch can be."""
    file = tmp_path / "masked.py"
    file.write_text(MASKED)
    model, batch = f"{file}:make", f"{file}:batch"
    assert run(["describe", model]) == 64
    assert run(["describe", model, "--batch", batch]) == 0
    assert "2 blocks of width 24, read on 11 tokens" in capsys.readouterr().out
    assert run(["measure", model, "--batch", batch, "--json"]) in (0, 1, 2)
    assert "11 tokens" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert run(["report", model, "--measure", "--batch", batch, "-o", str(page)]) in (0, 1, 2)
    assert page.is_file()
