"""What the observed pass keeps of every module call: numbers, not activations."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.preflight.evidence import TrainingEvidence, is_norm, rms
from edgewise.preflight.observer import Look

ROUTER = re.compile("gate|router|wg|gating|classifier_gate")  # whole names: gates of gated MLPs are none


def look_closely(evidence: TrainingEvidence) -> Look:
    """Return the function that keeps what facts about wiring need."""

    def look(name: str, module: nn.Module, before: Tensor | None, after: Tensor) -> dict[str, Any]:
        if hasattr(after, "to_local") or after.numel() == 0:
            return {}
        kept: dict[str, Any] = {"finite": bool(after.isfinite().all()), "size": rms(after)}
        if before is not None and hasattr(before, "to_local"):
            return kept
        if is_norm(module) and before is not None:
            kept |= _norm(module, before, after)
        if (
            name in evidence.blocks
            and before is not None
            and before.shape == after.shape
            and after.dim() >= 2
        ):
            kept |= _block(before, after)
        last = name.rpartition(".")[2]
        if (
            isinstance(module, nn.Linear)
            and ROUTER.fullmatch(last)
            and 4 <= after.shape[-1] < module.in_features
        ):
            load = after.flatten(0, -2).argmax(-1).bincount(minlength=after.shape[-1]).float()
            kept |= {"load": float(load.max() / load.sum()), "tokens": int(load.sum())}
        return kept

    return look


def _norm(module: nn.Module, before: Tensor, after: Tensor) -> dict[str, Any]:
    kept: dict[str, Any] = {
        "norm": True,
        "silent": not after.any() and bool(before.any()),
        "pointer": before.data_ptr(),
        "out": after[:2].float(),
    }
    eps = getattr(module, "eps", None)
    if isinstance(eps, float):
        variance = float(before.float().var(-1, unbiased=False).mean()) if before.shape[-1] > 1 else 0.0
        kept["eps"] = eps / max(variance, 1e-300)
    return kept


def _block(before: Tensor, after: Tensor) -> dict[str, Any]:
    a, b = before[:4].float().flatten(0, -2), after[:4].float().flatten(0, -2)
    kept: dict[str, Any] = {
        "cosine": float(torch.cosine_similarity(a, b, -1).mean()),
        "factor": float((a * b).sum() / (a * a).sum().clamp(min=1e-30)),
        "pointer": before.data_ptr(),
        "x": before[:2].float(),
        "y": after[:2].float(),
    }
    if after.dim() == 3 and after.shape[1] >= 8:
        unit = torch.nn.functional.normalize(after[:4].float(), dim=-1)
        n = unit.shape[1]
        kept["overlap"] = float(((unit.sum(1).pow(2).sum(-1) - n) / (n * (n - 1))).mean())
        unit = torch.nn.functional.normalize(before[:4].float(), dim=-1)
        kept["overlap before"] = float(((unit.sum(1).pow(2).sum(-1) - n) / (n * (n - 1))).mean())
    return kept
