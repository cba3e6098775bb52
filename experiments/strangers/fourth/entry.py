"""Register a model of the fourth list."""

from __future__ import annotations

from functools import partial

from ..truth import HEADS, WIDTH, stranger

entry = partial(stranger, part="fourth")
D, H, K = WIDTH, HEADS, WIDTH // HEADS
LLAMA = {
    "norm_kind": "rms",
    "gated": True,
    "activation": "silu",
    "positions": "rotary",
    "absolute": False,
}
