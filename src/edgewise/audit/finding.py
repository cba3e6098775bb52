"""A finding of the audit: what is wrong with which parameters, what was expected, and the line that repairs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from edgewise.models.names.record import Projection


class Kind(Enum):
    """One member per kind of finding; its value is the sentence's beginning."""

    IDENTICAL_LAYERS = "layers start with identical weights"
    NEVER_INITIALIZED = "never initialized"
    TRUNCATION_CUTS_NOTHING = "a truncation that cuts nothing"
    RESIDUAL_SCALING_MISSING = "the residual scaling is missing"
    RESIDUAL_SCALING_MISPLACED = "the residual scaling is on the wrong matrix"
    TIED = "tied weights"
    DEPARTS_FROM_SIBLINGS = "a layer unlike its siblings"
    DEPARTS_FROM_RECIPE = "unlike the family's published recipe"
    NORM_GAIN_NOT_ONE = "a norm whose gains are not one"
    BIAS_NOT_ZERO = "a bias that is not zero"


class Severity(Enum):
    """NOTE: good to know, often intended. WARNING: rarely intended. ERROR: the network does not start as designed."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class AuditFinding:
    """One thing that is not as expected; `parameters` are all it concerns, `repair` is Python with `model`."""

    kind: Kind
    severity: Severity
    parameters: tuple[str, ...]
    observation: str
    expected: str
    repair: str

    @property
    def parameter(self) -> str:
        return self.parameters[0]

    def json(self) -> dict[str, Any]:
        """As the published schema (`schema/measurement-1.json`) has it."""
        return {
            "kind": self.kind.value,
            "severity": self.severity.value,
            "parameters": list(self.parameters),
            "observation": self.observation,
            "expected": self.expected,
            "repair": self.repair,
        }

    def __str__(self) -> str:
        more = f" and {len(self.parameters) - 1} more" if len(self.parameters) > 1 else ""
        return (
            f"{self.severity.value}: {self.kind.value}: {self.parameter}{more}. Seen: {self.observation}. "
            f"Expected: {self.expected}. Repair: {self.repair}"
        )


def redraw(matrices: Sequence[Projection], standard_deviation: float) -> str:
    """The line that draws the rows of these matrices anew; all are stored in the same way."""
    names = tuple(name for matrix in matrices for name in matrix.parameters)
    where = f"model.get_parameter(name){_rows(matrices[0])}"
    return f"for name in {names!r}: torch.nn.init.normal_({where}, std={standard_deviation:.6g})"


def _rows(matrix: Projection) -> str:
    if matrix.rows is None:
        return ""
    turned = ".transpose(-1, -2)" if matrix.transposed else ""
    rows = matrix.rows
    return f"{turned}.unflatten(-2, ({rows.groups}, {rows.size}))[..., {rows.start}:{rows.stop}, :]"
