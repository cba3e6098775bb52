"""edgewise: know whether a transformer will train before you train it.

    >>> import edgewise
    >>> network = edgewise.transformer(depth=48, width=1024, heads=16, norm="post")
    >>> edgewise.judge(edgewise.predict(network)).outcome.value
    'will not train'

Nouns   Architecture Perceptron Trace Verdict
Make    transformer describe sites
Verbs   predict measure judge compare phase_diagram critical_point vector_field audit_initialization perceptron_maps
Fix     critical_plan initialize_ total_changes
Rooms   theory stability critical probe audit optim nets laboratory landscape study view
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from edgewise import laboratory, landscape, nets, optim, study, view
    from edgewise.adapters.roles.model import sites
    from edgewise.architecture import Architecture, transformer
    from edgewise.errors import BadInput
    from edgewise.perceptron import Perceptron
    from edgewise.trace import Trace
    from edgewise.verbs import (
        audit_initialization,
        compare,
        critical_plan,
        critical_point,
        describe,
        initialize_,
        judge,
        measure,
        perceptron_maps,
        phase_diagram,
        predict,
        total_changes,
        use_kernel,
        vector_field,
    )  # fmt: skip
    from edgewise.verdict import Verdict

# Names are fetched when first used, so that the command line answers --help without importing torch.
_HOMES = {
    "Architecture": "architecture", "transformer": "architecture", "Perceptron": "perceptron", "Trace": "trace",
    "Verdict": "verdict", "BadInput": "errors", "sites": "adapters.roles.model",
    "describe": "verbs", "predict": "verbs", "judge": "verbs", "compare": "verbs", "phase_diagram": "verbs",
    "critical_point": "verbs", "vector_field": "verbs", "measure": "verbs", "audit_initialization": "verbs",
    "use_kernel": "verbs",
    "perceptron_maps": "verbs", "critical_plan": "verbs", "initialize_": "verbs", "total_changes": "verbs",
}  # fmt: skip
_ROOMS = ("laboratory", "landscape", "nets", "optim", "study", "view")

__all__ = [
    "Architecture", "BadInput", "Perceptron", "Trace", "Verdict", "audit_initialization", "compare", "critical_plan",
    "critical_point", "describe", "initialize_", "judge", "laboratory", "landscape", "measure", "nets", "optim",
    "perceptron_maps", "phase_diagram", "predict", "sites", "study", "total_changes", "transformer", "use_kernel",
    "vector_field", "view",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"edgewise.{_HOMES[name]}"), name)
    if name in _ROOMS:
        return import_module(f"edgewise.{name}")
    raise AttributeError(f"module 'edgewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
