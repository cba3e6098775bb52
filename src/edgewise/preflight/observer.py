"""What one pass does, seen by hooks on every module and by a torch-function mode: no names need to be known.

The mode sees the calls that give a training away: losses, table lookups, softmaxes, fused attention, dropout. The hooks
give the order and place of modules and a fingerprint of every token of their outputs: two random projections, so that
two passes can be compared token by token without keeping activations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

LOSSES = {
    "cross_entropy": "cross_entropy",
    "nll_loss": "nll_loss",
    "mse_loss": "mse_loss",
    "l1_loss": "l1_loss",
    "smooth_l1_loss": "smooth_l1_loss",
    "huber_loss": "huber_loss",
    "binary_cross_entropy": "binary_cross_entropy",
    "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
    "kl_div": "kl_div",
}
Edit = Callable[[Tensor, Tensor], Tensor]  # token ids and their table to other ids
MASKED = -1e4  # a score below this counts as masked


@dataclass
class ModuleCall:
    """One call of a module: its name, and what `look` kept of input and output."""

    name: str
    module: nn.Module
    before: Tensor | None  # fingerprints of the input's tokens
    after: Tensor | None  # and of the output's
    shape: tuple[int, ...] = ()
    differentiable: tuple[bool, bool] = (False, False)  # input, output
    kept: dict[str, Any] = field(default_factory=dict)
    low_precision: bool = False


@dataclass
class Lookup:
    """One call of an embedding table with ids."""

    place: str
    ids: Tensor
    table: Tensor
    padding: int | None
    output: Tensor | None = None


@dataclass
class Softmax:
    """One softmax over scores, or one fused attention."""

    place: str
    scores: Tensor
    weights: Tensor
    axis: int
    later: Tensor | None = None  # what multiplies the values, if it is not the softmax's own output


@dataclass
class LossCall:
    """One call of a loss function."""

    name: str
    outputs: Tensor
    labels: Tensor
    options: dict[str, Any]
    place: str
    value: Tensor | None = None
    labels_differentiable: bool = False


@dataclass
class Observation:
    """Everything seen in one pass, in order."""

    calls: list[ModuleCall] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    softmaxes: list[Softmax] = field(default_factory=list)
    dropouts: list[tuple[str, float, bool]] = field(default_factory=list)
    losses: list[LossCall] = field(default_factory=list)
    loose: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    pairs: list[tuple[str, str]] = field(default_factory=list)  # Linear straight into Linear
    product_rows: list[tuple[str, float]] = field(default_factory=list)
    norms_over: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    value: Tensor | None = None
    error: BaseException | None = None
    stack: list[str] = field(default_factory=list)
    drew: bool = False  # random numbers were drawn
    waves: bool = False  # sines or cosines were computed: positions

    @property
    def place(self) -> str:
        return self.stack[-1] if self.stack else ""

    @property
    def main_loss(self) -> LossCall | None:
        """The loss call with the most outputs."""
        return max(self.losses, key=lambda call: call.outputs.numel(), default=None)

    @property
    def number(self) -> float:
        return math.nan if self.value is None else float(self.value.detach().float().mean())


Look = Callable[[str, nn.Module, Tensor | None, Tensor], dict[str, Any]]


class Observer(TorchFunctionMode):
    """Watch one pass of a model.

    look     what to keep of every module call, by name, module, input and output
    edit     replaces the ids of every table lookup
    details  also record softmaxes and parameters that are not the model's
    track    keep outputs of lookups and loss calls in the graph, for a backward pass from them
    """

    def __init__(
        self,
        model: nn.Module,
        look: Look | None = None,
        edit: Edit | None = None,
        *,
        details: bool = False,
        track: bool = False,
        prints: bool = True,
        known: Iterable[int] = (),
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.look, self.edit, self.details, self.track = model, look, edit, details, track
        self.prints = prints
        self.seen = Observation()
        self._known = {id(p) for p in model.parameters()} | set(known)
        # Sharded parameters are gathered into others for a pass, compiled ones are traced with others.
        self._replaced = any(hasattr(p, "to_local") for p in model.parameters()) or compiled
        self._linear: dict[
            int, tuple[str, Tensor]
        ] = {}  # outputs of Linear layers, alive while the pass runs
        self._weights: dict[int, tuple[Softmax, Tensor]] = {}
        self._log_probabilities: dict[int, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def watching(self) -> Iterator[Observation]:
        """Hooks and mode are in place inside."""
        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                name = clean(name)
                for handle in (
                    module.register_forward_pre_hook(self._enter(name)),
                    module.register_forward_hook(self._leave(name), with_kwargs=True),
                ):
                    stack.callback(handle.remove)
            stack.enter_context(self)
            try:
                yield self.seen
            finally:
                self._linear.clear()
                self._weights.clear()
                self._log_probabilities.clear()

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            self.seen.stack.append(name)
            if isinstance(module, nn.Linear) and arguments and id(arguments[0]) in self._linear:
                self.seen.pairs.append((self._linear[id(arguments[0])][0], name))

        return hook

    def _leave(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
            while self.seen.stack and self.seen.stack.pop() != name:
                pass
            out = first_tensor(output)
            if out is None:
                return
            inp = first_tensor((arguments, options))
            if isinstance(module, nn.Linear):
                self._linear[id(out)] = (name, out)
            with torch._C.DisableTorchFunction(), torch.no_grad():
                same = None if inp is None or not self.prints else fingerprint(inp.detach())
                call = ModuleCall(
                    name, module, same, fingerprint(out.detach()) if self.prints else None, tuple(out.shape)
                )
                call.low_precision = out.dtype in (torch.bfloat16, torch.float16)
                call.differentiable = (inp is not None and inp.requires_grad, out.requires_grad)
                if self.look is not None:
                    call.kept = self.look(name, module, None if inp is None else inp.detach(), out.detach())
            self.seen.calls.append(call)

        return hook

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "multi_head_attention_forward" and self.details:
            return self._inside(func, args, kwargs)
        if self.details and not self._replaced and not torch.compiler.is_compiling():
            for value in args:
                if isinstance(value, nn.Parameter) and value.requires_grad and id(value) not in self._known:
                    self.seen.loose.setdefault(id(value), (self.seen.place, tuple(value.shape)))
        if name == "embedding" and torch.is_tensor(args[0]):
            return self._lookup(func, args, kwargs)
        out = func(*args, **kwargs)
        if name in LOSSES:
            self._loss(name, args, kwargs, out)
        elif name == "log_softmax" and torch.is_tensor(out):
            self._log_probabilities[id(out)] = (args[0], out)
        elif name in ("gather", "take_along_dim") and id(args[0]) in self._log_probabilities:
            self._gathered(args, kwargs)
        elif name == "dropout" and torch.is_tensor(args[0]):
            share, active = _argument(args, kwargs, 1, "p", 0.5), _argument(args, kwargs, 2, "training", True)
            self.seen.dropouts.append((self.seen.place, float(share), bool(active)))
            self._weights.update(
                {id(out): self._weights[id(args[0])]} if id(args[0]) in self._weights else {}
            )
        elif self.details:
            self._details(name, args, kwargs, out)
        return out

    def _inside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """torch's multi-head attention is one call to the mode: look into it through the functions it calls."""
        names = ("softmax", "scaled_dot_product_attention", "dropout")
        old = {name: getattr(F, name) for name in names}
        try:
            for name, original in old.items():
                setattr(F, name, lambda *a, _f=original, **k: self.__torch_function__(_f, (), a, k))
            return func(*args, **kwargs)
        finally:
            for name, original in old.items():
                setattr(F, name, original)

    def _lookup(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ids, table = args[0], args[1] if len(args) > 1 else kwargs["weight"]
        padding = _argument(args, kwargs, 2, "padding_idx", None)
        look = Lookup(self.seen.place, ids.detach().clone(), table, padding)
        if self.edit is not None:
            args = (self.edit(ids, table), *args[1:])
        out = func(*args, **kwargs)
        if self.track and out.requires_grad:
            out.retain_grad()
            look.output = out
        self.seen.lookups.append(look)
        return out

    def _loss(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        outputs = args[0] if args else kwargs.get("input")
        labels = args[1] if len(args) > 1 else kwargs.get("target")
        if not torch.is_tensor(outputs) or not torch.is_tensor(labels):
            return
        source = self._log_probabilities.get(id(outputs))
        if name == "nll_loss" and source is not None:
            name, outputs = "cross_entropy", source[0]
        kept = outputs if self.track else outputs.detach()
        options = dict(kwargs)
        if name in ("cross_entropy", "nll_loss"):
            for place, key in ((2, "weight"), (4, "ignore_index"), (6, "reduction"), (7, "label_smoothing")):
                if len(args) > place and key not in options:
                    options[key] = args[place]
        value = out.detach() if torch.is_tensor(out) else None
        differentiable = labels.is_floating_point() and labels.requires_grad
        self.seen.losses.append(
            LossCall(name, kept, labels.detach(), options, self.seen.place, value, differentiable)
        )

    def _gathered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A cross-entropy written by hand: log_softmax, then gather at the labels."""
        logits, _ = self._log_probabilities[id(args[0])]
        axis, index = _argument(args, kwargs, 1, "dim", -1), _argument(args, kwargs, 2, "index", None)
        if index is None or index.dim() != logits.dim() or axis not in (-1, logits.dim() - 1):
            return
        if index.shape[-1] == 1 and index.shape[:-1] == logits.shape[:-1]:
            kept = logits if self.track else logits.detach()
            self.seen.losses.append(
                LossCall(
                    "cross_entropy",
                    kept.flatten(0, -2),
                    index.detach().flatten(),
                    {"reduction": "by hand"},
                    self.seen.place,
                )
            )

    def _details(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if name in ("softmax", "_softmax") and torch.is_tensor(out) and out.dim() >= 3:
                axis = _argument(args, kwargs, 1, "dim", -1)
                axis = axis if isinstance(axis, int) else -1
                call = Softmax(self.seen.place, args[0].detach(), out.detach(), axis % out.dim())
                self.seen.softmaxes.append(call)
                self._weights[id(out)] = (call, out)
            elif name == "scaled_dot_product_attention":
                scores, weights = fused_scores(args, kwargs)
                self.seen.softmaxes.append(Softmax(self.seen.place, scores, weights, scores.dim() - 1))
            elif name in ("matmul", "bmm", "__matmul__", "einsum") and self._weights:
                self._product(args)
            elif (
                name
                in (
                    "masked_fill",
                    "mul",
                    "__mul__",
                    "where",
                    "to",
                    "float",
                    "type_as",
                    "masked_fill_",
                    "mul_",
                )
                and self._weights
            ):
                source = next((id(a) for a in args if id(a) in self._weights), None)
                if (
                    source is not None
                    and torch.is_tensor(out)
                    and out.shape == self._weights[source][1].shape
                ):
                    self._weights[id(out)] = (self._weights[source][0], out)
            elif name in ("cos", "sin", "polar"):
                self.seen.waves = True
            elif name in ("layer_norm", "rms_norm") and torch.is_tensor(args[0]):
                shape = _argument(args, kwargs, 1, "normalized_shape", ())
                self.seen.norms_over.append((self.seen.place, tuple(args[0].shape), tuple(shape)))

    def _product(self, args: tuple[Any, ...]) -> None:
        """The weights that multiply the values: changed after the softmax they may not sum to one."""
        tensors = [a for a in args if torch.is_tensor(a)] + [
            t for a in args if isinstance(a, (list, tuple)) for t in a if torch.is_tensor(t)
        ]
        for tensor in tensors:
            if id(tensor) in self._weights:
                call, _ = self._weights[id(tensor)]
                call.later = tensor.detach()


def clean(name: str) -> str:
    """The name without what wrappers add."""
    return re.sub(
        r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)", "", name
    ).lstrip(".")


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, default: Any) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else default)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Return every tensor in nested dictionaries, lists, tuples and model outputs."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict) or (hasattr(value, "keys") and hasattr(value, "values")):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def first_tensor(value: Any) -> Tensor | None:
    """Return the first floating tensor."""
    return next((t for t in tensors_in(value) if t.is_floating_point() and not t.is_meta), None)


def fingerprint(tensor: Tensor) -> Tensor:
    """Return two random projections of everything beyond the first two axes: shape (a, b, 2)."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.dim() < 2 or tensor.is_sparse or tensor.is_quantized:
        return tensor.reshape(-1, 1)[:, :1].float()
    flat = tensor.reshape(*tensor.shape[:2], -1)
    return flat.float() @ _directions(flat.shape[-1]).to(flat.device)


_DIRECTIONS: dict[int, Tensor] = {}


def _directions(width: int) -> Tensor:
    if width not in _DIRECTIONS:
        if len(_DIRECTIONS) > 64:
            _DIRECTIONS.clear()
        generator = torch.Generator().manual_seed(width)
        _DIRECTIONS[width] = torch.randn(width, 2, generator=generator) / math.sqrt(width)
    return _DIRECTIONS[width]


def fused_scores(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the scores and weights of the first two samples inside a fused attention call."""
    query, key = (
        args[i].detach() if len(args) > i else kwargs[n].detach() for i, n in ((0, "query"), (1, "key"))
    )
    mask = _argument(args, kwargs, 3, "attn_mask", None)
    causal = _argument(args, kwargs, 5, "is_causal", False)
    if query.dim() == 4 and query.shape[1] != key.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    if mask is not None and mask.dim() == 4 and mask.shape[0] > 2:
        mask = mask[:2]
    if query.dim() == 4:
        query, key = query[:2], key[:2]
    scores = query.float() @ key.float().transpose(-1, -2)
    scores = scores * (kwargs.get("scale") or query.shape[-1] ** -0.5)
    if causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(~ones.tril(), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.float()
    return scores, scores.softmax(-1)
