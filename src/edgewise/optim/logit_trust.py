"""LogitTrust: no step of an optimizer moves the attention logits of a head by more than delta."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from edgewise.errors import BadInput
from edgewise.models.unwrap import unwrap
from edgewise.optim.logit_change import TokenSample, change_moments
from edgewise.optim.parallel import by_name, like_shard, norm_function, processes_of, summed, whole
from edgewise.optim.query_key import ParameterLayout, QueryKey, query_keys
from edgewise.optim.wrapper import Closure, OptimizerWrapper, State


class LogitTrust(OptimizerWrapper):
    """After each step, shrink the change of W_Q and W_K (and biases) of each head so that predicted RMS Δz ≤ delta.

        s = min(1, 2δ / (a + sqrt(a² + 4bδ))),   a = RMS(Δq·k + q·Δk)/√d_h,  b = RMS(Δq·Δk)/√d_h

    which solves s a + s² b = δ, an upper bound of the RMS of s u + s² w. Heads that share keys share the smallest s.
    a and b come from `rows * positions * passes` tokens sampled while the model runs. Momentum is left alone.

    optimizer: any torch.optim.Optimizer; model: the model it trains, as it is called (compiled, DDP, FSDP2);
    wrap before the first call of a compiled model. enabled = False is the wrapped optimizer, bit for bit.
    process_group: to average over; None finds it, False keeps every process to itself.
    """

    KEY = "logit_trust"

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        delta: float = 0.03,
        *,
        rows: int = 4,
        positions: int = 16,
        passes: int = 4,
        seed: int = 0,
        process_group: Any = None,
        enabled: bool = True,
    ) -> None:
        super().__init__(optimizer)
        if not delta > 0:
            raise BadInput(f"delta is {delta}; expected logits per step, above zero (0.02 to 0.05 is usual).")
        self.delta, self.enabled = delta, enabled
        self.attentions = query_keys(model)
        self.sample = TokenSample(model, self.attentions, rows, positions, passes, seed)
        self._model, self._group = unwrap(model), processes_of(model, process_group)
        self._has_tokens = False
        self.predicted: dict[str, Tensor] = {}  # RMS logit change of the last step, per head
        self.scales: dict[str, Tensor] = {}  # what the step was multiplied by, per head

    def step(self, closure: Closure | None = None) -> Any:
        if not self.enabled:
            return self._inner_step(closure)
        parameters = by_name(self._model, (n for a in self.attentions for n in a.parameters))
        before = {name: p.detach().clone() for name, p in parameters.items() if p.requires_grad}
        result = self._inner_step(closure)
        with torch.no_grad():
            if self._have_tokens(parameters, before):
                self._bound(parameters, before)
            self.sample.redraw()
        return result

    def remove(self) -> None:
        """Take the hooks off and be the wrapped optimizer from now on."""
        self.sample.remove()
        self.enabled = False

    def own_state(self) -> State:
        return {"delta": self.delta, "seen": self._has_tokens, **self.sample.state_dict()}

    def load_own_state(self, state: State) -> None:
        self.delta, self._has_tokens = state["delta"], state["seen"]
        self.sample.load_state_dict(state)

    def _have_tokens(self, parameters: dict[str, nn.Parameter], before: dict[str, Tensor]) -> bool:
        """Checked until there are tokens (this reads from the device), then taken for granted."""
        if not self._has_tokens:
            self._has_tokens = all(bool(torch.isfinite(ring.tokens).any()) for ring in self.sample.all)
        if not self._has_tokens and any(
            not torch.equal(whole(parameters[n]), whole(old)) for n, old in before.items()
        ):
            raise BadInput(
                "the parameters moved before any forward pass with gradients. Wrap the optimizer before the "
                "model runs (a compiled model: before its first call), and run the model that was given."
            )
        return self._has_tokens

    def _bound(self, parameters: dict[str, nn.Parameter], before: dict[str, Tensor]) -> None:
        old = {name: whole(before.get(name, p)) for name, p in parameters.items()}
        new = {name: whole(p) for name, p in parameters.items()}
        moments = [self._moments(i, old, new) for i in range(len(self.attentions))]
        counts = [m.shape[1] for m in moments]
        joined = summed(torch.cat(moments, 1), self._group)
        layout = ParameterLayout.of(self.attentions, parameters)
        factors = {name: torch.ones(layout.outputs[name], device=p.device) for name, p in parameters.items()}
        for attention, part in zip(self.attentions, joined.split(counts, 1), strict=True):
            scale = self._scale(attention, part)
            _spread_over_rows(attention, scale, factors)
        for name, previous in before.items():
            _shrink(parameters[name], previous, layout.shaped(name, factors[name], previous.ndim))

    def _moments(self, index: int, old: dict[str, Tensor], new: dict[str, Tensor]) -> Tensor:
        attention = self.attentions[index]
        sides = (attention.query, attention.key)
        start = tuple(side.read(old) for side in sides)
        change = tuple(side.read(new) - first for side, first in zip(sides, start, strict=True))
        norms = tuple(norm_function(self._model, side.norm.name if side.norm else None) for side in sides)
        rings = self.sample.rings[index]
        return change_moments(attention, rings, start, change, norms)  # type: ignore[arg-type]

    def _scale(self, attention: QueryKey, sums: Tensor) -> Tensor:
        """s per key head (kv_heads,); keeps what it predicts for the queries' heads."""
        uu, uw, ww = sums[:3] / sums[3].clamp_min(1.0)
        a, b, δ = uu.sqrt(), ww.sqrt(), self.delta
        own = (2 * δ / (a + (a * a + 4 * b * δ).sqrt())).nan_to_num(nan=1.0).clamp_max(1.0)
        s = own.unflatten(0, (-1, attention.share)).amin(1)
        each = s.repeat_interleave(attention.share)
        self.scales[attention.name] = each
        self.predicted[attention.name] = (each**2 * uu + 2 * each**3 * uw + each**4 * ww).clamp_min(0).sqrt()
        return s


def _spread_over_rows(attention: QueryKey, scale: Tensor, factors: dict[str, Tensor]) -> None:
    """Write the factor of every head to its rows of every parameter."""
    sizes = {name: len(f) for name, f in factors.items()}
    for side, times in ((attention.query, attention.share), (attention.key, 1)):
        per_head = scale.repeat_interleave(times)
        per_row = per_head.repeat_interleave(side.projection.fan_out // side.heads)
        for name, numbers, values in side.parts(per_row, sizes):
            factors[name][numbers] = values.to(factors[name])


def _shrink(parameter: nn.Parameter, previous: Tensor, factor: Tensor) -> None:
    """previous + factor (new - previous) where factor < 1; exactly the new value elsewhere."""
    sharded = hasattr(parameter, "to_local")
    full = like_shard(factor.expand(parameter.shape).contiguous(), parameter) if sharded else factor
    local = [t.to_local() if hasattr(t, "to_local") else t for t in (parameter.data, previous, full)]
    new, old, f = local
    new.copy_(torch.where(f < 1, old + (f * (new - old)).to(old.dtype), new))
