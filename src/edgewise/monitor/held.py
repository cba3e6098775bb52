"""Matrices of a model as views that are made once, and again when a parameter was replaced or moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_

from torch import Tensor, nn


class Held:
    """Views into some parameters; they follow what the optimizer writes, because they share its memory."""

    def __init__(self, model: nn.Module, parameters: Sequence[str], make: Callable[[], list[Tensor]]) -> None:
        paths = [name.rpartition(".") for name in dict.fromkeys(parameters)]
        self._places = [(model.get_submodule(path)._parameters, leaf) for path, _, leaf in paths]
        self._make = make
        self._parameters: Sequence[Tensor | None] = []
        self._where: list[int] = []
        self._views: list[Tensor] = []
        self.spread = any(hasattr(parameters[leaf], "full_tensor") for parameters, leaf in self._places)
        self._gathered: list[Tensor] = []

    def __call__(self) -> list[Tensor]:
        return self._gathered or self._now()

    def gather(self) -> None:
        """Once for a row, where it is spread over processes: all of them must ask for it equally often."""
        self._gathered = self._now() if self.spread else []

    def release(self) -> None:
        """Let go of what was gathered."""
        self._gathered = []

    def _now(self) -> list[Tensor]:
        now = [parameters[leaf] for parameters, leaf in self._places]
        # Whether a parameter was replaced, or is somewhere else; without a loop, because it is asked at every row.
        known = self._where and all(map(is_, now, self._parameters))
        if not (known and list(map(Tensor.data_ptr, now)) == self._where):  # type: ignore[arg-type]
            self._parameters, self._views = now, [view.detach() for view in self._make()]
            own = {_storage(view) for view in self._views} <= {_storage(p) for p in now} - {0}
            # A copy (joined rows, a shard) is made anew every time.
            self._where = [p.data_ptr() for p in now if p is not None] if own else []
        return self._views


def _storage(tensor: Tensor | None) -> int:
    """Where its storage begins; 0 where that cannot be said (None, or spread over processes)."""
    return 0 if tensor is None or hasattr(tensor, "to_local") else tensor.untyped_storage().data_ptr()
