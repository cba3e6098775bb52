"""The geometry of a network through depth, predicted or measured, and where its numbers come from.

Shapes: S seeds, N sites, R readouts, H heads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import LARGEST_ARRAYS, open_regular, read_arrays, whole_file
from edgewise.nouns.architecture import Architecture, Perceptron, Shown

READOUTS = ("token", "pooled")  # a loss per token, or one of the mean over tokens
# A class token is one token with a gradient of its own: what is known of a loss per token holds for it.
GRADIENTS = {"token": "token", "class": "token", "pooled": "pooled"}
# of statistics weight_gradient.NAME
WEIGHTS = ("query", "key", "value", "output", "mlp_in", "mlp_linear", "mlp_out")


def check_readout(readout: str) -> None:
    """Raise unless the theory knows where the gradient of this readout's loss starts."""
    if readout not in READOUTS:
        raise BadInput(f"readout must be {' or '.join(READOUTS)}, got {readout!r}.")


@dataclass(frozen=True)
class Provenance:
    """What a number's reader must know beside the number."""

    source: str = ""  # which theory or measurement
    name: str = ""  # of the network
    readout: str = ""  # how the model reads its output: "token", "pooled", "class"; empty if not known
    step: int | None = None  # of training; None before it
    sampled: bool = True  # False if the numbers are exact for the ensemble, so that one seed has no scatter
    extrapolated: tuple[str, ...] = ()  # why the numbers are extrapolated; empty if they are not
    departure: str = ""  # why a prediction was replaced by this measurement: how the two differ, and why
    notes: tuple[str, ...] = ()  # what was left out or assumed


UNKNOWN = Provenance()
T = TypeVar("T")


def _stated(name: str, _: type[T], doc: str) -> T:
    """Return a property that reads a field of the provenance."""
    return cast(T, property(attrgetter(f"provenance.{name}"), doc=doc))


class WithProvenance(Shown):
    """The provenance's fields as properties of the record that carries it."""

    provenance: Provenance

    def with_provenance(self, **changes: object) -> Self:
        """Return the same record with some fields of its provenance replaced."""
        changed = replace(self.provenance, **changes)  # type: ignore[arg-type]
        return cast(Self, replace(cast(Any, self), provenance=changed))

    source = _stated("source", str, "The theory or measurement that the numbers come from.")
    name = _stated("name", str, "The name of the network.")
    readout = _stated(
        "readout", str, 'The readout of the model: "token", "pooled" or "class"; empty if not known.'
    )
    step: int | None = _stated("step", int, "The step of training; None before it.")
    sampled = _stated(
        "sampled", bool, "True if the numbers were sampled; exact ones have no scatter over seeds."
    )
    extrapolated = _stated("extrapolated", tuple[str, ...], "Why the numbers are extrapolated; empty if not.")
    departure = _stated("departure", str, "Why this measurement replaced a prediction; empty if not.")
    notes = _stated("notes", tuple[str, ...], "Notes on what was left out or assumed.")


@dataclass(frozen=True)
class FirstLoss:
    """The cross-entropy of a model before training, in nats, and that of guessing among as many classes, ln V."""

    value: float
    chance: float


@dataclass(frozen=True, eq=False, repr=False)
class Trace(WithProvenance):
    """Geometry per site. What was not observed is None.

    norm (S, N) is q, the mean square per coordinate; separation (S, N) is 1 - mean cosine, carried as a
    difference so that rounding never decides; log_gradient (R, S, N) is log |g|^2 / |g_last|^2.

    >>> import edgewise
    >>> edgewise.predict("gpt2", depth=6, tokens=16).blocks("norm").shape
    (7,)
    """

    sites: tuple[str, ...]
    norm: Array
    separation: Array
    readouts: tuple[str, ...] = ()
    log_gradient: Array | None = None
    attention_entropy: Array | None = None  # (S, N, H), nats; nan where a site has no attention
    softmax_condition: Array | None = None  # (S, N, H)
    statistics: Mapping[str, Array] = field(default_factory=dict)  # each (S, N, ...)
    architecture: Architecture | Perceptron | None = None
    first_loss: FirstLoss | None = None  # None if the model has no logits over classes
    provenance: Provenance = UNKNOWN

    def __post_init__(self) -> None:
        expected = (self.norm.shape[0], len(self.sites))
        for name in ("norm", "separation"):
            if getattr(self, name).shape != expected:
                raise BadInput(
                    f"{name} has shape {getattr(self, name).shape}, expected (seeds, sites) {expected}."
                )
        if self.log_gradient is not None and self.log_gradient.shape != (len(self.readouts), *expected):
            shape = (len(self.readouts), *expected)
            raise BadInput(f"log_gradient has shape {self.log_gradient.shape}, expected {shape}.")

    @property
    def seeds(self) -> int:
        return int(self.norm.shape[0])

    @property
    def overlap(self) -> Array:
        """Mean cosine between different tokens (S, N)."""
        return 1.0 - self.separation

    @property
    def gradient_norm(self) -> Array | None:
        """|g|^2 at each site over |g|^2 at the last one (R, S, N); inf if that overflows."""
        with np.errstate(over="ignore"):
            return None if self.log_gradient is None else np.exp(self.log_gradient)

    @property
    def decisive_readout(self) -> str | None:
        """The gradient that a verdict is about: that of the model's readout, else the first; None without one."""
        own = GRADIENTS.get(self.readout)
        return own if own in self.readouts else next(iter(self.readouts), None)

    @property
    def depth(self) -> int:
        """Number of blocks (or layers of a perceptron)."""
        return len(self.block_ends()) - 1

    def block_ends(self) -> list[int]:
        """Return the indices of the embedding and of the last site of every block."""
        blocks = [".".join(site.split(".")[:2]) for site in self.sites]
        return [i for i, block in enumerate(blocks) if i + 1 == len(blocks) or blocks[i + 1] != block]

    def blocks(self, quantity: str, readout: str | None = None) -> Array:
        """Return a quantity at the embedding and after every block, mean over seeds, length depth + 1."""
        values = getattr(self, quantity)
        if values is None:
            raise BadInput(f"{quantity} was not observed in this trace ({self.source}).")
        if quantity in ("gradient_norm", "log_gradient"):
            values = values[self.readouts.index(readout) if readout else 0]
        return np.asarray(values.mean(axis=0)[self.block_ends()])

    def total_changes(self, readout: str) -> tuple[float, float]:
        """Return log-changes (angle, relative gradient) from the embedding to the last block, the mean over seeds."""
        if self.log_gradient is None:
            raise BadInput(f"gradients were not observed in this trace ({self.source}).")
        ends = self.block_ends()
        with np.errstate(divide="ignore", invalid="ignore"):
            separation = np.log(self.separation[:, ends])
            relative = self.log_gradient[self.readouts.index(readout)][:, ends] + np.log(self.norm[:, ends])
        angle = float((separation[:, -1] - separation[:, 0]).mean())
        return angle, float((relative[:, 0] - relative[:, -1]).mean())

    def __repr__(self) -> str:
        name = str(getattr(self.architecture, "name", "") or "a network")
        name = name if len(name) <= 80 else f"{name[:79]}…"
        source = self.source if len(self.source) <= 160 else f"{self.source[:159]}…"
        return f"<Trace of {name}: {self.depth} blocks, {source}>"

    def save(self, path: str | Path) -> None:
        """Write one .npz file (arrays and JSON, no pickle), whole or not at all."""
        if self.architecture is not None and callable(self.architecture.activation):
            raise BadInput(
                "a trace of a callable activation cannot be saved: a file cannot carry the function."
            )
        arrays = {name: getattr(self, name) for name in _ARRAYS if getattr(self, name) is not None}
        arrays |= {f"statistics/{name}": value for name, value in self.statistics.items()}
        size = sum(value.nbytes for value in arrays.values())
        if size > LARGEST_ARRAYS // 2:  # the other half is for the description
            raise BadInput(
                f"this trace has {size:,} bytes, and `load` reads at most {LARGEST_ARRAYS // 2:,}. Save fewer seeds."
            )
        network = self.architecture
        meta = {
            "sites": self.sites,
            "readouts": self.readouts,
            **asdict(self.provenance),
            "kind": None if network is None else type(network).__name__,
            "architecture": None if network is None else network.to_dict(),
            "first_loss": self.first_loss and asdict(self.first_loss),
        }
        with whole_file(path) as file:
            np.savez_compressed(file, meta=np.array(json.dumps(meta)), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what `save` wrote; sizes are checked before memory is allocated, and nothing in the file is executed."""
        try:
            with open_regular(path, LARGEST_ARRAYS) as file:
                return cls._from_arrays(read_arrays(file))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as cause:
            raise BadInput(f"{path} is not a saved trace ({cause}). Write one with Trace.save.") from cause

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Any]) -> Trace:
        meta = json.loads(str(arrays.pop("meta")))
        texts = [name for name, value in arrays.items() if value.dtype.kind == "U"]
        if texts:
            raise BadInput(f"{texts[0]} holds text; expected numbers")
        kinds: dict[str, Any] = {"Architecture": Architecture, "Perceptron": Perceptron}
        described, kind = meta.pop("architecture"), meta.pop("kind")
        statistics = {k.partition("/")[2]: arrays.pop(k) for k in list(arrays) if k.startswith("statistics/")}
        loss = meta.pop("first_loss", None)
        meta["first_loss"] = None if loss is None else FirstLoss(float(loss["value"]), float(loss["chance"]))
        left_out = meta.pop("left_out", "")  # of files before notes
        notes = tuple(meta.pop("notes", ())) or ((left_out,) if left_out else ())
        provenance = Provenance(
            extrapolated=tuple(meta.pop("extrapolated")),
            notes=notes,
            **{name: meta.pop(name) for name in _STATED if name in meta},
        )
        _require_types(provenance)
        lists: dict[str, Any] = {k: tuple(meta.pop(k)) for k in ("sites", "readouts")}
        if not all(isinstance(name, str) for names in lists.values() for name in names) or not lists["sites"]:
            raise BadInput("its sites and readouts must be lists of names")
        architecture = kinds[kind].from_dict(described) if kind else None
        trace = cls(
            **arrays, **meta, **lists, statistics=statistics, architecture=architecture, provenance=provenance
        )
        heads = {name: getattr(trace, name) for name in ("attention_entropy", "softmax_condition")}
        for name, value in (heads | dict(statistics)).items():
            if value is not None and (
                value.shape[:2] != trace.norm.shape or (name in heads and value.ndim != 3)
            ):
                raise BadInput(
                    f"{name} has shape {value.shape}, expected (seeds, sites, ...) {trace.norm.shape}"
                )
        if not trace.seeds:
            raise BadInput("it holds no seed")
        return trace


def _require_types(provenance: Provenance) -> None:
    """Raise unless every field is of the type that its default has."""
    for each in fields(provenance):
        value, usual = getattr(provenance, each.name), each.default
        names = value if isinstance(usual, tuple) else ()
        kind = (int, type(None)) if usual is None else type(usual)
        if not isinstance(value, kind) or not all(isinstance(name, str) for name in names):
            raise BadInput(f"its {each.name} is {value!r:.60}")


_ARRAYS = ("norm", "separation", "log_gradient", "attention_entropy", "softmax_condition")
_STATED = ("source", "name", "readout", "step", "sampled", "departure")
