"""Hooks that copy slices of a forward and a backward pass into preallocated buffers, and do nothing else.

No host synchronization, no random number, no collective, no value returned: the numbers of training stay what they
are, and torch.compile takes the copies into its one graph if they were there before its first call. Whether a step is
sampled is asked only if the code is not compiled, since a changing flag would compile it again.

Shapes: S sequences, T tokens of a stream, K keys, Q queries; unfilled places are not-a-number.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from edgewise.models.inputs import tensors
from edgewise.models.state import preserved
from edgewise.monitor.hooks import (
    IGNORED,
    DeferredNorm,
    DeferredRead,
    DeferredReads,
    GradientRequest,
    ModelHook,
    Switch,
    cross_entropy_of,
    guarded,
)
from edgewise.probe.streams import NAMES

SEQUENCES, TOKENS, QUERIES = 2, 64, 16
KEYS = 512  # most tokens copied of a projection; the keys of a causal row are the tokens before it, so rows are whole
FEWEST = 64  # and the fewest, if the model is large
TERMS = 1 << 18  # numbers of a prediction of which terms of the loss are computed
DATED, ROOMY = 24, 1 << 18  # batches that are remembered with their steps, and their numbers
ROOM = 0.01  # of the parameters' memory, or 64 MB, for these copies


class Sizes:
    """How much of the buffers the last pass filled: sequences, tokens of the stream, tokens in all.

    And whether compiled code was given what could be a mask.
    """

    def __init__(self, device: torch.device) -> None:
        self._numbers = torch.zeros(4, dtype=torch.int64, device=device)
        self._host: tuple[int, int, int] | None = None  # known without asking the device, unless compiled

    def fill(self, sequences: int, tokens: int, length: int) -> None:
        if torch.compiler.is_compiling():
            self._numbers[0].fill_(sequences)
            self._numbers[1].fill_(tokens)
            self._numbers[2].fill_(length)
        else:
            self._host = sequences, tokens, length

    def read(self) -> tuple[int, int, int]:
        if self._host is not None:
            return self._host
        sequences, tokens, length, _ = self._numbers.tolist()
        return sequences, tokens, length

    def mark(self) -> None:
        """In compiled code: it is given what could be a mask."""
        self._numbers[3].fill_(1)

    @property
    def marked(self) -> bool:
        return bool(self._numbers[3])

    def clear(self) -> None:
        self._numbers.zero_()
        self._host = None


class Fit(NamedTuple):
    """Which part of a tensor of one shape goes where in a buffer, and how many sequences and tokens that is."""

    part: tuple[slice, ...]
    target: Tensor
    sequences: int
    tokens: int
    length: int  # of a sequence in all


class Window(DeferredRead):
    """The part of a tensor (batch, tokens, width) that goes into a buffer; worked out once for every shape.

    slices(length): of the tokens of one sequence; sequences are the first ones.
    """

    def __init__(
        self, deferred: DeferredReads, buffer: Tensor, batch_first: bool, slices: Callable[[int], slice]
    ) -> None:
        super().__init__(deferred, buffer)
        self.batch_first, self._slices = batch_first, slices
        self._shape: torch.Size | None = None
        self._fit: Fit | None = None
        self._small = False

    def copy(self, x: Tensor) -> Fit | None:
        """Copy in compiled code, where what is remembered would be a guard, and compile it again."""
        fit = self._fitted(x.shape)
        if fit is not None:
            fit.target.copy_(x.detach()[fit.part])
        return fit

    def see(self, x: Tensor) -> Fit | None:
        """Copy x, or keep it until the pass is over; None if it is not a stream of this width."""
        if x.shape != self._shape:
            self._shape, self._fit = x.shape, self._fitted(x.shape)
            self._small = x.numel() <= self.deferred.small
        if self._fit is not None:
            self.keep(x, self._small)
        return self._fit

    @staticmethod
    def take(reads: Sequence[Any], tensors: list[Tensor]) -> None:
        fits = [read._fit for read in reads]
        torch._foreach_copy_(
            [fit.target for fit in fits], [x[fit.part] for x, fit in zip(tensors, fits, strict=True)]
        )

    def _fitted(self, shape: torch.Size) -> Fit | None:
        if len(shape) != 3 or shape[-1] != self.buffer.shape[-1]:
            return None
        batch, length = (shape[0], shape[1]) if self.batch_first else (shape[1], shape[0])
        sequences, columns = min(batch, self.buffer.shape[0]), self._slices(length)
        tokens = -(-(columns.stop - columns.start) // columns.step)
        target = self.buffer[:sequences, :tokens]
        if self.batch_first:
            part = (slice(sequences),) if tokens == length else (slice(sequences), columns)
            return Fit(part, target, sequences, tokens, length)
        return Fit((columns, slice(sequences)), target.transpose(0, 1), sequences, tokens, length)


class InPlace(Window):
    """A window onto a tensor that lasts: what it shows is read where it is, and not copied."""

    part: Tensor | None = None  # (sequences, tokens, width) of the last pass; None if it is in the buffer

    def ready(self) -> bool:
        first = self.at_once
        ready = super().ready()
        if first and not self.at_once:  # what was copied the first time must not pass for a later step
            self.buffer.fill_(torch.nan)
            return True
        return ready

    def shown(self, sequences: int, tokens: int) -> Tensor:
        """(sequences, tokens, width) of the last pass, in float32; not-a-number if that was not seen."""
        part = self.part
        if part is None or part.shape[:2] != (sequences, tokens):
            return self.buffer[:sequences, :tokens]
        return part.float()

    @classmethod
    def read(cls, reads: Sequence[Any], tensors: list[Tensor]) -> None:
        for read, x in zip(reads, tensors, strict=True):
            part = x[read._fit.part]
            read.part = part if read.batch_first else part.transpose(0, 1)


W = TypeVar("W", bound=Window)


def token_window(kind: type[W], switch: Switch, buffer: Tensor, batch_first: bool) -> W:
    """Onto all tokens, up to as many as the buffer (S, K, width) has."""
    keys = buffer.shape[1]
    return kind(switch.deferred, buffer, batch_first, lambda length: slice(0, min(length, keys), 1))


class StreamCopy(ModelHook):
    """The stream at one site: a few tokens of a few sequences, and the norm of its whole gradient."""

    def __init__(
        self,
        switch: Switch,
        buffer: Tensor,
        gradient: Tensor,
        sizes: Sizes | None,
        batch_first: bool,
        last: bool,
    ) -> None:
        self.switch, self.gradient, self.sizes, self.last = switch, gradient, sizes, last
        self.question = GradientRequest(switch.deferred, guarded(switch, self._see_gradient))
        self.norm = DeferredNorm(switch.deferred, gradient)
        self.window = Window(
            switch.deferred, buffer, batch_first, lambda length: slice(0, length, -(-length // TOKENS))
        )

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ARG002
        """Pre-hook of the first block: the embedded tokens."""
        self._see(tensor_in(inputs, named))

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002
        """Hook of a block: the stream behind it."""
        self._see(_tensor_of(output))

    def _see(self, stream: Tensor | None) -> None:
        if stream is None or not torch.is_grad_enabled():
            return
        if torch.compiler.is_compiling():
            self._fill(self.window.copy(stream))
            if stream.requires_grad:
                stream.register_hook(self._copy_gradient)
        else:
            self.switch.run(self._keep, stream)

    def _keep(self, stream: Tensor) -> None:
        fit = self.window.see(stream)
        if self.sizes is not None:
            self._fill(fit)
            if self.switch.check:
                self.switch.limit = limit_of(stream)
        if stream.requires_grad:
            self.question.about(stream)
        if self.last:
            self.switch.deferred.ask()

    def keep_apart(self, shaped: Tensor, stream: Tensor) -> None:
        """Keep a stream that is seen at an operation; shaped: (sequences, tokens, width) of it."""
        fit = self.window.see(shaped)
        if self.sizes is not None:
            self._fill(fit)
            if self.switch.check:
                self.switch.limit = limit_of(stream)
        if stream.requires_grad:
            stream.register_hook(guarded(self.switch, self._see_gradient))

    def _fill(self, fit: Fit | None) -> None:
        if fit is not None and self.sizes is not None:
            self.sizes.fill(fit.sequences, fit.tokens, fit.length)

    def _see_gradient(self, gradient: Tensor) -> None:
        self.switch.run(self._keep_gradient, gradient)

    def _keep_gradient(self, gradient: Tensor) -> None:
        self.norm.keep(gradient, gradient.numel() <= self.switch.deferred.small)

    def _copy_gradient(self, gradient: Tensor) -> None:
        wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
        self.gradient.copy_(torch.linalg.vector_norm(gradient.detach(), dtype=wide))


class TokenCopy(ModelHook):
    """All tokens, up to K of each of S sequences, that leave a projection or enter nn.MultiheadAttention."""

    def __init__(self, switch: Switch, buffer: Tensor, batch_first: bool) -> None:
        self.switch = switch
        self.window = token_window(Window, switch, buffer, batch_first)

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002
        self.see(_tensor_of(output))

    def see(self, tokens: Tensor | None) -> None:
        if tokens is None or not torch.is_grad_enabled():
            return
        if torch.compiler.is_compiling():
            self.window.copy(tokens)
        else:
            self.switch.run(self.window.see, tokens)


class QueryCopy(ModelHook):
    """What the attention gives at Q sampled queries, and the gradient that comes back to it there.

    Of a model with an output projection that is its input o; of nn.MultiheadAttention it is the output W_O o + b.
    """

    def __init__(
        self, switch: Switch, buffer: Tensor, gradient: Tensor, keys: int, batch_first: bool
    ) -> None:
        def slices(length: int) -> slice:
            start, stride = query_slice(min(length, keys), buffer.shape[1])
            return slice(start, min(length, keys), stride)

        self.switch = switch
        self.window = Window(switch.deferred, buffer, batch_first, slices)
        self.back = Window(switch.deferred, gradient, batch_first, slices)
        self.question = GradientRequest(switch.deferred, guarded(switch, self._see_gradient))

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:  # noqa: ARG002
        self.see(inputs[0] if inputs and isinstance(inputs[0], Tensor) else None)

    def see(self, output: Tensor | None) -> None:
        if output is None or not torch.is_grad_enabled():
            return
        if torch.compiler.is_compiling():
            self.window.copy(output)
            if output.requires_grad:
                output.register_hook(self._copy_gradient)
        else:
            self.switch.run(self.keep, output)

    def keep(self, output: Tensor) -> None:
        if self.switch.check:  # the referee alone asks for it
            self.window.see(output)
        if output.requires_grad:
            self.question.about(output)

    def _see_gradient(self, gradient: Tensor) -> None:
        self.switch.run(self.back.see, gradient)

    def _copy_gradient(self, gradient: Tensor) -> None:
        self.back.copy(gradient)


class CallCopy(ModelHook):
    """What enters nn.MultiheadAttention and what leaves it, in one hook: a call inside a pass is cold."""

    def __init__(self, tokens: Window, output: QueryCopy, masks: Any) -> None:
        self.switch, self.tokens, self.output, self.masks = output.switch, tokens, output, masks

    def leave(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:  # noqa: ARG002
        query, result = inputs[0] if inputs else named.get("query"), _tensor_of(output)
        if not torch.is_grad_enabled() or not isinstance(query, Tensor) or result is None:
            return
        if torch.compiler.is_compiling():
            self.tokens.copy(query)
            self.masks.trace([*inputs[3:], *(named.get(name) for name in ("key_padding_mask", "attn_mask"))])
            self.output.see(result)
        else:
            self.switch.run(self._keep, query, result, inputs[3:], named)

    def _keep(self, query: Tensor, result: Tensor, others: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.tokens.see(query)
        self.masks.see(others, named)
        self.output.keep(result)


class LossRing:
    """The losses of all steps of another device, on their way to the host without a wait for them.

    Each is copied into a slot of pinned memory without blocking, and read once its event has passed; without events
    (a device that has none), once a later one was pushed.
    """

    def __init__(self, device: torch.device, size: int = 256) -> None:
        self.cuda = device.type == "cuda"
        self._host = torch.zeros(size, pin_memory=self.cuda)
        self._sent: deque[tuple[int, int, Any]] = deque()
        self._next, self._size = 0, size

    def push(self, step: int, loss: Tensor) -> None:
        """Send the loss of a step; the oldest is given up if none of them arrives."""
        if len(self._sent) == self._size:
            self._sent.popleft()
        slot, self._next = self._next, (self._next + 1) % self._size
        self._host[slot].copy_(loss.detach().reshape(()), non_blocking=True)
        event = None
        if self.cuda:
            event = torch.cuda.Event()
            event.record()
        self._sent.append((step, slot, event))

    def arrived(self, *, wait: bool = False) -> list[tuple[int, float]]:
        """Return (step, loss) of those that are here, in order; wait: of all."""
        ready = []
        while self._sent:
            step, slot, event = self._sent[0]
            if event is not None and wait:
                event.synchronize()
            here = wait or (event.query() if event is not None else len(self._sent) > 1)
            if not here:
                break
            self._sent.popleft()
            ready.append((step, float(self._host[slot])))
        return ready


class LossCopy(ModelHook):
    """The scalar loss that a model or a criterion returns."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.heard = False  # whether there was a loss in this step: not a number is one too

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002
        """Hook of the whole model, which torch.compile calls beside its graph."""
        loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1 and torch.is_grad_enabled():
            self.buffer.copy_(loss.detach().reshape(()))
            self.heard = True


def apart(buffer: Tensor) -> Tensor:
    """The same memory with a count of writes of its own.

    A graph of torch.compile keeps what its backward pass will write to, and raises if that was written to since;
    views share one count, so the graph of one block would raise after that of another has run.
    """
    return buffer.data


def keys_within(model: nn.Module, widths: int) -> int:
    """Count the tokens per sequence that fit into the room for copies; widths: numbers per token over all layers."""
    room = max(ROOM * sum(p.numel() * p.element_size() for p in model.parameters()), 2**26)
    return int(min(KEYS, max(FEWEST, room // (4 * SEQUENCES * max(widths, 1)))))


def query_slice(length: int, queries: int) -> tuple[int, int]:
    """(start, stride) of at most `queries` places spread over 0..length - 1."""
    stride = -(-length // queries)
    return stride // 2, stride


def limit_of(x: Tensor) -> float:
    """The largest finite number of what x is, or is cast to by autocast before the next matrix."""
    kind = x.device.type
    cast = torch.is_autocast_enabled(kind) and x.dtype == torch.float32
    return float(torch.finfo(torch.get_autocast_dtype(kind) if cast else x.dtype).max)


def _tensor_of(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    first = output[0] if isinstance(output, (tuple, list)) and len(output) else None
    return first if isinstance(first, Tensor) else None


def tensor_in(inputs: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
    """The stream among the arguments of a call: the first tensor by position, then by a common name."""
    for value in inputs:
        if isinstance(value, Tensor):
            return value
    for name in NAMES:
        if isinstance(named.get(name), Tensor):
            value = named[name]
            assert isinstance(value, Tensor)
            return value
    return None


Call = tuple[tuple[Any, ...], dict[str, Any]]


class BatchMemory(ModelHook):
    """What model and criterion were called with at the last two sampled steps, as references; nothing is copied.

    Beside it the random state of the pass, and what autocast made of it, so that the pass can be repeated.
    """

    def __init__(self, switch: Switch, keep_random: bool = True) -> None:
        self.switch, self.keep_random = switch, keep_random
        self.call: Call | None = None
        self.before: Call | None = None
        self.criterion: Call | None = None
        self.criterion_before: Call | None = None
        self.recent: deque[tuple[Call, Call | None]] = deque(maxlen=4)  # the last sampled ones
        self.dated: deque[tuple[int, tuple[Call, Call | None]]] = deque(maxlen=DATED)  # with their steps
        self.passes = 0  # that train, sampled or not
        self.last: tuple[Call | None, Call | None] = (None, None)  # of this step, sampled or not
        self.previous: Call | None = None  # of the step before
        self.output: Any = None  # of the model, at a sampled step
        # whether the criterion was not called, and its arguments come from the graph of the loss
        self.logs = False
        self.random = torch.empty(0, dtype=torch.uint8)
        self.autocast: str | None = None

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ARG002
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        self.passes += 1
        self.last = (inputs, named), None
        if self.switch.on:
            self.switch.run(self._remember, inputs, named)

    def _remember(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.before, self.call = self.call, (inputs, named)
        if self.keep_random:  # a dossier will want it
            self.random = torch.get_rng_state()
        self.autocast = str(torch.get_autocast_dtype("cpu"))[6:] if torch.is_autocast_enabled("cpu") else None

    def enter_criterion(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ARG002
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        self.last = self.last[0], (inputs, named)
        if self.switch.on:
            self.criterion_before, self.criterion = self.criterion, (inputs, named)

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002
        if self.switch.on and not torch.compiler.is_compiling() and torch.is_grad_enabled():
            self.output = output

    def hear(self, loss: Tensor) -> None:
        """The loss of a sampled step, if no criterion was called: its graph knows predictions and labels."""
        call, seen = self.last
        if call is None or "labels" in call[1] or (seen is not None and not self.logs):
            return
        found = cross_entropy_of(loss)
        if found is not None:
            self.last, self.logs = (call, (found, {})), True

    def heard(self) -> float:
        """The cross-entropy that was heard in this step's graph; not a number if there was none."""
        seen = self.last[1]
        if not self.logs or seen is None:
            return math.nan
        log_probabilities, labels = seen[0]
        return float(torch.nn.functional.nll_loss(log_probabilities, labels, ignore_index=IGNORED))

    def terms(self) -> dict[str, float]:
        """List what is sometimes added to the cross-entropy of this step, each without its weight."""
        seen = self.last[1]
        if not self.logs or seen is None:
            return {}
        logs, labels = seen[0]
        output = getattr(self.output, "logits", self.output)
        z = next((t for t in tensors(output) if t.is_floating_point()), None)
        if logs.dim() < 2 or logs.numel() > TERMS:
            return {}
        kept = labels.reshape(-1) != IGNORED
        own = self.heard()
        smooth = float(-logs.movedim(1, -1).mean(-1).reshape(-1)[kept].mean())
        found = {"smoothing": smooth - own}
        if z is not None and z.numel() == logs.numel():
            z = z.detach().float()
            found["the squared logits"] = float(z.square().mean())
            found["the squared log of their sum (z-loss)"] = float(z.logsumexp(-1).square().mean())
        return found

    def stepped(self, step: int) -> None:
        """A sampled step begins: remember its batch, and let go of the graph behind it."""
        call, seen = self.last
        if call is not None:
            self.recent.append((detached(call), None if seen is None else detached(seen)))
            given = [*call[0], *call[1].values(), *([] if seen is None else [*seen[0], *seen[1].values()])]
            if sum(t.numel() for t in tensors(given)) <= ROOMY:
                self.dated.append((step, self.recent[-1]))

    def forget(self) -> None:
        """Let go of the batch of a step that is over, but for what the model was called with."""
        self.previous = self.last[0]
        self.last, self.output = (None, None), None

    def few(self, *, before: bool = False) -> Call | None:
        """The same call, or that of the sample before, on the first sequences; None if there is none."""
        call = self.before if before else self.call
        if call is None:
            return None
        inputs, named = call
        size = next((t.shape[0] for t in tensors([inputs, list(named.values())]) if t.dim()), 0)
        return tuple(_cut(x, size) for x in inputs), {name: _cut(x, size) for name, x in named.items()}


def detached(call: Call) -> Call:
    """The same tensors without the graph behind them."""
    inputs, named = call
    return tuple(_detached(x) for x in inputs), {name: _detached(x) for name, x in named.items()}


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) and value.requires_grad else value


def _cut(value: Any, size: int) -> Any:
    whole = not isinstance(value, Tensor) or not value.dim() or value.shape[0] != size
    return value if whole else value[:SEQUENCES].detach()


def extra_pass(model: nn.Module, call: Call) -> None:
    """Run a bare model forwards and backwards in eager mode, so that its hooks see it.

    Backwards from the model's own loss, or from a fixed random readout if it returns none.
    """
    inputs, named = call
    with preserved(model, gradients=True):
        output = model(*inputs, **named)
        loss = getattr(output, "loss", None)
        if not isinstance(loss, Tensor):
            first = next(t for t in tensors(output) if t.is_floating_point())
            drawn = torch.randn(first.shape, generator=torch.Generator().manual_seed(0))
            loss = (first * drawn.to(first)).sum() / first[..., 0].numel()
        leaf = next(p for p in model.parameters() if p.requires_grad)
        torch.autograd.grad(loss, leaf, allow_unused=True)
