"""What the passes have shown of one branch so far; the record is made from it at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from edgewise.models.behavior.layout import Layout
from edgewise.models.behavior.places import Places
from edgewise.models.behavior.record import Gains, Operation, Powers
from edgewise.models.behavior.visibility import Sight

Rows = list[tuple[int, set[int]]]


@dataclass
class Traits:
    """None where not measured yet, or not measurable."""

    skip: float | None = None
    share: float | None = None
    silent: bool = False
    gate_size: float | None = None  # root mean square of a gate that is made without the stream
    length: int = 0  # tokens of its stream
    rows: Rows | None = None
    faint: dict[int, set[int]] = field(default_factory=dict)  # by query, positions with a small gradient
    columns: Rows | None = None
    open: Tensor | None = None  # (query, key): not masked, by the scores themselves
    layout: Layout | None = None  # of the branch, where it differs from the stream's
    sight: Sight | None = None
    memory: bool = False
    other_layers: bool = False
    coupled: bool = False  # entries of the batch are not independent
    quiet: Tensor | None = None  # output at the base input with small queries and keys
    base: Tensor | None = None  # output at the base input
    order: float | None = None
    quiet_order: float | None = (
        None  # with scores near zero; relative to changing one of the two tokens exchanged
    )
    spread: float | None = None  # of the output over positions when all tokens are equal
    whole: bool | None = None  # the weights of attention sum to one; None where they were not seen
    linear: bool | None = None
    input_growth: float | None = None
    output_growth: float | None = None
    outside_growth: float | None = None
    norm_kind: str | None = None
    query_growth: float | None = None
    key_growth: float | None = None
    places: Places = field(default_factory=Places)  # of its stream's tokens among queries, keys and scores
    axes: dict[Operation, tuple[str | None, str | None]] = field(
        default_factory=dict
    )  # of queries and keys at a product
    scales: dict[Operation, float] = field(default_factory=dict)  # that a fused call multiplies them by
    rotary: str | None = None  # "rotary", "query or key", "" or None where the operands were not found
    bias: str | None = None  # "alibi", "bias", "" or None where the scores were not found
    bias_size: float | None = None  # standard deviation of that bias over the keys of a query
    heads: int | None = None
    kv_heads: int | None = None
    head_width: int | None = None
    activation: str | None = None
    gated: bool | None = None
    hidden_width: int | None = None
    gate: int | None = None  # which of two first matrices, or of two halves of one, is inside the activation
    fused: dict[str, tuple[int, int, int, int]] = field(
        default_factory=dict
    )  # rows of queries, keys and values
    powers: Powers | None = None
    gains: Gains | None = None
    reasons: list[str] = field(default_factory=list)
