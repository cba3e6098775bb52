"""What batches are made of, and what else happened in a run that may explain a later symptom.

Which numbers of the batches have changed since a step, which rows come again and again; data of another shape, other
optimizers, weights of the loss. Events are harmless in most runs: they are named where a symptom follows them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from edgewise.arrays import Array
from edgewise.models.inputs import tensors
from edgewise.monitor.alarm import AlarmKind, Detection
from edgewise.monitor.capture import Call
from edgewise.monitor.hooks import IGNORED
from edgewise.monitor.series import History

KEPT = 60  # batches that are remembered
ROWS, NUMBERS = 128, 256  # of a batch, and of each row, that are inspected, evenly spread
BINS = 512  # of a histogram of tokens or classes; larger ones wrap around
AWAY = 8.0  # times its scatter, from which a number of a batch is another one
SCALED, MOVED = math.log(1.5), 0.5  # change of a deviation, and of a mean in deviations, that matter
LOUD = 10.0  # times the usual deviation of the inputs, which makes a batch an outlier
SWOLLEN = 1e3  # times the deviation of the first batches: pixels of 255 are a factor of as many at most
OTHERS = 0.3  # of the tokens or labels are others than before
OF_ONE_LABEL = 10  # batches
LONG_KNOWN, FEWER = 10, 8  # batches before a change; times fewer rows in each
AGREE, CONTRADICTED = 5, 0.4  # batches; and their rows, whose input has several labels
SURE = 40.0  # nats against that a class is missing by chance

WORSE = 0.05  # of the first loss: what the loss must have risen by since
OUTWEIGHS = 8.0  # times its first weight, to which a term of the loss has grown, and still grows
EXTRA = 0.25  # of the steps at most have more backward passes than the others
PASSES = 60  # steps whose backward passes are remembered
LATELY = 12  # and of them the last, among which one of them is
GROWN = 4  # times the backward passes of a step
SMALLER = 20.0  # times smaller steps, of an optimizer that stands in the place of another
SETTLED = 4  # rows behind an exchange that are compared with those before


@dataclass(frozen=True)
class BatchProfile:
    """The numbers of one batch."""

    step: int
    shape: tuple[int, ...]  # of the first input
    sizes: dict[str, float]  # statistics of its floating inputs, by name
    shares: dict[str, Array]  # histograms of tokens and labels, by name
    tokens: int  # how many, and the largest
    largest: int
    rows: tuple[float, ...]  # a number for each row of inputs and labels
    inputs: tuple[float, ...] = ()  # and for each row of the first input
    labels: tuple[float, ...] = ()  # if there is one for each row


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
    own = _few(first, count).double().nan_to_num()
    own = own @ torch.arange(1, own.shape[1] + 1, dtype=torch.float64).mul_(0.6180339887498949).frac_()
    each = labels is not None and labels.shape == (len(first),)
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
        tuple(keys.mul(1e6).round().tolist()),
        tuple(own.mul(1e6).round().tolist()),
        tuple(map(float, labels[:count].tolist())) if each and labels is not None else (),
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
    broken: bool = False  # another size of the inputs, or a constant: no other source has that
    constant: bool = False


class BatchProfiles:
    """The profiles of the sampled batches."""

    def __init__(self) -> None:
        self.seen: deque[BatchProfile] = deque(maxlen=KEPT)
        self.opening: list[BatchProfile] = []  # the first ones
        self.largest = self.tokens = 0  # token, and how many there were

    def see(self, step: int, call: Call | None, labels: Tensor | None) -> None:
        """Take in the batch of a sampled step."""
        profile = profile_of(step, call, labels)
        if profile is not None:
            self.seen.append(profile)
            if len(self.opening) < LONG_KNOWN:
                self.opening.append(profile)
            self.tokens += profile.tokens
            self.largest = max(self.largest, profile.largest)

    def broke(self) -> tuple[int, str] | None:
        """Return (step, what) once where batches have had another shape for three rows, and one shape before."""
        last = list(self.seen)[-LONG_KNOWN - 3 :]
        before, now = last[:-3], last[-3:]
        if len(before) < 5:
            return None
        old, new = ({p.shape[1:] for p in each} for each in (before, now))
        if len(old) == len(new) == 1 and old != new:
            return now[0].step, f"inputs have the shape {now[0].shape}, before {before[-1].shape}"
        counts = [p.shape[0] for p in before]
        if max(p.shape[0] for p in now) * FEWER <= min(counts) and now[0].shape[0] < before[-1].shape[0]:
            return now[0].step, (
                f"batches have become smaller, from {before[-1].shape[0]} to {now[0].shape[0]} rows, so that the "
                "gradient is noisier at the same learning rate"
            )
        return None

    def drifted(self) -> str:
        """Say what of the inputs is another than at the start, though it has not jumped."""
        last = list(self.seen)[-5:]
        if len(self.opening) < LONG_KNOWN or len(last) < 5 or last[0].step <= self.opening[-1].step:
            return ""
        found = _sizes_changed(self.opening, last)
        return max(found, key=lambda pair: pair[0])[1].what if found else ""

    def contradicted(self) -> tuple[int, int] | None:
        """Return (rows, of all) of the last batches whose input is also that of a row with another label."""
        last = [p for p in list(self.seen)[-AGREE:] if p.labels]
        if len(last) < AGREE:
            return None
        rows = 0
        for p in last:
            by_input: dict[float, set[float]] = {}
            for key, label in zip(p.inputs, p.labels, strict=True):
                by_input.setdefault(key, set()).add(label)
            rows += sum(len(by_input[key]) > 1 for key in p.inputs)
        total = sum(len(p.inputs) for p in last)
        return (rows, total) if rows > CONTRADICTED * total else None

    def vanished(self) -> tuple[int, float, int] | None:
        """Return (label, its share before, step) of a class that no label of the last batches has any more."""
        known = [(p.step, p.shares["labels"]) for p in self.seen if "labels" in p.shares and p.labels]
        if len(known) < 2 * LONG_KNOWN + 10:
            return None
        shares = np.array([share for _, share in known])
        sizes = np.array([len(p.labels) for p in self.seen if "labels" in p.shares and p.labels])
        for label in np.flatnonzero(shares[:10].mean(0) > 0.05):
            gone = len(shares) - 1 - int(np.flatnonzero(shares[:, label])[-1])
            before = float(shares[: len(shares) - gone, label].mean())
            others = np.delete(shares, label, 1)
            new = bool((others[-gone:].mean(0) > 0.05)[others[:-gone].max(0) == 0].any()) if gone else True
            if gone >= 10 and sizes[-gone:].sum() * math.log1p(-min(before, 0.99)) < -SURE and not new:
                return int(label), before, known[-gone][0]
        return None

    def label_entropy(self) -> float:
        """Return the entropy of the labels of all batches at hand, in nats: the loss of knowing their frequencies."""
        shares = [p.shares["labels"] for p in self.seen if "labels" in p.shares]
        mean = np.mean(shares, axis=0) if len(shares) >= LONG_KNOWN else np.zeros(0)
        return float(-(mean[mean > 0] * np.log(mean[mean > 0])).sum()) if len(mean) else math.inf

    def one_label(self) -> bool:
        """Return whether the last batches all have one label, and the same one: a rare class is absent from a few."""
        shares = [p.shares["labels"] for p in list(self.seen)[-OF_ONE_LABEL:] if "labels" in p.shares]
        alike = len({int(np.argmax(s)) for s in shares}) == 1
        return len(shares) == OF_ONE_LABEL and alike and min(float(s.max()) for s in shares) == 1.0

    def last_rows(self, count: int) -> list[frozenset[float]]:
        """Return the rows of the last batches; none if their steps could be those of one batch of a short epoch."""
        last = list(self.seen)[-count:]
        apart = math.gcd(*(b.step - a.step for a, b in pairwise(last)))
        return [frozenset(p.rows) for p in last] if apart == 1 and len(last) == count else []

    def swollen(self) -> tuple[float, float] | None:
        """Return the deviation of the inputs at first and now, if all of the last are far from all of the first."""
        name = "deviation of the inputs"
        first = [p.sizes.get(name, math.nan) for p in self.opening]
        last = [p.sizes.get(name, math.nan) for p in list(self.seen)[-LONG_KNOWN:]]
        if len(first) < LONG_KNOWN or not min(first) > 0:
            return None
        grown = min(last) > SWOLLEN * max(first)
        return (float(np.median(first)), last[-1]) if grown else None

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
            found.append((math.inf if constant else far, DataChange(words, False, True, constant)))
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
                (math.inf if one else 10 * distance / max(apart, 0.05), DataChange(what, False, one, one))
            )
    return found


@dataclass(frozen=True)
class Explanation:
    """Cause and advice."""

    cause: str
    advice: str


@dataclass(frozen=True)
class _Break:
    """Batches of another shape from a step on, and the loss before it."""

    step: int
    what: str
    level: float


@dataclass(frozen=True)
class _Exchange:
    """Another optimizer in the place of one, and the size of the steps before."""

    step: int
    names: tuple[str, str]
    ratio: float  # logarithm of the update-to-weight ratio


class RunEvents:
    """Remembers what changed, and when."""

    def __init__(self, history: History, profiles: BatchProfiles) -> None:
        self.history, self.profiles = history, profiles
        self._breaks: list[_Break] = []
        self._exchange: _Exchange | None = None
        self._leader: Optimizer | None = None
        self._rows_since = 0
        self._weights: dict[str, deque[float]] = {}  # of the terms of the loss, against its first one
        self._opening: dict[str, float] = {}
        self._passes: deque[int] = deque(maxlen=PASSES)
        self._few = 0  # the fewest passes of three steps in a row, early in the run

    def step(self, passes: int) -> None:
        """A step begins, behind so many backward passes."""
        if passes:
            self._passes.append(passes)
            if len(self._passes) == 3:
                self._few = max(self._passes)

    def row(self, step: int, optimizer: Optimizer) -> None:
        """A sampled step begins."""
        found = self.profiles.broke()
        if found:
            logs = self.history.losses.last(40)[:-6]
            level = float(np.exp(np.median(logs))) if len(logs) else math.inf
            self._breaks = [*self._breaks[-3:], _Break(found[0], found[1], level)]
        before, self._leader = self._leader, optimizer
        self._rows_since += 1
        if before is not None and before is not optimizer and type(before) is not type(optimizer):
            names = type(before).__name__, type(optimizer).__name__
            self._exchange, self._rows_since = _Exchange(step, names, self._ratio(10)), 0

    def terms(self, weights: Mapping[str, float]) -> None:
        """Take in the weights of the terms of a loss."""
        first = next(iter(weights.values()), 0.0)
        for name, weight in list(weights.items())[1:] if first else ():
            share = abs(weight / first)
            self._opening.setdefault(name, share)
            self._weights.setdefault(name, deque(maxlen=8)).append(share)

    def _ratio(self, rows: int) -> float:
        """The logarithm of the update-to-weight ratio in the last rows."""
        at, past = self.history.at("update_ratio"), self.history.past()[1]
        return float(np.nanmedian(past[-rows:, at[0]])) if len(at) and len(past) else math.nan

    def exchanged(self) -> Explanation | None:
        """Return whether an optimizer stands in the place of another and makes far smaller steps, or larger ones."""
        if self._exchange is None or self._rows_since != SETTLED:
            return None
        change = self._ratio(SETTLED - 1) - self._exchange.ratio
        if not abs(change) > math.log(SMALLER):
            return None
        old, new = self._exchange.names
        way = ("smaller", "low") if change < 0 else ("larger", "high")
        return Explanation(
            f"the optimizer was changed at step {self._exchange.step}, from {old} to {new}, and its steps are "
            f"{math.exp(abs(change)):.0f} times {way[0]} against the weights: the learning rate is too {way[1]} for "
            f"{new}",
            f"Give {new} a learning rate of its own: one for {old} does not carry over.",
        )

    def summed(self, factor: float) -> Detection | None:
        """Return whether steps take several times the passes of before, at a loss that is not divided by them."""
        known = list(self._passes)
        if len(known) < 12 or not self._few or abs(factor - 1.0) > 0.01:
            return None
        now = min(known[-6:])
        if now < GROWN * self._few:
            return None
        return Detection(
            AlarmKind.UPDATE_TOO_LARGE,
            f"A step takes {now} backward passes, at the start {self._few}; backward() begins at the loss itself.",
            f"the gradients of {now} backward passes are accumulated and not divided by their number, which has grown: "
            f"the gradient is a sum, and the learning rate is in effect {now / self._few:.2g} times what it was",
            "Divide the loss of each pass by the number of passes.",
            topic="summed",
        )

    def explains(self, *, states: bool) -> Explanation | None:
        """Return what explains a loss that rose, or does not fall; states: that lasts since long before."""
        return self._of_terms() or self._of_passes() or self._of_breaks() or self._of_drift(states)

    def _of_terms(self) -> Explanation | None:
        for name, known in self._weights.items():
            last = list(known)
            grows = len(last) > 3 and all(b >= a for a, b in pairwise(last))
            if grows and last[-1] > OUTWEIGHS * max(self._opening[name], 1e-12) and last[-1] > 1.1 * last[0]:
                return Explanation(
                    f"the weight of a term of the loss grows without end: against the first term it was "
                    f"{self._opening[name]:.2g} and is {last[-1]:.2g} (a penalty or regularization, label smoothing, "
                    "or the weight of an auxiliary task), so that the loss is more and more another one",
                    "Cap the weight of that term, or set it once.",
                )
        return None

    def _of_passes(self) -> Explanation | None:
        known = list(self._passes)
        if len(known) < 12 or not self._few:
            return None
        usual = sorted(known)[len(known) // 2]
        more = [n for n in known if n > usual]
        lately = any(n > usual for n in known[-LATELY:])
        if usual > self._few or not lately or len(more) > EXTRA * len(known):
            return None
        return Explanation(
            f"gradients of other backward passes add to those of the step: {len(more)} of the last {len(known)} steps "
            f"come after {max(more)} backward passes and the others after {usual} (a validation that calls "
            "backward(), and no zero_grad() before the step)",
            "Call optimizer.zero_grad() right before the backward pass of the step; evaluate under torch.no_grad().",
        )

    def _of_breaks(self) -> Explanation | None:
        losses = self.history.losses
        level = losses.level()
        for each in reversed(self._breaks):
            if level > each.level + WORSE * losses.scale:
                return Explanation(
                    f"the data changed at step {each.step}: {each.what}; before, the loss was {each.level:.3g}, and is "
                    f"{level:.3g} since",
                    "Check the batches from that step on: their length and size, padding and its mask, what was cut.",
                )
        return None

    def _of_drift(self, states: bool) -> Explanation | None:
        found = self.profiles.drifted()
        if not found or (states and not self.history.losses.risen()):
            return None
        return Explanation(
            f"the data drift away from those of the start: {found}, and what normalizes them does not follow",
            "Normalize with statistics of now, or with fixed ones of the whole data; check the source.",
        )
