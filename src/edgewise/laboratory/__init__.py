"""Theorems about small models that can be checked in double precision.

Prompt attention and its softmax rows [Tarmoun 2025], one layer of kernel attention [Song 2024], softmax regression
[Goel 2026]. Modules whose names say a method (`descent`, `kernel_theorems`, ...) hold the functions that go with them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.laboratory.descent import LeastSquares
    from edgewise.laboratory.kernel_theorems import (
        KernelLayer,
        check_theorem1,
        check_theorem2,
        descend_queries,
        random_layer,
    )
    from edgewise.laboratory.prompt_attention import (
        Certificate,
        PromptAttention,
        TeacherStudent,
        certificate,
        teacher_student,
    )
    from edgewise.laboratory.regression import (
        SoftmaxRegression,
        StructureAware,
        gaussian_start,
        random_problem,
    )
    from edgewise.laboratory.replicator import ConditionBounds, judge_point

# Names are fetched when first used: no room above needs torch and scipy before a model is asked for.
_HOMES = {
    "PromptAttention": "prompt_attention",
    "TeacherStudent": "prompt_attention",
    "teacher_student": "prompt_attention",
    "Certificate": "prompt_attention",
    "certificate": "prompt_attention",
    "judge_point": "replicator",
    "ConditionBounds": "replicator",
    "LeastSquares": "descent",
    "KernelLayer": "kernel_theorems",
    "random_layer": "kernel_theorems",
    "check_theorem1": "kernel_theorems",
    "check_theorem2": "kernel_theorems",
    "descend_queries": "kernel_theorems",
    "SoftmaxRegression": "regression",
    "random_problem": "regression",
    "gaussian_start": "regression",
    "StructureAware": "regression",
}
__all__ = [
    "Certificate",
    "ConditionBounds",
    "KernelLayer",
    "LeastSquares",
    "PromptAttention",
    "SoftmaxRegression",
    "StructureAware",
    "TeacherStudent",
    "certificate",
    "check_theorem1",
    "check_theorem2",
    "descend_queries",
    "gaussian_start",
    "judge_point",
    "random_layer",
    "random_problem",
    "teacher_student",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
