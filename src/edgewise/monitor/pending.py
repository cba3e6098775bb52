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
        self.seats = 0
        self.kept: dict[type[Seat], list[Seat]] = {}  # by kind, those with a tensor, in the order they got it
        self.asked: list[tuple[Question, Tensor, int]] = []
        self.small = SMALL  # most numbers of a tensor that is kept, with so many places that keep one

    def add(self, seat: Seat) -> list[Seat]:
        """Make room for one more, and say where it is listed when it keeps a tensor."""
        self.seats += 1
        self.small = min(SMALL, ROOM // self.seats)
        return self.kept.setdefault(type(seat), [])

    def settle(self) -> None:
        """Read what was kept; not-a-number where it was written over, which is copied at once from then on."""
        for kind, listed in self.kept.items():
            seats = [seat for seat in listed if seat.ready()]
            tensors = [seat.seen for seat in seats]
            if seats:
                kind.read(seats, tensors)  # type: ignore[arg-type]
            for seat in listed:
                seat.seen = None
            listed.clear()

    def ask(self) -> None:
        """Ask for all gradients that wait for it: the first hook on a tensor is dear, the next ones are not.

        And let go of the graph behind what was kept.
        """
        for listed in self.kept.values():
            for seat in listed:
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
        for listed in self.kept.values():
            for seat in listed:
                seat.seen = None
            listed.clear()


class Seat(ABC):
    """Where one hook leaves what it saw, for a buffer."""

    def __init__(self, pending: Pending, buffer: Tensor) -> None:
        self.pending, self.buffer, self._listed = pending, buffer, pending.add(self)
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
        """Whether what was kept is still what was seen, and is to be read now."""
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
    def take(seats: Sequence[Any], tensors: list[Tensor]) -> None:
        """Read tensors into the buffers of their seats."""

    @classmethod
    def read(cls, seats: Sequence[Any], tensors: list[Tensor]) -> None:
        """The same once the pass is over."""
        cls.take(seats, tensors)


class NormSeat(Seat):
    """For the norm of a whole tensor."""

    @staticmethod
    def take(seats: Sequence[Any], tensors: list[Tensor]) -> None:
        wide = (
            torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
        )  # torch does not narrow it
        norms = torch._foreach_norm(tensors, 2, dtype=wide)
        torch._foreach_copy_([seat.buffer for seat in seats], norms)


class Question:
    """The gradient of a tensor, asked for when the last block ends; `answer` is given it.

    A tensor that is written over until then is another one: the first time it is asked at once, to see whether it is.
    What is computed again during the backward pass has no end to wait for, and is asked at once too.
    """

    def __init__(self, pending: Pending, answer: Callable[[Tensor], Any]) -> None:
        self.pending, self.answer = pending, answer
        self.at_once = self.trial = True

    def about(self, tensor: Tensor) -> None:
        pending = self.pending
        waits = tensor.numel() <= pending.small and _number() < 0  # not inside a backward pass
        if self.at_once or not waits:
            tensor.register_hook(self.answer)
        if waits and (self.trial or not self.at_once):
            pending.asked.append((self, tensor, tensor._version))


# The number of the backward pass that goes on, -1 outside of one; 0 where torch does not say, so that nothing waits.
_number: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: 0)


def _memory(x: Tensor) -> int:
    """Bytes of its storage, which some loops free behind the tensor's back."""
    return x.untyped_storage().nbytes()
