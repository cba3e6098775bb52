"""Plain optimizers and what can be put around the attention: clipping, a separate rate, our two.

A method is a base (sgd, adam, adamw, muon), a variant and the variant's own setting:
clip: largest norm of the gradient; qk_rate: the rate of W_Q and W_K over that of the rest; trust: delta;
preconditioner: its rate, in logits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

import edgewise


def is_query_or_key(name: str) -> bool:
    return "q_proj" in name or "k_proj" in name


def optimizers(
    model: nn.Module, base: str, variant: str, setting: float | None, rate: float
) -> list[torch.optim.Optimizer]:
    """One optimizer, or Muon for the matrices of the blocks beside AdamW for the rest; then what goes around it.

    A plain one is inside a LogitTrust without bound, which only looks.
    """
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    blocks = {n: p for n, p in named.items() if n.startswith("blocks.") and p.ndim == 2}
    main = blocks if base == "muon" else named
    if variant == "preconditioner":
        main = {n: p for n, p in main.items() if not is_query_or_key(n)}
    slow = setting if variant == "qk_rate" else 1.0
    groups = [
        {"params": [p for n, p in main.items() if is_query_or_key(n)], "lr": slow * rate},
        {"params": [p for n, p in main.items() if not is_query_or_key(n)], "lr": rate},
    ]
    first = _base(base, [group for group in groups if group["params"]], rate)
    rest = [p for n, p in named.items() if n not in blocks] if base == "muon" else []
    others = [torch.optim.AdamW(rest, rate, weight_decay=0.01, fused=True)] if rest else []
    return [_around(variant, setting, first, model), *others]


def _base(base: str, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
    if base == "sgd":
        return torch.optim.SGD(groups, rate, momentum=0.9, fused=True)
    if base == "muon":
        return torch.optim.Muon(groups, rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    return torch.optim.AdamW(groups, rate, weight_decay=0.01 if base == "adamw" else 0.0, fused=True)


def _around(
    variant: str, setting: float | None, optimizer: torch.optim.Optimizer, model: nn.Module
) -> torch.optim.Optimizer:
    if variant == "preconditioner":
        return edgewise.optim.AttentionPreconditioner(optimizer, model, setting)
    if variant in ("plain", "trust"):
        return edgewise.optim.LogitTrust(optimizer, model, math.inf if setting is None else setting)
    return optimizer
