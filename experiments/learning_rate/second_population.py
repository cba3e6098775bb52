"""Sixteen further networks, of the kinds on which the first blind population missed: images, and SGD.

Fixed before any of them was trained or rehearsed, and before the rule that they test was chosen. Names say family,
depth, width; every setting differs from those of `population.py`.
"""

from __future__ import annotations

from .population import _row

SECOND = [
    _row("vit-3-40", "vit", "images", 3, 40, 16, "adamw999"),
    _row("vit-2-24-std.05-b32", "vit", "images", 2, 24, 32, "adamw95", std=0.05),
    _row("encoder-pre-3-24-b32", "encoder", "images", 3, 24, 32, "adamw999", norm="pre"),
    _row("encoder-pre-5-40", "encoder", "images", 5, 40, 16, "adamw95", norm="pre"),
    _row("encoder-post-3-40", "encoder", "images", 3, 40, 16, "adamw95", norm="post"),
    _row("own-pre-4-24", "own", "images", 4, 24, 16, "adamw999", knobs={"norm": "pre", "score_gain": 2.0}),
    _row(
        "own-pre-2-40-mlp2", "own", "images", 2, 40, 16, "adamw999", knobs={"norm": "pre", "mlp_branch": 2.0}
    ),
    _row(
        "own-post-4-24-b32",
        "own",
        "images",
        4,
        24,
        32,
        "adamw95",
        knobs={"norm": "post", "attention_branch": 0.5},
    ),
    _row("encoder-post-2-40-sgd", "encoder", "images", 2, 40, 16, "sgd", norm="post"),
    _row("own-pre-3-24-sgd", "own", "images", 3, 24, 32, "sgd", knobs={"norm": "pre", "mlp_branch": 0.5}),
    _row("own-post-2-40-sgd", "own", "images", 2, 40, 16, "sgd", knobs={"norm": "post"}),
    _row("vit-2-40-std.1-sgd", "vit", "images", 2, 40, 32, "sgd", std=0.1),
    _row("llama-2-24-sgd", "llama", "text", 2, 24, 16, "sgd", std=0.1),
    _row("encoder-pre-2-40-sgd", "encoder", "text", 2, 40, 16, "sgd", norm="pre"),
    _row("own-post-3-24-sgd", "own", "text", 3, 24, 16, "sgd", knobs={"norm": "post"}),
    _row("bert-2-24-sgd", "bert", "text", 2, 24, 16, "sgd", std=0.1),
]
