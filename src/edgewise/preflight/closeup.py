"""What the observed pass keeps of every module call: numbers, not activations."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.preflight.evidence import TrainingEvidence, is_norm, is_readable, local, rms
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
        if before is not None and (is_norm(module) or _normalizes(module, before, after)):
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
            and bool((after.amax(-1) > after.amin(-1)).any())  # zero on purpose: it has not chosen yet
        ):
            load = after.flatten(0, -2).argmax(-1).bincount(minlength=after.shape[-1]).float()
            kept |= {"load": float(load.max() / load.sum()), "tokens": int(load.sum())}
        return kept

    return look


def _normalizes(module: nn.Module, before: Tensor, after: Tensor) -> bool:
    """Return True for a layer that has only gains and makes tokens of different sizes equally large."""
    own = list(module.parameters(recurse=False))
    if not own or list(module.children()) or before.shape != after.shape or before.dim() < 3:
        return False
    if any(p.dim() != 1 or p.numel() != after.shape[-1] for p in own):
        return False
    sizes = [x[:4].float().pow(2).mean(-1).sqrt() for x in (before, after)]
    spread = [float(s.std() / s.mean().clamp(min=1e-12)) for s in sizes]
    return spread[0] > 1e-3 and spread[1] < 0.2 * spread[0]


def _norm(module: nn.Module, before: Tensor, after: Tensor) -> dict[str, Any]:
    kept: dict[str, Any] = {
        "norm": True,
        "silent": not after.any() and _varies(before),
        "pointer": before.data_ptr(),
        "out": after[:2].float(),
    }
    gain = next((p for p in module.parameters(recurse=False) if p.numel() == after.shape[-1]), None)
    if gain is not None and is_readable(gain) and after.dim() >= 3 and _varies(before):
        size, scale = rms(after), local(gain.detach()).float()
        sizes = (size, size / max(rms(scale), 1e-12), size / max(rms(scale + 1), 1e-12))
        kept["unit"] = min(sizes, key=lambda x: abs(math.log(max(x, 1e-12))))
    eps = getattr(module, "eps", None)
    if isinstance(eps, float):
        variance = float(before.float().var(-1, unbiased=False).mean()) if before.shape[-1] > 1 else 0.0
        kept["eps"] = eps / max(variance, 1e-300)
    return kept


def _varies(before: Tensor) -> bool:
    """Return whether there is something to normalize: what is the same everywhere, or too large, becomes zero."""
    spread = before.float().var(-1, unbiased=False)
    return bool(((spread > 0) & spread.isfinite()).any()) if before.shape[-1] > 1 else bool(before.any())


def _block(before: Tensor, after: Tensor) -> dict[str, Any]:
    a, b = before[:4].float().flatten(0, -2), after[:4].float().flatten(0, -2)
    kept: dict[str, Any] = {
        "cosine": float(torch.cosine_similarity(a, b, -1).mean()),
        "factor": float((a * b).sum() / (a * a).sum().clamp(min=1e-30)),
        "doubt": rms(b)
        / max(rms(a), 1e-30)
        / math.sqrt(a.numel()),  # of the factor, from a branch of random sign
        "pointer": before.data_ptr(),
        "x": before[:2].float(),
        "y": after[:2].float(),
    }
    if after.dim() == 3 and after.shape[1] >= 8:
        kept["overlap"], kept["overlap before"] = _overlap(after[:4].float()), _overlap(before[:4].float())
        if after.shape[0] >= 2:  # leave out what all samples share
            kept["overlap apart"] = _overlap(after[:4].float() - after[:4].float().mean((0, 1)))
    return kept


def _overlap(tokens: Tensor) -> float:
    """The mean cosine of different tokens of a sample."""
    unit, n = torch.nn.functional.normalize(tokens, dim=-1), tokens.shape[1]
    return float(((unit.sum(1).pow(2).sum(-1) - n) / (n * (n - 1))).mean())
