"""Tensors that hooks saw, kept as references until the passes are over, and then read together in one call.

A call inside a pass is cold and costs several times what it costs among others of its kind. A reference is good while
nobody writes into the tensor, which its version tells: the first time each is copied at once, and kept to see whether
it lasts. Large tensors are always copied at once, since a reference keeps the whole of one in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

SMALL = 2**18  # numbers of a tensor that is kept
ROOM = 2**24  # and of all of them


class Pending:
    """The tensors of a step that are still to be read, and those whose gradients are still to be asked for."""

    def __init__(self) -> None:
        self.seats: list[Seat] = []
        self.asked: list[tuple[Question, Tensor, int]] = []
        self.small = SMALL  # most numbers of a tensor that is kept, with so many places that keep one

    def add(self, seat: Seat) -> None:
        self.seats.append(seat)
        self.small = min(SMALL, ROOM // len(self.seats))

    def settle(self) -> None:
        """Read what was kept; not-a-number where it was written over, which is copied at once from then on."""
        kept: dict[type[Seat], list[tuple[Seat, Tensor]]] = {}
        for seat in self.seats:
            x, seat.seen = seat.seen, None
            if x is None:
                continue
            if seat.at_once:
                seat.trial, seat.at_once = False, x._version != seat.version or _memory(x) != seat.memory
            elif x._version == seat.version:
                kept.setdefault(type(seat), []).append((seat, x))
            else:
                seat.at_once = True
                seat.buffer.fill_(torch.nan)
        for kind, pairs in kept.items():
            kind.take(pairs)

    def ask(self) -> None:
        """Ask for all gradients that wait for it: the first hook on a tensor is dear, the next ones are not.

        And let go of the graph behind what was kept.
        """
        for seat in self.seats:
            if seat.seen is not None:
                seat.seen = seat.seen.detach()
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
        for seat in self.seats:
            seat.seen = None


class Seat(ABC):
    """Where one hook leaves what it saw, for a buffer."""

    def __init__(self, pending: Pending, buffer: Tensor) -> None:
        self.pending, self.buffer = pending, buffer
        pending.add(self)
        self.seen: Tensor | None = None
        self.version = self.memory = 0
        self.at_once = self.trial = True  # until the first time has shown that references last

    def keep(self, x: Tensor, small: bool) -> None:
        """Take a tensor now, or remember it for `settle`."""
        if self.at_once or not small:
            self.take([(self, x.detach())])
            if not (self.trial and small):
                self.seen = None  # of an earlier pass of this step
                return
            self.memory = _memory(x)
        self.seen, self.version = x, x._version

    @staticmethod
    @abstractmethod
    def take(pairs: Sequence[tuple[Seat, Tensor]]) -> None:
        """Read tensors into the buffers of their seats."""


class NormSeat(Seat):
    """For the norm of a whole tensor."""

    @staticmethod
    def take(pairs: Sequence[tuple[Seat, Tensor]]) -> None:
        wide = torch.float64 if pairs[0][1].dtype == torch.float64 else torch.float32  # torch does not narrow it
        norms = torch._foreach_norm([x for _, x in pairs], 2, dtype=wide)
        torch._foreach_copy_([seat.buffer for seat, _ in pairs], norms)


class Question:
    """The gradient of a tensor, asked for when the last block ends; `answer` is given it.

    A tensor that is written over until then is another one: the first time it is asked at once, to see whether it is.
    What is computed again during the backward pass has no end to wait for, and is asked at once too.
    """

    def __init__(self, pending: Pending, answer: Callable[[Tensor], Any]) -> None:
        self.pending, self.answer = pending, answer
        self.at_once = self.trial = True

    def about(self, tensor: Tensor) -> None:
        waits = tensor.numel() <= self.pending.small and not _backwards()
        if self.at_once or not waits:
            tensor.register_hook(self.answer)
        if waits and (self.trial or not self.at_once):
            self.pending.asked.append((self, tensor, tensor._version))


_number: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: 0)


def _backwards() -> bool:
    """Whether this is inside a backward pass; true where torch does not say, so that nothing waits."""
    return _number() >= 0


def _memory(x: Tensor) -> int:
    """Bytes of its storage, which some loops free behind the tensor's back."""
    return x.untyped_storage().nbytes()
