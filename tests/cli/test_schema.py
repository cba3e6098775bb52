"""The JSON document against its versioned schema, and the schema against the code it describes."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest

import edgewise
from edgewise.cli.main import run
from edgewise.nouns.architecture import PERCEPTRON_KNOBS
from edgewise.nouns.knobs import KNOBS
from edgewise.nouns.verdict import SCHEMA, Kind, Outcome, Phase

SOURCES = {
    "plain": ["transformer", "--depth", "3", "--tokens", "8"],
    "post-norm, pooled": ["transformer", "--depth", "3", "--set", "norm=post", "--readout", "pooled"],
    "lists": ["transformer", "--depth", "2", "--set", "score_gain=[1, 2]", "--set", "value_gain=[0.5, 1e-3]"],
    "MLP only": ["transformer", "--depth", "3", "--set", "heads=0"],
    "no skip, no MLP": ["transformer", "--depth", "40", "--set", "mlp_width=0", "--set", "attention_skip=0"],
    "causal, rotary": [
        "transformer",
        "--depth",
        "2",
        "--tokens",
        "8",
        "--set",
        "causal=true",
        "--set",
        "rope=true",
    ],
    "preset": ["gpt2", "--depth", "2", "--tokens", "16"],
    "perceptron": ["mlp:tanh", "--set", "weight_variance=1.5", "--set", "bias_variance=0.05"],
    "critical": ["transformer", "--depth", "2", "--set", "heads=0", "--critical"],
    "critical perceptron": ["mlp:tanh", "--set", "weight_variance=1.5", "--critical"],
    "two": ["transformer", "mlp:relu", "--depth", "2"],
    "two critical": ["transformer", "transformer", "--depth", "2", "--set", "heads=0", "--critical"],
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        resources.files("edgewise").joinpath("schema/prediction-1.json").read_text()
    )
    jsonschema.Draft202012Validator.check_schema(loaded)
    return loaded


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["predict", *words, "--json"]) in (0, 1, 2)
    document: dict[str, Any] = json.loads(
        capsys.readouterr().out, parse_constant=pytest.fail
    )  # no NaN, no Infinity
    return document


@pytest.mark.parametrize("words", SOURCES.values(), ids=SOURCES.keys())
def test_documents_follow_the_schema(words: list[str], schema: dict[str, Any], capsys) -> None:
    document = printed(words, capsys)
    jsonschema.validate(document, schema)
    for prediction in document.get("predictions", [document]):
        lengths = {len(row) for row in prediction["trace"]["blocks"].values()}
        assert lengths == {prediction["architecture"]["depth"] + 1}
        assert ("critical" in prediction) == ("--critical" in words)
    assert document["version"] == edgewise.__version__


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("schema",), 2),
        (("verdict", "outcome"), "maybe"),
        (("trace", "blocks", "norm"), ["many"]),
        (("architecture", "depht"), 3),
        (("verdict", "angle"), {"at_depth": 1.0}),
    ],
)
def test_the_schema_refuses_what_is_wrong(
    path: tuple[str, ...], wrong: Any, schema: dict[str, Any], capsys
) -> None:
    document = printed(SOURCES["MLP only"], capsys)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_blocks_are_the_numbers_of_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = printed(SOURCES["plain"], capsys)["trace"]["blocks"]
    trace = edgewise.predict(edgewise.transformer(depth=3, tokens=8))
    for name in ("norm", "overlap", "gradient_norm"):
        assert blocks[name] == trace.blocks(name).tolist()
    assert trace.attention_entropy is not None
    assert blocks["attention_entropy"] == [None, *trace.attention_entropy[0, 1::2, 0].tolist()]
    assert blocks["condensation"][1:] == trace.statistics["condensation"][0, 1::2].tolist()


def test_the_schema_knows_every_knob_and_every_word(schema: dict[str, Any]) -> None:
    """A new knob, finding, outcome or phase must be written into the schema too."""
    parts = schema["$defs"]
    assert [*KNOBS, "name", "assumed", "unmodelled"] == list(parts["transformer"]["properties"])
    assert [*PERCEPTRON_KNOBS, "name"] == list(parts["perceptron"]["properties"])
    words = parts["verdict"]["properties"]
    assert words["outcome"]["enum"] == [outcome.value for outcome in Outcome]
    assert words["phase"]["enum"] == [phase.value for phase in Phase]
    assert words["findings"]["items"]["properties"]["kind"]["enum"] == [kind.value for kind in Kind]
    assert parts["prediction"]["properties"]["schema"]["const"] == SCHEMA
    for name in ("norm", "norm_kind", "kernel"):
        assert parts["transformer"]["properties"][name]["enum"] == list(KNOBS[name].choices)
