"""The JSON of `edgewise measure` against its versioned schema, and the schema against the code it describes."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import torch

import edgewise
from edgewise.audit.finding import AuditKind, AuditSeverity
from edgewise.cli.main import run
from edgewise.nouns.trace import WEIGHTS
from tests.support.models import CONFIGS, FAMILIES, batch, build
from tests.support.probe_networks import Net, ids


def loaded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        resources.files("edgewise").joinpath(f"schema/{name}-1.json").read_text()
    )
    jsonschema.Draft202012Validator.check_schema(found)
    return found


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    named = [
        (schema["$id"], referencing.Resource.from_contents(schema)) for schema in map(loaded, ("prediction",))
    ]
    return jsonschema.Draft202012Validator(
        loaded("measurement"), registry=referencing.Registry().with_resources(named)
    )


def document(model: torch.nn.Module, inputs: Any, **options: Any) -> dict[str, Any]:
    trace = edgewise.measure(model, inputs, readouts=("token", "own"), **options)
    text = json.dumps(edgewise.present.measurement(trace, edgewise.judge(trace)), allow_nan=False)
    found: dict[str, Any] = json.loads(text)
    return found


QUICK = (
    "gpt2",
    "llama",
    "bert",
    "t5",
    "vit",
    "mixtral",
)  # the other families differ in nothing that the schema sees


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CONFIGS]
)
def test_every_family_follows_the_schema(name: str, validator: jsonschema.Draft202012Validator) -> None:
    found = document(FAMILIES[name](), batch(name))
    validator.validate(found)
    blocks = found["measured"]["trace"]["blocks"]
    rows = [*blocks.values(), *found["standard_errors"].values(), *found["statistics"].values()]
    assert {len(row) for row in rows} == {len(blocks["norm"])}
    assert "softmax_condition" in found["statistics"] and "pair_growth" in found["statistics"]


def test_the_command_follows_the_schema(
    tmp_path: Path, validator: jsonschema.Draft202012Validator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prediction and audit beside the measurement; streamed, without an audit."""
    build("bert").config.save_pretrained(tmp_path)
    for options in ([], ["--stream", "--seeds", "1"]):
        run(["measure", str(tmp_path / "config.json"), "--tokens", "8", "--json", *options])
        found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        validator.validate(found)
        assert found["predicted"] is not None and (found["audit"] is None) == bool(options)


def test_the_gain_of_the_softmax_follows_the_schema(validator: jsonschema.Draft202012Validator) -> None:
    found = document(Net(), ids(), gain=True)
    validator.validate(found)
    assert "softmax_gain" in found["statistics"]


def test_an_explosion_follows_the_schema(validator: jsonschema.Draft202012Validator) -> None:
    """Without gradients, with infinities: null."""
    net = Net()
    with torch.no_grad():
        for block in net.blocks:
            block.mlp.fc2.weight *= 1e30
    found = document(net, ids())
    validator.validate(found)
    assert found["measured"]["trace"]["blocks"]["norm"][-1] is None


@pytest.mark.parametrize(
    "path, wrong",
    [
        (("schema",), 2),
        (("statistics", "softmax_conditon"), [0.0, 1.0]),
        (("standard_errors", "norm"), ["much"]),
        (("measured", "trace", "readout"), "mine"),
        (("audit",), [{"kind": "bad luck"}]),
    ],
)
def test_the_schema_refuses(
    path: tuple[str, ...], wrong: Any, validator: jsonschema.Draft202012Validator
) -> None:
    found = document(Net(), ids())
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    assert not validator.is_valid(found)


def test_enumerations_are_those_of_the_code() -> None:
    schema = loaded("measurement")
    finding = schema["$defs"]["finding"]["properties"]
    assert finding["kind"]["enum"] == [kind.value for kind in AuditKind]
    assert finding["severity"]["enum"] == [severity.value for severity in AuditSeverity]
    pattern = next(key for key in schema["properties"]["statistics"]["patternProperties"] if "weight" in key)
    assert f"({'|'.join(WEIGHTS)})" in pattern
