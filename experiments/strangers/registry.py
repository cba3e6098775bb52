"""From registry packages that nobody here had tried, with truths from their sources; skipped where missing."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from .truth import HEADS, TOKENS, WIDTH, WORDS, Truth, ids, image, stranger, stream

NONE = ("softmax", "sum to one", "no attention", "linear attention", "kernel")


def package(name: str, module: str, kind: str, *truths: Truth, batch: Any = ids, **settings: Any) -> None:
    def make() -> Any:
        return getattr(importlib.import_module(module), kind)(**settings)

    stranger(name, *truths, batch=batch, origin="registry", package=module.partition(".")[0])(make)


TEXT: dict[str, Any] = {"num_tokens": WORDS, "dim": WIDTH, "depth": 3, "heads": HEADS}
package(
    "PaLM-pytorch",
    "palm_pytorch.palm_pytorch",
    "PaLM",
    Truth(
        3,
        kv_heads=1,
        parallel=True,
        gated=True,
        activation="silu",
        positions="rotary",
        absolute=False,
        tied=True,
    ),
    **TEXT,
    dim_head=8,
    ff_mult=2,
)
package(
    "conformer",
    "conformer",
    "Conformer",
    Truth(
        3,
        sees="full",
        norm=None,
        norm_kind=None,
        activation="silu",
        mlp_branch=0.5,
        positions=None,
        absolute=False,
        reason=("convol", "mixer", "branches", "bias", "relative"),
    ),
    batch=stream,
    dim=WIDTH,
    depth=3,
    heads=HEADS,
    dim_head=8,
    ff_mult=2,
    conv_kernel_size=5,
)
package(
    "linformer",
    "linformer",
    "LinformerLM",
    Truth(3, sees=None, positions=None, reason=("key", "mix", "project", "other tokens", "chosen")),
    **TEXT,
    seq_len=TOKENS,
    k=8,
)
package(
    "local-attention",
    "local_attention",
    "LocalTransformer",
    Truth(3, gated=True, sees="causal window", window=5, positions="rotary"),
    **TEXT,
    dim_head=8,
    max_seq_len=TOKENS,
    local_attn_window_size=4,
    num_residual_streams=1,
)
package(
    "local-attention with hyper-connections",
    "local_attention",
    "LocalTransformer",
    Truth(
        3,
        gated=True,
        sees="causal window",
        window=5,
        positions="rotary",
        skip=None,
        attention_branch=None,
        mlp_branch=None,
        reason=("stream", "mix", "sum"),
    ),
    **TEXT,
    dim_head=8,
    max_seq_len=TOKENS,
    local_attn_window_size=4,
)
package(
    "iTransformer",
    "iTransformer",
    "iTransformer",
    Truth(3, sees="full", gated=True, absolute=None, skip=2.0, reason=("gate", "value", "earlier")),
    batch=lambda: torch.randn(2, 24, 7),
    num_variates=7,
    lookback_len=24,
    dim=WIDTH,
    depth=3,
    heads=HEADS,
    dim_head=8,
    pred_length=4,
    num_residual_streams=1,
)
package(
    "tab-transformer-pytorch",
    "tab_transformer_pytorch",
    "FTTransformer",
    Truth(3, sees="full", gated=True, absolute=None),
    batch=lambda: (torch.randint(0, 5, (2, 4)), torch.randn(2, 6)),
    categories=(5, 5, 5, 5),
    num_continuous=6,
    dim=WIDTH,
    depth=3,
    heads=HEADS,
    dim_head=8,
    num_residual_streams=1,
)
package(
    "recurrent-memory-transformer-pytorch",
    "recurrent_memory_transformer_pytorch",
    "RecurrentMemoryTransformer",
    Truth(
        3,
        norm_kind="rms",
        gated=True,
        sees="other",
        reason=("mask", "sees", "sum to one", "value", "other", "null"),
    ),
    **TEXT,
    dim_head=8,
    num_memory_tokens=3,
    seq_len=TOKENS,
    num_residual_streams=1,
)
package(
    "compressive-transformer-pytorch",
    "compressive_transformer_pytorch",
    "CompressiveTransformer",
    Truth(
        3,
        skip=None,
        attention_branch=None,
        mlp_branch=None,
        positions=None,
        absolute=None,
        reason=("gate", "residual", "recurren", "sum"),
    ),
    **TEXT,
    seq_len=TOKENS,
)
package(
    "perceiver-pytorch",
    "perceiver_pytorch",
    "Perceiver",
    Truth(None, sees=None, heads=None, gated=True, absolute=None, reason=("cross", "latent", "another")),
    batch=lambda: image().permute(0, 2, 3, 1).contiguous(),
    num_freq_bands=2,
    depth=2,
    max_freq=4.0,
    num_latents=8,
    latent_dim=WIDTH,
    cross_heads=1,
    latent_heads=4,
    cross_dim_head=8,
    latent_dim_head=8,
    num_classes=5,
)
package(
    "reformer-pytorch",
    "reformer_pytorch",
    "ReformerLM",
    Truth(
        3,
        sees=None,
        positions=None,
        absolute=None,
        qk_norm=None,
        reason=("chosen", "tied", "hash", "stream", "revers", "random", "twice", "determin"),
    ),
    **TEXT,
    max_seq_len=TOKENS,
    dim_head=8,
    bucket_size=4,
    n_hashes=2,
    ff_chunks=1,
    causal=True,
)
package(
    "MEGABYTE-pytorch",
    "MEGABYTE_pytorch",
    "MEGABYTE",
    Truth(2, norm_kind="rms", absolute=None, reason=("shift", "mixer", "sees")),
    Truth(3, norm_kind="rms", absolute=None, reason=("shift", "mixer", "sees")),
    num_tokens=WORDS,
    dim=(WIDTH, WIDTH),
    depth=(2, 3),
    max_seq_len=(4, 4),
    heads=HEADS,
    dim_head=8,
    ff_mult=2,
    rel_pos=False,
)
package(
    "performer-pytorch",
    "performer_pytorch",
    "PerformerLM",
    Truth(3, softmax=False, sees="full", reason=NONE),
    **TEXT,
    dim_head=8,
    max_seq_len=TOKENS,
)
package(
    "linear-attention-transformer",
    "linear_attention_transformer",
    "LinearAttentionTransformerLM",
    Truth(3, softmax=False, sees="full", reason=NONE),
    **TEXT,
    dim_head=8,
    max_seq_len=TOKENS,
    local_attn_window_size=4,
)
package(
    "nystrom-attention",
    "nystrom_attention.nystrom_attention",
    "Nystromformer",
    Truth(3, softmax=False, sees="full", absolute=False, reason=NONE),
    batch=stream,
    dim=WIDTH,
    depth=3,
    heads=HEADS,
    dim_head=8,
    num_landmarks=4,
    attn_values_residual_conv_kernel=3,
)
package(
    "g-mlp-pytorch",
    "g_mlp_pytorch",
    "gMLP",
    Truth(3, softmax=False, sees="full", reason=(*NONE, "mixer")),
    num_tokens=WORDS,
    dim=WIDTH,
    depth=3,
    seq_len=TOKENS,
)
package(
    "mlp-mixer-pytorch",
    "mlp_mixer_pytorch",
    "MLPMixer",
    Truth(3, softmax=False, sees="full", reason=(*NONE, "mixer")),
    batch=image,
    image_size=32,
    channels=3,
    patch_size=8,
    dim=WIDTH,
    depth=3,
    num_classes=5,
)
