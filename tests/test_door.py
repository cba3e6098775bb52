"""The door of the package: a true table of contents, spelled-out arguments, examples that run."""

from __future__ import annotations

import doctest
import inspect
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import edgewise
from edgewise import present
from edgewise.nouns.verdict import Outcome
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
    ]
    assert {type(each).__name__: len(repr(each)) for each in results if len(repr(each)) >= 400} == {}
    assert all(type(each).__name__ in repr(each) for each in results)
