"""Tensors that hooks saw, kept as references until the passes are over, and then read together in one call.

A call inside a pass is cold and costs several times what it costs among others of its kind. A reference is good while
nobody writes into the tensor, which its version tells: the first time each is copied at once, and kept to see whether
it lasts. Large tensors are always copied at once, since a reference keeps the whole of one in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary, WeakMethod, ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from edgewise.monitor.budget import Clock

IGNORED = -100  # torch's ignore_index


class NullHook:
    """Placeholder for a watch hook in a copied model; does nothing."""

    on = False

    def __getattr__(self, name: str) -> NullHook:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


class ModelHook:
    """For what a model holds as a hook: copied, or stored, it is deaf."""

    def __reduce__(self) -> tuple[type[NullHook], tuple[()]]:
        return NullHook, ()


class Switch:
    """Return whether this step is sampled, the clock of what that costs, and what to do with an error."""

    def __init__(self, clock: Clock, fail: Callable[[Exception], None]) -> None:
        self.clock, self.fail = clock, fail
        self.on = True
        self.check = True  # whether this row is one on the slow clock, which the referee inspects
        self.limit = 0.0  # largest finite number of the dtype that activations have or are cast to
        self.deferred = DeferredReads()

    def run(self, copy: Callable[..., object], *arguments: Any) -> None:
        """Copy at a sampled step, on the clock; an error switches the monitor off and goes no further."""
        if self.on:
            self.clock.run(copy, arguments, self.fail)


class Guard(ModelHook):
    """The one way from a hook of the model into the monitor: what is raised behind it does not reach the training.

    Nothing is returned either, since what a hook returns replaces the output or the gradient.
    """

    def __init__(self, switch: Switch, hook: Callable[..., object]) -> None:
        self.switch, self.hook = switch, hook

    def call(self, *arguments: Any) -> None:
        """Of a part of the model, at sampled steps; always in compiled code, where a changing flag would recompile."""
        if torch.compiler.is_compiling():
            self.hook(*arguments)
        elif self.switch.on:
            try:
                self.hook(*arguments)
            except Exception as error:  # noqa: BLE001  the training must not notice
                self.switch.fail(error)

    def call_beside(self, *arguments: Any) -> None:
        """Of the whole model, at every step; torch.compile calls it beside its graph."""
        if self.switch.clock.aside:  # a pass of our own
            return
        try:
            self.hook(*arguments)
        except Exception as error:  # noqa: BLE001  the training must not notice
            self.switch.fail(error)


def guarded(switch: Switch, hook: Callable[..., object]) -> Callable[..., None]:
    """A hook of a part of the model, or of a tensor, behind a guard."""
    return Guard(switch, hook).call


def guarded_beside(switch: Switch, hook: Callable[..., object]) -> Callable[..., None]:
    """A hook of the whole model behind a guard."""
    return Guard(switch, hook).call_beside


def leave_to_python(function: Any, *, whole: bool = False) -> None:
    """Keep hooks of the whole model out of torch.compile: beside its graph they must not become a second, tiny one.

    whole: nor may what they call. Names of torch differ between versions: where they are missing, that graph is
    compiled; of what the model is called with, nothing is then seen.
    """
    frames = torch._C._dynamo.eval_frame
    names = ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
    if all(hasattr(frames, name) for name in names):
        change, strategy, action = (getattr(frames, name) for name in names)
        change(function.__code__, strategy(action.SKIP, action.SKIP if whole else action.DEFAULT))


leave_to_python(Guard.call_beside, whole=True)


SMALL = 2**18  # numbers of a tensor that is kept
ROOM = 2**24  # and of all of them


class DeferredReads:
    """The tensors of a step that are still to be read, and those whose gradients are still to be asked for."""

    def __init__(self) -> None:
        self.reads = 0
        # by kind, those with a tensor, in the order they got it
        self.kept: dict[type[DeferredRead], list[DeferredRead]] = {}
        self.asked: list[tuple[GradientRequest, Tensor, int]] = []
        self.small = SMALL  # most numbers of a tensor that is kept, with so many places that keep one

    def add(self, read: DeferredRead) -> list[DeferredRead]:
        """Make room for one more, and say where it is listed when it keeps a tensor."""
        self.reads += 1
        self.small = min(SMALL, ROOM // self.reads)
        return self.kept.setdefault(type(read), [])

    def settle(self) -> None:
        """Read what was kept; not-a-number if it was written over, which is copied at once from then on."""
        for kind, listed in self.kept.items():
            reads = [read for read in listed if read.ready()]
            tensors = [read.seen for read in reads]
            if reads:
                kind.read(reads, tensors)  # type: ignore[arg-type]
            for read in listed:
                read.seen = None
            listed.clear()

    def ask(self) -> None:
        """Ask for all gradients that wait for it: the first hook on a tensor is dear, the next ones are not.

        And let go of the graph behind what was kept.
        """
        for listed in self.kept.values():
            for read in listed:
                if read.seen is not None:
                    read.seen = read.seen.detach()
        for question, tensor, version in self.asked:
            lasts = tensor._version == version
            if lasts and not question.at_once:
                tensor.register_hook(question.answer)
            question.at_once, question.trial = not lasts, False
        self.asked.clear()

    def forget(self) -> None:
        """Let go of what a pass left behind; what was not asked in time is asked at once from then on."""
        for question, _, _ in self.asked:
            question.at_once = True
        self.asked.clear()
        for listed in self.kept.values():
            for read in listed:
                read.seen = None
            listed.clear()


class DeferredRead(ABC):
    """Where one hook leaves what it saw, for a buffer."""

    def __init__(self, deferred: DeferredReads, buffer: Tensor) -> None:
        self.deferred, self.buffer, self._listed = deferred, buffer, deferred.add(self)
        self.seen: Tensor | None = None
        self.version = self.memory = 0
        self.at_once = self.trial = True  # until the first time has shown that references last

    def keep(self, x: Tensor, small: bool) -> None:
        """Take a tensor now, or remember it for `settle`."""
        if self.at_once or not small:
            self.take([self], [x.detach()])
            if not (self.trial and small):
                self.seen = None  # of an earlier pass of this step
                return
            self.memory = _memory(x)
        if self.seen is None:
            self._listed.append(self)
        self.seen, self.version = x, x._version

    def ready(self) -> bool:
        """Return whether what was kept is still what was seen, and is to be read now."""
        x = self.seen
        if x is None:
            return False
        lasts = x._version == self.version
        if self.at_once:  # the first time: it was copied as well
            self.trial, self.at_once = False, not (lasts and _memory(x) == self.memory)
            return False
        if not lasts:
            self.at_once = True
            self.buffer.fill_(torch.nan)
        return lasts

    @staticmethod
    @abstractmethod
    def take(reads: Sequence[Any], tensors: list[Tensor]) -> None:
        """Read tensors into the buffers of their reads."""

    @classmethod
    def read(cls, reads: Sequence[Any], tensors: list[Tensor]) -> None:
        """The same once the pass is over."""
        cls.take(reads, tensors)


class DeferredNorm(DeferredRead):
    """For the norm of a whole tensor."""

    @staticmethod
    def take(reads: Sequence[Any], tensors: list[Tensor]) -> None:
        # torch does not narrow it
        wide = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
        norms = torch._foreach_norm(tensors, 2, dtype=wide)
        torch._foreach_copy_([read.buffer for read in reads], norms)


class GradientRequest:
    """The gradient of a tensor, asked for when the last block ends; `answer` is given it.

    A tensor that is written over until then is another one: the first time it is asked at once, to see whether it is.
    What is computed again during the backward pass has no end to wait for, and is asked at once too.
    """

    def __init__(self, deferred: DeferredReads, answer: Callable[[Tensor], Any]) -> None:
        self.deferred, self.answer = deferred, answer
        self.at_once = self.trial = True

    def about(self, tensor: Tensor) -> None:
        deferred = self.deferred
        waits = tensor.numel() <= deferred.small and _number() < 0  # not inside a backward pass
        if self.at_once or not waits:
            tensor.register_hook(self.answer)
        if waits and (self.trial or not self.at_once):
            deferred.asked.append((self, tensor, tensor._version))


# The number of the backward pass that continues, -1 outside of one; 0 where torch does not say, so that nothing waits.
_number: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: 0)


def _memory(x: Tensor) -> int:
    """Bytes of its storage, which some loops free behind the tensor's back."""
    return x.untyped_storage().nbytes()


class OptimizerSteps:
    """Whose steps count; optimizers are known weakly, since a new one may stand where a freed one stood.

    tell(kind, sentence): where what does not train is said, once.
    """

    def __init__(self, model: nn.Module, named: Optimizer | None, tell: Callable[[str, str], None]) -> None:
        self.model, self.named, self.tell = model, named, tell
        self._known: WeakKeyDictionary[Optimizer, tuple[float, frozenset[int]]] = WeakKeyDictionary()
        self._begun: list[ref[Optimizer]] = []  # of this round, in order
        self._ended: list[ref[Optimizer]] = []
        self._last: ref[Optimizer] | None = None  # which ends a round; None until one has shown it
        self._open = self._told = False

    def begins(self, optimizer: Optimizer) -> tuple[bool, bool]:
        """Return whether a step begins with this one, and whether the step before has not ended yet."""
        if not self._share(optimizer):
            return False, False
        self._begun, self._ended = (
            [o for o in these if o() is not None] for these in (self._begun, self._ended)
        )
        again, instead = ref(optimizer) in self._begun, self._replaces(optimizer)
        if self._begun and not (again or instead):
            self._begun.append(ref(optimizer))
            return False, False
        if self._ended:
            self._last = None if instead and not again else self._ended[-1]
            self._complain()
        self._begun, self._ended = [ref(optimizer)], []
        late, self._open = self._open, True
        return True, late

    def owns(self, optimizer: Optimizer) -> bool:
        """Return whether it moves anything of the model, or is the one that was named."""
        return self._share(optimizer) > 0

    def ends(self, optimizer: Optimizer) -> bool:
        """Return whether a step ends with this one."""
        if not self._share(optimizer):
            return False
        self._ended.append(ref(optimizer))
        last = None if self._last is None else self._last()
        over = self._moved() > 0.5 if last is None else optimizer is last
        closes, self._open = self._open and over, self._open and not over
        return closes

    def _replaces(self, optimizer: Optimizer) -> bool:
        """Return whether it moves what another one has moved in this round: it then stands in its place from now on."""
        done = (
            self._known[o][1]
            for o in {each() for each in self._ended}
            if o is not None and o is not optimizer
        )
        return any(not self._known[optimizer][1].isdisjoint(parameters) for parameters in done)

    def _moved(self) -> float:
        """Return how much of what trains was moved in this round."""
        return sum(self._share(o) for o in {each() for each in self._ended} if o is not None)

    def _share(self, optimizer: Optimizer) -> float:
        """Return which part of the parameters that train it moves; all of them, if it is the one that was named."""
        if optimizer not in self._known or not self._known[optimizer][0]:  # what it holds may be thawed later
            self._known[optimizer] = self._measure(optimizer)
        return self._known[optimizer][0]

    def _measure(self, optimizer: Optimizer) -> tuple[float, frozenset[int]]:
        moved = frozenset(id(p) for group in optimizer.param_groups for p in group["params"])
        if self.named is not None:
            return float(
                optimizer is self.named or optimizer is getattr(self.named, "optimizer", None)
            ), moved
        mine = {id(p): p.numel() for p in self.model.parameters() if p.requires_grad}
        return sum(size for key, size in mine.items() if key in moved) / max(sum(mine.values()), 1), moved

    def _complain(self) -> None:
        """A round is over: say so where much of what could train was not moved in it."""
        moved = self._moved()
        if moved < 0.5 and not self._told:
            self._told = True
            self.tell(
                "optimizer",
                f"the optimizer moves {moved:.1%} of the parameters that require a gradient; "
                "the others keep their values. Was that meant?",
            )


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that does nothing once its object is gone: what is global must not keep a model."""
    found = WeakMethod(method)

    def call(*arguments: Any, **named: Any) -> Any:
        return None if (bound := found()) is None else bound(*arguments, **named)

    return call


Hear = Callable[[Tensor], None]
_LISTENERS: list[Hear] = []


class BackwardListener:
    """Hear the tensor that a backward pass begins at: the loss, also if no module returned it.

    `Tensor.backward` is replaced while there is a listener, and put back with the last one.
    """

    def __init__(self, hear: Hear) -> None:
        self.hear = hear
        if not _LISTENERS:
            torch.Tensor.backward = _heard  # type: ignore[method-assign]
        _LISTENERS.append(hear)

    def remove(self) -> None:
        """Stop listening."""
        if self.hear in _LISTENERS:
            _LISTENERS.remove(self.hear)
        if not _LISTENERS and torch.Tensor.backward is _heard:
            torch.Tensor.backward = _backward  # type: ignore[method-assign]


_backward = torch.Tensor.backward


@wraps(_backward)
def _heard(self: Tensor, *arguments: Any, **named: Any) -> Any:
    if not torch.compiler.is_compiling():
        for hear in tuple(_LISTENERS):
            hear(self)
    return _backward(self, *arguments, **named)


def unscaled(loss: Tensor) -> Tensor:
    """Return the loss before it was multiplied or divided by a positive number: accumulation, or a gradient scaler.

    Without a look at a number that is on another device.
    """
    value, node = loss.detach(), loss.grad_fn
    for _ in range(4):
        if node is None or node.name() not in ("MulBackward0", "DivBackward0"):
            break
        by = _saved_factor(node)
        if by is None or (by.device.type == "cpu" and not 0 < float(by) < torch.inf):
            break
        value = value * by if node.name() == "DivBackward0" else value / by
        node = next((n for n, _ in node.next_functions if n is not None), None)
    return value


SUMS = ("AddBackward0", "SubBackward0")
SAME = ("ViewBackward0", "ReshapeAliasBackward0", "SqueezeBackward0", "ToCopyBackward0", "CloneBackward0")
LEAVES = 40  # terms of a loss that are told apart


def weights_of(loss: Tensor) -> dict[str, float]:
    """Return the numbers by which the terms of a loss are multiplied, in their order, by function and number."""
    found: dict[str, float] = {}
    nodes: list[tuple[Any, float]] = [(loss.grad_fn, 1.0)]
    while nodes and len(found) < LEAVES:
        node, weight = nodes.pop()
        if node is None:
            continue
        name, after = node.name(), [n for n, _ in node.next_functions]
        if name in SUMS:
            sign = -1.0 if name == "SubBackward0" else 1.0
            nodes += [(n, weight * (sign if i else 1.0)) for i, n in reversed([*enumerate(after)])]
            continue
        by = _saved_factor(node) if name in ("MulBackward0", "DivBackward0") else None
        if by is not None and by.device.type == "cpu":
            weight = weight / float(by) if name == "DivBackward0" and float(by) else weight * float(by)
        number = (
            getattr(node, "_saved_other", None) if name == "MulBackward1" else None
        )  # a number of the C++ side
        if isinstance(number, (int, float)):
            by, weight = loss, weight * number
        if by is not None or name in (*SAME, "NegBackward0"):
            nodes += [(n, -weight if name == "NegBackward0" else weight) for n in after]
            continue
        found[f"{name} {len(found)}"] = weight
    return found


def _saved_factor(node: Any) -> Tensor | None:
    try:
        parts = [getattr(node, f"_saved_{which}", None) for which in ("other", "self")]
    except RuntimeError:  # it was written over since: torch keeps no copy
        return None
    return next((p for p in parts if isinstance(p, Tensor) and p.dim() == 0 and not p.requires_grad), None)


def cross_entropy_of(loss: Tensor) -> tuple[Tensor, Tensor] | None:
    """Log probabilities and labels of the cross-entropy that a loss was computed from, as its graph keeps them.

    Labels that it ignores are -100, whatever they were.
    """
    nodes: list[Any] = [loss.grad_fn]
    for node in nodes:  # grows: breadth first
        if node is None or len(nodes) > 12:
            continue
        if node.name() in ("NllLossBackward0", "NllLoss2DBackward0"):
            before = node.next_functions[0][0]
            if before is None or before.name() != "LogSoftmaxBackward0":
                return None
            try:
                target, ignored = node._saved_target, node._saved_ignore_index
                ignored -= 2**64 if ignored >= 2**63 else 0  # torch keeps it without its sign
                target = target if ignored == IGNORED else target.masked_fill(target == ignored, IGNORED)
                return before._saved_result.detach(), target
            except RuntimeError:  # written over since
                return None
        nodes += [following for following, _ in node.next_functions]
    return None
