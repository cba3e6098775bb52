"""A network in memory, read once at every site, and the Trace of several such observations.

One forward pass with hooks, a backward pass per readout, a nearby input. Observation must not change what a model
computes: once per model, attention implementation and input shape its output is compared with that of a run without
any hook.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.models.behavior.record import Stack
from edgewise.models.inputs import call, tensors
from edgewise.models.names.model_sites import BlockSite
from edgewise.models.state import collector_paused, preserved
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.trace import GRADIENTS, WEIGHTS, FirstLoss, Provenance, Trace
from edgewise.probe.attention_rows import AttentionWatch, GainWatch, RowStatistics
from edgewise.probe.batches import Counted, counted, sequences_of
from edgewise.probe.geometry import (
    StreamSite,
    Unreached,
    WeightLogs,
    add_squares,
    generator_for,
    log_norms,
    matrices,
    mean_square,
    nearby_input,
    no_squares,
    output_gradient,
    own_loss,
    pair_growth,
    parameters_of,
    separation,
    site_gradients,
    weight_logs,
)
from edgewise.probe.readout import first_loss, readout_of
from edgewise.probe.streams import OVERWRITES, Catch, attentions, traced_sites

NO_LOSS = "no own loss: the model returned no scalar (give labels in the batch)"


@dataclass
class Request:
    """What to read; `seeds` number the readout and pair directions drawn on one forward pass."""

    readouts: Sequence[str] | None  # None: the one by which the model reads its own output
    attention: bool
    pair: bool
    seeds: Sequence[int]
    check: bool = True  # that observing does not change the output
    gain: bool = False

    def weight_readout(self, readouts: Sequence[str]) -> str | None:
        """The readout whose gradients of the matrices are recorded."""
        return "token" if "token" in readouts else next(iter(readouts), None)


@dataclass
class NetworkObservation:
    """Numbers of one network: norm and separation (N,), the rest per seed."""

    sites: tuple[str, ...]
    tokens: int
    width: int
    norm: Array
    separation: Array
    log_gradient: list[dict[str, list[float]]] = field(default_factory=list)
    statistics: list[dict[str, Array]] = field(default_factory=list)
    attention: dict[int, RowStatistics] = field(default_factory=dict)  # by site
    notes: list[str] = field(default_factory=list)
    readout: str = ""  # how the model reads its own output
    left_out: str = ""  # which tokens were not measured, and why
    first_loss: FirstLoss | None = None

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.norm).all())

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def read_geometry(
    listed: Sequence[StreamSite], shaped: Sequence[Tensor], counted: Counted
) -> NetworkObservation:
    """Norm and separation of every stream (sequences, tokens, width), over the tokens that count.

    If the stream leaves the range of floating point, the last finite separation is repeated, as theory does.
    """
    mask, (_, n, d) = counted.mask, shaped[0].shape
    norm = np.array([mean_square(x, mask) for x in shaped])
    finite = np.isfinite(norm)
    apart = [separation(x, mask) if ok else math.nan for x, ok in zip(shaped, finite, strict=True)]
    if not finite.all():
        first = int(np.argmin(finite))
        norm[first:], apart[first:] = np.inf, [apart[first - 1] if first else 0.0] * (len(apart) - first)
    sites = tuple(place.name for place in listed)
    return NetworkObservation(sites, counted.tokens(n), d, norm, np.array(apart), left_out=counted.left_out)


def read_attention(
    observation: NetworkObservation, watch: AttentionWatch, listed: Sequence[StreamSite]
) -> None:
    """Statistics at the sites of attention, or a note why there are none: a mean over some layers would be wrong."""
    missing = [index for index in watch.blocks if index in watch.errors or index not in watch.records]
    if missing:
        why = watch.errors.get(missing[0], "no attention call was seen in it")
        where = f"{len(missing)} of {len(watch.blocks)} blocks; block {missing[0]}: {why}"
        return observation.note(f"attention not measured: {where}")
    for index, place in enumerate(listed):
        if place.block is not None and place.attends:
            observation.attention[index] = watch.records[place.block]


def weight_arrays(listed: Sequence[StreamSite], logs: WeightLogs, log_output: float) -> dict[str, Array]:
    """log |dL/dW|^2 for mean_a |g_a|^2 = 1 at the output of one sequence, at the site of the matrix's branch."""
    arrays = {f"weight_gradient.{name}": np.full(len(listed), np.nan) for name in WEIGHTS}
    for index, place in enumerate(listed):
        for (name, block), log in logs.items():
            branch = "mlp" if name.startswith("mlp") else "attention"
            if block == place.block and (branch in place.branches or place.branches == ["output"]):
                arrays[f"weight_gradient.{name}"][index] = log - log_output
    return arrays


def trace_of(
    observations: Sequence[NetworkObservation], description: Architecture | str, source: str
) -> Trace:
    """One Trace from observations of several networks, or from several directions in one.

    description: the network's, or a sentence why there is none, which joins the source.
    """
    directions = max(len(observation.statistics) for observation in observations)
    copies = directions if len(observations) == 1 and directions else 1
    logs = [log for observation in observations for log in observation.log_gradient]
    whole = len(logs) == len(observations) * copies and bool(logs)
    names = tuple(logs[0]) if whole else ()
    records = [s for observation in observations for s in observation.statistics] if whole else []
    statistics = {name: np.array([s[name] for s in records]) for name in (records[0] if records else ())}
    rows = _attention_arrays(observations, copies)
    entropy, condition = (rows.pop(name, None) for name in ("attention_entropy", "softmax_condition"))
    return Trace(
        sites=observations[0].sites,
        norm=np.concatenate([np.tile(observation.norm, (copies, 1)) for observation in observations]),
        separation=np.concatenate(
            [np.tile(observation.separation, (copies, 1)) for observation in observations]
        ),
        readouts=names,
        log_gradient=np.array([[log[name] for log in logs] for name in names]) if names else None,
        attention_entropy=entropy,
        softmax_condition=condition,
        statistics=statistics | rows,
        architecture=None if isinstance(description, str) else description,
        first_loss=_mean_loss([observation.first_loss for observation in observations]),
        provenance=Provenance(
            f"{source}; {description}" if isinstance(description, str) else source,
            readout=observations[0].readout,
            notes=(observations[0].left_out,) if observations[0].left_out else (),
        ),
    )


def _mean_loss(losses: Sequence[FirstLoss | None]) -> FirstLoss | None:
    """Over networks; None if one of them has none."""
    known = [loss for loss in losses if loss is not None]
    if not known or len(known) < len(losses):
        return None
    return FirstLoss(sum(loss.value for loss in known) / len(known), known[0].chance)


def _attention_arrays(observations: Sequence[NetworkObservation], copies: int) -> dict[str, Array]:
    """Each statistic (S, N, H), nan where a site has no attention; empty if a network has none."""
    if not all(observation.attention for observation in observations):
        return {}
    heads = max(
        len(rows.attention_entropy) for observation in observations for rows in observation.attention.values()
    )
    arrays = {}
    for name in RowStatistics.names():
        values = np.full((len(observations), len(observations[0].sites), heads), np.nan)
        for i, observation in enumerate(observations):
            for site, rows in observation.attention.items():
                per_head = getattr(rows, name)
                values[i, site, : len(per_head)] = per_head
        arrays[name] = np.repeat(values, copies, axis=0)
    return arrays


_COMPARED: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()


class Unchanged:
    """Built before the hooks are attached: runs the plain forward pass unless this model and shape were compared."""

    def __init__(self, model: nn.Module, batch: object) -> None:
        self.model, self.batch = model, batch
        # What may choose another kernel: the implementation, and shapes, types and devices of model and input.
        implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
        parameter = next(model.parameters())
        shapes = tuple((tuple(t.shape), t.dtype, t.device) for t in tensors(batch))
        self.key: Hashable = (implementation, parameter.dtype, parameter.device, shapes)
        self.compared = self.key in _COMPARED.get(model, ())
        if not self.compared:
            with torch.no_grad():
                self.plain = call(model, batch)

    def confirmed(self, output: object) -> bool:
        """Return True if the observed output is the plain one bit for bit, now or when it was compared before."""
        if self.compared:
            return True
        if not _same(self.plain, output):
            self.plain = call(self.model, self.batch)  # with a graph: some kernels differ without one
        if not _same(self.plain, output):
            return False
        _COMPARED.setdefault(self.model, set()).add(self.key)
        return True


def _same(first: object, second: object) -> bool:
    """Bit for bit the same tensors (NaN equal to NaN)."""
    pairs = list(tensors(first)), list(tensors(second))
    if [t.shape for t in pairs[0]] != [t.shape for t in pairs[1]]:
        return False
    return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in zip(*pairs, strict=True))


def observe(
    model: nn.Module, batch: object, stack: Stack, blocks: Sequence[BlockSite], request: Request
) -> NetworkObservation:
    """Read one network at the sites of a stack; `blocks` has the roles of its matrices, empty if unknown.

    The model is exactly as before afterwards, also when something inside raises.
    """
    with collector_paused(), preserved(model, gradients=True):
        return _Pass(model, batch, stack, blocks, request).run()


class _Pass:
    def __init__(
        self, model: nn.Module, batch: object, stack: Stack, blocks: Sequence[BlockSite], request: Request
    ) -> None:
        self.model, self.batch, self.stack, self.blocks, self.request = model, batch, stack, blocks, request
        self.sites = traced_sites(stack)
        self._prepare()

    def _prepare(self, out_of_place: bool = False) -> None:
        """Empty hands for a pass."""
        self.catch = Catch(self.sites, self.stack, sequences_of(self.batch), out_of_place=out_of_place)
        self.catch.on_first = self._begin
        self.counted = Counted()
        self.watch: AttentionWatch | None = None
        if self.request.attention and self.stack.attentions:
            kind = GainWatch if self.request.gain else AttentionWatch
            self.watch = kind(attentions(self.stack), torch.Generator().manual_seed(self.request.seeds[0]))

    def _begin(self, first: Tensor) -> None:
        """Record which tokens count, once the first stream arrives."""
        self.counted = counted(self.model, self.batch, first, self.stack.name)
        if self.watch is not None:
            self.watch.sample(first.shape[0], first.shape[1], self.counted.mask)

    def run(self) -> NetworkObservation:
        """Plain pass, observed pass, geometry, attention, readouts: each needs the ones before it."""
        unchanged = Unchanged(self.model, self.batch) if self.request.check else None
        output = self._observed_pass()
        self.streams = self.catch.finished()  # in the graph
        self.shaped = [self.catch.shaped(stream) for stream in self.streams]  # (sequences, tokens, width)
        self.loss, mask = own_loss(output), self.counted.mask
        observation = read_geometry(self.sites, self.shaped, self.counted)
        causal = any("causal" in (branch.sees or "") for branch in self.stack.branches)
        observation.first_loss = first_loss(self.model, self.batch, output, self.loss, mask, causal)
        if unchanged is not None and not unchanged.confirmed(output):
            if self.catch.out_of_place:
                raise BadInput(OVERWRITES)
            observation.note("attention not measured: the output changed while observed (not deterministic?)")
        elif self.watch is not None:
            read_attention(observation, self.watch, self.sites)
        if not all(stream.requires_grad for stream in self.streams):
            observation.note(
                "gradients not measured: the model cuts them off (detach, no_grad, a kernel without them)"
            )
        elif observation.finite:
            observation.readout = readout_of(output, self.streams[-1], self.catch.shaped)
            try:
                for seed in self.request.seeds:
                    self._directions(observation, seed)
            except Unreached as error:
                observation.log_gradient, observation.statistics = [], []
                observation.note(f"gradients not measured: {error}")
        return observation

    def _observed_pass(self) -> object:
        """The model's output; without gradients if a kernel has none on this device."""
        try:
            output = self._hooked_pass()
            if self.catch.overwritten:  # by `x += y`: once more as x = x + y, which gives the same output
                self._prepare(out_of_place=True)
                output = self._hooked_pass()
            return output
        except NotImplementedError:
            if not torch.is_grad_enabled():
                raise
        self._prepare()
        with torch.no_grad():
            return self._observed_pass()

    def _hooked_pass(self) -> object:
        """Hooks live no longer than this."""
        with ExitStack() as hooks:
            if self.watch is not None:
                self.watch.attach(self.model, hooks)
                self.catch.calls = self.watch.operations()
                hooks.enter_context(self.watch)
            return self.catch.run(self.model, self.batch)

    def _directions(self, observation: NetworkObservation, seed: int) -> None:
        """Every readout and the nearby input of one seed, added to the observation."""
        generator = generator_for(seed, "readout")
        logs: dict[str, list[float]] = {}
        statistics: dict[str, Array] = {}
        readouts = self.request.readouts
        if readouts is None:
            readouts = (GRADIENTS.get(observation.readout, "token"),)
        weighed = self.request.weight_readout(readouts) if self.blocks else None
        target: Tensor
        for readout in readouts:
            if readout != "own":
                start = output_gradient(self.shaped[-1], readout, generator, self.counted.mask)
                target, start = self.streams[-1], self.catch.unshaped(start, self.streams[-1])
            elif self.loss is not None:
                target, start = self.loss, None
            else:
                observation.note(NO_LOSS)
                continue
            logs[readout] = self._backward(target, start, statistics if readout == weighed else None)
        if self.request.pair:
            statistics["pair_growth"] = self._pair(seed)
        observation.log_gradient.append(logs)
        observation.statistics.append(statistics)

    def _backward(
        self, target: Tensor, start: Tensor | None, weights: dict[str, Array] | None
    ) -> list[float]:
        """log |g|^2 at every site over that at the last; gradients of the matrices go into `weights`, if given."""
        listed = [] if weights is None else matrices(self.blocks)
        names = parameters_of(listed)
        parameters = [self.model.get_parameter(name) for name in names]
        at_sites, at_weights = site_gradients(target, self.streams, start, parameters)
        shaped = [None if g is None else self.catch.shaped(g) for g in at_sites]
        logs = log_norms(shaped, [site.name for site in self.sites], self.counted.mask)
        if weights is not None:
            squares = no_squares(listed)
            for name, gradient in zip(names, at_weights, strict=True):
                if gradient is not None:
                    add_squares(squares, listed, name, gradient)
            sequences = self.shaped[-1].shape[0]
            weights |= weight_arrays(self.sites, weight_logs(squares), logs[-1] + math.log(sequences))
            if isinstance(self.watch, GainWatch):
                weights |= self.watch.gains(target, start, self.sites)
        return [value - logs[-1] for value in logs]

    def _pair(self, seed: int) -> Array:
        catch = Catch(self.sites, self.stack, self.catch.sequences, out_of_place=self.catch.out_of_place)
        with torch.no_grad():
            catch.run(self.model, self.batch, replace_first=nearby_input(self.streams[0].detach(), seed))
        near = [self.catch.shaped(stream) for stream in catch.finished()]
        return pair_growth(self.shaped, near, self.counted.mask)
