"""Facts about norms: their gains, eps, axes and statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from edgewise.preflight.catalog import CheckFinding, NotAsked, fact, finding, warning
from edgewise.preflight.evidence import TrainingEvidence, median, role
from edgewise.preflight.fingerprint import tensors_in
from edgewise.preflight.observer import ModuleCall


def _norm_calls(evidence: TrainingEvidence) -> list[ModuleCall]:
    calls = [c for c in evidence.seen().calls if c.kept.get("norm")]
    if not calls:
        raise NotAsked("no norm was called")
    return calls


@fact("silent norm", needs="pass")
def silent_norm(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare norms by what they do: their output if the input is not zero.

    Threshold: zero, for a part of a kind of norm or for all norms; a warning if their gains have a gradient. A whole
    kind at zero while others live, or all of them past which the gradient flows, are known designs: a note.
    """
    calls = _norm_calls(evidence)
    silent = sorted({c.name for c in calls if c.kept["silent"]})
    living = {role(c.name) for c in calls if not c.kept["silent"]}
    if silent:
        alive = {n for g in evidence.gradients for n, slope in g.items() if slope is not None and slope.alive}
        order = [c.name for c in evidence.seen().calls]
        before = tuple(f"{name}." for name in order[: order.index(silent[0])])
        flows = any(n.startswith(before) for n in alive)  # past them, to what comes before
        partly = any(role(n) in living for n in silent) or not living
        wakes = all(f"{n}.weight" in alive for n in silent)  # gains of zero that have a gradient learn
        yield finding(
            "note" if not partly or (wakes and flows and not living) else "warning" if wakes else "error",
            silent,
            "Norm layers output zero whatever comes in: their gains are zero.",
            f"{len(silent)} of {len({c.name for c in calls})} norms",
            "set the gains to one (missed by the initialization, or after to_empty)",
        )


@fact("norm eps", needs="pass")
def norm_eps(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare eps of every norm with the variance of its input.

    Threshold: larger than the variance, in at least a quarter of the norms: they do not normalize.
    """
    calls = [c for c in _norm_calls(evidence) if "eps" in c.kept and not c.kept["silent"]]
    large = {c.name: c.kept["eps"] for c in calls if c.kept["eps"] > 1 and c.kept["size"] > 0}
    if large:
        odd = [n for n in large if getattr(evidence.module(n), "eps", 0) >= 1e-3]
        yield finding(
            "warning" if odd or (evidence.fresh and len(large) >= 0.25 * len(calls)) else "note",
            odd or list(large),
            "A norm does not normalize: its eps is larger than the variance of its input.",
            f"eps is {max(large.values()):.2g} times the variance: the norm's output is small",
            "epsilon is 1e-5 or 1e-6; or larger embeddings",
            ratio=max(large.values()),
        )


@fact("norm size", needs="pass")
def norm_size(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the outputs of norms with their gains: a norm's outputs are as large as its gain (or one, or 1 + w).

    Threshold: 3 times larger or smaller in at least half of the norms; fresh weights.
    Cannot decide: norms without gains, which may be meant to give unit vectors.
    """
    calls = [c for c in _norm_calls(evidence) if "unit" in c.kept and not c.kept["silent"]]
    if not calls or not evidence.fresh:
        raise NotAsked("no norm with gains, or trained weights")
    odd = {
        c.name: c.kept["unit"] for c in calls if not 1 / 3 < c.kept["unit"] < 3 and c.kept.get("eps", 0) < 0.1
    }
    if len(odd) >= 0.5 * len(calls):
        size = median(list(odd.values()))
        yield warning(
            list(odd),
            "The outputs of norms are on the wrong scale: they are not of size one.",
            f"a norm's output has size {size:.2g} (root mean square), its gain is one: divided by a sum where a mean "
            f"was meant?",
            "RMSNorm divides by the root of the mean of squares over the features",
            size=size,
        )


@fact("norm axis", needs="pass")
def norm_axis(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the axes that LayerNorm and RMSNorm average over.

    Threshold: tokens or samples among them, in a batch of token sequences.
    Cannot decide: images, whose norms may run over the plane.
    """
    seen, alignment = evidence.seen(), evidence.alignment
    yield from _units(evidence)
    if alignment is None:
        raise NotAsked("no token sequences")
    samples, tokens = alignment.ids.shape
    wrong = []
    for place, shape, normalized in seen.norms_over:
        covered = shape[len(shape) - len(normalized) :]
        if len(shape) == 3 and (
            len(normalized) >= 2 or (covered == (tokens,) and tokens not in _widths(evidence))
        ):
            wrong.append(place or "model")
    if wrong:
        yield warning(
            wrong,
            "A norm averages over the tokens, not over the features of one token.",
            f"its input has {samples} samples of {tokens} tokens, and the token axis is normalized",
            "LayerNorm(width), on the last axis",
        )


def _units(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Vectors that are given length one along the samples or the tokens, not along their entries."""
    shapes = [t.shape for t in tensors_in(evidence.batches[0]) if t.dim()]
    samples, tokens = shapes[0][0], shapes[0][1] if len(shapes[0]) == 2 else 0
    wrong = [
        place or "model"
        for place, shape, axis in evidence.seen().units_over
        if (len(shape) in (2, 3) and axis in (0, -len(shape)) and shape[0] == samples > 2)
        or (len(shape) == 3 and axis in (1, -2) and shape[:2] == (samples, tokens))
    ]
    if wrong:
        yield warning(
            wrong,
            "Vectors are normalized along the wrong axis: over the samples of the batch or the tokens, not over "
            "their entries.",
            f"in {len(wrong)} calls of normalize",
            "F.normalize(x, dim=-1); its default is dim=1",
        )


def _widths(evidence: TrainingEvidence) -> set[int]:
    return {m.weight.shape[1] for m in evidence.model.modules() if isinstance(m, (nn.Embedding, nn.Linear))}


@fact("single sample norm", needs="pass")
def single_sample_norm(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the inputs of batch norms in training.

    Threshold: one value per channel: the output is the bias for every input; momentum 0, or 0.9 and more.
    """
    calls = [c for c in evidence.seen().calls if isinstance(c.module, nn.modules.batchnorm._BatchNorm)]
    if not calls:
        raise NotAsked("no batch norm")
    momentum: list[Any] = [
        c for c in calls if c.module.training and c.module.momentum in (0, 0.9, 0.99, 0.999)
    ]
    if momentum:
        yield warning(
            [c.name for c in momentum],
            "Batch norm never updates its statistics, or keeps the last batch only: its momentum is the weight "
            "of the new batch.",
            f"momentum = {momentum[0].module.momentum}: other libraries give the weight of the old statistics",
            "momentum=0.1",
        )
    blank = []
    for c in calls:
        norm: Any = c.module
        collected = norm.training or norm.running_mean is None or bool(norm.running_mean.any())
        if not collected and bool((norm.running_var == 1).all()):
            blank.append(c.name)
    if blank and evidence.optimizer is not None:
        yield warning(
            blank,
            "Batch norm is in eval mode, and its statistics were never collected: it normalizes nothing.",
            f"{len(blank)} layers are used in training with running mean 0 and variance 1",
            "model.train() while training; freeze batch norm only with trained statistics",
        )
