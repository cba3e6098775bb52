"""Every config class of the installed transformers: described, or turned down with a reason; nothing else is raised."""

from __future__ import annotations

import math

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

import edgewise

TYPES = sorted({*MODEL_MAPPING_NAMES, *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} & {*transformers.CONFIG_MAPPING})
SAMPLE = ("gpt_neox", "modernbert")
INNER = (
    "does not expect",
    "Traceback",
    "NoneType",
    "has no attribute",
)  # words of an exception, not of a reason


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in TYPES]
)
def test_a_default_config_is_described_or_turned_down_with_a_reason(name: str) -> None:
    network, refused = None, ""
    try:
        network = edgewise.describe(transformers.CONFIG_MAPPING[name]())
    except edgewise.BadInput as refusal:
        refused = str(refusal)
    if network is None:
        assert len(refused) > 20 and not any(word in refused for word in INNER)
        assert "layers, more than" not in refused
    else:
        assert network.depth > 0 and math.isfinite(getattr(network, "embedding_norm", 1.0))
