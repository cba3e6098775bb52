"""Networks from a description: against a plain loop, against the theory that reads the same description."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import edgewise
from edgewise import nets
from edgewise.judgement.judge import judge
from tests.agreement.simulation.knobs import Knobs
from tests.agreement.simulation.network import block

SMALL: dict[str, Any] = {"depth": 3, "tokens": 10, "width": 24, "heads": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "pre": {"score_gain": 2.0, "position_bias": 0.8},
    "post": {"norm": "post", "norm_kind": "rms", "mlp_bias": 0.4, "activation": "relu"},
    "sandwich": {"norm": "sandwich", "attention_branch": 0.3, "mlp_skip": 0.5},
    "branch": {"norm": "branch", "value_gain": 0.5},
    "none": {"norm": "none", "attention_branch": 0.1},
    "paper": {
        "heads": 1,
        "activation": "tanh",
        "attention_skip": 0.8,
        "attention_branch": 0.6,
        "mlp_branch": 0.3,
    },
    "llama": {
        "gated": True,
        "activation": "silu",
        "norm_kind": "rms",
        "rope": 1.0,
        "kv_heads": 2,
        "causal": True,
        "head_width": 8,
        "mlp_width": 20,
        "mlp_linear_gain": 0.7,
    },
    "partial": {"rope": 0.5, "head_width": 8, "key_gain": 1.5, "output_gain": 0.5},
    "parallel": {"parallel": True, "causal": True, "attention_skip": 0.9},
    "window": {"window": 3, "qk_norm": True, "score_gain": 3.0},
    "alibi": {"alibi": True, "causal": True, "attention_skip": (1.0, 0.5, 0.2)},
    "dyt": {"norm_kind": "tanh", "norm_slope": 0.7},
}


def reference_weights(net: nets.Transformer, index: int) -> dict[str, torch.Tensor]:
    """The matrices of one block under the names of the plain loop."""
    parts = dict(net.blocks[index].named_parameters())
    found = {name.partition(".")[2].removesuffix(".weight"): value for name, value in parts.items()}
    first, linear = ("mlp.gate_proj", "mlp.up_proj") if "mlp.gate_proj" in found else ("mlp.up_proj", None)
    names = {
        "W_Q": "attention.q_proj",
        "W_K": "attention.k_proj",
        "W_V": "attention.v_proj",
        "W_O": "attention.o_proj",
        "W_1": first,
        "W_2": "mlp.down_proj",
        "bias": f"{first}.bias",
    }
    names |= {"W_linear": linear} if linear else {}
    names |= {"distances": "attention.relative"} if "attention.relative" in found else {}
    return {name: found[path] for name, path in names.items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_blocks_are_the_plain_loop(name: str) -> None:
    knobs = SMALL | VARIANTS[name]
    torch.manual_seed(0)
    net = nets.build(edgewise.transformer(**knobs), inputs=50, outputs=7).double()
    for norm in (module for module in net.modules() if hasattr(module, "eps")):
        norm.eps = 1e-14  # torch adds 1e-5 to the variance, the plain loop nothing
    x = torch.randn(knobs["tokens"], knobs["width"], dtype=torch.float64)
    for index in range(knobs["depth"]):
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in knobs.items()}
        expected = block(x, reference_weights(net, index), Knobs(**plain).at(index))
        x = net.blocks[index](x[None])[0]
        torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["pre", "paper", "llama"])
def test_measured_agrees_with_theory(name: str) -> None:
    """Norm, overlap and both exponents of five networks of width 256 from the description that built them."""
    knobs = {"depth": 6, "tokens": 16, "width": 256, "heads": 4} | VARIANTS[name]
    knobs = {key: value for key, value in knobs.items() if key not in ("mlp_width", "head_width")}
    architecture = edgewise.transformer(**knobs)
    ids = torch.arange(16)[None]
    measured = edgewise.measure(
        lambda: nets.build(architecture, inputs=16, outputs=4),
        {"inputs": ids},
        seeds=5,
        attention=False,
        pair=False,
        readouts=("token",),
    )
    theory = edgewise.predict(architecture)
    assert measured.sites == theory.sites
    np.testing.assert_allclose(measured.blocks("norm"), theory.blocks("norm"), rtol=0.1)
    np.testing.assert_allclose(measured.blocks("overlap"), theory.blocks("overlap"), atol=0.05)
    seen, known = judge(measured), judge(theory)
    for exponent in ("angle", "gradient"):
        gap = getattr(seen, exponent).at_depth - getattr(known, exponent).at_depth
        assert abs(gap) < 3 * getattr(seen, exponent).error + 0.01, exponent


def test_first_stream_has_the_described_norm() -> None:
    architecture = edgewise.transformer(**SMALL | {"width": 512, "embedding_norm": 0.25})
    net = nets.build(architecture, inputs=16, outputs=2, vectors=True)
    x = (net.embed(torch.randn(8, 10, 16)) + net.positions.weight).detach()
    assert float(x.square().mean()) == pytest.approx(0.25, rel=0.1)


def test_loss_pooled_and_per_token() -> None:
    architecture = edgewise.transformer(**SMALL)
    pooled = nets.build(architecture, inputs=4, outputs=3, vectors=True, pooled=True)
    loss, logits = pooled(torch.randn(5, 10, 4), torch.tensor([0, 1, 2, 0, 1]))
    assert logits.shape == (5, 3)
    assert float(loss) == pytest.approx(
        -float(logits.log_softmax(-1)[range(5), [0, 1, 2, 0, 1]].mean()), rel=1e-5
    )
    each = nets.build(architecture, inputs=9, outputs=9, readout_gain=0.0)
    ids = torch.randint(9, (2, 10))
    assert float(each(ids, ids)[0]) == pytest.approx(math.log(9), rel=1e-5)
    assert each(ids[:, :4]).shape == (2, 4, 9)


def test_what_it_cannot_build_is_refused_by_name() -> None:
    architecture = edgewise.transformer(**SMALL)
    with pytest.raises(edgewise.BadInput, match=r"edgewise\.Architecture, got dict"):
        nets.build({"depth": 2}, inputs=2, outputs=2)  # type: ignore[arg-type]
    with pytest.raises(edgewise.BadInput, match="alibi with 3 heads"):
        nets.build(architecture.replace(heads=3, head_width=8, alibi=True), inputs=2, outputs=2)
    with pytest.raises(edgewise.BadInput, match="leaves out"):
        nets.build(architecture.replace(unmodelled=("routing",)), inputs=2, outputs=2)
    with pytest.raises(edgewise.BadInput, match="key_gain = 0"):
        nets.build(architecture.replace(key_gain=0.0), inputs=2, outputs=2)
    with pytest.raises(edgewise.BadInput, match=r"at most 10 tokens.*got 11"):
        nets.build(architecture, inputs=2, outputs=2)(torch.zeros(1, 11, dtype=torch.long))


def test_describe_gives_the_description_back() -> None:
    """Structure, skips and multipliers exactly; gains as the weights have them."""
    knobs = (
        SMALL
        | VARIANTS["llama"]
        | {
            "width": 96,
            "heads": 4,
            "head_width": 24,
            "attention_skip": 0.8,
            "attention_branch": 0.6,
            "mlp_bias": 0.1,
        }
    )
    architecture = edgewise.transformer(**knobs)
    net = nets.build(architecture, inputs=64, outputs=8)
    found = edgewise.describe(net)
    for name, value in architecture.knobs().items():
        if (name.endswith("gain") and value is not None) or name in ("embedding_norm", "mlp_bias"):
            assert getattr(found, name) == pytest.approx(value, rel=0.15), name
        elif not name.endswith("gain"):
            assert getattr(found, name) == value, name


@pytest.mark.parametrize("knobs", [{"alibi": True}, {"rope": 1.0}, {"causal": True, "window": 3}])
def test_a_checkpoint_holds_weights_only(knobs: dict[str, Any]) -> None:
    """Masks, biases and turns follow from the description, and would not fit another length."""
    network = edgewise.transformer(depth=2, width=16, heads=2, tokens=8, **knobs)
    model = nets.build(network, inputs=4, outputs=4, vectors=True)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
