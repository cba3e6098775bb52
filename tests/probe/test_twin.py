"""A model from a config, found in a narrow twin: the same numbers as by reading the model itself, for less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import transformers

from edgewise.models.behavior.read import read
from edgewise.nouns.trace import Trace
from edgewise.probe import measure as module
from edgewise.probe.measure import measure, read_twin
from edgewise.probe.subjects import subject
from tests.support.models import CONFIGS

FEW = ("gpt2", "bert")  # pre-norm, post-norm


def config_of(name: str, depth: int | None = None) -> Any:
    config_class, model_class, sizes = CONFIGS[name]
    layers = [k for k in sizes if k in ("n_layer", "n_layers", "num_layers", "num_hidden_layers")]
    sizes = sizes if depth is None else sizes | dict.fromkeys(layers, depth)
    return getattr(transformers, config_class)(**sizes, architectures=[model_class])


def numbers(trace: Trace) -> dict[str, Any]:
    """Everything that was measured, as bytes; not the description, which is the family's in one case."""
    arrays = {
        name: getattr(trace, name) for name in ("norm", "separation", "log_gradient", "attention_entropy")
    }
    arrays |= {"condition": trace.softmax_condition, **trace.statistics}
    return {name: None if values is None else values.tobytes() for name, values in arrays.items()} | {
        "sites": trace.sites,
        "readouts": trace.readouts,
        "readout": trace.readout,
    }


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS]
)
def test_same_numbers_as_by_reading_the_model_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five layers: more than a twin needs to have one of every kind, so that deeper ones are told by these."""
    target = subject(config_of(name, depth=5))
    by_twin = measure(target, tokens=16)
    monkeypatch.setattr(module, "read_twin", lambda *_: None)
    assert numbers(by_twin) == numbers(measure(target, tokens=16))


@pytest.mark.parametrize("name", FEW)
def test_the_twin_is_used_for_listed_families(name: str) -> None:
    target = subject(config_of(name))
    assert target.factory is not None
    found = read_twin(target.config, target.factory(), 16)
    assert found is not None
    _, stack, described = found
    assert (stack.width, stack.depth, described.tokens) == (described.width, described.depth, 16)


@pytest.mark.parametrize("name", FEW)
def test_a_deep_model_costs_no_more_to_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read has two layers; deeper blocks, and the points where they read the stream, are as in a whole one."""
    target, depths = subject(config_of(name, depth=5)), []
    model = target.factory() if target.factory else None
    assert model is not None
    monkeypatch.setattr(
        module, "read", lambda small: depths.append(small.config.num_hidden_layers) or read(small)
    )
    found = read_twin(target.config, model, 16)
    assert found is not None and depths == [2]
    whole = read(model).default
    assert whole is not None
    where = [
        [(b.module, b.kind, b.step, b.point, b.total, b.outlet) for b in s.branches]
        for s in (found[1], whole)
    ]
    assert where[0] == where[1]


def test_a_twin_with_other_modules_is_not_taken() -> None:
    target = subject(config_of("gpt2"))
    assert target.factory is not None
    model = target.factory()
    model.transformer.h[0].mlp.dropout = None
    assert read_twin(target.config, model, 16) is None


def test_a_family_that_is_not_listed_is_read_itself() -> None:
    config = transformers.GPTJConfig(
        n_embd=32, n_layer=2, n_head=2, rotary_dim=8, n_positions=64, vocab_size=50
    )
    assert np.isfinite(measure(subject(config), tokens=16).overlap).all()


def test_a_model_that_takes_another_path_than_its_twin_is_read_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A place that the model's own pass does not come through: the refusal leads to a reading, not to the user."""
    target = subject(config_of("gpt2"))
    expected = numbers(measure(target, tokens=16))

    def elsewhere(*arguments: Any) -> Any:
        reading, stack, described = read_twin(*arguments)  # type: ignore[misc]
        return reading, replace(stack, start=stack.start._replace(number=99)), described

    monkeypatch.setattr(module, "read_twin", elsewhere)
    assert numbers(measure(target, tokens=16)) == expected
