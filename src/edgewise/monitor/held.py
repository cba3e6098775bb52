"""Matrices of a model as views that are made once, and again when a parameter was replaced or moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn


class Held:
    """Views into some parameters; they follow what the optimizer writes, because they share its memory."""

    def __init__(self, model: nn.Module, parameters: Sequence[str], make: Callable[[], list[Tensor]]) -> None:
        paths = [name.rpartition(".") for name in parameters]
        self._places = [(model.get_submodule(path)._parameters, leaf) for path, _, leaf in paths]
        self._make = make
        self._parameters: list[Tensor | None] = []
        self._where: list[int] = []
        self._views: list[Tensor] = []

    def __call__(self) -> list[Tensor]:
        if not self._where or self._moved():
            self._parameters = [parameters[leaf] for parameters, leaf in self._places]
            self._views = [view.detach() for view in self._make()]
            storages = {_storage(p) for p in self._parameters} - {0}
            own = {_storage(view) for view in self._views} <= storages
            # A copy (joined rows, a shard) is made anew every time.
            self._where = [p.data_ptr() for p in self._parameters if p is not None] if own else []
        return self._views

    def _moved(self) -> bool:
        """Whether a parameter was replaced, or is somewhere else."""
        same = all(parameters[leaf] is p for (parameters, leaf), p in zip(self._places, self._parameters, strict=True))
        return not same or [p.data_ptr() for p in self._parameters if p is not None] != self._where


def _storage(tensor: Tensor | None) -> int:
    """Where its storage begins; 0 where that cannot be said (None, or spread over processes)."""
    return 0 if tensor is None or hasattr(tensor, "to_local") else tensor.untyped_storage().data_ptr()
