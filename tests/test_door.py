"""The door of the package: a true table of contents, spelled-out arguments, examples that run."""

from __future__ import annotations

import doctest
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import AdamW

import edgewise
from edgewise import present
from edgewise.nouns.verdict import Outcome
from edgewise.study.proof import Arm, Proof, compare
from tests.rehearsal.test_screen import RATE

# Their keywords are the rows of edgewise.nouns.knobs.KNOBS; others are rejected by name, with the nearest one.
OPEN = {"transformer": [], "describe": [{"depth": 2}], "predict": [{"depth": 2}]}
OF_CASES = {"chosen", "over_seeds", "select"}  # their keywords are the fields of a recipe's own cases
FUNCTIONS = sorted(n for n in edgewise.__all__ if isinstance(getattr(edgewise, n), FunctionType))
ROOMS = (
    "critical",
    "laboratory",
    "landscape",
    "models",
    "monitor",
    "nets",
    "optim",
    "present",
    "rehearsal",
    "study",
)


def test_the_docstring_lists_what_is_exported() -> None:
    assert edgewise.__doc__ is not None
    table = edgewise.__doc__.split("'will not train'")[1]
    listed = [name for line in table.strip().splitlines() for name in line.split()[1:]]
    assert sorted(listed) == sorted(edgewise.__all__)
    assert set(dir(edgewise)) == {*edgewise.__all__, "__version__"}


def public(room: str) -> list[tuple[str, Any]]:
    module = import_module(f"edgewise.{room}")
    return [(name, getattr(module, name)) for name in module.__all__]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_exports_what_it_says(room: str) -> None:
    assert getattr(edgewise, room) is import_module(f"edgewise.{room}")
    assert len(public(room)) > 0


def open_keywords(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_spell_out_and_explain_their_arguments(name: str) -> None:
    function = getattr(edgewise, name)
    assert bool(open_keywords(function)) == (name in OPEN)
    _, *parameters = inspect.signature(function).parameters  # the first is what the headline speaks of
    text = inspect.getdoc(function) or ""
    explained = {
        word for line in re.findall(r"^([a-z_, ]+?)  +\S", text, re.MULTILINE) for word in line.split(", ")
    }
    assert not [parameter for parameter in parameters if parameter not in explained]


@pytest.mark.parametrize("room", ROOMS)
def test_functions_of_the_rooms_spell_out_their_arguments(room: str) -> None:
    functions = [(name, value) for name, value in public(room) if isinstance(value, FunctionType)]
    assert not [name for name, value in functions if open_keywords(value) and name not in OF_CASES]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_misspelled_argument_is_refused_by_the_function_that_was_called(name: str) -> None:
    function = getattr(edgewise, name)
    with pytest.raises((TypeError, edgewise.BadInput), match=r"raedout"):
        function(*OPEN.get(name, [None]), raedout="pooled")


@pytest.mark.parametrize("name", sorted({*edgewise.__all__} - {*ROOMS}))
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    value = getattr(edgewise, name)
    if name == "LightningCallback":
        pytest.importorskip("lightning", reason="Lightning is not installed")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=flags)
    for example in finder.find(value, name, globs=dict(vars(import_module(value.__module__)))):
        runner.run(example)
    assert runner.failures == 0 and runner.tries > 0


def test_the_example_of_the_package_runs() -> None:
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder(recurse=False).find(edgewise, "edgewise"):
        runner.run(example)
    assert runner.failures == 0 and runner.tries > 0


def test_a_preset_takes_knobs_as_in_the_shell() -> None:
    trace = edgewise.predict("gpt2", depth=6, tokens=16, norm="post")
    assert trace.architecture == edgewise.describe("gpt2", depth=6, tokens=16).replace(norm="post")
    assert trace.architecture.name == "gpt2 with norm=post"
    with pytest.raises(edgewise.BadInput, match="norm"):
        edgewise.predict("gpt2", nrom="post")
    with pytest.raises(edgewise.BadInput, match="no modules"):
        edgewise.predict("gpt2", torch.zeros(1, 4))
    with pytest.raises(edgewise.BadInput, match=r"describe\(model\), depth=48"):
        edgewise.predict(encoder(), depth=3)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def mean_square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(batch) - batch).square().mean()
    return loss


ARMS = [Arm(name, ((1.0, 0.9) * 100,) * 3, (1e-3,) * 3, (1.0, 0.9, 0.8)) for name in ("as it is", "critical")]
PROOF = Proof(ARMS[0], ARMS[1], compare(ARMS[0].finals, ARMS[1].finals), 2.3, 200, "a plan " * 99, "digits")


def test_a_loss_is_a_function_of_model_and_batch_everywhere() -> None:
    """One function serves check, the learning rate, a proof and a landscape; each calls it with (model, batch)."""
    calls: list[tuple[str, Any]] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append((type(model).__name__, type(batch).__name__))
        inputs, _ = batch
        return mean_square(model, inputs)

    batches = [(torch.randn(2, 12, 16), torch.zeros(2, dtype=torch.long)) for _ in range(4)]
    model = encoder()
    edgewise.check(model, batches, loss, AdamW(model.parameters()))
    edgewise.learning_rate(model, batches * 20, loss, steps=2, rates=3)
    edgewise.landscape.line(model, loss, batches[0], points=5)
    edgewise.study.prove(encoder, "xavier", batches, steps=2, seeds=1, rates=(1e-3,), loss=loss)
    assert set(calls) == {("TransformerEncoder", "tuple")}


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_accepts_the_lines_of_the_readme(checker: str, tmp_path: Path) -> None:
    program = shutil.which(checker) or shutil.which(checker, path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip(f"{checker} is not installed")
    root = Path(__file__).parents[1]
    lines = "\n".join(re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL))
    extra = '\nwith edgewise.watch(model, "runs/a"):\n    pass\ntrains: bool | None = verdict.trains\n'
    (tmp_path / "readme.py").write_text(lines + extra)
    place = {
        "extraPaths": [str(root / "src")],
        "venvPath": str(Path(sys.prefix).parent),
        "venv": Path(sys.prefix).name,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(place))
    options = [] if checker == "pyright" else ["readme.py"]
    environment = os.environ | {"MYPYPATH": str(root / "src")}
    run = subprocess.run([program, *options], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


MODEL_VERBS = (
    "audit_initialization",
    "critical_plan",
    "describe",
    "initialize_",
    "measure",
    "predict",
    "structure",
)


@pytest.mark.parametrize("name", [*MODEL_VERBS, "total_changes"])
def test_the_second_argument_of_a_verb_of_models_is_the_batch(name: str) -> None:
    verb = getattr(edgewise, name)
    assert list(inspect.signature(verb).parameters)[1] == "batch"
    verb(encoder(), torch.randn(2, 12, 16))


def test_a_plan_in_the_place_of_the_batch_is_named() -> None:
    model = encoder()
    plan = edgewise.critical_plan(model, torch.randn(2, 12, 16))
    with pytest.raises(edgewise.BadInput, match="plan=plan"):
        edgewise.initialize_(model, plan)


def test_watch_takes_the_folder_second(tmp_path: Path) -> None:
    with edgewise.watch(encoder(), tmp_path / "a", quiet=True):
        pass
    assert (tmp_path / "a" / "run.json").is_file()
    for callback in (edgewise.HuggingFaceCallback, edgewise.LightningCallback):
        assert next(iter(inspect.signature(callback).parameters)) == "to"


def test_a_verdict_says_whether_it_trains_and_is_no_truth_value() -> None:
    verdict = edgewise.judge(edgewise.predict({"depth": 6, "tokens": 16}))
    answers = [replace(verdict, outcome=outcome).trains for outcome in Outcome]
    assert answers == [True, None, False, None]
    with pytest.raises(edgewise.BadInput, match=r"verdict\.trains"):
        bool(verdict)


def test_reprs_are_short_and_name_what_they_are() -> None:
    """Of every result, also with the longest names and lists."""
    network = edgewise.describe("mixtral-8x7b").replace(name="x" * 500, tokens=16, depth=4)
    long = network.replace(mlp_in_gain=tuple(np.linspace(0.5, 1.0, 4)))
    trace = edgewise.predict(edgewise.transformer(depth=4, tokens=8).replace(name="y" * 500))
    verdict = edgewise.judge(trace)
    model = encoder()
    plan = edgewise.critical_plan(model, torch.randn(2, 12, 16))
    diagram = edgewise.phase_diagram(
        {"depth": 4, "tokens": 8}, {"value_gain": (0.5, 2, 3), "mlp_in_gain": (0.5, 2, 3)}
    )
    results = [
        long,
        trace,
        verdict,
        plan,
        diagram,
        edgewise.initialize_(model, plan=plan, generator=0),
        edgewise.compare({"depth": 4, "tokens": 8}, {"depth": 5, "tokens": 8}),
        edgewise.structure(encoder(), torch.randn(2, 12, 16)),
        edgewise.critical_point({"depth": 4, "tokens": 8}),
        RATE,
        present.card_of(verdict),
        verdict.profile,
        PROOF,
        edgewise.total_changes(model, torch.randn(2, 12, 16)),
        edgewise.check(
            model, [torch.randn(2, 12, 16) for _ in range(2)], mean_square, AdamW(model.parameters())
        ),
        *edgewise.audit_initialization(encoder(), torch.randn(2, 12, 16)),
    ]
    assert {type(each).__name__: len(repr(each)) for each in results if len(repr(each)) >= 400} == {}
    assert all(type(each).__name__ in repr(each) for each in results)
