"""Matrices of a model as views that are made once, and again when a parameter was replaced or moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn


class Held:
    """Views into some parameters; they follow what the optimizer writes, because they share its memory."""

    def __init__(self, model: nn.Module, parameters: Sequence[str], make: Callable[[], list[Tensor]]) -> None:
        paths = [name.rpartition(".") for name in parameters]
        self._places = [(model.get_submodule(path), leaf) for path, _, leaf in paths]
        self._make = make
        self._where: list[tuple[int, int]] = []
        self._views: list[Tensor] = []

    def __call__(self) -> list[Tensor]:
        parameters = [module._parameters[leaf] for module, leaf in self._places]
        where = [(id(p), _address(p)) for p in parameters]
        if where != self._where:
            self._views = [view.detach() for view in self._make()]
            own = {_address(view) for view in self._views} <= {address for _, address in where} - {0}
            self._where = where if own else []  # a copy (joined rows, a shard) is made anew every time
        return self._views


def _address(tensor: Tensor | None) -> int:
    """Where its storage begins; 0 where that cannot be said (None, or spread over processes)."""
    return 0 if tensor is None or hasattr(tensor, "to_local") else tensor.untyped_storage().data_ptr()
