"""What each verb says of a model, as facts; the one file of this experiment that knows the interface of edgewise."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import warnings
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

import edgewise

from .truth import first_tensor, run

READING = ("structure", "describe", "measure", "audit", "sites")
VERBS = (*READING, "initialize_", "watch")
POSITIONS = {"linear bias": "alibi", "bias": "relative"}
Facts = dict[str, Any]


def structure(model: nn.Module, batch: Any) -> Facts:
    """Lists have one entry for each block; `open` are the facts that are None, with their reasons."""
    found = edgewise.structure(model, batch)
    blocks = [list(block) for block in found.blocks]
    mix = [next((b for b in block if b.kind in ("attention", "mixer")), None) for block in blocks]
    mlp = [next((b for b in block if b.kind == "MLP"), None) for block in blocks]
    asked = {"attention": ("heads", "sees", "positions", "qk_norm"), "MLP": ("activation", "gated")}
    missing = {
        f"{b.kind}.{fact}": dict(b.absent).get(fact, "")
        for block in blocks
        for b in block
        for fact in ("norm", "norm_kind", "skip", "multiplier", *asked.get(b.kind or "", ()))
        if getattr(b, fact) is None and not (fact == "norm_kind" and b.norm == "none")
    }
    remarks = [
        *found.outside,
        *found.left_out,
        *(remark for block in blocks for b in block for remark in b.remarks),
    ]
    return {
        "depth": found.depth,
        "shared": found.shared,
        "absolute": found.absolute,
        "covered": found.covered,
        "kinds": [[b.kind for b in block] for block in blocks],
        "attention": [b.kind == "attention" if b is not None else None for b in mix],
        "heads": [b.heads if b is not None and b.kind == "attention" else None for b in mix],
        "sees": [None if b is None else b.sees for b in mix],
        "window": [None if b is None else b.window for b in mix],
        "positions": [_positions(b) for b in mix],
        "qk_norm": [None if b is None else b.qk_norm for b in mix],
        "norm": sorted({b.norm for block in blocks for b in block if b.norm is not None}),
        "norm_kind": sorted({b.norm_kind for block in blocks for b in block if b.norm_kind is not None}),
        "gated": _one(b.gated for b in mlp if b is not None),
        "activation": _one(b.activation for b in mlp if b is not None),
        "parallel": _one(_parallel(block) for block in blocks),
        "skip": [_skip(block) for block in blocks],
        "attention_branch": [_strength(b) for b in mix],
        "mlp_branch": [_strength(b) for b in mlp],
        "open": missing,
        "said": " | ".join(dict.fromkeys(remarks)),
    }


def describe(model: nn.Module, batch: Any) -> Facts:
    network = edgewise.describe(model, batch)
    if not isinstance(network, edgewise.Architecture):
        return {"depth": getattr(network, "depth", None), "perceptron": True, "said": ""}
    depth = network.depth

    def each(value: Any) -> list[Any]:
        return list(value) if isinstance(value, tuple) else [value] * depth

    skips = [
        a * (1.0 if network.parallel else m)
        for a, m in zip(each(network.attention_skip), each(network.mlp_skip), strict=True)
    ]
    windows = each(network.window)
    kinds = ["causal" if network.causal else "full" if w is None else "" for w in windows]
    sees = [
        ("causal window" if network.causal else "window") if w is not None else kind
        for w, kind in zip(windows, kinds, strict=True)
    ]
    rope, bias = each(network.rope), each(network.position_bias)
    return {
        "depth": depth,
        "heads": [network.heads or None] * depth,
        "kv_heads": network.kv_heads,
        "sees": sees,
        "window": windows,
        "attention": [bool(network.heads) and network.kernel == "softmax"] * depth,
        "norm": [network.norm],
        "norm_kind": [network.norm_kind] if network.norm != "none" else [],
        "gated": network.gated if network.mlp_width else None,
        "activation": (network.activation if isinstance(network.activation, str) else None)
        if network.mlp_width
        else None,
        "positions": [
            "alibi" if network.alibi else "rotary" if r else "relative" if b else "none"
            for r, b in zip(rope, bias, strict=True)
        ],
        "parallel": network.parallel,
        "qk_norm": [network.qk_norm] * depth,
        "skip": skips,
        "attention_branch": [
            b if g else 0.0
            for b, g in zip(each(network.attention_branch), each(network.value_gain), strict=True)
        ],
        "mlp_branch": [
            b if g else 0.0 for b, g in zip(each(network.mlp_branch), each(network.mlp_out_gain), strict=True)
        ],
        "open": {},
        "said": " | ".join((*network.assumed, *network.unmodelled)),
    }


def measure(model: nn.Module, batch: Any) -> Facts:
    trace = edgewise.measure(model, batch)
    entropy = trace.attention_entropy
    heads = None if entropy is None else [row.numel() for row in _rows(entropy)]
    finite = bool(torch.isfinite(torch.as_tensor(trace.norm)).all())
    return {
        "depth": trace.depth,
        "entropies": heads,
        "finite": finite,
        "gradients": trace.log_gradient is not None,
        "said": " | ".join((trace.source, *trace.extrapolated)),
    }


def audit(model: nn.Module, batch: Any) -> Facts:
    findings = edgewise.audit_initialization(model, batch=batch)
    return {
        "findings": [[f.kind.name, f.severity.name, f.parameter, f.observation[:160]] for f in findings],
        "said": "",
    }


def sites(model: nn.Module, batch: Any) -> Facts:
    places = edgewise.models.sites(model, batch)
    attention = [block.attention for block in places.blocks]
    first = attention[0] if attention else None
    stack = places.stacks[0] if places.stacks else None
    return {
        "depth": places.depth,
        "heads": [getattr(a, "heads", None) for a in attention],
        "kv_heads": getattr(first, "kv_heads", None),
        "query": None if first is None else first.query.parameters[0],
        "norm": [stack.norm] if stack is not None and stack.norm else [],
        "parallel": getattr(stack, "parallel", None),
        "said": " | ".join((*places.unrecognized, *places.assumed)),
        "open": {},
    }


def initialize(model: nn.Module, batch: Any) -> Facts:
    """Plan, write, run once, undo; parameters that changed, and whether undo restored every bit."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    plan = edgewise.critical_plan(model, batch)
    changed_by_plan = [name for name, p in model.named_parameters() if not _same(before[name], p)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        applied = edgewise.initialize_(model, plan=plan, generator=1)
    written = [name for name, p in model.named_parameters() if not _same(before[name], p)]
    with torch.no_grad():
        finite = bool(torch.isfinite(first_tensor(run(model, batch)).float()).all())
    applied.undo()
    restored = all(_same(before[name], p) for name, p in model.named_parameters())
    return {
        "depth": plan.depth,
        "written": written,
        "finite": finite,
        "restored": restored,
        "wrote while planning": changed_by_plan,
        "frozen written": sorted(frozen.intersection(written)),
        "reached": plan.reached,
        "said": " | ".join((plan.diagnosis, *plan.notes)),
    }


def watch(model: nn.Module, batch: Any) -> Facts:
    """Three steps of SGD with a loss; and the same steps unwatched must end in the same bits."""
    twin = _twin(model)
    words = io.StringIO()
    with contextlib.redirect_stderr(words):
        handle = _steps(model, batch, watched=True)
    row = handle.row()
    blocks = sorted({int(k.split(".")[1]) for k in row if k.startswith("block.") and k.endswith(".norm")})
    seen = [i for i in blocks if math.isfinite(row.get(f"block.{i}.norm", math.nan))]
    entropies = [i for i in blocks if math.isfinite(row.get(f"block.{i}.entropy", math.nan))]
    gradients = [i for i in blocks if math.isfinite(row.get(f"block.{i}.gradient", math.nan))]
    heads = _heads_stored() if entropies else None
    same = None
    if twin is not None:
        _steps(twin, batch, watched=False)
        same = all(_same(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    return {
        "depth": len(seen),
        "entropies": len(entropies),
        "gradients": len(gradients),
        "gradient_norm": math.isfinite(row.get("gradient_norm", math.nan)),
        "heads": heads,
        "loss": math.isfinite(row.get("loss", math.nan)),
        "same as unwatched": same,
        "said": words.getvalue(),
    }


ASK: dict[str, Callable[[nn.Module, Any], Facts]] = {
    "structure": structure,
    "describe": describe,
    "measure": measure,
    "audit": audit,
    "sites": sites,
    "initialize_": initialize,
    "watch": watch,
}


def written_among(names: list[str], patterns: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def _steps(model: nn.Module, batch: Any, watched: bool) -> Any:
    torch.manual_seed(2)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, criterion = torch.optim.SGD(trained, 1e-3), nn.MSELoss()
    handle = (
        edgewise.watch(model, optimizer=optimizer, criterion=criterion, everything=True, to="watched")
        if watched
        else None
    )
    for _ in range(3):
        optimizer.zero_grad()
        out = first_tensor(run(model, batch)).float()
        criterion(out, torch.ones_like(out)).backward()
        optimizer.step()
    if handle is not None:
        handle.close()
    return handle


def _heads_stored() -> list[int]:
    """Of each block with attention, how many heads the folder has an entropy of."""
    columns = edgewise.read("watched", heads=True, frame=False)
    names = [
        name for name in columns if name.endswith(".entropy") and ".head." in name and _finite(columns[name])
    ]
    counts = Counter(int(name.split(".")[1]) for name in names)
    return [counts[block] for block in sorted(counts)]


def _finite(column: Any) -> bool:
    return bool(torch.isfinite(torch.as_tensor(column, dtype=torch.float64)).any())


def _twin(model: nn.Module) -> nn.Module | None:
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError):  # a model that cannot be copied is compared with nothing
        return None


def _rows(entropy: Any) -> list[Any]:
    """Per site with attention, the finite entries over heads."""
    table = torch.as_tensor(entropy).double().reshape(-1, *entropy.shape[-2:])[0]
    return [row[torch.isfinite(row)] for row in table if bool(torch.isfinite(row).any())]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    other = other.detach()
    return one.shape == other.shape and bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)))


def _one(values: Any) -> Any:
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _positions(branch: Any) -> str | None:
    if branch is None or branch.positions is None:
        return None
    first = branch.positions.partition(" and ")[0]
    return POSITIONS.get(first, first)


def _parallel(block: list[Any]) -> bool | None:
    steps = {b.kind: b.step for b in block if b.kind in ("attention", "mixer", "MLP")}
    if "MLP" not in steps or len(steps) < 2:
        return None
    return any(step == steps["MLP"] for kind, step in steps.items() if kind != "MLP")


def _skip(block: list[Any]) -> float | None:
    steps = {b.step: b.skip for b in block}
    return None if None in steps.values() else math.prod(steps.values())


def _strength(branch: Any) -> float | None:
    if branch is None or branch.multiplier is None:
        return None
    if "gives nothing at this initialization" in branch.remarks:
        return 0.0
    return float(branch.multiplier) * (1.0 if branch.layer_scale is None else float(branch.layer_scale))
