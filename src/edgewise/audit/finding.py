"""A finding of the audit: what is wrong with which parameters, what was expected, and the line that repairs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from edgewise.interrupts import check
from edgewise.models.names.model_sites import BlockSite, MLPSite, ModelSites, Projection

if TYPE_CHECKING:
    from torch import nn


class AuditKind(Enum):
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
    ROLES_UNKNOWN = "the roles of its matrices are not known"


class AuditSeverity(Enum):
    """NOTE: good to know, often intended. WARNING: rarely intended. ERROR: the network does not start as designed."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class NotAudited:
    """The reason why the weights of a model were not audited, as the end of a sentence."""

    reason: str


@dataclass(frozen=True)
class AuditFinding:
    """One thing that is not as expected; `parameters` are all it concerns, `repair` is Python with `model`."""

    kind: AuditKind
    severity: AuditSeverity
    parameters: tuple[str, ...]
    observation: str
    expected: str
    repair: str

    def __repr__(self) -> str:
        text = str(self)
        return f"<AuditFinding {text if len(text) <= 320 else f'{text[:319]}…'}>"

    @property
    def parameter(self) -> str:
        """The first that it concerns; empty if it is about the whole model."""
        return self.parameters[0] if self.parameters else ""

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
        which = f": {self.parameter}{more}" if self.parameters else ""
        return (
            f"{self.severity.value}: {self.kind.value}{which}. Seen: {self.observation}. "
            f"Expected: {self.expected}. Repair: {self.repair}"
        )


def redraw(matrices: Sequence[Projection], standard_deviation: float) -> str:
    """The line that redraws the rows of these matrices; all are stored in the same way."""
    names = tuple(name for matrix in matrices for name in matrix.parameters)
    where = f"model.get_parameter(name){_rows(matrices[0])}"
    if matrices[0].index is not None:
        pairs = tuple((name, matrix.index) for matrix in matrices for name in matrix.parameters)
        where = "model.get_parameter(name)[i]"
        return f"for name, i in {pairs!r}: torch.nn.init.normal_({where}, std={standard_deviation:.6g})"
    return f"for name in {names!r}: torch.nn.init.normal_({where}, std={standard_deviation:.6g})"


def _rows(matrix: Projection) -> str:
    if matrix.rows is None:
        return ""
    turned = ".transpose(-1, -2)" if matrix.transposed else ""
    rows = matrix.rows
    return f"{turned}.unflatten(-2, ({rows.groups}, {rows.size}))[..., {rows.start}:{rows.stop}, :]"


SIGNIFICANT = 5.0  # sampling errors: one false alarm in two million matrices
NOTICEABLE = 0.02  # relative; smaller departures change nothing, however significant


@dataclass(frozen=True)
class MatrixSummary:
    """One matrix: its role and place, its root mean square, spread and largest entry."""

    stack: str
    block: int
    role: str  # attention.query, cross.key, mlp.output, shared.gate, ...
    matrix: Projection
    rms: float
    spread: float  # standard deviation; 0 for a constant
    largest: float
    count: int

    @property
    def error(self) -> float:
        """Relative sampling error of the root mean square of N normal entries, 1/sqrt(2 N)."""
        return 1 / math.sqrt(2 * self.count)

    @property
    def finite(self) -> bool:
        return math.isfinite(self.rms) and math.isfinite(self.largest)

    @property
    def random(self) -> bool:
        """As far as its spread tells: finite, and not constant."""
        return self.finite and self.spread > 1e-12 * max(self.largest, 1e-30) and self.rms > 1e-12

    @property
    def parameter(self) -> str:
        return self.matrix.parameter

    def departs_from(self, expected: float) -> bool:
        """|log(rms/expected)| beyond both the sampling error and what matters."""
        return abs(math.log(self.rms / expected)) > max(SIGNIFICANT * self.error, NOTICEABLE)


def summarize(model: nn.Module, sites: ModelSites) -> list[MatrixSummary]:
    """All matrices of all stacks."""
    return [
        _summary(model, stack.name, block.index, role, matrix)
        for stack in sites.stacks
        for block in stack.blocks
        for role, matrix in roles_of(block)
    ]


def by_names(model: nn.Module) -> list[MatrixSummary]:
    """Every matrix outside of tables, under its name with the numbers left out; layers follow from the numbers.

    For models whose roles are not known: what has one name in all layers has one role, whichever that is.
    """
    from torch import nn

    from edgewise.models.readable import is_mask

    found: dict[str, list[tuple[str, Projection]]] = {}
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        plain = parameter.ndim >= 2 and parameter.numel() and parameter.is_floating_point()
        if not plain or isinstance(owner, nn.Embedding) or is_mask(parameter):
            continue
        matrix = Projection("", (name,), parameter[0].numel(), parameter.shape[0])
        pattern = ".".join("#" if word.isdigit() else word for word in name.split("."))
        found.setdefault(pattern, []).append((name, matrix))
    return [
        _summary(model, "", index, pattern, matrix)
        for pattern, listed in found.items()
        for index, (_, matrix) in enumerate(listed)
    ]


def roles_of(block: BlockSite) -> Iterator[tuple[str, Projection]]:
    """(role, matrix) of a block; roles say whose they are."""
    for owner, attention in (("attention", block.attention), ("cross", block.cross_attention)):
        if attention is not None:
            yield from ((f"{owner}.{matrix.role}", matrix) for matrix in attention.projections)
    if block.mlp is not None:
        yield from _roles_of_mlp("mlp", block.mlp)
    if block.mlp is not None and block.mlp.shared is not None:
        yield from _roles_of_mlp("shared", block.mlp.shared)


def _roles_of_mlp(owner: str, mlp: MLPSite) -> Iterator[tuple[str, Projection]]:
    own = (mlp.gate, mlp.input, mlp.output, mlp.router)
    yield from ((f"{owner}.{matrix.role}", matrix) for matrix in own if matrix is not None)


def _summary(model: nn.Module, stack: str, block: int, role: str, matrix: Projection) -> MatrixSummary:
    check()
    weight = matrix.weight(model).detach()
    weight = (
        weight.float() if weight.dtype.itemsize < 4 else weight
    )  # read in place, without a copy in double
    rms, spread = float(weight.norm()) / math.sqrt(weight.numel()), float(weight.std())
    largest = max(abs(float(end)) for end in weight.aminmax())
    return MatrixSummary(stack, block, role, matrix, rms, spread, largest, weight.numel())


def group_by(
    summaries: Sequence[MatrixSummary], key: Callable[[MatrixSummary], object]
) -> list[list[MatrixSummary]]:
    """Groups in order of appearance."""
    groups: dict[object, list[MatrixSummary]] = {}
    for summary in summaries:
        groups.setdefault(key(summary), []).append(summary)
    return list(groups.values())


def siblings(summaries: Sequence[MatrixSummary]) -> list[list[MatrixSummary]]:
    """The same matrix in all blocks of a stack; experts and plain MLPs are kept apart."""
    return group_by(summaries, lambda s: (s.stack, s.role, s.matrix.fan_in, s.matrix.experts))
