"""Facts about the batches that were given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from edgewise.preflight.catalog import CheckFinding, NotAsked, error, fact, note, warning
from edgewise.preflight.evidence import TrainingEvidence, median, rms
from edgewise.preflight.observer import tensors_in


def _batches(evidence: TrainingEvidence) -> list[Any]:
    if not evidence.batches:
        raise NotAsked("no batches were given")
    return evidence.batches


def _inputs(batch: Any) -> list[Tensor]:
    return [t for t in tensors_in(batch) if t.numel()]


@fact("data", needs="data")
def data(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare every floating input of all batches given (up to 300).

    Threshold: NaN or infinity; 50 times the median batch; root mean square above 20: not normalized.
    Cannot decide: batches that were not given.
    """
    sizes = []
    for k, batch in enumerate(_batches(evidence)):
        largest = 0.0
        for i, tensor in enumerate(t for t in _inputs(batch) if t.is_floating_point()):
            if not tensor.isfinite().all():
                yield error(
                    ["data", f"batch {k}"],
                    "A batch holds NaN or infinity.",
                    f"batch {k}: {int((~tensor.isfinite()).sum())} of {tensor.numel()} entries",
                    "drop or repair this batch",
                    batch=k,
                )
                continue
            largest = max(largest, float(tensor.abs().max()))
            if k == 0 and i == 0 and tensor.dim() >= 2 and rms(tensor) > 20:
                yield warning(
                    "data",
                    "The inputs are not normalized.",
                    f"mean {float(tensor.float().mean()):.3g}, spread {float(tensor.float().std()):.3g}",
                    "subtract the mean and divide by the spread of the inputs",
                    size=rms(tensor),
                )
        sizes.append(largest)
    middle = median(sizes)
    for k, size in enumerate(sizes):
        if len(sizes) >= 3 and middle > 0 and size > 50 * middle:
            yield warning(
                ["data", f"batch {k}"],
                "One batch is on another scale than the others.",
                f"batch {k} has values up to {size:.3g}, the median batch up to {middle:.3g}",
                "look at this batch",
                batch=k,
            )


@fact("same batch", needs="data")
def same_batch(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the batches with one another.

    Threshold: more than half of at least 3 are equal.
    Cannot decide: overfitting one batch on purpose.
    """
    batches = _batches(evidence)
    if len(batches) < 3:
        raise NotAsked("fewer than three batches")
    prints: dict[Any, list[int]] = {}
    for k, batch in enumerate(batches):
        key = tuple((tuple(t.shape), _checksum(t)) for t in _inputs(batch))
        prints.setdefault(key, []).append(k)
    same = max(prints.values(), key=len)
    if len(same) > len(batches) // 2 and len(same) > 1:
        yield error(
            "data",
            "The loader gives the same batch again and again.",
            f"{len(same)} of {len(batches)} batches are equal",
            "iter(loader) inside the loop restarts it at every step; a fixed seed in the dataset repeats "
            "its draws",
            equal=len(same),
        )


def _checksum(tensor: Tensor) -> tuple[float, float]:
    values = tensor.detach().reshape(-1)[: 1 << 16].double()
    weights = torch.arange(1, values.numel() + 1, dtype=torch.float64, device=values.device)
    return float(values.sum()), float((values * weights.sqrt()).sum())


@fact("same samples", needs="data")
def same_samples(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the samples within the first batches.

    Threshold: all of at least 4 are equal in the largest input.
    """
    equal = 0
    batches = _batches(evidence)[:3]
    for batch in batches:
        tensor = max(_inputs(batch), key=lambda t: t.numel(), default=None)
        if tensor is None or tensor.dim() < 2 or tensor.shape[0] < 4 or tensor[0].numel() < 4:
            raise NotAsked("fewer than four samples in a batch")
        equal += bool((tensor == tensor[:1]).all())
    if equal == len(batches):
        yield error(
            "data",
            "All samples of a batch are equal.",
            f"in the first {equal} batches",
            "check the dataset's index and the collate function",
        )


@fact("inputs changed in place", needs="loss")
def inputs_changed(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the first batch before and after the loss saw a copy of it.

    Threshold: floating inputs or token ids differ: the next epoch sees others.
    Cannot decide: labels that are masked in place: harmless, not reported.
    """
    changed = evidence.data.get("changed")
    if changed is None:
        raise NotAsked("no loss was run")
    if changed:
        yield note(
            "data",
            "The loss writes into its batch.",
            f"{changed} tensors of the batch differ after it",
            "clone before writing: a second epoch sees the changed data",
        )
