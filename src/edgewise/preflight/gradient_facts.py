"""Facts about gradients: who gets none, where they stop, how they run through the depth."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise

from torch import nn

from edgewise.preflight.catalog import CheckFinding, NotAsked, error, fact, finding, note, warning
from edgewise.preflight.evidence import TrainingEvidence, parent, rms

EXPERT = re.compile("expert", re.IGNORECASE)


def _gradients(evidence: TrainingEvidence) -> None:
    if not evidence.gradients:
        seen = evidence.seen()
        if seen.error is not None or seen.value is None or not math.isfinite(seen.number):
            raise NotAsked("the pass failed")
        raise NotAsked("no backward pass was made")


@fact("no gradient", needs="pass", cost="S")
def no_gradient(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare `.grad` of every trainable parameter after backward.

    Threshold: None in a layer that ran and that the loss depends on: an error; if it does not, and for layers that did
    not run and experts: a note.
    Cannot decide: parts that are meant to be trained later.
    """
    seen = evidence.seen()
    if seen.value is not None and seen.error is None and not seen.value.requires_grad:
        yield finding(
            "error" if evidence.step is None else "warning",  # a step may need none
            "loss" if evidence.trainable else "model",
            "The loss has no gradient: it is detached, or nothing is trainable.",
            f"{len(evidence.trainable)} parameters require a gradient",
            "do not call .item(), .detach() or no_grad before backward",
        )
        return
    _gradients(evidence)
    trainable = evidence.trainable
    none = [
        n for n in trainable if all(g.get(n) is None for g in evidence.gradients) and not EXPERT.search(n)
    ]
    called = {c.name for c in seen.calls}
    if trainable and len(none) == len(trainable):
        yield error(
            ["loss", *none],
            "No parameter gets a gradient.",
            f"all {len(none)} have none",
            "is the loss computed from the model's outputs?",
        )
        return
    idle = [
        n for n in none if parent(n) not in called or re.search(r"(^|\.)pooler\.", n)
    ]  # run, and often not used
    empty = {c.name for c in seen.calls if 0 in c.shape}  # such as a window that is longer than the batch
    lost = [
        n
        for n in none
        if n not in idle
        and (_own_work(evidence, n) or id(trainable[n]) in seen.used)
        and not any(n.startswith(e + ".") for e in empty if e)
    ]
    chosen = [n for n in lost if any(n.startswith(name + ".") for name in seen.discrete if name)]
    if chosen:
        yield note(
            chosen,
            "Layers choose tokens or experts by their indices, through which no gradient comes.",
            f"{len(chosen)} parameters get none: they learn only from a loss of their own",
        )
        lost = [n for n in lost if n not in chosen]
    if lost:
        share = sum(trainable[n].numel() for n in lost) / sum(p.numel() for p in trainable.values())
        many = f"{len(lost)} parameters ({share:.0%} of the trainable ones), from {lost[0]} to {lost[-1]}"
        used = evidence.data.get("loss depends", True)
        yield finding(  # of what is computed a small part may be only watched, or wait for its batch
            "error" if used else "warning" if share > 0.2 else "note",
            [*_cut(evidence, lost), *lost],
            "Trainable layers that run get no gradient: "
            + ("the graph is cut." if used else "their output is not used, the loss does not depend on it."),
            many + (", and the loss depends on them" if "loss depends" in evidence.data and used else ""),
            "detach(), .data, no_grad or re-entrant checkpointing (use_reentrant=False) cuts the graph after them"
            if used
            else "use what they give, or leave them out",
            share=share,
        )
    passed = [n for n in idle if _passed_by(evidence, n, called)]
    if passed:
        yield error(
            passed,
            "Trainable layers never run, though the module around them is used: its weights are read past its forward.",
            f"{len(passed)} parameters (an adapter?) get no gradient: what wraps them was not called, and the weights "
            f"beside them entered the pass",
            "wrap a layer that is called; nn.MultiheadAttention reads out_proj.weight and never calls out_proj",
        )
        idle = [n for n in idle if n not in passed]
    if idle:
        yield note(
            idle,
            "Trainable parameters belong to layers that never ran on this batch.",
            f"{len(idle)} parameters",
        )


def _passed_by(evidence: TrainingEvidence, name: str, called: set[str]) -> bool:
    """Return whether a matrix lies in a module that did not run and of which other weights were used."""
    around = parent(parent(name))
    lists = (nn.ModuleList, nn.ModuleDict, type(None))  # are never called
    if evidence.trainable[name].dim() < 2 or around in called or isinstance(evidence.module(around), lists):
        return False
    beside = [
        p
        for n, p in evidence.parameters.items()
        if n.startswith(around + ".") and parent(n) != parent(name) and parent(n) not in called
    ]
    return any(id(p) in evidence.seen().used and len(evidence.names[id(p)]) == 1 for p in beside)


def _own_work(evidence: TrainingEvidence, name: str) -> bool:
    """Return whether the parameter's own module computes: containers hold parameters that a mode may leave unused."""
    module = evidence.module(parent(name))
    return module is not None and not list(module.children())


def _cut(evidence: TrainingEvidence, lost: list[str]) -> list[str]:
    """The module where the graph ends: its input is differentiable and its output is not."""
    owners = {parent(n) for n in lost}
    for call in evidence.seen().calls:
        before, after = call.differentiable
        holds = any(o == call.name or o.startswith(call.name + ".") for o in owners)
        if not after and holds and (before or any(True for _ in call.module.parameters())) and call.name:
            return [call.name]
    last = max((i for i, c in enumerate(evidence.seen().calls) if c.name in owners), default=0)
    name = evidence.seen().calls[last].name if evidence.seen().calls else ""
    return [name] if name else []


@fact("dead", needs="steps")
def dead(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare gradients of up to four steps.

    Threshold: exactly zero in all: one zero factor wakes up after a step, three in a chain after three.
    Cannot decide: experts and rows that this batch does not use.
    """
    _gradients(evidence)
    still = [
        n
        for n in evidence.trainable
        if evidence.gradients[0].get(n) is not None
        and not EXPERT.search(n)
        and not any((s := g.get(n)) is not None and s.alive for g in evidence.gradients)
    ]
    if not still or len(evidence.gradients) < 2:
        return
    if evidence.steps and all(max(s.rates, default=0.0) == 0 for s in evidence.steps):
        return  # nothing moved: zeros cannot wake up
    zero = [n for n in still if not rms(evidence.trainable[n]) > 0]
    heavy = sum(evidence.trainable[n].numel() for n in still)
    tiny = heavy < 0.005 * sum(p.numel() for p in evidence.trainable.values()) and not zero
    tiny = (
        tiny
        or heavy <= 4
        or not any(s.loss for s in evidence.steps)
        or all(evidence.trainable[n].dim() < 2 and n.endswith("bias") for n in still)
    )
    shift = all(re.search(r"(^|[._])k(ey)?(_proj|_lin)?\.bias$|key\.bias$", n) for n in still)
    yield finding(
        "note" if tiny or shift else "warning",
        still,
        "Parameters never get a gradient that is not zero.",
        f"exactly zero in {len(evidence.gradients)} steps"
        + (f"; {zero[0]} is zero itself: both factors of a product are zero and stay so" if zero else ""),
        "give one factor of the product random entries"
        if zero
        else "their output is masked, saturated or multiplied by zero",
        steps=len(evidence.gradients),
    )


@fact("gradient not finite", needs="pass")
def gradient_not_finite(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare every gradient of the observed pass.

    Threshold: NaN or infinity while the loss is finite.
    """
    _gradients(evidence)
    bad = [n for n, s in evidence.gradients[0].items() if s is not None and not s.finite]
    if bad:
        yield error(
            bad,
            "Gradients are NaN or infinite, though the loss is finite.",
            f"{len(bad)} of {len(evidence.trainable)} gradients",
            "look for sqrt or norm at zero, where() over NaN, or attention rows without keys",
        )


@fact("gradient through depth", needs="pass")
def gradient_through_depth(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare gradient size over the blocks, for the same matrix of each.

    Threshold: 1e4 times between first and last, or 1e3 at one step between neighbors; fresh weights.
    Cannot decide: finer changes: see `edgewise measure`.
    """
    _gradients(evidence)
    if not evidence.fresh:
        raise NotAsked("the weights are trained")
    stacks: dict[str, list[tuple[str, float]]] = {}
    for block in evidence.blocks:
        total = [
            rms(s.entries) ** 2 * s.entries.numel()
            for n, s in evidence.gradients[0].items()
            if s is not None and n.startswith(block + ".") and s.entries.numel() > 64
        ]
        if total and sum(total) > 0:
            stacks.setdefault(parent(block), []).append((block, math.sqrt(sum(total))))
    if not any(len(items) >= 3 for items in stacks.values()):
        raise NotAsked("no stack of blocks")
    for items in stacks.values():
        sizes = [size for _, size in items]
        if len(items) < 3:
            continue
        jumps = [max(a, b) / min(a, b) for a, b in pairwise(sizes)]
        whole = max(sizes[0], sizes[-1]) / min(sizes[0], sizes[-1])
        if whole > 1e4 or max(jumps) > 1e3:
            at = jumps.index(max(jumps))
            vanishes = sizes[0] < sizes[-1]
            yield warning(
                [items[at][0] if max(jumps) > 1e3 else items[0][0], items[at + 1][0]],
                f"The gradient {'vanishes' if vanishes else 'explodes'} on its way to the first block.",
                f"its size is {sizes[-1]:.2g} in the last block and {sizes[0]:.2g} in the first",
                "check skip connections and the scale of the weights; see `edgewise fix`",
                ratio=whole,
            )


@fact("not in the model", needs="pass")
def not_in_the_model(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare Parameters that the pass uses with those that the model and the optimizer list.

    Threshold: any that requires a gradient.
    Cannot decide: a second network of the loss: pass it with `also`.
    """
    loose = evidence.seen().loose
    if loose:
        places = sorted({place or "model" for place, _ in loose.values()})
        shapes = sorted({str(tuple(p.shape)) for _, p in loose.values()})
        yield finding(
            "error" if any(place for place, _ in loose.values()) else "warning",
            places,
            "Parameters are used that model.parameters() does not list: they are not registered.",
            f"{len(loose)} parameters, of shapes {', '.join(shapes[:3])}: not moved, not kept in checkpoints",
            "put layers in nn.ModuleList and not in a Python list; give a second network of the loss in also=[...]",
            count=len(loose),
        )
