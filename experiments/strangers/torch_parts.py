"""From torch: its own transformer parts, in the ways that people put them together."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layouts import Text
from .residuals import feed
from .truth import HEADS, TOKENS, WIDTH, Truth, ids, stranger, stream

TORCH: dict[str, Any] = {"origin": "torch"}
COPIES: dict[str, Any] = {"copies": True, "faults": ("IDENTICAL_LAYERS",)}


def layer(**options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 64, **{"batch_first": True, "dropout": 0.1, **options})


@stranger(
    "torch encoder, norm first, gelu", Truth(3, sees="full", absolute=False, **COPIES), batch=stream, **TORCH
)
def encoder_first() -> nn.Module:
    return nn.TransformerEncoder(
        layer(norm_first=True, activation="gelu"), 3, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False
    )


@stranger(
    "torch encoder, sequence first",
    Truth(4, sees="full", norm="post", activation="relu", absolute=False, **COPIES),
    batch=lambda: stream().transpose(0, 1).contiguous(),
    **TORCH,
)
def encoder_sequence_first() -> nn.Module:
    return nn.TransformerEncoder(layer(batch_first=False), 4, enable_nested_tensor=False)


@stranger(
    "torch encoder with a causal mask of its owner",
    Truth(3, norm="post", activation="relu", **COPIES),
    batch=ids,
    **TORCH,
)
class CausalEncoder(Text):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(layer(), 3, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS))

    def body(self, x: Tensor) -> Tensor:
        return self.encoder(x, mask=self.mask, is_causal=True)


@stranger(
    "torch encoder layers of different activations",
    Truth(3, sees="full", norm="post", activation=None, absolute=False),
    batch=stream,
    **TORCH,
)
def different_activations() -> nn.Module:
    return nn.Sequential(layer(activation="relu"), layer(activation=F.silu), layer(activation="gelu"))


@stranger(
    "torch decoder reading a memory",
    Truth(3, norm="post", activation="relu", absolute=False, reason=("cross",), **COPIES),
    Truth(3, sees="full", norm="post", activation="relu", absolute=False, reason=("cross",), **COPIES),
    batch=lambda: {
        "tgt": stream(),
        "memory": stream(),
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(TOKENS),
    },
    **TORCH,
)
def decoder() -> nn.Module:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=True), 3)


@stranger(
    "torch transformer, both stacks",  # not copies: its _reset_parameters draws every matrix again
    Truth(2, sees="full", norm="post", activation="relu", absolute=False),
    Truth(3, sees="full", norm="post", activation="relu", absolute=False, reason=("cross",)),
    batch=lambda: {"src": stream(), "tgt": stream()},
    **TORCH,
)
def both() -> nn.Module:
    return nn.Transformer(WIDTH, HEADS, 2, 3, 64, batch_first=True)


class Attending(nn.Module):
    """A pre-norm block around torch's attention."""

    def __init__(self, causal: bool = False, **options: Any) -> None:
        super().__init__()
        self.n1, self.n2, self.ff, self.causal = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), feed(), causal
        self.mha = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        y, n = self.n1(x), x.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool).triu(1) if self.causal else None
        x = x + self.mha(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class Attended(Text):
    def __init__(self, depth: int, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attending(**options) for _ in range(depth))

    def body(self, x: Tensor) -> Tensor:
        for part in self.layers:
            x = part(x)
        return x


stranger("torch attention with a boolean mask", Truth(4), batch=ids, **TORCH)(
    lambda: Attended(4, causal=True)
)
stranger(
    "torch attention, a zero key added",
    Truth(3, sees="full", reason=("sum to one", "zero", "sink", "extra")),
    batch=ids,
    **TORCH,
)(lambda: Attended(3, add_zero_attn=True))
stranger(
    "torch attention, a learned key and value added",
    Truth(3, sees="full", reason=("sum to one", "bias", "sink", "extra")),
    batch=ids,
    **TORCH,
)(lambda: Attended(3, add_bias_kv=True))


@stranger("torch attention that returns its weights", Truth(3, sees="full", norm="post"), batch=ids, **TORCH)
class Weights(Text):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.ModuleList(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(3))
        self.n1, self.n2 = (nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3)) for _ in range(2))
        self.ff = nn.ModuleList(feed() for _ in range(3))

    def body(self, x: Tensor) -> Tensor:
        for mix, n1, n2, ff in zip(self.mix, self.n1, self.n2, self.ff, strict=True):
            y, _ = mix(x, x, x, average_attn_weights=False)
            x = n1(x + y)
            x = n2(x + ff(x))
        return x


@stranger(
    "torch encoder layers that share one object",
    Truth(4, sees="full", norm="post", activation="relu", shared=True, absolute=False),
    batch=stream,
    **TORCH,
)
def shared_object() -> nn.Module:
    return nn.Sequential(*[layer()] * 4)
