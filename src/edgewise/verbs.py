"""The door: convert the input, call one room, say what is wrong once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput
from edgewise.models.describe import describe
from edgewise.models.source import Source, read_source
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.trace import GRADIENTS, Trace
from edgewise.nouns.verdict import Verdict

if TYPE_CHECKING:
    from edgewise.audit.finding import AuditFinding
    from edgewise.critical.critical_point import CriticalPoint
    from edgewise.critical.phase_diagram import PhaseDiagram
    from edgewise.judgement.comparison import Comparison
    from edgewise.repair.plan import Plan

Range = tuple[float, float, int]  # low, high, number of points


def predict(
    source: Any,
    batch: Any = None,
    *,
    start: Any = None,
    start_overlap: float = 0.0,
    readout: str | None = None,
    progress: Callable[[float], None] | None = None,
    closure: str = "exact",
    **knobs: Any,
) -> Trace:
    """Predict the trace through depth from the description alone: no weights, no data.

    A model is described by its behavior, and one pass through it is measured. If that and the theory differ by more
    than the stated error, or the theory does not cover the model, the trace is the measured one, and `trace.departure`
    says why.

    source         any source (`edgewise.models.source` lists them): preset name, config, knobs, file, model
    batch          for a model: what it is read and measured on; default: made from its own signature
    start          where the data starts: a measured `Trace`, or a Gram matrix x_a.x_b/width of shape (tokens, tokens)
    start_overlap  mean cosine of two input tokens when there is no `start`
    readout        "token" for a loss per token, "pooled" for one of the mean over tokens, "class" for one of a single
                   token; default: as the model reads its own output, and without a model "token", which is noted
    progress       called with the fraction done if the dense recursion is needed, which may take a while
    closure        "exact" softmax moments; "large_n" or "random_energy", published approximations, for comparison;
                   "frozen", without the gradient through the softmax
    knobs          knobs of the description that are changed, as in the shell: depth, tokens, norm, ...

    >>> predict("gpt2", depth=6, tokens=16).depth
    6
    """
    from edgewise.theory.predict import predict as predict_network

    _refuse_readout(readout)
    content = read_source(source)
    if knobs and (content.model is not None or content.factory is not None):
        raise BadInput(
            f"a model is predicted as it is, got {', '.join(knobs)}. "
            "Change its description: edgewise.predict(edgewise.describe(model), depth=48)."
        )
    measured = _measured(content, batch, start, readout)
    kind = readout or ("" if measured is None else measured.readout)
    gradient = GRADIENTS.get(kind, "token")
    if measured is not None and measured.architecture is None:
        trace = _undescribed(source, batch, measured, start is None and closure == "exact")
        return trace.with_provenance(readout=kind)
    read = None if measured is None or measured is start else measured.architecture
    network = describe(source, batch, **knobs) if read is None else read
    theory = predict_network(
        network,
        start=start,
        start_overlap=start_overlap,
        readout=gradient,
        progress=progress,
        closure=closure,
    ).with_provenance(readout=kind)
    if measured is None or closure != "exact":
        return theory
    from edgewise.judgement.comparison import departure

    at_its_start = theory if start is measured else predict_network(network, start=measured, readout=gradient)
    sentence = departure(measured, at_its_start)
    return measured.with_provenance(departure=sentence, readout=kind) if sentence else theory


def _refuse_readout(readout: str | None) -> None:
    if readout is not None and readout not in GRADIENTS:
        raise BadInput(f"readout must be one of {', '.join(GRADIENTS)}, got {readout!r}.")


def _measured(content: Source, batch: Any, start: Any, readout: str | None) -> Trace | None:
    """One pass through a model that is at hand, with its description; None for what has no modules."""
    if content.model is None and content.factory is None:
        return None
    wanted = None if readout is None else (GRADIENTS[readout],)
    if (
        isinstance(start, Trace)
        and start.sampled
        and (wanted or (start.decisive_readout,))[0] in start.readouts
    ):
        return start
    from edgewise.probe.measure import measure  # here: it imports torch, which a description does without

    return measure(content, batch, readouts=wanted, attention=False, pair=False)


def _undescribed(source: Any, batch: Any, measured: Trace, allowed: bool) -> Trace:
    """Return the measured trace of a model without a description; raises if the theory itself was requested."""
    try:
        describe(source, batch)
    except BadInput as error:
        if not allowed:
            raise
        from edgewise.models.behavior.to_architecture import not_covered

        return measured.with_provenance(departure=not_covered(str(error)))
    raise BadInput(
        "this model was measured without a description. Give a batch to edgewise.measure, and judge that."
    )


def judge(trace: Trace, *, audit: Sequence[AuditFinding] = ()) -> Verdict:
    """Return what a trace means for training: outcome, exponents, findings with remedies.

    trace  from `predict` or `measure`; asymptotics and remedies are added when it carries its description
    audit  what `audit_initialization` found in the model: with an error the outcome is at most risky

    >>> from edgewise import transformer
    >>> network = transformer(depth=48, width=1024, heads=16, norm="post")
    >>> judge(predict(network)).outcome.value
    'will not train'
    """
    if not isinstance(trace, Trace):
        raise BadInput(f"judge takes a Trace, got {type(trace).__name__}. Call predict first.")
    from edgewise.judgement.judge import judge as judge_trace

    return judge_trace(trace, audit)


def compare(
    first: Any,
    second: Any,
    *,
    start: Any = None,
    start_overlap: float = 0.0,
    readout: str | None = None,
    progress: Callable[[float], None] | None = None,
    closure: str = "exact",
) -> Comparison:
    """Return two networks side by side: what differs in their descriptions, and what it does.

    first, second                                   any sources
    start, start_overlap, readout, progress, closure  as in `predict`, the same for both

    >>> from edgewise import transformer
    >>> network = transformer(depth=6, tokens=16)
    >>> compare(network, network.replace(norm="post")).differences
    (('norm', 'pre', 'post'),)
    """
    from edgewise.judgement.comparison import Comparison, differences

    networks = describe(first), describe(second)
    one, other = (
        predict(
            n, start=start, start_overlap=start_overlap, readout=readout, progress=progress, closure=closure
        )
        for n in networks
    )
    return Comparison((one, other), (judge(one), judge(other)), differences(*networks))


def phase_diagram(
    source: Any, axes: Mapping[str, Range], *, readout: str = "token", start_overlap: float = 0.0
) -> PhaseDiagram:
    """Exponents, phases and the share of networks that train, over two knobs.

    source         a transformer, from any source
    axes           two knobs as {knob: (low, high, points)}, the horizontal one first. attention_strength and
                   mlp_strength are axes too: a on the branch and sqrt(1 - a^2) on the skip around it
    readout        "token" or "pooled", as in `predict`
    start_overlap  mean cosine of two input tokens

    >>> from edgewise import transformer
    >>> network = transformer(depth=8, tokens=16)
    >>> phase_diagram(network, {"mlp_in_gain": (0.5, 2.0, 4), "attention_branch": (0.1, 1.0, 3)}).angle.shape
    (3, 4)
    """
    from edgewise.critical.exponents import within_reach
    from edgewise.judgement.grid import judged_diagram

    network = _transformer(source)
    with within_reach() as budget:
        return judged_diagram(network, axes, readout, start_overlap, budget)


def critical_point(
    source: Any,
    free: Sequence[str] | str | None = None,
    *,
    readout: str = "token",
    start_overlap: float = 0.0,
) -> CriticalPoint:
    """Find the values of the free knobs at which the exponents vanish over this depth, or what is left of them.

    source         a transformer or a perceptron, from any source
    free           one knob, or two, that may change. By default the attention branch (without attention the MLP's
                   input gain); of a perceptron the weight variance, which is put on the edge of chaos
    readout        "token" or "pooled", as in `predict`
    start_overlap  mean cosine of two input tokens

    >>> network = describe({"depth": 12, "tokens": 16, "norm": "post"})
    >>> sorted(critical_point(network).values)
    ['attention_branch']
    """
    from edgewise.critical.critical_point import solve
    from edgewise.critical.exponents import within_reach

    names, network = (free,) if isinstance(free, str) else free, describe(source)
    with within_reach() as budget:
        return solve(network, names, readout, start_overlap, budget)


def fastest_plan(model: Any, batch: Any = None, *, keep: Sequence[str] = (), frozen: bool = False) -> Plan:
    """Plan the scale of the blocks' matrices that is expected to learn fastest; the model is not changed.

    batch         whatever the model accepts; default: made from its own signature
    keep, frozen  parameters that must stay as they are; whether frozen ones are written too, as in `critical_plan`

    Scales from 0.1 to 10 are drawn on a copy, measured and judged; nothing is trained. The plan is empty if none needs
    a fifth fewer steps than the weights as they are. `initialize_(model, plan=...)` writes it.

    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> fastest_plan(model, torch.randn(2, 8, 16)).goal
    'fastest'
    """
    from edgewise.probe.measure import measure
    from edgewise.repair.initialize import plan_of_scale

    def steps(network: Any) -> float | None:
        verdict = judge(measure(network, batch, attention=False, pair=False))
        return None if verdict.slowdown is None else verdict.slowdown.value

    return plan_of_scale(model, batch, keep, frozen, steps)


def _transformer(source: Any) -> Architecture:
    network = describe(source)
    if not isinstance(network, Architecture):
        raise BadInput("this needs a transformer; for a perceptron use edgewise.critical.perceptron_maps.")
    return network


__all__ = ["compare", "critical_point", "fastest_plan", "judge", "phase_diagram", "predict"]
