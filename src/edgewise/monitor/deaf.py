"""What stands in a copy of a watched model for its hooks: a copy is not watched.

Averages of weights (`AveragedModel`), `copy.deepcopy` and `torch.save(model)` take a model's hooks with them, and with
these the files and threads behind them, which cannot be copied.
"""

from __future__ import annotations

from typing import Any


class Deaf:
    """A hook that hears nothing; every part of it is deaf too."""

    on = False

    def __getattr__(self, name: str) -> Deaf:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


class Hooking:
    """For what a model holds as a hook: copied, or stored, it is deaf."""

    def __reduce__(self) -> tuple[type[Deaf], tuple[()]]:
        return Deaf, ()
