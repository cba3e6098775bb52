"""`--set knob=value`: what the shell's text becomes, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
import pytest

from edgewise.cli.measure_command import measure
from edgewise.cli.options import parse_settings, parse_value
from edgewise.cli.predict_command import predict
from edgewise.errors import BadInput
from edgewise.models.describe import knobs_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("2.5", 2.5),
        ("1e-3", 0.001),
        ("+1e3", 1000.0),
        (".5", 0.5),
        ("-1", -1),
        ("true", True),
        ("yes", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("post", "post"),
        ("none", "none"),
        ("leaky_relu:0.2", "leaky_relu:0.2"),
        ("[1, 2.5, 3]", [1, 2.5, 3]),
        ("[1e-3]", [0.001]),
        ('"tanh"', "tanh"),
        ("[a, b]", ["a", "b"]),
    ],
)
def test_values(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_not_a_number_reaches_the_knob_that_refuses_it() -> None:
    assert math.isnan(parse_value("NaN"))


def test_settings_become_a_dict_and_dashes_are_forgiven() -> None:
    assert parse_settings(["score_gain=2", "mlp-in-gain = 1.5", "activation=a=b"]) == {
        "score_gain": 2,
        "mlp_in_gain": 1.5,
        "activation": "a=b",
    }


@pytest.mark.parametrize("text", ["score_gain", "=2", "score_gain=", "score_gain= ", ""])
def test_what_is_not_a_setting_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a setting"):
        parse_settings([text])


def test_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="score_gain was given twice"):
        parse_settings(["score_gain=1", "score-gain=2"])


def test_unreadable_values_are_refused() -> None:
    with pytest.raises(BadInput, match=r"the value '\[1, 2' cannot be read"):
        parse_settings(["score_gain=[1, 2"])


def test_settings_as_text() -> None:
    assert knobs_text({"norm": "post", "rope": True, "window": None}) == "norm=post, rope=true, window=null"
    assert knobs_text(dict.fromkeys("abcde", 1)) == "a=1, b=1, c=1 and 2 more"


@pytest.mark.parametrize("command", [predict, measure])
def test_old_click_passes_none_where_no_detail_is_asked_for(
    command: click.Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """click before 8.3: two flags of one name, neither given, are None and not their default."""
    (tmp_path / "net.yaml").write_text("depth: 2\nwidth: 16\nheads: 2\ntokens: 8\n")
    context = command.make_context(command.name, [str(tmp_path / "net.yaml")])
    context.params["detail"] = None
    with context:
        assert command.invoke(context) in (0, 1, 2)
    assert "More: --explain, --verbose" in capsys.readouterr().out
