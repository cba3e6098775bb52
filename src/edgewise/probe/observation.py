"""What is asked of one network, the numbers per site that it gives, and the Trace of several such observations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from edgewise.arrays import Array
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.provenance import Provenance
from edgewise.nouns.trace import WEIGHTS, FirstLoss, Trace
from edgewise.probe.attention import AttentionWatch, RowStatistics
from edgewise.probe.batches import Counted
from edgewise.probe.geometry import mean_square, separation
from edgewise.probe.gradients import WeightLogs
from edgewise.probe.places import Place, attends

NO_LOSS = "no own loss: the model returned no scalar (give labels in the batch)"


@dataclass
class Request:
    """What to read; `seeds` number the readout and pair directions drawn on one forward pass."""

    readouts: Sequence[str] | None  # None: the one by which the model reads its own output
    attention: bool
    pair: bool
    seeds: Sequence[int]
    check: bool = True  # that observing does not change the output
    gain: bool = False

    def weight_readout(self, readouts: Sequence[str]) -> str | None:
        """The readout whose gradients of the matrices are recorded."""
        return "token" if "token" in readouts else next(iter(readouts), None)


@dataclass
class Observation:
    """Numbers of one network: norm and separation (N,), the rest per seed."""

    sites: tuple[str, ...]
    tokens: int
    width: int
    norm: Array
    separation: Array
    log_gradient: list[dict[str, list[float]]] = field(default_factory=list)
    statistics: list[dict[str, Array]] = field(default_factory=list)
    attention: dict[int, RowStatistics] = field(default_factory=dict)  # by site
    notes: list[str] = field(default_factory=list)
    readout: str = ""  # how the model reads its own output
    left_out: str = ""  # which tokens were not measured, and why
    first_loss: FirstLoss | None = None

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.norm).all())

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def read_geometry(listed: Sequence[Place], shaped: Sequence[Tensor], counted: Counted) -> Observation:
    """Norm and separation of every stream (sequences, tokens, width), over the tokens that count.

    Where the stream leaves the range of floating point, the last finite separation is repeated, as theory does.
    """
    mask, (_, n, d) = counted.mask, shaped[0].shape
    norm = np.array([mean_square(x, mask) for x in shaped])
    finite = np.isfinite(norm)
    apart = [separation(x, mask) if ok else math.nan for x, ok in zip(shaped, finite, strict=True)]
    if not finite.all():
        first = int(np.argmin(finite))
        norm[first:], apart[first:] = np.inf, [apart[first - 1] if first else 0.0] * (len(apart) - first)
    sites = tuple(place.site for place in listed)
    return Observation(sites, counted.tokens(n), d, norm, np.array(apart), left_out=counted.left_out)


def read_attention(observation: Observation, watch: AttentionWatch, listed: Sequence[Place]) -> None:
    """Statistics at the sites of attention, or a note why there are none: a mean over some layers would be wrong."""
    missing = [index for index in watch.blocks if index in watch.refusals or index not in watch.records]
    if missing:
        why = watch.refusals.get(missing[0], "no attention call was seen in it")
        where = f"{len(missing)} of {len(watch.blocks)} blocks; block {missing[0]}: {why}"
        return observation.note(f"attention not measured: {where}")
    for index, place in enumerate(listed):
        if place.block is not None and attends(place.site):
            observation.attention[index] = watch.records[place.block]


def weight_arrays(listed: Sequence[Place], logs: WeightLogs, log_output: float) -> dict[str, Array]:
    """log |dL/dW|^2 for mean_a |g_a|^2 = 1 at the output of one sequence, at the site of the matrix's branch."""
    arrays = {f"weight_gradient.{name}": np.full(len(listed), np.nan) for name in WEIGHTS}
    for index, place in enumerate(listed):
        kind = place.site.split(".")[-1]
        for (name, block), log in logs.items():
            branch = "mlp" if name.startswith("mlp") else "attention"
            if block == place.block and (branch in kind.split("+") or kind == "output"):
                arrays[f"weight_gradient.{name}"][index] = log - log_output
    return arrays


def trace_of(observations: Sequence[Observation], description: Architecture | str, source: str) -> Trace:
    """One Trace from observations of several networks, or from several directions in one.

    description: the network's, or a sentence why there is none, which joins the source.
    """
    directions = max(len(observation.statistics) for observation in observations)
    copies = directions if len(observations) == 1 and directions else 1
    logs = [log for observation in observations for log in observation.log_gradient]
    whole = len(logs) == len(observations) * copies and bool(logs)
    names = tuple(logs[0]) if whole else ()
    records = [s for observation in observations for s in observation.statistics] if whole else []
    statistics = {name: np.array([s[name] for s in records]) for name in (records[0] if records else ())}
    rows = _attention_arrays(observations, copies)
    entropy, condition = (rows.pop(name, None) for name in ("attention_entropy", "softmax_condition"))
    return Trace(
        sites=observations[0].sites,
        norm=np.concatenate([np.tile(observation.norm, (copies, 1)) for observation in observations]),
        separation=np.concatenate(
            [np.tile(observation.separation, (copies, 1)) for observation in observations]
        ),
        readouts=names,
        log_gradient=np.array([[log[name] for log in logs] for name in names]) if names else None,
        attention_entropy=entropy,
        softmax_condition=condition,
        statistics=statistics | rows,
        architecture=None if isinstance(description, str) else description,
        first_loss=_mean_loss([observation.first_loss for observation in observations]),
        provenance=Provenance(
            f"{source}; {description}" if isinstance(description, str) else source,
            readout=observations[0].readout,
            notes=(observations[0].left_out,) if observations[0].left_out else (),
        ),
    )


def _mean_loss(losses: Sequence[FirstLoss | None]) -> FirstLoss | None:
    """Over networks; None where one of them has none."""
    known = [loss for loss in losses if loss is not None]
    if not known or len(known) < len(losses):
        return None
    return FirstLoss(sum(loss.value for loss in known) / len(known), known[0].chance)


def _attention_arrays(observations: Sequence[Observation], copies: int) -> dict[str, Array]:
    """Each statistic (S, N, H), nan where a site has no attention; empty when some network refused."""
    if not all(observation.attention for observation in observations):
        return {}
    heads = max(
        len(rows.attention_entropy) for observation in observations for rows in observation.attention.values()
    )
    arrays = {}
    for name in RowStatistics.names():
        values = np.full((len(observations), len(observations[0].sites), heads), np.nan)
        for i, observation in enumerate(observations):
            for site, rows in observation.attention.items():
                per_head = getattr(rows, name)
                values[i, site, : len(per_head)] = per_head
        arrays[name] = np.repeat(values, copies, axis=0)
    return arrays
