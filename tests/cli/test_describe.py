"""`edgewise describe`: the structure of a model, the description of everything else."""

from __future__ import annotations

import json

from edgewise.cli.main import run

MODELS = "tests/support/screen_models.py"


def test_a_model_that_theory_covers(capsys) -> None:
    assert run(["describe", "tests/support/screen_models.py:short"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "TransformerEncoder, stack layers: 2 blocks of width 64, read on 47 tokens"
    assert lines[2] == "    attention: 4 heads, sees all tokens, no positions, layer norm post"
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
