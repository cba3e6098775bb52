"""The door of the package: a true table of contents, spelled-out arguments, examples that run."""

from __future__ import annotations

import doctest
import inspect
import re
from importlib import import_module
from types import FunctionType
from typing import Any

import pytest

import edgewise

OPEN = {
    "transformer"
}  # its keywords are the rows of edgewise.nouns.knobs.KNOBS, refused by name with the nearest one
OF_CASES = {"chosen", "over_seeds", "select"}  # their keywords are the fields of a recipe's own cases
FUNCTIONS = sorted(n for n in edgewise.__all__ if isinstance(getattr(edgewise, n), FunctionType))
ROOMS = ("laboratory", "landscape", "nets", "optim", "present", "rehearsal", "study")


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
        function(*[None] * (name not in OPEN), raedout="pooled")


def test_the_examples_of_the_door_run() -> None:
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for name in FUNCTIONS:
        function = getattr(edgewise, name)
        for example in finder.find(function, name, globs=dict(vars(import_module(function.__module__)))):
            runner.run(example)
    for example in finder.find(edgewise, "edgewise"):
        runner.run(example)
    assert runner.failures == 0 and runner.tries >= 10
