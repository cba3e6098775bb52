"""The families that are written out, against small models of their classes: the same structure, the same gains."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from edgewise.errors import BadInput
from edgewise.models.config.translate import FAMILIES
from edgewise.models.describe import describe
from edgewise.models.small.read_small import describe_config
from edgewise.models.source import preset_config
from edgewise.nouns.architecture import Architecture

pytest.importorskip("transformers")

MEASURED = json.loads((Path(__file__).parents[1] / "measured_gains.json").read_text())["families"]
STRUCTURE = (
    "depth",
    "width",
    "heads",
    "head_width",
    "kv_heads",
    "mlp_width",
    "activation",
    "gated",
    "norm",
    "norm_kind",
    "parallel",
    "causal",
    "window",
    "alibi",
    "qk_norm",
    "rope_base",
)
WITHIN = 0.07  # gains of small models scatter by a few hundredths
REAL = (
    "gpt2",
    "llama-2-7b",
    "bert-base",
    "mistral-7b",
)  # at their full sizes: widths, depths, windows of 4096
NOT_HERE = {
    "gemma3",
    "torch_encoder",
    "gpt_oss",
}  # text part is a family of its own; torch's; no formula fits its gate


def rms(value: Any) -> float:
    values = value if isinstance(value, tuple) else (value,)
    return math.sqrt(sum(v * v for v in values) / len(values))


def per_block(description: Architecture, knob: str) -> tuple[Any, ...]:
    value = getattr(description, knob)
    return value if isinstance(value, tuple) else (value,) * description.depth


def routed(description: Architecture) -> float:
    """Experts may be weaker as a branch or in their last matrix."""
    pairs = zip(per_block(description, "mlp_out_gain"), per_block(description, "mlp_branch"), strict=True)
    return rms(tuple(out * branch for out, branch in pairs))


def compare(config: dict[str, Any]) -> None:
    family, behaviour = describe(config), describe_config(config)
    assert isinstance(family, Architecture)
    for knob in STRUCTURE:
        assert per_block(behaviour, knob) == per_block(family, knob), knob
    assert [bool(r) for r in per_block(behaviour, "rope")] == [bool(r) for r in per_block(family, "rope")]
    for knob in (
        "score_gain",
        "value_gain",
        "mlp_in_gain",
        "mlp_linear_gain",
        "attention_branch",
        "attention_skip",
    ):
        assert rms(getattr(behaviour, knob)) == pytest.approx(rms(getattr(family, knob)), rel=WITHIN), knob
    assert routed(behaviour) == pytest.approx(routed(family), rel=WITHIN)
    assert behaviour.embedding_norm == pytest.approx(family.embedding_norm, rel=3 * WITHIN)


@pytest.mark.parametrize("name", REAL)
def test_a_published_config(name: str) -> None:
    compare(preset_config(name))


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - NOT_HERE))
def test_every_family(family: str) -> None:
    compare(MEASURED[family]["config"])


@pytest.mark.slow
def test_experts_that_no_formula_fits_are_refused_by_behaviour() -> None:
    with pytest.raises(BadInput, match="no formula fits its activation"):
        describe_config(MEASURED["gpt_oss"]["config"])
