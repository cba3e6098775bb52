"""How strong the matrices of a branch are, read from what they do to a random stream of mean square one.

For x with independent entries of mean square one: the root mean square of W x is the gain of W. Queries and keys show
the standard deviation of a score; equal tokens, over which attention only averages, show value and output matrices
together. Numbers are those at the model's own weights, biases left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from edgewise.arrays import in_double
from edgewise.models.behavior.experiment import Experiment, Site, Stream
from edgewise.models.behavior.graph import FLEX, FUSED, MULTIHEAD
from edgewise.models.behavior.mlp import activations, equal, feeders, in_halves, sample
from edgewise.models.behavior.norms import is_normed
from edgewise.models.behavior.record import Gains, Operation
from edgewise.models.behavior.residuals import Score
from edgewise.models.behavior.score_operands import HIDDEN, between_tokens, operands
from edgewise.models.behavior.token_order import mixing_sites

NOISE, EQUAL = 11, 13  # seeds
DRAWS = 8  # different tokens whose copies fill an input
LOUD = 1e4


def read_gains(experiment: Experiment, draws: int = DRAWS) -> None:
    """Gains of every branch: a pass on noise, one on equal tokens, one that shows the hidden biases."""
    biased = experiment.weights("weights")
    noise = _Sizes(experiment)
    scores = _Scores(experiment)
    branches: dict[Site, float] = {}

    def see(site: Site, tokens: Tensor) -> None:
        branches[site] = rms(tokens)

    edits = noise.edits() | {"last_outputs": noise.loud(experiment)}
    experiment.forced(2, _noise, see, without_bias=biased, calls=scores.calls(), **edits)
    equal_tokens = _Sizes(experiment)
    experiment.forced(
        draws, lambda s: _equal_noise(s, draws), None, without_bias=biased, **equal_tokens.edits()
    )
    bias = _Sizes(experiment)
    silence = dict.fromkeys(experiment.weights("first"), torch.zeros_like)
    experiment.forced(1, _noise_of_one, None, **bias.edits(silence))
    for site in experiment.sites:
        site.traits.gains = _gains(experiment, site, noise, equal_tokens, bias, scores, branches.get(site))


def _noise(stream: Stream) -> Tensor:
    return _draw(stream, (2, stream.length, stream.true.shape[-1]), NOISE)


def _noise_of_one(stream: Stream) -> Tensor:
    return _noise(stream)[:1]


def _equal_noise(stream: Stream, draws: int) -> Tensor:
    return _draw(stream, (draws, 1, stream.true.shape[-1]), EQUAL).expand(-1, stream.length, -1)


def _draw(stream: Stream, shape: tuple[int, ...], seed: int) -> Tensor:
    """Mean square one for every token, so that a norm changes nothing."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(stream.true)
    return noise / noise.pow(2).mean(-1, keepdim=True).sqrt()


def rms(value: Tensor) -> float:
    return float(in_double(value.detach()).pow(2).mean().sqrt())


class _Sizes:
    """What first weights give, and what last weights read and give, in one pass."""

    def __init__(self, experiment: Experiment) -> None:
        self.first, self.last = experiment.weights("first"), experiment.weights("last")
        self.outputs: dict[Operation, Tensor] = {}
        self.inputs: dict[Operation, Tensor] = {}

    def edits(self, inputs: Mapping[Operation, Callable[[Tensor], Tensor]] | None = None) -> dict[str, Any]:
        looks = {op: self._look(self.inputs, op) for op in self.last} if inputs is None else inputs
        outputs = {
            op: self._look(self.outputs, op) for op in self.first | self.last if op.function != MULTIHEAD
        }
        opaque = {op: self._look(self.outputs, op) for op in self.last if op.function == MULTIHEAD}
        return {"weight_inputs": looks, "first_outputs": outputs, "last_outputs": opaque}

    def loud(self, experiment: Experiment) -> dict[Operation, Callable[[Tensor], Tensor]]:
        """Before a norm at the end of a branch numbers are made large: its eps plays no part then."""
        ends = {
            op for site in experiment.sites if is_normed(site.traits.output_growth) for op in site.part.last
        }
        opaque = {op for op in self.last if op.function == MULTIHEAD}
        return {op: self._look(self.outputs, op, LOUD if op in ends else 1.0) for op in ends | opaque}

    def _look(
        self, into: dict[Operation, Tensor], operation: Operation, factor: float = 1.0
    ) -> Callable[[Tensor], Tensor]:
        def edit(value: Tensor) -> Tensor:
            into[operation] = value
            return factor * value if factor != 1.0 else value

        return edit


class _Scores:
    """The standard deviation of scores between different inputs: what positions add is the same in both."""

    def __init__(self, experiment: Experiment) -> None:
        self.sites = [site for site in mixing_sites(experiment) if site.part.scores]
        self.values: dict[Site, float] = {}
        self._first: dict[Site, Tensor] = {}
        self._apart = experiment.feed.end_to_end  # attention runs for the two inputs one after the other

    def calls(self) -> dict[Operation, Callable[[Any, Any], None]]:
        number = 2 if self._apart else 1
        return {score.softmax: self._look(s, score) for s in self.sites for score in s.part.scores[:number]}

    def _look(self, site: Site, score: Score) -> Callable[[Any, Any], None]:
        def look(args: Any, kwargs: Any) -> None:
            scores = _scores(score.softmax, score.product, args, kwargs)
            if scores is not None and self._apart and len(site.part.scores) > 1:
                first = self._first.setdefault(site, scores)
                if first is not scores and first.shape == scores.shape:
                    self._compare(site, in_double(first.detach()), in_double(scores.detach()))
            elif scores is not None and scores.shape[-2:] == (2 * site.traits.length, 2 * site.traits.length):
                one, other = in_double(scores.detach()).chunk(
                    2, -2
                )  # both inputs in one row, each behind its mask
                self._compare(site, one[..., : site.traits.length], other[..., site.traits.length :])
            elif scores is not None and scores.shape[0] % 2 == 0:
                length = site.traits.length
                own = between_tokens(scores, site.traits.places, length, length)
                self._compare(site, *in_double((scores if own is None else own).detach()).chunk(2))

        return look

    def _compare(self, site: Site, one: Tensor, other: Tensor) -> None:
        open_ = (one > HIDDEN) & (other > HIDDEN)
        if bool(open_.any()):
            self.values[site] = math.sqrt(float((one - other)[open_].pow(2).mean()) / 2)


def _scores(softmax: Operation, product: Operation, args: Any, kwargs: Any) -> Tensor | None:
    if softmax.function == MULTIHEAD:
        return _multihead_scores(args, kwargs)
    if softmax.function not in FUSED:
        return args[0] if args else kwargs["input"]
    query, key = operands(product, args, kwargs)
    place = 5 if softmax.function == FLEX else 6
    scale = kwargs.get("scale", args[place] if len(args) > place else None)
    key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3) if query.dim() > 3 else key
    return query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)


def _multihead_scores(args: Any, kwargs: Any) -> Tensor | None:
    """Torch's own attention shows its arguments only: (tokens, entries, width) and the input matrices."""
    heads, width = int(args[4]), int(args[3])
    stacked = args[5] if len(args) > 5 and args[5] is not None else kwargs.get("in_proj_weight")
    apart = kwargs.get("q_proj_weight"), kwargs.get("k_proj_weight")
    whole = stacked is not None and stacked.numel() > 0
    first, second = (stacked[:width], stacked[width : 2 * width]) if whole else apart
    if first is None or second is None or args[0].dim() != 3:
        return None
    query = (args[0] @ first.T).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
    key = (args[1] @ second.T).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
    return query @ key.transpose(-1, -2) / math.sqrt(width // heads)


def _gains(
    experiment: Experiment,
    site: Site,
    noise: _Sizes,
    equal_tokens: _Sizes,
    bias: _Sizes,
    scores: _Scores,
    branch: float | None,
) -> Gains:
    last = [op for op in site.part.ends[1] if op in noise.outputs and op in noise.inputs]
    whole = [op for op in site.part.ends[1] if op in equal_tokens.outputs]
    inward, linear = _inward(experiment, site, noise)
    firsts = [bias.outputs[op] for op in site.part.first if op in bias.outputs and op.function != MULTIHEAD]
    normed = _normed_size(site)
    return Gains(
        score=_over(scores.values.get(site), normed**2),
        position=site.traits.bias_size,
        value=_over(_joint([rms(equal_tokens.outputs[op]) for op in whole]), normed),
        inward=_over(inward, normed),
        linear=_over(linear, normed),
        outward=_joint([_ratio(noise.outputs[op], noise.inputs[op]) for op in last]),
        hidden=_joint([rms(noise.inputs[op]) for op in last]),
        bias=_joint([rms(value) for value in firsts]),
        branch=branch,
    )


def _normed_size(site: Site) -> float:
    """Return what tanh or erf in the place of a norm makes of a stream of size one; a norm leaves it."""
    slope, kind = site.traits.norm_slope, site.traits.norm_kind
    if slope is None or not is_normed(site.traits.input_growth):
        return 1.0
    normal = torch.randn(4096, generator=torch.Generator().manual_seed(NOISE), dtype=torch.float64)
    return rms(torch.tanh(slope * normal) if kind == "tanh" else torch.erf(slope * normal))


def _over(value: float | None, size: float) -> float | None:
    return None if value is None else value / size


def joined_gains(own: Gains | None, filled: Gains | None) -> Gains | None:
    """A silent branch's own gains; with its zeros filled, what those hide."""
    if own is None or filled is None:
        return own or filled
    return Gains(*(b if a is None else a for a, b in zip(astuple(own), astuple(filled), strict=True)))


def _joint(values: list[float]) -> float | None:
    """The root mean square over matrices that play the same part (experts)."""
    finite = [value for value in values if math.isfinite(value)]
    return math.sqrt(sum(v * v for v in finite) / len(finite)) if finite else None


def _ratio(output: Tensor, given: Tensor) -> float:
    size = rms(given)
    return rms(output) / size if size else math.nan


def _inward(experiment: Experiment, site: Site, noise: _Sizes) -> tuple[float | None, float | None]:
    """(inside the activation, beside it) of an MLP; for others the first matrices together and None."""
    name = site.traits.activation
    for last, firsts in feeders(experiment, site):
        if name is None or last not in noise.inputs or not all(op in noise.outputs for op in firsts):
            continue
        value, hidden = sample(noise.inputs[last]), [noise.outputs[op] for op in firsts]
        pools = [sample(h) for h in hidden], [half for h in hidden for half in in_halves(h)]
        for pool in pools if site.traits.gated else ():
            for gate, other in permutations(pool, 2):
                if gate.shape == other.shape and equal(
                    activations()[name](gate) * other, value, gate * other
                ):
                    return rms(gate), rms(other)
    sizes = [
        rms(noise.outputs[op]) for op in site.part.first if op in noise.outputs and op.function != MULTIHEAD
    ]
    joint = _joint(sizes)
    return joint, joint if site.traits.gated else None
