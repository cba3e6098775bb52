"""edgewise: know whether a transformer will train before you train it.

    >>> import edgewise
    >>> network = edgewise.transformer(depth=48, width=1024, heads=16, norm="post")
    >>> edgewise.judge(edgewise.predict(network)).outcome.value
    'will not train'

Nouns    Architecture Perceptron Trace Verdict
Make     transformer describe structure
Predict  predict judge compare phase_diagram critical_point
Check    check
Measure  measure audit_initialization total_changes learning_rate
Watch    watch read HuggingFaceCallback LightningCallback
Change   critical_plan fastest_plan initialize_ use_kernel
Rooms    critical laboratory landscape models monitor nets optim present rehearsal study
Error    BadInput
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from edgewise import (
        critical,
        laboratory,
        landscape,
        models,
        monitor,
        nets,
        optim,
        present,
        rehearsal,
        study,
    )
    from edgewise.audit.inspect import audit_initialization
    from edgewise.errors import BadInput
    from edgewise.integrations.huggingface import HuggingFaceCallback
    from edgewise.integrations.lightning import LightningCallback
    from edgewise.models.describe import describe
    from edgewise.models.module_description import structure
    from edgewise.monitor.read_run import read
    from edgewise.nets.kernel_attention import use_kernel
    from edgewise.nouns.architecture import Architecture, Perceptron, transformer
    from edgewise.nouns.trace import Trace
    from edgewise.nouns.verdict import Verdict
    from edgewise.preflight.during import watch
    from edgewise.preflight.entry import check
    from edgewise.probe.measure import measure
    from edgewise.rehearsal.learning_rate import learning_rate
    from edgewise.repair.initialize import critical_plan, initialize_
    from edgewise.repair.meter import total_changes
    from edgewise.verbs import compare, critical_point, fastest_plan, judge, phase_diagram, predict

# Names are fetched when first used, so that the command line answers --help without importing torch.
_HOMES = {
    "Architecture": "nouns.architecture",
    "BadInput": "errors",
    "HuggingFaceCallback": "integrations.huggingface",
    "LightningCallback": "integrations.lightning",
    "Perceptron": "nouns.architecture",
    "Trace": "nouns.trace",
    "Verdict": "nouns.verdict",
    "audit_initialization": "audit.inspect",
    "check": "preflight.entry",
    "compare": "verbs",
    "critical_plan": "repair.initialize",
    "critical_point": "verbs",
    "describe": "models.describe",
    "fastest_plan": "verbs",
    "initialize_": "repair.initialize",
    "judge": "verbs",
    "learning_rate": "rehearsal.learning_rate",
    "measure": "probe.measure",
    "phase_diagram": "verbs",
    "predict": "verbs",
    "read": "monitor.read_run",
    "structure": "models.module_description",
    "total_changes": "repair.meter",
    "transformer": "nouns.architecture",
    "use_kernel": "nets.kernel_attention",
    "watch": "preflight.during",
}
_ROOMS = (
    "critical",
    "laboratory",
    "landscape",
    "models",
    "monitor",
    "nets",
    "optim",
    "present",
    "rehearsal",
    "study",
)

__all__ = [
    "Architecture",
    "BadInput",
    "HuggingFaceCallback",
    "LightningCallback",
    "Perceptron",
    "Trace",
    "Verdict",
    "audit_initialization",
    "check",
    "compare",
    "critical",
    "critical_plan",
    "critical_point",
    "describe",
    "fastest_plan",
    "initialize_",
    "judge",
    "laboratory",
    "landscape",
    "learning_rate",
    "measure",
    "models",
    "monitor",
    "nets",
    "optim",
    "phase_diagram",
    "predict",
    "present",
    "read",
    "rehearsal",
    "structure",
    "study",
    "total_changes",
    "transformer",
    "use_kernel",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(_imported(_HOMES[name]), name)
    if name in _ROOMS:
        return _imported(name)
    raise AttributeError(f"module 'edgewise' has no attribute {name!r}")


def _imported(module: str) -> Any:
    from edgewise.errors import NO_TORCH, lacks_torch

    try:
        return import_module(f"edgewise.{module}")
    except ModuleNotFoundError as error:
        if lacks_torch(error):
            raise ModuleNotFoundError(NO_TORCH, name="torch") from error
        raise


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
