"""What batches are made of: which of their numbers have changed since a step, and which rows come again and again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edgewise.arrays import Array
from edgewise.models.inputs import tensors
from edgewise.monitor.capture import Call
from edgewise.monitor.hooks import IGNORED

KEPT = 60  # batches that are remembered
ROWS, NUMBERS = 128, 256  # of a batch, and of each row, that are inspected, evenly spread
BINS = 512  # of a histogram of tokens or classes; larger ones wrap around
AWAY = 8.0  # times its scatter, from which a number of a batch is another one
SCALED, MOVED = math.log(1.5), 0.5  # change of a deviation, and of a mean in deviations, that matter
LOUD = 10.0  # times the usual deviation of the inputs, which makes a batch an outlier
OTHERS = 0.3  # of the tokens or labels are others than before
FEW_ROWS, OFTEN = 128, 4  # different rows, each seen so often: they are learned by heart


@dataclass(frozen=True)
class BatchProfile:
    """The numbers of one batch."""

    step: int
    shape: tuple[int, ...]  # of the first input
    sizes: dict[str, float]  # statistics of its floating inputs, by name
    shares: dict[str, Array]  # histograms of tokens and labels, by name
    tokens: int  # how many, and the largest
    largest: int
    rows: tuple[int, ...]  # a number for each row of inputs and labels


def profile_of(step: int, call: Call | None, labels: Tensor | None) -> BatchProfile | None:
    """Read the first rows of a batch; None if nothing of it is a tensor."""
    inputs = [] if call is None else [t for t in tensors([*call[0], *call[1].values()]) if _plain(t)]
    labels = labels if labels is not None and _plain(labels) else None
    if not inputs:
        return None
    first = inputs[0]
    count = min(len(first), ROWS)
    sizes: dict[str, float] = {}
    shares: dict[str, Array] = {}
    tokens = largest = 0
    keys = torch.zeros(count, dtype=torch.float64)
    aligned = [t for t in (*inputs[:3], *([] if labels is None else [labels])) if len(t) == len(first)]
    for place, t in enumerate(aligned):
        flat = _few(t, count).double()
        weights = (
            torch.arange(1, flat.shape[1] + 1, dtype=torch.float64).mul_(0.6180339887498949 + place).frac_()
        )
        keys += flat.nan_to_num() @ (weights + 0.5)
    for place, t in enumerate(inputs[:3]):
        name = "the inputs" if not place else f"input {place + 1}"
        part = t.detach()[:ROWS]
        if place and labels is not None and part.data_ptr() == labels.data_ptr():
            continue
        if part.is_floating_point():
            part = _few(part, count).float()
            sizes[f"mean of {name}"] = float(part.mean())
            sizes[f"deviation of {name}"] = float(part.std(correction=0))
            sizes[f"deviation between the rows of {name}"] = float(part.std(0, correction=0).mean())
        elif part.dim() > 1 and part.dtype in (torch.int64, torch.int32):
            ids = part.reshape(len(part), -1).cpu()
            tokens, largest = tokens + ids.numel(), max(largest, int(ids.max()) if ids.numel() else 0)
            shares[f"tokens of {name}"] = _shares(ids)
            shares[f"first tokens of {name}"] = _shares(ids[:, 0])
    if labels is not None and labels.numel():
        shares["labels"] = _shares(labels.detach()[:ROWS].cpu())
    return BatchProfile(
        step,
        tuple(first.shape),
        sizes,
        shares,
        tokens,
        largest,
        tuple(hash(round(float(k), 6)) for k in keys),
    )


def _plain(t: Tensor) -> bool:
    """Return whether it has rows of numbers: no scalar, none that is empty, sparse, nested, sharded or complex."""
    return (
        t.layout is torch.strided
        and not (t.is_nested or t.is_complex() or t.is_meta or hasattr(t, "to_local"))
        and t.dim() > 0
        and t.numel() > 0
    )


def _few(t: Tensor, rows: int) -> Tensor:
    """(rows, numbers) of a tensor, on the host."""
    flat = t.detach()[:rows].flatten(1) if t.dim() > 1 else t.detach()[:rows, None]
    return flat[:, :: -(-flat.shape[1] // NUMBERS)].cpu()


def _shares(values: Tensor) -> Array:
    kept = values.reshape(-1).long()
    kept = kept[kept != IGNORED] % BINS
    counts = torch.bincount(kept, minlength=BINS).double().numpy()
    return np.asarray(counts / max(counts.sum(), 1.0))


@dataclass(frozen=True)
class DataChange:
    """What of the batches is another than before."""

    what: str  # with its numbers
    meant: bool  # it may be a curriculum: longer sequences, other sizes
    constant: bool = False


class BatchProfiles:
    """The profiles of the sampled batches."""

    def __init__(self) -> None:
        self.seen: deque[BatchProfile] = deque(maxlen=KEPT)
        self.largest = self.tokens = 0  # token, and how many there were

    def see(self, step: int, call: Call | None, labels: Tensor | None) -> None:
        """Take in the batch of a sampled step."""
        profile = profile_of(step, call, labels)
        if profile is not None:
            self.seen.append(profile)
            self.tokens += profile.tokens
            self.largest = max(self.largest, profile.largest)

    def repeated(self) -> tuple[int, int] | None:
        """Return (different rows, rows) of the last batches, if they are few rows that come again in each.

        Rows that are alike by chance are so within a batch too; those of a short list are not.
        """
        last = list(self.seen)[-2 * OFTEN * 2 :]
        rows = [row for profile in last for row in profile.rows]
        if len(last) < 2 * OFTEN or not rows:
            return None
        different = len(set(rows))
        size = len(rows) / len(last)
        known = set().union(*(profile.rows for profile in last[:-OFTEN]))
        fresh = np.mean([row not in known for profile in last[-OFTEN:] for row in profile.rows])
        inside = np.mean([len(set(profile.rows)) / max(len(profile.rows), 1) for profile in last])
        few = different <= max(FEW_ROWS, 2 * size) and different * OFTEN <= len(rows)
        return (different, len(rows)) if few and fresh == 0 and inside > 0.95 and size > 1 else None

    def outliers(self) -> tuple[int, float] | None:
        """Return (how many batches, times the usual deviation) if a few of them have inputs of another size."""
        sizes = [p.sizes.get("deviation of the inputs", math.nan) for p in self.seen]
        usual = float(np.median(sizes)) if len(sizes) >= 20 else math.nan
        far = [size / usual for size in sizes[:-1] if size > LOUD * usual] if usual > 0 else []
        return (
            (len(far), max(far)) if 2 <= len(far) <= len(sizes) / 5 and not sizes[-1] > LOUD * usual else None
        )

    def changed(self, since: int, *, alone: bool = False, later: bool = False) -> DataChange | None:
        """Return what of the batches from that step on is another than before it, the strongest change.

        alone: only the batch of that step; later: only those behind it
        """
        before = [p for p in self.seen if p.step < since][-20:]
        after = [p for p in self.seen if p.step >= since + later and (p.step == since or not alone)]
        if len(before) < 5 or not after:
            return None
        found = [
            *_sizes_changed(before, after),
            *_shares_changed(before, after),
        ]
        best = max(found, key=lambda pair: pair[0], default=None)
        if after[-1].shape[1:] != before[-1].shape[1:]:
            return DataChange(
                f"inputs have the shape {after[-1].shape}, before {before[-1].shape}", meant=True
            )
        return None if best is None else best[1]


def _sizes_changed(
    before: Sequence[BatchProfile], after: Sequence[BatchProfile]
) -> list[tuple[float, DataChange]]:
    found: list[tuple[float, DataChange]] = []
    for name in before[-1].sizes:
        old = np.array([p.sizes.get(name, math.nan) for p in before])
        new = float(np.median([p.sizes.get(name, math.nan) for p in after]))
        middle = float(np.median(old))
        scale = max(
            (abs(p.sizes.get(f"deviation of {name.split(' of ')[-1]}", 0.0)) for p in before), default=0.0
        )
        scatter = max(1.4826 * float(np.median(np.abs(old - middle))), 0.02 * scale, 1e-12)
        far = abs(new - middle) / scatter
        if name.startswith("mean"):
            matters = abs(new - middle) > MOVED * scale
        else:
            matters = abs(math.log(max(new, 1e-12) / max(middle, 1e-12))) > SCALED
        if far > AWAY and matters:
            constant = name.startswith("deviation between") and new < 1e-3 * middle
            words = f"the {name} was {middle:.3g} and is {new:.3g}"
            words = f"{name.split(' of ')[-1]} are constant: {words}" if constant else words
            found.append((math.inf if constant else far, DataChange(words, meant=False, constant=constant)))
    return found


def _shares_changed(
    before: Sequence[BatchProfile], after: Sequence[BatchProfile]
) -> list[tuple[float, DataChange]]:
    found: list[tuple[float, DataChange]] = []
    for name in before[-1].shares:
        old = [p.shares[name] for p in before if name in p.shares]
        new = np.mean([p.shares[name] for p in after if name in p.shares] or [old[-1]], axis=0)
        usual = np.mean(old, axis=0)
        distance = 0.5 * float(np.abs(new - usual).sum())
        apart = max(0.5 * float(np.abs(each - usual).sum()) for each in old)
        if distance > max(OTHERS, 1.5 * apart):
            common = int(np.argmax(new - usual))
            words = (
                f"{distance:.0%} of the {name} are others than before: {common} was {usual[common]:.0%} of them and is "
                f"{new[common]:.0%}"
            )
            if name.startswith("first") and not found:
                words = f"tokens stand elsewhere (padding on the other side, another start token): {words}"
            one = bool(new.max() > 0.99 > usual.max())
            what = f"the {name} are constant: {words}" if one else words
            found.append(
                (math.inf if one else 10 * distance / max(apart, 0.05), DataChange(what, False, one))
            )
    return found
