"""What goes into the store comes out of it, and what cannot is refused by its place."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import BadInput
from edgewise.study.store import dumps, loads, plain

NUMBERS = (
    st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.booleans() | st.none() | st.text()
)
VALUES = st.recursive(
    NUMBERS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


@given(VALUES)
def test_every_plain_value_survives(value: object) -> None:
    text = dumps(plain(value, "value"))
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert "\n" not in text
    assert repr(sorted_keys(loads(text))) == repr(sorted_keys(value))


def sorted_keys(value: object) -> object:
    if isinstance(value, dict):
        return {key: sorted_keys(value[key]) for key in sorted(value)}
    return [sorted_keys(item) for item in value] if isinstance(value, list) else value


def test_numbers_that_are_not_finite_are_strict_json() -> None:
    text = dumps({"a": [float("nan"), float("inf"), float("-inf")]})
    assert text == '{"a":[{"__float__":"nan"},{"__float__":"inf"},{"__float__":"-inf"}]}'


def test_the_order_of_keys_does_not_matter() -> None:
    assert dumps({"a": 1, "b": 2.0}) == dumps({"b": 2.0, "a": 1})


def test_tuples_and_numpy_scalars_become_pythons() -> None:
    value = plain({"a": (np.float32(0.5), np.int64(3), np.bool_(True)), "b": np.float64(0.1)}, "value")
    assert value == {"a": [0.5, 3, True], "b": 0.1}
    assert [type(item) for item in value["a"]] == [float, int, bool]
    assert type(value["b"]) is float


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, {2, 3}]}, r"value\['a'\]\[1\] is a builtins.set"),
        ({"a": np.zeros(2)}, r"value\['a'\] is a numpy.ndarray.*\.tolist\(\)"),
        ({"a": torch.zeros(2)}, r"value\['a'\] is a torch.Tensor.*\.tolist\(\)"),
        ({"a": 1j}, r"builtins.complex"),
        ({"a": np.complex64(1)}, r"builtins.complex"),
        ({"a": b"bytes"}, r"builtins.bytes"),
        ({1: "a"}, r"value has the key 1\. Keys must be strings"),
        ({"b": {"__float__": 1}}, r"value\['b'\] has the key '__float__'"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_its_place(value: object, place: str) -> None:
    with pytest.raises(BadInput, match=place):
        plain(value, "value")
