"""Streams and attention seen where a model computes them, for models whose modules do not give them away.

At a sampled step the forward pass runs under a `TorchFunctionMode`, which names tensor operations as the reader of
`edgewise.models.behavior` does: by module, call of the module, function and count. Attention is taken from the scores
that enter a softmax, or from what a fused call is given: rotation, biases, adapters and masks are in them already.
Nothing is returned but what the model itself computed; at other steps no mode is active. Compiled code is not seen.

Shapes: S sequences, H heads, Q sampled queries, K keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from edgewise.models.behavior.graph import MULTIHEAD
from edgewise.models.behavior.record import Operation
from edgewise.models.behavior.trace import LABEL, Tracer, tensors
from edgewise.models.behavior.weight_calls import Edits, Precision
from edgewise.monitor.attention import LOW, by_head, nan_max, nan_mean, row_numbers, softmax_gain
from edgewise.monitor.capture import QUERIES, SEQUENCES, Sizes, StreamCopy, query_slice
from edgewise.monitor.columns import HEAD_STATISTICS
from edgewise.monitor.hooks import ModelHook, Switch, guarded
from edgewise.monitor.places import AttentionOperations
from edgewise.probe.attention_rows import functions_of_torch

SOFTMAX = frozenset(("softmax", "_softmax", "softmax_"))
FUSED = "scaled_dot_product_attention"
UNSEEN = "its scores were not met in this pass"


class OperationAttention:
    """The attentions of blocks with equally many heads, as a group like `AttentionGroup`."""

    noisy = False

    def __init__(self, layers: Sequence[AttentionOperations]) -> None:
        self.layers, self.first = list(layers), layers[0]
        self.refusals = [""] * len(layers)
        self.handles: list[RemovableHandle] = []

    @property
    def blocks(self) -> list[int]:
        """The blocks that its layers belong to."""
        return [layer.block for layer in self.layers]

    def clear(self, check: bool) -> None:  # noqa: ARG002
        """Forget the last pass."""
        for layer in self.layers:
            layer.clear()

    def numbers(self, device: torch.device) -> Tensor:
        """Return (layers, statistics, H); not-a-number for a layer whose scores were not met."""
        values = torch.full(
            (len(self.layers), len(HEAD_STATISTICS), self.first.heads), math.nan, device=device
        )
        for i, layer in enumerate(self.layers):
            parts = [_part(layer, number) for number in sorted(layer.scores)]
            heads = sum(part.shape[-1] for part in parts)
            if parts and heads != layer.heads and parts[0].shape[-1] == layer.heads:
                parts, heads = parts[:1], layer.heads  # weights that are subtracted from each other
            self.refusals[i] = "" if heads == layer.heads else UNSEEN
            if heads == layer.heads:
                values[i] = torch.cat(parts, -1)
        return values


def _part(layer: AttentionOperations, number: int) -> Tensor:
    """(statistics, H) of one softmax."""
    scores, upstream = layer.scores[number], layer.upstream.get(number)
    visible = scores > LOW
    every = bool(visible.all())
    rows = row_numbers(
        scores.masked_fill(~visible, -math.inf), None if every else visible | ~visible.any(-1, keepdim=True)
    )
    if upstream is None or upstream.shape != rows.probabilities.shape:
        rows.gain.fill_(math.nan)
    else:
        softmax_gain(rows.probabilities, upstream.clone(), visible, out=rows.gain)
    rows.each.masked_fill_(~visible.any(-1), math.nan)
    each = by_head(rows.each, 1)[:, 0]  # (6, H, rows)
    entropy, support, share = nan_mean(each[:3]).unbind()
    gain, middle = each[3:5].nanmedian(-1).values.unbind()
    output = layer.outputs.get(number)
    part = torch.full_like(entropy, math.nan)
    if output is not None and output.shape[1] == len(entropy) > 1:
        part = torch.linalg.vector_norm(output, dim=(0, 2, 3))
        part = part / part.mean()
    return torch.stack([entropy, support, nan_max(each[5]), gain, middle, share, part])


class _AsIs(Precision):
    """Runs calls as they are, and remembers what came of the last one."""

    def __init__(self) -> None:
        super().__init__(False, frozenset())
        self.ran, self.result, self.error = False, None, None

    def run(self, func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        try:
            self.result = func(*args, **kwargs)
        except BaseException as error:
            self.error = error  # type: ignore[assignment]
            raise
        self.ran = True
        return self.result


class StreamTracer(Tracer):
    """The reader's tracer in a training pass: it listens, and an error of its own does not reach the model."""

    def __init__(self, model: nn.Module, edits: Edits, switch: Switch) -> None:
        self.calls = _AsIs()
        super().__init__(model, edits, self.calls)
        self.switch, self.off = switch, False

    def _refuse_writing(self, function: str, value: Any) -> None:
        """A training pass may write where it likes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.off:
            return func(*args, **(kwargs or {}))
        self.calls.ran = False
        try:
            return super().__torch_function__(func, types, args, kwargs)
        except BaseException as error:
            if error is self.calls.error or not isinstance(error, Exception):
                raise
            self.off = True
            self.switch.fail(error)
            return self.calls.result if self.calls.ran else func(*args, **(kwargs or {}))


class AttentionMode(TorchFunctionMode):
    """Listens to every softmax and fused attention of a pass, named by module, call, function and count."""

    def __init__(self, names: dict[int, str], wanted: OperationCapture) -> None:
        super().__init__()
        self._names, self._wanted = names, wanted
        self._places: list[tuple[str, int]] = [("", 0)]
        self._calls: dict[str, int] = {}
        self._counts: dict[tuple[str, int, str], int] = {}
        self._whole: tuple[AttentionOperations, int] | None = (
            None  # whose call of torch's own attention is running
        )

    def enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002
        path = self._names.get(id(module))
        if path is not None:
            self._calls[path] = self._calls.get(path, -1) + 1
            self._places.append((path, self._calls[path]))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        if self._places[-1][0] == self._names.get(id(module)):
            self._places.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in SOFTMAX and name not in (FUSED, MULTIHEAD):
            return func(*args, **named)
        listen = self._whole
        if listen is None:
            key = (*self._places[-1], name)
            number = self._counts[key] = self._counts.get(key, -1) + 1
            listen = self._wanted.listener(Operation(*key, number))
        if listen is not None and name == MULTIHEAD:
            self._whole = listen
            try:
                with functions_of_torch(self):
                    return func(*args, **named)
            finally:
                self._whole = None
        if listen is not None:
            self._wanted.guarded(listen, "enter", args, named)
        output = func(*args, **named)
        if listen is not None and isinstance(output, Tensor):
            self._wanted.guarded(listen, "leave", output, None)
        return output


class OperationCapture(ModelHook):
    """Hooks of the whole model that put a sampled pass under the modes."""

    def __init__(
        self,
        model: nn.Module,
        switch: Switch,
        sizes: Sizes,
        streams: dict[Operation, list[StreamCopy]],
        axes: Sequence[str],
    ) -> None:
        self.model, self.switch, self.sizes, self.axes = model, switch, sizes, list(axes)
        self.layers: list[AttentionOperations] = []
        self._by_operation: dict[Operation, tuple[AttentionOperations, int]] = {}
        self._streams = streams
        self._modes: list[Any] = []
        self._hooks: list[RemovableHandle] = []
        self._fed: list[Tensor] = []
        self._names: dict[int, str] = {}

    def add(self, layers: Sequence[AttentionOperations]) -> None:
        """Listen to these attentions too."""
        self.layers += layers
        for layer in layers:
            self._by_operation |= {op: (layer, i) for i, op in enumerate(layer.operations)}

    def attach(self) -> list[RemovableHandle]:
        """Hook the model; returns what takes the hooks off."""
        enter, leave = guarded(self.switch, self.enter), guarded(self.switch, self.leave)
        return [
            self.model.register_forward_pre_hook(enter, with_kwargs=True),
            self.model.register_forward_hook(leave, always_call=True),
        ]

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ARG002
        """Begin to listen to a pass that trains."""
        if torch.compiler.is_compiling() or not (self.switch.on and torch.is_grad_enabled()) or self._modes:
            return
        self.switch.run(self._begin, inputs, named)

    def _begin(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        for layer in self.layers:
            layer.clear()
        modes: list[Any] = []
        if self._streams:
            results = {op: self._listening(copies) for op, copies in self._streams.items()}
            tracer = StreamTracer(self.model, Edits(results=results), self.switch)
            for number, value in enumerate(tensors((inputs, named))):
                tracer.feed(number, value)
                self._fed.append(value)
                for copy in self._streams.get(Operation("", 0, "input", number), []):
                    self._see(copy, value)
            modes.append(tracer)
        if self.layers:
            self._names = self._names or {id(m): name for name, m in self.model.named_modules()}
            modes.append(AttentionMode(self._names, self))
        for mode in modes:
            self._hooks += [
                register_module_forward_pre_hook(mode.enter),
                register_module_forward_hook(mode.leave, always_call=True),
            ]
        for mode in modes:
            mode.enter(self.model, ())  # its own call has begun already
            mode.__enter__()
            self._modes.append(mode)

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002
        """End of the pass, also if it failed."""
        while self._modes:
            self._modes.pop().__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()
        for value in self._fed:
            with suppress(AttributeError):
                delattr(value, LABEL)
        self._hooks, self._fed = [], []

    def _listening(self, copies: Sequence[StreamCopy]) -> Callable[[Tensor], Tensor]:
        def listen(value: Tensor) -> Tensor:
            for copy in copies:
                self._see(copy, value)
            return value

        return listen

    def _see(self, copy: StreamCopy, stream: Tensor) -> None:
        shaped = shaped_stream(stream.detach(), self.axes)
        if shaped is not None:
            self.switch.run(copy.keep_apart, shaped, stream)

    def listener(self, operation: Operation) -> tuple[AttentionOperations, int] | None:
        """The layer, and which of its parts, that an operation belongs to."""
        found = self._by_operation.get(operation)
        if found is not None:
            return found
        path = f"{operation.module}."
        for layer in self.layers:
            if layer.room and path.startswith(f"{layer.room}."):
                return layer, len(layer.scores)
        around = [layer for layer in self.layers if layer.room.rpartition(".")[0] == operation.module]
        if (
            len(around) == 1 and around[0].room and operation.module
        ):  # its block computes it, with its matrices
            return around[0], len(around[0].scores)
        return None

    def guarded(self, listen: tuple[AttentionOperations, int], what: str, one: Any, other: Any) -> None:
        """Copy from one call; an error switches the monitor off and goes no further."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self.switch.run(self._enter_call if what == "enter" else self._leave_call, listen, one, other)

    def _enter_call(
        self, listen: tuple[AttentionOperations, int], args: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        layer, part = listen
        self._pending = None
        fused = len([x for x in (*args, *named.values()) if isinstance(x, Tensor)]) >= 3
        scores = _fused_scores(*args, **named) if fused else _eager_scores(*args, **named)
        if scores is None:
            return
        rows, heads, values = scores
        cut = _by_heads(rows, layer.heads, len(layer.operations))
        if cut is not None:
            layer.scores[part] = cut
            self._pending = (layer, part, values, heads)

    def _leave_call(self, listen: Any, output: Tensor, _: Any) -> None:  # noqa: ARG002
        pending, self._pending = self._pending, None
        if pending is None:
            return
        layer, part, values, _ = pending
        total = len(layer.operations)
        if values is not None:
            layer.outputs[part] = _cut(output.detach(), layer.heads, total)
        if output.requires_grad:

            def keep(gradient: Tensor) -> None:
                rows = _cut(gradient.detach(), layer.heads, total)
                layer.upstream[part] = rows if values is None else rows @ values.mT

            output.register_hook(guarded(self.switch, keep))

    _pending: tuple[AttentionOperations, int, Tensor | None, int] | None = None


def shaped_stream(stream: Tensor, axes: Sequence[str]) -> Tensor | None:
    """(sequences, tokens, width) of a stream with these axes; None if they do not fit."""
    if stream.ndim != len(axes):
        return stream if stream.ndim == 3 and not axes else None
    features = [i for i, name in enumerate(axes) if name == "feature"]
    others = [i for i, name in enumerate(axes) if name not in ("batch", "feature")]
    if "batch" not in axes or not features:
        return None
    moved = stream.permute(axes.index("batch"), *others, *features)
    return moved.reshape(moved.shape[0], -1, math.prod(moved.shape[-len(features) :]))


def _rows_of(x: Tensor) -> Tensor:
    """A few queries (the axis before the last) of the first axis' first entries."""
    start, stride = query_slice(x.shape[-2], QUERIES)
    return x[..., start::stride, :]


def _cut(x: Tensor, heads: int, parts: int) -> Tensor:
    """(S, H, Q, ...) of what has the shape of scores or of what they give."""
    cut = _by_heads(_rows_of(x).float(), heads, parts)
    return torch.full((), math.nan) if cut is None else cut


def _by_heads(rows: Tensor, heads: int, parts: int) -> Tensor | None:
    """(S, H, Q, K) with the heads of this part; None if the shape does not show them."""
    if rows.ndim == 3:
        if parts > 1 and heads == parts:  # one softmax for each head
            rows = rows[:, None]
        elif rows.shape[0] % heads == 0 and heads > 1:
            rows = rows.unflatten(0, (-1, heads))
        elif heads == 1:
            rows = rows[:, None]
        else:
            return None
    if rows.ndim == 5:  # groups of heads that share keys
        rows = rows.flatten(1, 2)
    if rows.ndim != 4 or rows.shape[1] not in (heads, heads // max(parts, 1), 1):
        return None
    return rows[:SEQUENCES].float().clone()


def _eager_scores(
    scores: Tensor, dim: int | None = None, *_: Any, **named: Any
) -> tuple[Tensor, int, None] | None:
    dim = named.get("dim", dim)
    if not 3 <= scores.ndim <= 5 or dim not in (-1, scores.ndim - 1) or scores.shape[-2] < 2:
        return None
    return _rows_of(scores.detach()), 0, None


def _fused_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, int, Tensor] | None:
    if query.ndim not in (3, 4) or query.shape[-2] < 2:
        return None
    share = query.shape[-3] // key.shape[-3] if enable_gqa and query.ndim == 4 else 1
    first = slice(None) if query.ndim == 3 else slice(SEQUENCES)
    q, k, v = (x.detach()[first].float() for x in (query, key, value))
    k, v = (x.repeat_interleave(share, -3) if share > 1 else x for x in (k, v))
    start, stride = query_slice(q.shape[-2], QUERIES)
    scores = q[..., start::stride, :] @ k.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    places = torch.arange(start, q.shape[-2], stride, device=q.device)
    if is_causal:
        later = torch.arange(k.shape[-2], device=q.device) > places[:, None]
        scores = scores.masked_fill(later, -math.inf)
    if attn_mask is not None:
        mask = attn_mask.detach().expand(*query.shape[:-1], key.shape[-2])[first][..., places, :]
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.float()
    return scores, query.shape[-3], v
