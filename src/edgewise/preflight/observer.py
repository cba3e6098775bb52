"""What one pass does, seen by hooks on every module and by a torch-function mode: no names need to be known.

The mode sees the calls that give a training away: losses, table lookups, softmaxes, fused attention, dropout. The hooks
give the order and place of modules and a fingerprint of every token of their outputs: two random projections, so that
two passes can be compared token by token without keeping activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from edgewise.preflight.contracts import Broken, broken_contract
from edgewise.preflight.fingerprint import (
    argument,
    clean,
    fingerprint,
    first_tensor,
    fused_scores,
    tensors_in,
)

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
    "poisson_nll_loss": "poisson_nll_loss",
    "gaussian_nll_loss": "gaussian_nll_loss",
}
KEEPS = ("masked_fill", "mul", "__mul__", "where", "to", "float", "type_as", "masked_fill_", "mul_")
ADDITIONS = ("add", "__add__", "__radd__", "__iadd__", "add_")
DIFFERENCES = ("sub", "__sub__", "rsub", "__rsub__", "subtract")
SQUARES = {
    "pow": "mse_loss",
    "__pow__": "mse_loss",
    "square": "mse_loss",
    "abs": "l1_loss",
    "__abs__": "l1_loss",
}
LOOKS = ("__get__", "detach", "clone", "view", "size", "data_ptr", "requires_grad_", "__deepcopy__")
PRODUCTS = ("matmul", "__matmul__", "mm", "linear", "einsum")
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
    dropped: bool = False  # dropout was active on the weights


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
    twins: bool = False  # outputs and labels were computed alike, and both have a gradient
    live: Tensor | None = None  # the outputs in their graph, while the pass is inspected
    scored: Tensor | None = None  # rows of a cross-entropy that get a gradient
    result: Tensor | None = None  # in its graph, if a loss function outside of the model made it


@dataclass
class AddedConstant:
    """Something that is the same for every sample, added to the tokens: positions."""

    place: str
    learned: bool
    rows: int
    distinct: int  # rows
    values: Tensor


@dataclass
class Observation:
    """Everything seen in one pass, in order."""

    calls: list[ModuleCall] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    softmaxes: list[Softmax] = field(default_factory=list)
    dropouts: list[tuple[str, float, bool]] = field(default_factory=list)
    losses: list[LossCall] = field(default_factory=list)
    loose: dict[int, tuple[str, nn.Parameter]] = field(default_factory=dict)
    pairs: list[tuple[str, str]] = field(default_factory=list)  # Linear straight into Linear
    product_rows: list[tuple[str, float]] = field(default_factory=list)
    norms_over: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    units_over: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)  # shape, axis
    given: list[Tensor] = field(default_factory=list)  # floating inputs of the model
    constants: list[AddedConstant] = field(default_factory=list)
    broken: list[tuple[str, Broken]] = field(default_factory=list)  # what loss functions were not given
    backwards: list[Any] = field(default_factory=list)  # hand-written: place, function, arguments, options
    value: Tensor | None = None
    error: BaseException | None = None
    stack: list[str] = field(default_factory=list)
    drew: bool = False  # random numbers were drawn
    nested: bool = False  # gradients inside the loss, which a later term is made of
    quiet: int = 0  # dropouts that were active without gradients and outside of the model: in a teacher
    waves: bool = False  # sines or cosines were computed: positions
    discrete: set[str] = field(default_factory=set)  # modules that give no floating numbers
    used: set[int] = field(default_factory=set)  # parameters that entered a computation
    hand: int | None = None  # which argument of "outputs minus labels" was the outputs
    broadcasts: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)  # outputs minus labels
    log_probabilities: list[Tensor] = field(default_factory=list)
    cosines: list[tuple[float, Tensor]] = field(default_factory=list)  # bound and product of unit vectors

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
    hand     which argument of a difference was the outputs, in passes without gradients
    cosines  record products of so many entries of vectors of one length, and their bound
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
        cosines: int = 0,
        hand: int | None = None,
        known: Iterable[int] = (),
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.look, self.edit, self.details, self.track = model, look, edit, details, track
        self.prints, self.cosines, self.hand = prints, cosines, hand
        self.seen = Observation()
        self._known = {id(p) for p in model.parameters()} | set(known)
        # Sharded parameters are gathered into others for a pass, compiled ones are traced with others.
        self._replaced = any(hasattr(p, "to_local") for p in model.parameters()) or compiled
        self._linear: dict[int, tuple[str, Tensor]] = {}  # outputs of Linear layers, while the pass runs
        self._weights: dict[int, tuple[Softmax, Tensor]] = {}
        self._log_probabilities: dict[int, tuple[Tensor, Tensor]] = {}
        self._differences: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

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
                self._differences.clear()

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
                self.seen.discrete.add(name)
                return
            inp = first_tensor((arguments, options))
            if not name and self.details and len(self.seen.given) < 8:
                given = tensors_in((arguments, options))
                self.seen.given += [t.detach() for t in given if t.is_floating_point()]
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
            self.seen.used.update(id(a) for a in args if isinstance(a, nn.Parameter))
            return self._inside(func, args, kwargs)
        if (
            self.details
            and not self._replaced
            and not torch.compiler.is_compiling()
            and torch.is_grad_enabled()
        ):
            for value in args:
                if isinstance(value, nn.Parameter) and value.requires_grad and id(value) not in self._known:
                    self.seen.loose.setdefault(id(value), (self.seen.place, value))
        if name == "embedding" and torch.is_tensor(args[0]):
            return self._lookup(func, args, kwargs)
        out = func(*args, **kwargs)
        turned = name == "__get__" and getattr(func.__self__, "__name__", "") in ("T", "mT")
        if self.details and torch.is_tensor(out) and (turned or name not in LOOKS):
            self.seen.used.update(id(a) for a in args if isinstance(a, nn.Parameter))
        if self.details and name.endswith("_loss"):
            with torch._C.DisableTorchFunction(), torch.no_grad():
                if (broken := broken_contract(name, args, kwargs)) is not None:
                    self.seen.broken.append((self.seen.place, broken))
        if name in LOSSES:
            self._loss(name, args, kwargs, out)
        elif name == "grad":
            self.seen.nested = True
        elif name == "log_softmax" and torch.is_tensor(out):
            self._log_probabilities[id(out)] = (args[0], out)
            self.seen.log_probabilities.append(out.detach())
        elif name in ("gather", "take_along_dim") and id(args[0]) in self._log_probabilities:
            self._gathered(args, kwargs)
        elif name in DIFFERENCES and not self.seen.place and torch.is_tensor(out):
            self._difference(args, out)
        elif name in SQUARES and id(args[0]) in self._differences:
            self._by_hand(name, args, kwargs)
        elif name == "dropout" and torch.is_tensor(args[0]):
            share, active = argument(args, kwargs, 1, "p", 0.5), argument(args, kwargs, 2, "training", True)
            self.seen.dropouts.append((self.seen.place, float(share), bool(active)))
            self.seen.quiet += active and share > 0 and not self.seen.stack and not torch.is_grad_enabled()
            if id(args[0]) in self._weights:
                call = self._weights[id(args[0])][0]
                self._weights[id(out)], call.dropped = (call, out), call.dropped or bool(active and share > 0)
        elif self.details:
            self._details(name, args, kwargs, out)
        elif name in PRODUCTS and torch.is_tensor(out) and out.numel() == self.cosines:
            self._cosine(args, out)
        return out

    def _constant(self, args: tuple[Any, ...], out: Any) -> None:
        """Positions: what is added to the tokens of every sample alike."""
        if len(args) < 2 or not all(torch.is_tensor(a) and a.is_floating_point() for a in args[:2]):
            return
        for x, c in (args[:2], args[1::-1]):
            same = x.dim() == 3 and out.shape == x.shape and c.shape[-2:] == x.shape[-2:]
            if not same or c.numel() != x[0].numel() or x.shape[0] < 2 or min(x.shape[1:]) < 4:
                continue
            if x.shape[1] == x.shape[2]:
                return  # scores of attention
            c = c.detach().reshape(x.shape[1:]).float()
            if float(c.min()) > MASKED:
                self.seen.constants.append(
                    AddedConstant(
                        self.seen.place,
                        any(a.requires_grad for a in args[:2] if a.numel() == c.numel()),
                        c.shape[0],
                        c.unique(dim=0).shape[0],
                        c,
                    )
                )
            return

    def _cosine(self, args: tuple[Any, ...], out: Tensor) -> None:
        """A product of vectors of one length: cosines, whose bound is known."""
        tensors = [t for t in args if torch.is_tensor(t)][:2]
        if len(tensors) < 2 or any(t.dim() < 2 for t in tensors) or out.dim() < 2:
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            one, other = (_length(t.detach()) for t in tensors)
            if one is not None and other is not None:
                self.seen.cosines.append((one * other, out.detach()))

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
        padding = argument(args, kwargs, 2, "padding_idx", None)
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
        options = dict(kwargs)
        if name in ("cross_entropy", "nll_loss"):
            for place, key in ((2, "weight"), (4, "ignore_index"), (6, "reduction"), (7, "label_smoothing")):
                if len(args) > place and key not in options:
                    options[key] = args[place]
        elif name == "poisson_nll_loss":
            options["log_input"] = argument(args, kwargs, 2, "log_input", True)
        value = out.detach() if torch.is_tensor(out) else None
        differentiable = labels.is_floating_point() and labels.requires_grad
        call = LossCall(
            name, outputs.detach(), labels.detach(), options, self.seen.place, value, differentiable
        )
        call.live = outputs if outputs.requires_grad else None
        outside = not self.seen.stack and torch.is_tensor(out) and out.requires_grad
        call.result = out if outside else None
        call.twins = differentiable and type(outputs.grad_fn) is type(labels.grad_fn)
        self.seen.losses.append(call)

    def _difference(self, args: tuple[Any, ...], out: Tensor) -> None:
        """Outputs minus labels outside of all modules: the beginning of a regression loss written by hand."""
        if len(args) < 2 or not all(torch.is_tensor(a) and a.is_floating_point() for a in args[:2]):
            return
        with torch._C.DisableTorchFunction():
            if torch.is_grad_enabled():
                if args[0].requires_grad == args[1].requires_grad:
                    return
                self.seen.hand = int(args[1].requires_grad)
            elif self.hand is None:
                return
            at = self.seen.hand if torch.is_grad_enabled() else self.hand
            outputs, labels = args[at or 0], args[1 - (at or 0)]
            if outputs.shape == labels.shape:
                self._differences[id(out)] = (outputs, labels, out)
            elif {tuple(outputs.shape), tuple(labels.shape)} == {
                (n := max(outputs.numel(), 1), 1),
                (n,),
            } and n > 2:
                self.seen.broadcasts.append((tuple(outputs.shape), tuple(labels.shape)))

    def _by_hand(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if SQUARES[name] == "mse_loss" and argument(args, kwargs, 1, "exponent", 2) != 2:
            return
        outputs, labels, _ = self._differences[id(args[0])]
        call = LossCall(
            SQUARES[name], outputs.detach(), labels.detach(), {"reduction": "by hand"}, self.seen.place
        )
        call.live = outputs if outputs.requires_grad else None
        self.seen.losses.append(call)

    def _gathered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A cross-entropy written by hand: log_softmax, then gather at the labels."""
        logits, _ = self._log_probabilities[id(args[0])]
        axis, index = argument(args, kwargs, 1, "dim", -1), argument(args, kwargs, 2, "index", None)
        if index is None or index.dim() != logits.dim() or axis not in (-1, logits.dim() - 1):
            return
        if index.shape[-1] == 1 and index.shape[:-1] == logits.shape[:-1]:
            rows, options = logits.detach().flatten(0, -2), {"reduction": "by hand"}
            call = LossCall("cross_entropy", rows, index.detach().flatten(), options, self.seen.place)
            call.live = logits if logits.requires_grad else None
            self.seen.losses.append(call)

    def _details(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if name in ("softmax", "_softmax") and torch.is_tensor(out) and out.dim() >= 3:
                axis = argument(args, kwargs, 1, "dim", -1)
                axis = axis if isinstance(axis, int) else -1
                call = Softmax(self.seen.place, args[0].detach(), out.detach(), axis % out.dim())
                self.seen.softmaxes.append(call)
                self._weights[id(out)] = (call, out)
            elif name == "scaled_dot_product_attention":
                scores, weights = fused_scores(args, kwargs)
                self.seen.softmaxes.append(Softmax(self.seen.place, scores, weights, scores.dim() - 1))
            elif name in ("matmul", "bmm", "__matmul__", "einsum") and self._weights:
                self._product(args)
            elif name in KEEPS and self._weights:
                source = next((id(a) for a in args if id(a) in self._weights), None)
                if (
                    source is not None
                    and torch.is_tensor(out)
                    and out.shape == self._weights[source][1].shape
                ):
                    self._weights[id(out)] = (self._weights[source][0], out)
            elif name in ("cos", "sin", "polar"):
                self.seen.waves = True
            elif name in ADDITIONS:
                self._constant(args, out)
            elif name == "normalize" and torch.is_tensor(args[0]) and not isinstance(args[0], nn.Parameter):
                self.seen.units_over.append(
                    (self.seen.place, tuple(out.shape), argument(args, kwargs, 2, "dim", 1))
                )
            elif name in ("layer_norm", "rms_norm") and torch.is_tensor(args[0]):
                shape = argument(args, kwargs, 1, "normalized_shape", ())
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


def _length(tensor: Tensor) -> float | None:
    """The length of all rows, or of all columns, if it is the same; the first few tell most that it is not."""
    for axis, some in ((-1, tensor[..., :16, :]), (-2, tensor[..., :16])):
        for part in (some, tensor):
            lengths = part.norm(dim=axis, dtype=torch.float32)
            if float(lengths.max() - lengths.min()) >= 1e-3 * float(lengths.max()):
                break
        else:
            return float(lengths.max())
    return None
