"""Where numbers come from and how far they can be trusted: one record, shared by a trace and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, cast


@dataclass(frozen=True)
class Provenance:
    """What a number's reader must know beside the number."""

    source: str = ""  # which theory or measurement
    name: str = ""  # of the network
    readout: str = (
        ""  # how the model reads its output: "token", "pooled", "class"; empty if that is not known
    )
    step: int | None = None  # of training; None before it
    sampled: bool = True  # False if the numbers are exact for the ensemble, so that one seed has no scatter
    extrapolated: tuple[str, ...] = ()  # why the numbers are extrapolated; empty if they are not
    departure: str = ""  # why a prediction was replaced by this measurement: where the two differ, and why
    notes: tuple[str, ...] = ()  # what was left out or assumed


UNKNOWN = Provenance()


class WithProvenance:
    """The provenance's fields as properties of the record that carries it."""

    provenance: Provenance

    def with_provenance(self, **changes: object) -> Self:
        """Return the same record with some fields of its provenance replaced."""
        changed = replace(self.provenance, **changes)  # type: ignore[arg-type]
        return cast(Self, replace(cast(Any, self), provenance=changed))

    @property
    def source(self) -> str:
        """Which theory or measurement the numbers come from."""
        return self.provenance.source

    @property
    def name(self) -> str:
        """The name of the network."""
        return self.provenance.name

    @property
    def readout(self) -> str:
        """How the model reads its output: "token", "pooled" or "class"; empty if that is not known."""
        return self.provenance.readout

    @property
    def step(self) -> int | None:
        """The step of training; None before it."""
        return self.provenance.step

    @property
    def sampled(self) -> bool:
        """Whether the numbers were sampled; exact ones have no scatter over seeds."""
        return self.provenance.sampled

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """Why the numbers are extrapolated; empty if they are not."""
        return self.provenance.extrapolated

    @property
    def departure(self) -> str:
        """Why a prediction was replaced by this measurement; empty if it was not."""
        return self.provenance.departure

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out or assumed."""
        return self.provenance.notes
