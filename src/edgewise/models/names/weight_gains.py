"""The gains of every block of a model, as knobs: one value if the layers agree, else one per layer.

Gains read from weights: gain = root mean square * sqrt(fan_in), the norm before the matrix folded in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgewise.arrays import in_double, with_double
from edgewise.models.names import model_sites as roles
from edgewise.models.names.model_sites import BlockSite, Projection
from edgewise.models.names.norm import FAILURES, gain_name, norm_kind
from edgewise.models.twin import twin
from edgewise.models.unwrap import unwrap

if TYPE_CHECKING:
    from torch import Tensor, nn

MOSTLY = 0.5  # of the entries
ONE_SIDED = 0.25  # of the standard deviation; the mean of drawn entries is near zero
SIGNIFICANT = 4.0  # standard errors; the largest of a thousand normal numbers is near 3.2


@dataclass(frozen=True)
class Gain:
    """A measured gain and its relative sampling error, 1/sqrt(2 N) for N independent normal entries."""

    value: float
    error: float

    def __mul__(self, other: Gain | float) -> Gain:
        if isinstance(other, Gain):
            return Gain(self.value * other.value, math.hypot(self.error, other.error))
        return Gain(self.value * other, self.error)


def measured_gain(model: nn.Module, matrix: Projection, norm: str | None = None) -> Gain:
    """rms(W diag(g)) sqrt(fan_in), g the gains of the norm whose output the matrix reads."""
    weight = matrix.weight(model).detach()
    columns = _columns(weight)
    if norm is not None:
        columns = columns * norm_gains(model, norm).to(columns.device).square()
    mean_square = float(columns.sum()) / weight.numel()
    return Gain(math.sqrt(mean_square * matrix.fan_in), 1 / math.sqrt(2 * weight.numel()))


def root_mean_square(tensor: Tensor) -> float:
    return math.sqrt(float(_columns(tensor.detach()).sum()) / tensor.numel())


def _columns(weight: Tensor) -> Tensor:
    """Sum of squares over all but the last dimension; squares in single, sums in double precision: half the time."""
    import torch

    squares = weight.to(torch.promote_types(weight.dtype, torch.float32)).square()
    if weight.ndim <= 1:
        return in_double(squares)
    return with_double(squares).sum(tuple(range(weight.ndim - 1)), dtype=torch.float64)


def is_structured(parameter: Tensor) -> bool:
    """Tell a matrix that was set from a drawn one: constant, mostly zeros, repeated rows, or entries of one sign.

    State-space decays, time steps, frequencies and gates at zero are such; drawing them would destroy what they mean.
    """
    values = in_double(parameter.detach()).flatten(1)
    spread = float(values.std()) if values.numel() > 1 else 0.0
    if (
        spread <= 1e-12 * max(float(values.abs().max()), 1e-30)
        or float(in_double(values == 0).mean()) > MOSTLY
    ):
        return True
    repeated = len(values) > 1 and bool((values == values[:1]).all())
    return repeated or abs(float(values.mean())) > ONE_SIDED * spread


def is_set(bias: Tensor) -> bool:
    """Tell a bias that was set: not zero, and constant or of one sign (time steps, forget gates)."""
    values = in_double(bias.detach()).flatten()
    mean, spread = float(values.mean()), float(values.std()) if values.numel() > 1 else 0.0
    return mean != 0 and abs(mean) > spread


def norm_gains(model: nn.Module, name: str) -> Tensor:
    """Measure the factor of a norm on each normalized coordinate: half of norm(x) - norm(-x), over x/|x|.

    Gemma stores g - 1, others g; the norm itself knows. Of one that only multiplies (MobileBERT's): of x itself. Where
    it does not take rows of features: as stored.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    module = unwrap(model).get_submodule(name)
    gain = gain_name(module)
    if gain is None:  # an Identity, or a norm without gains
        return torch.ones(1, dtype=torch.float64)
    weight = module.get_parameter(gain)
    if isinstance(module, (_BatchNorm, torch.nn.GroupNorm)):
        return in_double(weight.detach())
    x = torch.full_like(
        in_double(weight.detach()).flatten(), 100.0
    )  # large, so that the epsilon inside does not show
    x[::2] *= -1
    centred = x - x.mean() if norm_kind(module) == "layer" else x
    normal = centred / centred.pow(2).mean().sqrt()
    module = twin(module)
    try:
        with torch.no_grad():
            up, down, far = (in_double(module(z.to(weight)[None]))[0] for z in (x, -x, 3 * x))
    except FAILURES:
        return in_double(weight.detach())
    grows = float((far - down).norm()) > 1.5 * float((up - down).norm())  # 2 if it is linear, 1 behind a norm
    return (up - down) / 2 / (x if grows else normal)


def one_or_each(gains: Sequence[Gain]) -> float | tuple[float, ...]:
    """One value if the layers agree within their sampling errors, else one per layer."""
    pooled = math.sqrt(sum(g.value**2 for g in gains) / len(gains))
    agree = all(abs(g.value - pooled) <= SIGNIFICANT * g.error * pooled for g in gains)
    return pooled if agree else tuple(g.value for g in gains)


EXACT = 1e-6  # relative error of what is not drawn but set: gains of norms, multipliers


def measured_knobs(
    model: nn.Module,
    blocks: Sequence[BlockSite],
    logit_scale: Callable[[float | tuple[float, ...]], Sequence[float]],
) -> dict[str, Any]:
    """score, value, key, output, MLP and bias gains, and branch multipliers if the model has them.

    logit_scale: given the gains of q.k/sqrt(head width), what multiplies it in each block.
    """
    readers: dict[str, Callable[[nn.Module, BlockSite], Gain]] = {
        "value_gain": _value,
        "output_gain": _output,
        "mlp_in_gain": _mlp_in,
        "mlp_out_gain": _mlp_out,
        "mlp_bias": _mlp_bias,
    }
    knobs: dict[str, Any] = {
        name: one_or_each([read(model, block) for block in blocks]) for name, read in readers.items()
    }
    scores = [_score(model, block) for block in blocks]
    scales = logit_scale(one_or_each(scores))
    knobs["score_gain"] = one_or_each([score * scale for score, scale in zip(scores, scales, strict=True)])
    normed = blocks[0].norm(roles.QUERY_NORM) is not None
    knobs["key_gain"] = None if normed else one_or_each([_key(model, block) for block in blocks])
    if blocks[0].feed_forward.gate is not None:
        knobs["mlp_linear_gain"] = one_or_each(
            [_read(model, b, b.feed_forward.input, mlp=True) for b in blocks]
        )
    return knobs | branch_multipliers(model, blocks)


def branch_multipliers(model: nn.Module, blocks: Sequence[BlockSite]) -> dict[str, Any]:
    """LayerScale and the gains of norms after a branch, which multiply it; nothing if there is neither."""
    multipliers: dict[str, Any] = {}
    for index, (name, role) in enumerate(
        (("attention_branch", roles.AFTER_ATTENTION), ("mlp_branch", roles.AFTER_MLP))
    ):
        gains = [_branch(model, block, role, index) for block in blocks]
        if any(gain is not None for gain in gains):
            multipliers[name] = one_or_each([gain or Gain(1.0, EXACT) for gain in gains])
    return multipliers


def _branch(model: nn.Module, block: BlockSite, role: str, index: int) -> Gain | None:
    norm = block.norm(role)
    factors = [root_mean_square(norm_gains(model, norm.name))] if norm is not None else []
    if len(block.scales) == 2:  # of attention, then of the MLP
        factors.append(root_mean_square(unwrap(model).get_parameter(block.scales[index])))
    return Gain(math.prod(factors), EXACT) if factors else None


def _read(model: nn.Module, block: BlockSite, matrix: Projection, *, mlp: bool) -> Gain:
    """The gain of a matrix that reads the stream through the branch's norm, if there is one."""
    norm = block.norm(roles.BEFORE_MLP) if mlp else None
    norm = norm or block.norm(roles.BEFORE_ATTENTION)
    if mlp and block.middle is not None and block.norm(roles.BEFORE_MLP) is None:
        norm = None  # not parallel, so the norm of attention is not the MLP's
    fits = norm is not None and norm.width in (None, matrix.fan_in)
    return measured_gain(model, matrix, norm.name if norm is not None and fits else None)


def _latent(model: nn.Module, block: BlockSite, matrix: Projection) -> Gain:
    """The gain of a matrix that reads a normalized latent: its norm is the one of that width."""
    norms = [norm for norm in block.norms if norm.role == roles.LATENT_NORM and norm.width == matrix.fan_in]
    return measured_gain(model, matrix, norms[0].name if norms else None)


def _query(model: nn.Module, block: BlockSite) -> Gain:
    if _extra(block, "query_down") is not None:
        return _latent(model, block, block.attention.query)
    return _read(model, block, block.attention.query, mlp=False)


def _key(model: nn.Module, block: BlockSite) -> Gain:
    """The key's gain; with latents the mean square over its still and rotated parts."""
    rotated = _extra(block, "key_rotated")
    if rotated is None:
        return _read(model, block, block.attention.key, mlp=False)
    heads = block.attention.heads or 1
    still, turned = _latent(model, block, block.attention.key), _read(model, block, rotated, mlp=False)
    n, m = block.attention.key.fan_out / heads, rotated.fan_out
    return Gain(
        math.sqrt((n * still.value**2 + m * turned.value**2) / (n + m)), max(still.error, turned.error)
    )


def _extra(block: BlockSite, role: str) -> Projection | None:
    return next((p for p in block.attention.extra if p.role == role), None)


def _score(model: nn.Module, block: BlockSite) -> Gain:
    """gain_Q gain_K, of the matrices or, where queries and keys are normalized, of those norms."""
    norms = [block.norm(role) for role in (roles.QUERY_NORM, roles.KEY_NORM)]
    if all(norms):
        values = [root_mean_square(norm_gains(model, norm.name)) for norm in norms if norm is not None]
        return Gain(math.prod(values), EXACT)
    return _query(model, block) * _key(model, block)


def _value(model: nn.Module, block: BlockSite) -> Gain:
    value = block.attention.value
    latent = _extra(block, "key_value_down") is not None
    inward = _latent(model, block, value) if latent else _read(model, block, value, mlp=False)
    return inward * _output(model, block)


def _output(model: nn.Module, block: BlockSite) -> Gain:
    return measured_gain(model, block.attention.output)


def _mlp_in(model: nn.Module, block: BlockSite) -> Gain:
    return _read(model, block, block.feed_forward.gate or block.feed_forward.input, mlp=True)


def _mlp_out(model: nn.Module, block: BlockSite) -> Gain:
    return measured_gain(model, block.feed_forward.output)


def _mlp_bias(model: nn.Module, block: BlockSite) -> Gain:
    bias = (block.feed_forward.gate or block.feed_forward.input).bias(model)
    return Gain(0.0, EXACT) if bias is None else Gain(root_mean_square(bias), 1 / math.sqrt(2 * bias.numel()))
