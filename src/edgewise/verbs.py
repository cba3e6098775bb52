"""The door: convert the input, call one room, say what is wrong once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from edgewise.adapters.describe import describe as _describe
from edgewise.architecture import Architecture
from edgewise.errors import BadInput
from edgewise.perceptron import Perceptron
from edgewise.trace import Trace
from edgewise.verdict import Verdict

if TYPE_CHECKING:
    from edgewise.audit.finding import AuditFinding
    from edgewise.critical.critical_point import CriticalPoint
    from edgewise.critical.phase_diagram import PhaseDiagram
    from edgewise.critical.vector_field import VectorField
    from edgewise.judgement.comparison import Comparison
    from edgewise.repair.initialize import Applied
    from edgewise.repair.plan import Plan, TotalChanges
    from edgewise.theory.perceptron.maps import PerceptronMaps


def describe(source: Any, *, depth: int | None = None, tokens: int | None = None) -> Architecture | Perceptron:
    """An Architecture from a preset name, a config (dict, object, file), a dict of knobs, or itself."""
    return _describe(source, depth=depth, tokens=tokens)


def predict(
    source: Any,
    *,
    start: Any = None,
    start_overlap: float = 0.0,
    readout: str = "token",
    progress: Callable[[float], None] | None = None,
    closure: str = "exact",
) -> Trace:
    """The orbit through depth, from the description alone: no weights, no data.

    start: where the data starts: a measured `Trace`, or a Gram matrix x_a.x_b/width of shape (tokens, tokens).
    start_overlap: mean cosine of two input tokens when there is no `start`.
    readout: "token" for a loss per token, "pooled" for a mean-pooled one; the gradient differs.
    progress: called with the fraction done where the dense recursion is needed, which may take a while.
    closure: the exact softmax moments, or a published approximation for comparison ("large_n", "random_energy"), or
        "frozen", without the gradient through the softmax.
    """
    from edgewise.theory.predict import predict_perceptron, predict_transformer

    described = _describe(source)
    if isinstance(described, Perceptron):
        if start is not None or readout != "token":
            raise BadInput("a perceptron has two inputs and no readout choice: give start_overlap alone.")
        return predict_perceptron(described, start_overlap)
    if isinstance(start, Trace):
        if start_overlap:
            raise BadInput("both start and start_overlap were given; the start says it all: leave start_overlap out.")
        first, overlap = float(start.norm[:, 0].mean()), float(start.overlap[:, 0].mean())
        overlap = 0.0 if -0.05 < overlap < 0 else overlap  # independent tokens scatter around zero
        return predict_transformer(described, None, first, overlap, readout, progress, closure)
    return predict_transformer(described, start, None, start_overlap, readout, progress, closure)


def measure(source: Any, batch: Any = None, *, seeds: int = 1, stream: bool = False, **options: Any) -> Trace:
    """The same orbit read from a real module: an `nn.Module`, a factory, or a Hugging Face config or preset.

    `edgewise.probe.measure.measure` says what the options are (readouts, attention, pair, tokens).
    """
    from edgewise.probe.measure import measure as _measure

    return _measure(source, batch, seeds=seeds, stream=stream, **options)


def audit_initialization(model: Any, **options: Any) -> tuple[AuditFinding, ...]:
    """What a look at fresh weights finds wrong, worst first; see `edgewise.audit.inspect.audit`."""
    from edgewise.audit.inspect import audit

    return audit(model, **options)


def critical_plan(model: Any, batch: Any = None, *, keep: Sequence[str] = (), **options: Any) -> Plan:
    """Which matrices get which gain and why, before anything is touched; see `edgewise.repair.critical_plan`."""
    from edgewise.repair.critical_plan import critical_plan as _plan

    return _plan(model, batch, keep=keep, **options)


def total_changes(model: Any, batch: Any = None, *, seed: int = 0) -> TotalChanges:
    """The total log-changes over depth, of angle and gradient, of any module with a repeated stack: one pass."""
    from edgewise.repair.meter import total_changes as _totals

    return _totals(model, batch, seed)


def initialize_(model: Any, plan: Plan | str = "critical", **options: Any) -> Applied:
    """Write a plan (or that of a goal) into a module, in place; see `edgewise.repair.initialize`."""
    from edgewise.repair.initialize import initialize_ as _initialize

    return _initialize(model, plan, **options)


def use_kernel(model: Any, kernel: str) -> Any:
    """Swap the attention kernel of an unmodified Hugging Face model, in place: softmax, gaussian,
    normalized_gaussian or linear."""
    from edgewise.nets.swap import use_kernel as _use_kernel

    return _use_kernel(model, kernel)


def judge(trace: Trace) -> Verdict:
    """What a trace means; asymptotics and remedies are added when it carries its description."""
    if not isinstance(trace, Trace):
        raise BadInput(f"judge takes a Trace, got {type(trace).__name__}. Call predict first.")
    from edgewise.judgement.judge import complete
    from edgewise.judgement.judge import judge as _judge

    return complete(_judge(trace), trace)


def phase_diagram(source: Any, *, readout: str = "token", start_overlap: float = 0.0, **axes: Any) -> PhaseDiagram:
    """Exponents and phases over two knobs, each given as knob=(low, high, count).

    attention_strength and mlp_strength are axes too: a on the branch and sqrt(1 - a^2) on the skip around it.
    """
    from edgewise.critical.phase_diagram import draw_up

    return draw_up(_transformer(source), axes, readout=readout, start_overlap=start_overlap)


def critical_point(
    source: Any, free: Sequence[str] | str, *, readout: str = "token", start_overlap: float = 0.0
) -> CriticalPoint:
    """Values of the free knobs at which the exponents vanish over this depth, or what is left of them."""
    from edgewise.critical.critical_point import solve

    names = (free,) if isinstance(free, str) else tuple(free)
    return solve(_transformer(source), names, readout=readout, start_overlap=start_overlap)


def vector_field(source: Any, **grid: Any) -> VectorField:
    """The flow of (norm, overlap) under one block, with its fixed points and the network's own orbit."""
    from edgewise.critical.vector_field import flow

    return flow(_transformer(source), **grid)


def perceptron_maps(source: Any) -> PerceptronMaps:
    """Length and correlation maps, limits, orbits, circles and the edge of chaos of one random perceptron.

    source: a Perceptron, a dict of its knobs, or "mlp:ACTIVATION".
    """
    from edgewise.theory.perceptron.maps import PerceptronMaps

    described = _describe(source)
    if not isinstance(described, Perceptron):
        raise BadInput('perceptron_maps takes a perceptron, got a transformer. Give a Perceptron or "mlp:tanh".')
    return PerceptronMaps(described)


def compare(first: Any, second: Any, **how: Any) -> Comparison:
    """Two networks side by side: what differs in the description, and what it does."""
    from edgewise.judgement.comparison import Comparison, differences

    sources = (_describe(first), _describe(second))
    traces = tuple(predict(source, **how) for source in sources)
    verdicts = tuple(judge(trace) for trace in traces)
    return Comparison(traces, verdicts, differences(*sources))  # type: ignore[arg-type]


def _transformer(source: Any) -> Architecture:
    described = _describe(source)
    if not isinstance(described, Architecture):
        raise BadInput("this needs a transformer; for a perceptron use edgewise.perceptron_maps.")
    return described


__all__ = [
    "audit_initialization", "compare", "critical_plan", "critical_point", "describe", "initialize_", "judge", "measure",
    "perceptron_maps", "phase_diagram", "predict", "total_changes", "use_kernel", "vector_field",
]  # fmt: skip
