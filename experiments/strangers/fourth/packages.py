"""From registry packages that the earlier lists do not have; truths with file and line.

Packages that are missing are skipped by name: `fourth_packages.txt` has the versions whose lines are cited.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ..truth import HEADS, TOKENS, WIDTH, WORDS, Truth, ids, stream
from .entry import entry

TEXT: dict[str, Any] = {"num_tokens": WORDS, "dim": WIDTH, "depth": 3, "heads": HEADS, "dim_head": 8}


def package(name, module, kind, *truths, batch=ids, **settings):
    """A model of class `kind` of a module."""

    def build():
        return getattr(importlib.import_module(module), kind)(**settings)

    entry(name, *truths, batch=batch, origin="registry", package=module.partition(".")[0])(build)


# graph_transformer_pytorch.py 84-98: keys and values have a part for each pair; 39-50: a gate weighs stream and
# branch
package(
    "graph-transformer-pytorch",
    "graph_transformer_pytorch",
    "GraphTransformer",
    Truth(
        3,
        sees="full",
        positions=None,
        absolute=False,
        skip=None,
        attention_branch=None,
        mlp_branch=None,
        reason=("gate", "residual", "input", "edge", "key", "value", "bias"),
    ),
    batch=lambda: {
        "nodes": torch.randn(2, 10, WIDTH),
        "edges": torch.randn(2, 10, 10, 8),
        "mask": torch.ones(2, 10, dtype=torch.bool),
    },
    dim=WIDTH,
    depth=3,
    edge_dim=8,
    heads=HEADS,
    dim_head=8,
    with_feedforwards=True,
)
# swin_transformer.py 22: residual of pre-norm; 117: one bias by distance for all heads; 54-61: masks of shifted
# windows, frozen parameters
package(
    "swin-transformer-pytorch",
    "swin_transformer_pytorch",
    "SwinTransformer",
    Truth(
        8,
        heads=(2, 2, 4, 4, 4, 4, 8, 8),
        sees=None,
        skip=None,
        positions=None,
        absolute=False,
        keep=("*upper_lower_mask", "*left_right_mask"),
        reason=("width", "merg", "size", "differ", "window", "shape", "sees"),
    ),
    batch=lambda: torch.randn(2, 3, 64, 64),
    hidden_dim=16,
    layers=(2, 2, 2, 2),
    heads=(2, 4, 4, 8),
    num_classes=5,
    head_dim=8,
    window_size=2,
    downscaling_factors=(4, 2, 2, 2),
)
# feedback_transformer_pytorch.py 266-300: two tokens at a time; 290: keys and values of earlier tokens come
# from a weighted sum of all layers; 222: one matrix of keys and values for all layers; 28-60: one bias by
# buckets for all layers
package(
    "feedback-transformer-pytorch",
    "feedback_transformer_pytorch",
    "FeedbackTransformer",
    Truth(
        3,
        sees=None,
        gated=True,
        positions=None,
        absolute=False,
        reason=(
            "loop",
            "step",
            "called",
            "calls",
            "memory",
            "recurren",
            "shared",
            "earlier",
            "length",
            "other",
        ),
    ),
    **TEXT,
    mem_len=TOKENS,
    seq_len=2,
)
# perceiver_ar_pytorch.py 288-296: one layer whose queries are the last tokens and whose keys are all, two heads
# at a time (198); then layers of the last tokens; 247: 32 channels of a head are turned, here all
package(
    "perceiver-ar-pytorch",
    "perceiver_ar_pytorch",
    "PerceiverAR",
    Truth(
        3,
        heads=2,
        positions="rotary",
        reason=("cross", "prefix", "another", "differ", "queries", "context", "length"),
    ),
    Truth(4, heads=2, sees=None, positions="rotary"),
    num_tokens=WORDS,
    dim=WIDTH,
    depth=3,
    heads=2,
    dim_head=32,
    max_seq_len=TOKENS,
    cross_attn_seq_len=6,
)
# model.py 137-138: pre-norm; 70-105: a module for every head, rotary in pairs
package(
    "picogpt",
    "picogpt.model",
    "TinyGPT",
    Truth(3, positions="rotary", absolute=False),
    V=WORDS,
    n_embd=WIDTH,
    n_head=HEADS,
    n_layer=3,
    block_size=TOKENS,
    dropout=0.1,
    rope_base=10000.0,
)
# agent_transformer.py 115-127: agents ask tokens and tokens ask agents, two softmaxes in a row, heads mixed;
# 132: a gate for each head; 190-203: agents are a second stream that shares the feed-forward
package(
    "agent-attention-pytorch",
    "agent_attention_pytorch.agent_transformer",
    "AgentTransformer",
    Truth(
        3,
        sees=None,
        norm_kind="rms",
        absolute=False,
        attention_branch=None,
        reason=(
            "agent",
            "another",
            "cross",
            "gate",
            "latent",
            "stream",
            "heads",
            "mix",
            "sum to one",
            "other",
        ),
    ),
    batch=stream,
    dim=WIDTH,
    num_agent_tokens=5,
    depth=3,
    heads=HEADS,
    dim_head=8,
)
# rela_transformer.py 83-98: relu of the scores, then a norm; nothing sums to one
package(
    "rela-transformer",
    "rela_transformer.rela_transformer",
    "ReLATransformer",
    Truth(
        3,
        softmax=False,
        heads=None,
        norm=None,
        norm_kind=None,
        reason=("softmax", "sum to one", "no attention", "without", "mixer", "relu"),
    ),
    **TEXT,
    max_seq_len=TOKENS,
)
# long_short_transformer.py 143: queries and keys turned; 173-197: keys are the values, a window of four and the
# one before, and a weighted mean of each earlier segment of four by a softmax of its own; 295: pre-norm
package(
    "long-short-transformer",
    "long_short_transformer",
    "LongShortTransformer",
    Truth(
        3,
        sees=None,
        positions=None,
        absolute=False,
        reason=("window", "sees", "mask", "segment", "value", "key", "chosen", "other", "norm"),
    ),
    **TEXT,
    max_seq_len=TOKENS,
    window_size=4,
    segment_size=4,
    r=1,
)
# transformerblock.py 117-120: pre-norm; selfattention.py 196: softmax of an einsum; vit.py: a class token, a
# list of states
package(
    "monai, picture transformer",
    "monai.networks.nets",
    "ViT",
    Truth(3, sees="full"),
    batch=lambda: torch.randn(2, 1, 32, 32),
    in_channels=1,
    img_size=(32, 32),
    patch_size=(8, 8),
    hidden_size=WIDTH,
    mlp_dim=64,
    num_layers=3,
    num_heads=HEADS,
    classification=True,
    num_classes=5,
    dropout_rate=0.1,
    spatial_dims=2,
)
