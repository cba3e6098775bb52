"""Optimizers whose steps are measured in attention logits: AttentionPreconditioner, LogitTrust."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from edgewise.errors import BadInput
from edgewise.models.unwrap import unwrap
from edgewise.optim.logit_change import LogitMetric, TokenSample, change_moments
from edgewise.optim.parallel import by_name, like_shard, local, norm_function, processes_of, summed, whole
from edgewise.optim.query_key import ParameterLayout, QueryKey, Side, query_keys
from edgewise.optim.wrapper import Closure, Group, OptimizerWrapper, State

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def _refuse_closures(optimizer: Optimizer) -> None:
    """One that evaluates the loss several times a step (LBFGS) would mix its steps with ours."""
    parameters = list(inspect.signature(optimizer.step).parameters.values())
    if parameters and parameters[0].default is inspect.Parameter.empty:
        raise BadInput(
            f"{type(optimizer).__name__} evaluates the loss several times within one step, and cannot be wrapped. "
            "Give an optimizer that steps once per gradient, such as AdamW."
        )


class AttentionPreconditioner(OptimizerWrapper):
    """W_Q and W_K by our step, everything else by the wrapped optimizer (Adam, Muon, SGD, ...):

        u = K⁻¹ G C⁻¹ / (scale² √v),   v = running mean of ‖G‖*² = ⟨G, K⁻¹ G C⁻¹⟩/scale²,   u ← u min(1, cap/‖u‖)
        m ← β m + (1 − β) u,           ΔW = −lr m̂                        (K = E[kkᵀ] for W_Q, E[qqᵀ] for W_K)

    per head, biases as one more column. lr is in logits: a typical step moves the logits of a head by lr, none by more
    than cap · lr. v divides by a running size of the gradient, not by that of this step: steps of fixed length keep
    jittering near the optimum and were worse than Adam. Inverses are refreshed every `refresh` steps; C and K are
    shrunk towards a multiple of 1 by `damping` plus the share of directions not yet seen.

    Memory per attention, in floats: 2(d+1)² for C and its inverse, 4 h d_h² for K, Q and inverses, (h + h_kv) d_h (d+1)
    momentum, and the token sample. Gradients of the rows of W_Q, W_K are hidden from the wrapped optimizer during its
    step. `param_groups` gains a last group with our lr, which schedulers see. Raises for QK-norm and latents.
    """

    KEY = "attention_preconditioner"

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        lr: float = 0.01,
        *,
        damping: float = 0.01,
        refresh: int = 10,
        cap: float = 2.0,
        momentum: float = 0.9,
        decay: float = 0.95,
        weight_decay: float = 0.0,
        rows: int = 4,
        positions: int = 16,
        passes: int = 4,
        seed: int = 0,
        process_group: ProcessGroup | Literal[False] | None = None,
        enabled: bool = True,
    ) -> None:
        super().__init__(optimizer)
        _refuse_closures(optimizer)
        positive = lr > 0 and damping > 0 and cap > 0 and refresh >= 1
        if not (positive and 0 <= momentum < 1 and 0 <= decay < 1):
            raise BadInput(
                f"lr {lr}, damping {damping}, cap {cap} must be positive, refresh {refresh} at least 1, momentum "
                f"{momentum} and decay {decay} in [0, 1)."
            )
        self.attentions = query_keys(model)
        _refuse_normed(self.attentions)
        self.refresh, self.cap, self.decay, self.enabled, self.steps = refresh, cap, decay, enabled, 0
        self.sample = TokenSample(model, self.attentions, rows, positions, passes, seed)
        self._group = processes_of(model, process_group)
        self.metrics = [
            LogitMetric(a, rings, damping, decay, self._group)
            for a, rings in zip(self.attentions, self.sample.rings, strict=True)
        ]
        self._model = unwrap(model)  # what is compiled or replicated around it cannot be copied
        self._moments: dict[str, tuple[Tensor, Tensor]] = {}
        self._masks = self._row_masks()
        rates = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self.group: State = {"params": self._alone(), **rates}

    @property
    def param_groups(self) -> list[Group]:
        """The wrapped optimizer's groups and ours; ours lists only what no other group does (each is scaled once)."""
        return [*self.optimizer.param_groups, self.group]

    @param_groups.setter
    def param_groups(self, groups: list[Group]) -> None:
        *self.optimizer.param_groups, self.group = groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for parameter in self.group["params"]:
            parameter.grad = None if set_to_none or parameter.grad is None else parameter.grad.zero_()

    def step(self, closure: Closure | None = None) -> Any:
        if not self.enabled:
            return self._inner_step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            parameters = self._parameters()
            gradients = {n: whole(p.grad) for n, p in parameters.items() if p.grad is not None}
            old = {name: whole(p).clone() for name, p in parameters.items()}
            # From the wrapped optimizer: whole parameters, or rows of fused ones.
            hidden = [(p, p.grad) for p in parameters.values()]
            for name, p in parameters.items():
                mask = self._masks[name]
                if p.grad is not None:
                    p.grad = None if mask is None else like_shard(whole(p.grad).masked_fill(mask, 0.0), p)
            self._inner_step(None)
            for parameter, gradient in hidden:
                parameter.grad = gradient
            self._move(parameters, gradients, old)
            self.sample.redraw()
        return loss

    def own_state(self) -> State:
        own: State = {"steps": self.steps, "metrics": [metric.state_dict() for metric in self.metrics]}
        own["group"] = {key: value for key, value in self.group.items() if key != "params"}
        own["moments"] = {key: (m.clone(), v.clone()) for key, (m, v) in self._moments.items()}
        return own | self.sample.state_dict()

    def load_own_state(self, state: State) -> None:
        self.steps = state["steps"]
        self.group.update(state["group"])
        self._moments = {key: (m.clone(), v.clone()) for key, (m, v) in state["moments"].items()}
        self.sample.load_state_dict(state)
        for metric, saved in zip(self.metrics, state["metrics"], strict=True):
            metric.load_state_dict(saved)

    def _alone(self) -> list[nn.Parameter]:
        """Query and key parameters that the wrapped optimizer does not hold; raise if fused ones are among them."""
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        alone = {name: p for name, p in self._parameters().items() if id(p) not in held}
        for side in (s for a in self.attentions for s in (a.query, a.key)):
            fused = [n for n in side.projection.parameters if n in alone] if side.projection.fused else []
            if fused:
                raise BadInput(
                    f"{fused[0]} holds values beside queries and keys, and the wrapped optimizer does not train it. "
                    "Give it to the wrapped optimizer: only the rows of queries and keys are taken over."
                )
        return list(alone.values())

    def _row_masks(self) -> dict[str, Tensor | None]:
        """Return which entries of a fused parameter are of queries or keys; None where all are."""
        parameters = self._parameters()
        layout = ParameterLayout.of(self.attentions, parameters)
        rows = {name: torch.zeros(size, dtype=torch.bool) for name, size in layout.outputs.items()}
        for side in (s for a in self.attentions for s in (a.query, a.key)):
            for name, numbers, _ in side.parts(torch.ones(side.projection.fan_out), layout.outputs):
                rows[name][numbers] = True
        shaped = {name: layout.shaped(name, r, parameters[name].ndim) for name, r in rows.items()}
        return {n: None if bool(r.all()) else r.to(parameters[n].device) for n, r in shaped.items()}

    def _parameters(self) -> dict[str, nn.Parameter]:
        return by_name(self._model, (n for a in self.attentions for n in a.parameters))

    def _move(
        self, parameters: dict[str, nn.Parameter], gradients: dict[str, Tensor], old: dict[str, Tensor]
    ) -> None:
        self.steps += 1
        # Early and often, then on schedule: the first covariances are of few tokens.
        due = self.steps % self.refresh == 0 or (self.steps & (self.steps - 1)) == 0
        new = {name: whole(p).clone() for name, p in parameters.items()}
        outputs = ParameterLayout.of(self.attentions, parameters).outputs
        for attention, metric in zip(self.attentions, self.metrics, strict=True):
            metric.see(old, invert=due)
            for side, inverse, inputs in metric.sides():
                matrices, biases = side.projection.parameters, side.projection.biases
                if not all(name in gradients for name in matrices):
                    continue  # frozen, or not part of this loss
                slopes = {
                    n: gradients[n] if n in gradients else torch.zeros_like(old[n])
                    for n in (*matrices, *biases)
                }
                key = f"{attention.name}.{side.projection.role}"
                direction = self._direction(key, side.read(slopes), inverse, inputs, attention.scale)
                changed = side.read(old) * (1 - self.group["lr"] * self.group["weight_decay"])
                _write(side, changed - self.group["lr"] * direction, new, outputs)
        for name, parameter in parameters.items():
            if parameter.requires_grad:
                parameter.data.copy_(like_shard(new[name].to(parameter.dtype), parameter))

    def _direction(self, key: str, gradient: Tensor, partner: Tensor, inputs: Tensor, scale: float) -> Tensor:
        """m̂ (heads, d_h, d + 1), in logits."""
        preconditioned = partner @ gradient @ inputs / scale**2
        dual = (gradient * preconditioned).sum((1, 2)).clamp_min(0)
        m, v = self._moments.get(key, (torch.zeros_like(gradient), torch.zeros_like(dual)))
        v = self.decay * v + (1 - self.decay) * dual
        size = (v / (1 - self.decay**self.steps)).sqrt().clamp_min(1e-30)
        shrink = (self.cap * size / dual.sqrt().clamp_min(1e-30)).clamp_max(1.0)
        β = self.group["momentum"]
        m = β * m + (1 - β) * preconditioned * (shrink / size)[:, None, None]
        self._moments[key] = (m, v)
        return m / (1 - β**self.steps)


def _write(side: Side, rows: Tensor, new: dict[str, Tensor], outputs: dict[str, int]) -> None:
    """Put (heads, d_h, d + 1) back where `read` took it from."""
    p = side.projection
    for name, numbers, values in side.parts(rows.flatten(0, 1), outputs):
        target = new[name]
        if target.ndim == 1:
            target[numbers] = values[:, -1].to(target.dtype)
        else:
            (target.T if p.transposed else target)[numbers] = values[:, :-1].to(target.dtype)


def _refuse_normed(attentions: list[QueryKey]) -> None:
    normed = next((a.name for a in attentions if a.query.norm or a.key.norm), None)
    if normed is not None:
        raise BadInput(
            f"{normed} normalizes its queries or keys, so its logits are not bilinear in W_Q and W_K. LogitTrust "
            "covers it; the preconditioner does not."
        )


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
        process_group: ProcessGroup | Literal[False] | None = None,
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
            if not self._has_tokens:  # reads from the device, until there are tokens
                self._has_tokens = all(bool(torch.isfinite(ring.tokens).any()) for ring in self.sample.all)
            if not self._has_tokens and any(
                not torch.equal(whole(parameters[n]), whole(old)) for n, old in before.items()
            ):
                raise BadInput(
                    "the parameters moved before any forward pass with gradients. Wrap the optimizer before the "
                    "model runs (a compiled model: before its first call), and run the model that was given."
                )
            if self._has_tokens:
                self._bound(parameters, before)
            self.sample.redraw()
        return result

    def own_state(self) -> State:
        return {"delta": self.delta, "seen": self._has_tokens, **self.sample.state_dict()}

    def load_own_state(self, state: State) -> None:
        self.delta, self._has_tokens = state["delta"], state["seen"]
        self.sample.load_state_dict(state)

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
            sizes = {name: len(f) for name, f in factors.items()}
            for side, times in ((attention.query, attention.share), (attention.key, 1)):
                per_head = scale.repeat_interleave(times)
                per_row = per_head.repeat_interleave(side.projection.fan_out // side.heads)
                for name, numbers, values in side.parts(per_row, sizes):
                    factors[name][numbers] = values.to(factors[name])
        for name, previous in before.items():
            parameter = parameters[name]
            factor = layout.shaped(name, factors[name], previous.ndim)
            if hasattr(parameter, "to_local"):
                factor = like_shard(factor.expand(parameter.shape).contiguous(), parameter)
            moved, was, f = (local(t) for t in (parameter.data, previous, factor))
            # was + f (moved - was) if f < 1; exactly the new value elsewhere
            moved.copy_(torch.where(f < 1, was + (f * (moved - was)).to(was.dtype), moved))

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
