"""The mistakes that are drawn: those of cosmic-ray's operators that a person could have made, and two of ours.

cosmic-ray would also replace `+` by `<<` or `|`, which any test notices. Here an operator becomes its neighbour (`+`
and `-`, `<` and `<=`), a number its neighbour, a flag its opposite, `and` becomes `or`, a loop does nothing, a handler
does not catch; and ours: `min` for `max`, and a dropped term.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cosmic_ray import plugins
from cosmic_ray.operators.operator import Operator
from parso.python.tree import Name, PythonNode

ADOPTED = (
    *(
        f"ReplaceBinaryOperator_{pair}"
        for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Pow_Mul", "FloorDiv_Mul", "Mod_FloorDiv")
    ),
    *(
        f"ReplaceComparisonOperator_{pair}"
        for pair in (
            "Lt_LtE",
            "LtE_Lt",
            "Gt_GtE",
            "GtE_Gt",
            "Lt_Gt",
            "Gt_Lt",
            "Eq_NotEq",
            "NotEq_Eq",
            "Is_IsNot",
            "IsNot_Is",
        )
    ),
    "ReplaceUnaryOperator_Delete_USub",
    "ReplaceUnaryOperator_Delete_Not",
    "NumberReplacer",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "AddNot",
    "ZeroIterationForLoop",
    "ExceptionReplacer",
    "ReplaceBreakWithContinue",
)
OPPOSITES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmin": "argmax",
    "argmax": "argmin",
    "sin": "cos",
    "cos": "sin",
}


class Opposite(Operator):
    """min(a, b) becomes max(a, b)."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(node, Name) and node.value in OPPOSITES and node.get_next_leaf().value == "(":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:  # noqa: ARG002
        node.value = OPPOSITES[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class DroppedTerm(Operator):
    """a + b becomes a, and a - b too."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(node, PythonNode) and node.type == "arith_expr":
            yield node.children[-1].start_pos, node.children[-1].end_pos

    def mutate(self, node: Any, index: int) -> Any:  # noqa: ARG002
        del node.children[-2:]
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


def operators() -> dict[str, Operator]:
    """Every operator by name."""
    adopted = {name: plugins.get_operator(f"core/{name}")() for name in ADOPTED}
    return {**adopted, "Opposite": Opposite(), "DroppedTerm": DroppedTerm()}
