"""The grid of architectures on which theory is compared with real random networks, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Any


@dataclass(frozen=True)
class Case:
    """One architecture of the grid: flat knobs, where the tokens start, how the loss reads them."""

    name: str
    knobs: dict[str, Any] = field(hash=False)
    start_overlap: float
    readout: str
    seeds: int
    weight_gradients: bool


BASE = {"depth": 16, "tokens": 64, "width": 512, "heads": 8, "activation": "relu"}
LLAMA = {
    "activation": "silu",
    "gated": True,
    "norm_kind": "rms",
    "causal": True,
    "rope": True,
    "kv_heads": 2,
    "mlp_in_gain": sqrt(2),
    "mlp_out_gain": 1.2,
}

NOISY = frozenset(
    {
        "pre relu one head",
        "pre gelu overlap 0.5",
        "pre leaky relu 8 layers overlap 0.9",
        "pre value gain 2",
        "pre small embedding",
        "post relu",
        "post gelu pooled",
        "post rms sharp",
        "sandwich gelu",
        "no norm tanh",
        "dyt pre slope 0.5 overlap 0.3",
        "cowsik ordered",
        "cowsik gain 2",
        "cowsik gain 2 pooled",
        "cowsik sharp",
        "mqa",
        "causal relu pooled",
        "causal post",
        "rope overlap 0.8",
        "attention only",
        "attention only pooled sharp",
        "attention only weak skip",
        "sharp 8 post",
        "chaotic without mlp skip",
        "explosive cowsik sharp 8",
        "explosive attention only",
    }
)  # a pilot of 32 seeds had a standard error above a third of some limit: these get 64


def case(
    name: str, start_overlap: float = 0.0, readout: str = "token", weights: bool = False, **knobs: Any
) -> Case:
    """A case of the grid; knobs not named are those of BASE, then the defaults of `transformer`."""
    seeds = 16 if knobs.get("width", 512) >= 1024 else 64 if name in NOISY else 32
    return Case(name, {**BASE, **knobs}, start_overlap, readout, seeds, weights)


def cowsik(attention: float, perceptron: float, gain: float, **knobs: Any) -> dict[str, Any]:
    """The family of Cowsik et al.: tanh, pre-norm, one head, skip sqrt(1 - alpha^2), branch alpha."""
    return {
        "heads": 1,
        "tokens": 32,
        "activation": "tanh",
        "mlp_in_gain": gain,
        "attention_skip": sqrt(1 - attention**2),
        "attention_branch": attention,
        "mlp_skip": sqrt(1 - perceptron**2),
        "mlp_branch": perceptron,
        **knobs,
    }


def shallow(depth: int, total: float = 1.0) -> dict[str, Any]:
    """Branches multiplied by sqrt(total / depth)."""
    return {"depth": depth, "attention_branch": sqrt(total / depth), "mlp_branch": sqrt(total / depth)}


def ramp(first: float, last: float, depth: int = 16) -> list[float]:
    """A gain that changes linearly with depth."""
    return [first + (last - first) * layer / (depth - 1) for layer in range(depth)]


PRE_NORM = [
    case("pre relu", mlp_in_gain=sqrt(2), weights=True),
    case("pre relu one head", heads=1, mlp_in_gain=sqrt(2), weights=True),
    case("pre relu pooled", mlp_in_gain=sqrt(2), readout="pooled"),
    case("pre gelu overlap 0.5", activation="gelu", mlp_in_gain=2.0, start_overlap=0.5),
    case("pre silu 16 tokens", activation="silu", tokens=16, mlp_in_gain=2.0, mlp_out_gain=1.5),
    case("pre leaky relu 8 layers overlap 0.9", activation="leaky_relu", depth=8, start_overlap=0.9),
    case("pre relu 256 tokens", tokens=256, width=1024, mlp_in_gain=sqrt(2)),
    case("pre tanh 24 layers", activation="tanh", depth=24, mlp_in_gain=1.5),
    case("pre rms bias", norm_kind="rms", mlp_in_gain=1.5, mlp_bias=0.5),
    case("pre value gain 2", value_gain=2.0, mlp_in_gain=1.0, start_overlap=0.3),
    case("pre small embedding", embedding_norm=0.05, mlp_in_gain=0.8, value_gain=0.5),
    case("pre swiglu", activation="silu", gated=True, mlp_in_gain=1.5, mlp_linear_gain=1.2, weights=True),
    case("pre parallel gelu", activation="gelu", parallel=True, mlp_in_gain=1.5),
    case(
        "pre ramped gains", score_gain=ramp(0.5, 2.0), mlp_in_gain=ramp(2.0, 1.0), value_gain=ramp(1.0, 0.5)
    ),
]
OTHER_NORMS = [
    case("post relu", norm="post", mlp_in_gain=sqrt(2), weights=True),
    case("post gelu pooled", norm="post", activation="gelu", mlp_in_gain=1.5, readout="pooled"),
    case(
        "post deepnorm", norm="post", attention_skip=2.0, mlp_skip=2.0, mlp_in_gain=sqrt(2), start_overlap=0.2
    ),
    case("post rms sharp", norm="post", norm_kind="rms", score_gain=2.5, mlp_in_gain=sqrt(2)),
    case("sandwich gelu", norm="sandwich", activation="gelu", mlp_in_gain=1.5),
    case(
        "sandwich swiglu causal", norm="sandwich", activation="silu", gated=True, causal=True, norm_kind="rms"
    ),
    case("branch norm swiglu", norm="branch", **{**LLAMA, "qk_norm": True}),
    case(
        "no norm tanh",
        norm="none",
        activation="tanh",
        heads=1,
        attention_branch=0.5,
        mlp_branch=0.5,
        mlp_in_gain=2.0,
    ),
    case("no norm relu 1/sqrt(L)", norm="none", mlp_in_gain=sqrt(2), **shallow(16)),
    case("dyt pre gelu", norm_kind="tanh", activation="gelu", mlp_in_gain=1.5),
    case(
        "dyt pre slope 0.5 overlap 0.3",
        norm_kind="tanh",
        norm_slope=0.5,
        mlp_in_gain=sqrt(2),
        start_overlap=0.3,
    ),
    case("derf pre relu pooled", norm_kind="erf", mlp_in_gain=sqrt(2), readout="pooled"),
]
COWSIK = [
    case("cowsik ordered", **cowsik(0.5, 0.5, 1.0)),
    case("cowsik gain 2", **cowsik(0.5, 0.5, 2.0)),
    case("cowsik gain 2 pooled", **cowsik(0.5, 0.5, 2.0), readout="pooled"),
    case("cowsik chaotic overlap 0.9", **cowsik(0.3, 0.7, 3.0), start_overlap=0.9),
    case("cowsik sharp", **cowsik(0.6, 0.4, 1.5, score_gain=2.0), weights=True),
]
SHARP = [
    case("sharp 2", score_gain=2.0, mlp_in_gain=sqrt(2), heads=1),
    case("sharp 3 eight heads", score_gain=3.0, mlp_in_gain=sqrt(2)),
    case("sharp 4", score_gain=4.0, mlp_in_gain=sqrt(2), heads=1),
    case(
        "sharp 3 128 tokens 1/sqrt(L)",
        score_gain=3.0,
        tokens=128,
        width=1024,
        mlp_in_gain=sqrt(2),
        **shallow(12),
    ),
    case("qk norm 2", qk_norm=True, score_gain=2.0, mlp_in_gain=sqrt(2)),
    case("mqa", kv_heads=1, mlp_in_gain=sqrt(2)),
]
POSITIONS = [
    case("causal gelu", causal=True, activation="gelu", mlp_in_gain=1.5),
    case("causal relu pooled", causal=True, mlp_in_gain=sqrt(2), readout="pooled"),
    case("causal sharp 3", causal=True, score_gain=3.0, mlp_in_gain=sqrt(2)),
    case("causal post", causal=True, norm="post", mlp_in_gain=sqrt(2)),
    case("causal 1/sqrt(L) 24 layers", causal=True, mlp_in_gain=sqrt(2), **shallow(24, 2.0)),
    case("causal window 16", causal=True, window=16, mlp_in_gain=sqrt(2)),
    case("window 8", window=8, mlp_in_gain=sqrt(2), score_gain=1.5),
    case("rope sharp 2", rope=True, score_gain=2.0, mlp_in_gain=sqrt(2)),
    case("rope overlap 0.8", rope=True, score_gain=1.5, mlp_in_gain=1.0, start_overlap=0.8),
    case("rope causal pooled", rope=True, causal=True, mlp_in_gain=sqrt(2), readout="pooled"),
    case(
        "neox parallel partial rope",
        rope=0.25,
        causal=True,
        parallel=True,
        activation="gelu",
        mlp_in_gain=1.5,
    ),
    case("alibi causal", alibi=True, causal=True, mlp_in_gain=sqrt(2)),
    case("alibi bidirectional", alibi=True, mlp_in_gain=sqrt(2), score_gain=1.5),
    case("llama", **LLAMA, weights=True),
    case("qwen qk norm", **LLAMA, qk_norm=True, score_gain=1.5, tokens=128, width=1024, depth=12),
]
PARTS = [
    case("mlp only relu", attention_branch=0.0, mlp_in_gain=sqrt(2)),
    case(
        "mlp only chaotic tanh",
        attention_branch=0.0,
        mlp_skip=0.0,
        norm="none",
        activation="tanh",
        mlp_in_gain=1.5,
        mlp_out_gain=1.0,
        start_overlap=0.6,
    ),
    case("attention only", mlp_branch=0.0, score_gain=1.5),
    case("attention only pooled sharp", mlp_branch=0.0, score_gain=3.0, heads=1, readout="pooled"),
    case("attention only weak skip", mlp_branch=0.0, attention_skip=0.8, attention_branch=0.6, depth=12),
]
EXPLOSIVE = [
    case("sharp 8 post", norm="post", score_gain=8.0, heads=1, mlp_in_gain=sqrt(2)),
    case(
        "chaotic without mlp skip",
        mlp_skip=0.0,
        attention_skip=0.5,
        activation="tanh",
        mlp_in_gain=4.0,
        depth=8,
    ),
    case(
        "explosive tanh", attention_branch=0.0, mlp_skip=0.0, norm="none", activation="tanh", mlp_in_gain=5.0
    ),
    case("explosive cowsik sharp 8", **cowsik(0.9, 0.3, 1.5, score_gain=8.0)),
    case("explosive attention only", mlp_branch=0.0, attention_skip=0.3, score_gain=8.0, heads=1, depth=8),
]

FEW = {"tokens": 16, "width": 1024, "depth": 8, "weights": True}  # small depth n / d
WIDE = [
    case("wide pre relu", mlp_in_gain=sqrt(2), score_gain=1.5, key_gain=0.5, output_gain=2.0, **FEW),
    case("wide post swiglu pooled", norm="post", activation="silu", gated=True, readout="pooled", **FEW),
    case("wide llama overlap 0.3", start_overlap=0.3, **LLAMA, **FEW),
    case("wide qk norm", qk_norm=True, score_gain=2.0, key_gain=1.0, mlp_in_gain=sqrt(2), **FEW),
]

GRID = [*PRE_NORM, *OTHER_NORMS, *COWSIK, *SHARP, *POSITIONS, *PARTS, *EXPLOSIVE, *WIDE]

if len({c.name for c in GRID}) != len(GRID):
    raise ValueError("two cases of the grid share a name")
