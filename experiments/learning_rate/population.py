"""The networks: a few to develop on, and the blind ones, fixed here before any of them was trained."""

from __future__ import annotations

from typing import Any

OPTIMIZERS = ("adamw95", "adamw999", "sgd")


def _row(
    name: str, family: str, task: str, depth: int, width: int, batch: int, optimizer: str, **more: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "family": family,
        "task": task,
        "depth": depth,
        "width": width,
        "batch": batch,
        "optimizer": optimizer,
        **more,
    }


TINY = {"depth": 1, "width": 16, "batch": 4}  # sizes that show that all works

DEVELOPMENT = [
    _row("gpt2-3-24", "gpt2", "text", 3, 24, 16, "adamw95"),
    _row("llama-2-40", "llama", "text", 2, 40, 16, "adamw999"),
    _row("bert-5-24", "bert", "text", 5, 24, 16, "adamw95"),
    _row("encoder-post-3-24", "encoder", "text", 3, 24, 16, "adamw95", norm="post"),
    _row("own-pre-3-24-loud", "own", "text", 3, 24, 16, "adamw95", knobs={"norm": "pre", "score_gain": 2.0}),
    _row("vit-3-24", "vit", "images", 3, 24, 16, "adamw999"),
    _row("own-post-5-24", "own", "images", 5, 24, 16, "adamw95", knobs={"norm": "post"}),
    _row("encoder-pre-3-24-sgd", "encoder", "images", 3, 24, 16, "sgd", norm="pre"),
    _row("gpt2-2-24-sgd", "gpt2", "text", 2, 24, 16, "sgd"),
    _row("own-pre-2-24-sgd", "own", "images", 2, 24, 64, "sgd", knobs={"norm": "pre"}),
]

BLIND = [
    # text: the next of 28 symbols
    _row("gpt2-2-32", "gpt2", "text", 2, 32, 16, "adamw95"),
    _row("gpt2-4-32", "gpt2", "text", 4, 32, 16, "adamw999"),
    _row("gpt2-2-48-std.1", "gpt2", "text", 2, 48, 16, "adamw95", std=0.1),
    _row("gpt2-2-32-b64", "gpt2", "text", 2, 32, 64, "adamw999"),
    _row("gpt2-6-16-b64", "gpt2", "text", 6, 16, 64, "adamw95"),
    _row("gpt2-2-32-std.005", "gpt2", "text", 2, 32, 16, "adamw95", std=0.005),
    _row("llama-2-32", "llama", "text", 2, 32, 16, "adamw95"),
    _row("llama-4-16", "llama", "text", 4, 16, 16, "adamw999"),
    _row("llama-2-32-b64", "llama", "text", 2, 32, 64, "adamw999"),
    _row("llama-2-48-std.1", "llama", "text", 2, 48, 16, "adamw999", std=0.1),
    _row("bert-2-32", "bert", "text", 2, 32, 16, "adamw95"),
    _row("bert-4-32", "bert", "text", 4, 32, 16, "adamw999"),
    _row("bert-2-32-b64", "bert", "text", 2, 32, 64, "adamw95"),
    _row("bert-8-16", "bert", "text", 8, 16, 16, "adamw95"),
    _row("encoder-post-2-32", "encoder", "text", 2, 32, 16, "adamw999", norm="post"),
    _row("encoder-post-6-32", "encoder", "text", 6, 32, 16, "adamw95", norm="post"),
    _row("encoder-pre-2-32-b64", "encoder", "text", 2, 32, 64, "adamw95", norm="pre"),
    _row("encoder-pre-6-16", "encoder", "text", 6, 16, 16, "adamw999", norm="pre"),
    _row("own-pre-4-32", "own", "text", 4, 32, 16, "adamw95", knobs={"norm": "pre"}),
    _row("own-pre-4-32-mlp2", "own", "text", 4, 32, 16, "adamw999", knobs={"norm": "pre", "mlp_branch": 2.0}),
    _row(
        "own-post-4-32-mlp2", "own", "text", 4, 32, 16, "adamw95", knobs={"norm": "post", "mlp_branch": 2.0}
    ),
    _row("own-post-2-32-b64", "own", "text", 2, 32, 64, "adamw999", knobs={"norm": "post"}),
    _row(
        "own-pre-6-32-score3", "own", "text", 6, 32, 16, "adamw95", knobs={"norm": "pre", "score_gain": 3.0}
    ),
    _row(
        "own-pre-4-32-quiet",
        "own",
        "text",
        4,
        32,
        16,
        "adamw95",
        knobs={"norm": "pre", "attention_branch": 0.3, "mlp_branch": 0.3},
    ),
    _row("gpt2-3-32-sgd", "gpt2", "text", 3, 32, 16, "sgd"),
    _row("encoder-post-2-32-sgd", "encoder", "text", 2, 32, 16, "sgd", norm="post"),
    _row("own-pre-3-32-sgd-b64", "own", "text", 3, 32, 64, "sgd", knobs={"norm": "pre"}),
    # images: scanned digits in 16 patches
    _row("vit-2-32", "vit", "images", 2, 32, 16, "adamw95"),
    _row("vit-2-32-b64", "vit", "images", 2, 32, 64, "adamw999"),
    _row("vit-4-32-std.1", "vit", "images", 4, 32, 16, "adamw999", std=0.1),
    _row("encoder-pre-2-32", "encoder", "images", 2, 32, 16, "adamw95", norm="pre"),
    _row("encoder-pre-4-32-b64", "encoder", "images", 4, 32, 64, "adamw999", norm="pre"),
    _row("encoder-post-2-32-i", "encoder", "images", 2, 32, 16, "adamw999", norm="post"),
    _row("encoder-post-4-32-b64", "encoder", "images", 4, 32, 64, "adamw95", norm="post"),
    _row("own-pre-2-32-i", "own", "images", 2, 32, 16, "adamw95", knobs={"norm": "pre"}),
    _row("own-pre-6-32-b64", "own", "images", 6, 32, 64, "adamw999", knobs={"norm": "pre"}),
    _row("own-post-3-32-i", "own", "images", 3, 32, 16, "adamw999", knobs={"norm": "post"}),
    _row(
        "own-pre-3-32-mlp3-b64",
        "own",
        "images",
        3,
        32,
        64,
        "adamw95",
        knobs={"norm": "pre", "mlp_branch": 3.0},
    ),
    _row(
        "own-pre-3-48-score3", "own", "images", 3, 48, 16, "adamw95", knobs={"norm": "pre", "score_gain": 3.0}
    ),
    _row("vit-2-32-sgd-b64", "vit", "images", 2, 32, 64, "sgd"),
    _row("encoder-pre-2-32-sgd-b64", "encoder", "images", 2, 32, 64, "sgd", norm="pre"),
    _row("own-pre-2-32-sgd-i", "own", "images", 2, 32, 16, "sgd", knobs={"norm": "pre"}),
    # meant to be untrainable: the skips are cut, so tokens are alike after a few blocks
    _row(
        "own-dead-16-16",
        "own",
        "text",
        16,
        16,
        16,
        "adamw95",
        knobs={"norm": "post", "attention_skip": 0.1, "mlp_skip": 0.1},
    ),
    _row(
        "own-dead-20-16-i",
        "own",
        "images",
        20,
        16,
        16,
        "adamw95",
        knobs={"norm": "post", "attention_skip": 0.0, "mlp_skip": 0.0},
    ),
]
SIZES = (  # the same network rehearsed at two widths; nothing is trained further
    ("gpt2", "text", 2, "adamw95", {}),
    ("own", "text", 2, "adamw95", {"knobs": {"norm": "pre"}}),
    ("encoder", "images", 2, "adamw999", {"norm": "post"}),
    ("vit", "images", 2, "adamw999", {}),
)
WIDTHS = (64, 256)
