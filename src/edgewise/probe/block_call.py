"""The arguments a module was called with: where the stream is among them, and the same call on another stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from edgewise.errors import BadInput

NAMES = ("hidden_states", "x", "src")  # common names of the stream where it is passed by keyword


@dataclass(frozen=True)
class BlockCall:
    """Positional and named arguments; the stream is the first tensor, by position and then by name."""

    module: str
    inputs: tuple[Any, ...]
    named: dict[str, Any]

    def _place(self) -> int | str:
        for position, value in enumerate(self.inputs):
            if isinstance(value, Tensor):
                return position
        for key in (*NAMES, *self.named):
            if isinstance(self.named.get(key), Tensor):
                return key
        raise BadInput(f"{self.module} was called without a tensor, so its stream cannot be read.")

    @property
    def stream(self) -> Tensor:
        place = self._place()
        tensor: Tensor = self.inputs[place] if isinstance(place, int) else self.named[place]
        return tensor

    def on(self, stream: Tensor) -> BlockCall:
        """The same call with another stream."""
        place = self._place()
        if isinstance(place, int):
            inputs = (*self.inputs[:place], stream, *self.inputs[place + 1 :])
            return BlockCall(self.module, inputs, self.named)
        return BlockCall(self.module, self.inputs, self.named | {place: stream})

    def run(self, block: nn.Module) -> Tensor:
        return stream_of(block(*self.inputs, **self.named))


def stream_of(output: Any) -> Tensor:
    """A block returns its stream, or a tuple that begins with it."""
    tensor: Tensor = output if isinstance(output, Tensor) else output[0]
    return tensor
