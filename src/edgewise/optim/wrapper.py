"""OptimizerWrapper: an optimizer around another, with the groups, state and hooks of the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from edgewise.errors import BadInput

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


Group = dict[str, Any]  # of parameters, as torch.optim keeps them
State = dict[str, Any]
Closure = Callable[[], Any]


def _of_the_wrapped(name: str) -> property:
    return property(
        lambda self: getattr(self.optimizer, name), lambda self, new: setattr(self.optimizer, name, new)
    )


class OptimizerWrapper(Optimizer):
    """What schedulers, gradient scalers and checkpoints ask of an optimizer, passed on to the wrapped one.

    It does not announce `_step_supports_amp_scaling`: GradScaler then unscales the gradients itself, so that fused
    optimizers work as well.
    """

    KEY = "wrapper"  # under which `state_dict` holds what is ours
    _group: ProcessGroup | None = None  # the processes it averages over
    sample: Any  # a TokenSample
    enabled: bool

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise BadInput(
                f"expected a torch.optim.Optimizer to wrap, got {type(optimizer).__name__}. "
                "Give the optimizer first, then the model."
            )
        self.optimizer = optimizer  # no super().__init__: groups and state must be the same objects

    param_groups: Any = _of_the_wrapped("param_groups")
    state: Any = _of_the_wrapped("state")
    defaults: Any = _of_the_wrapped("defaults")
    add_param_group: Any = _of_the_wrapped("add_param_group")
    register_step_pre_hook: Any = _of_the_wrapped("register_step_pre_hook")
    register_step_post_hook: Any = _of_the_wrapped("register_step_post_hook")
    register_state_dict_pre_hook: Any = _of_the_wrapped("register_state_dict_pre_hook")
    register_state_dict_post_hook: Any = _of_the_wrapped("register_state_dict_post_hook")
    register_load_state_dict_pre_hook: Any = _of_the_wrapped("register_load_state_dict_pre_hook")
    register_load_state_dict_post_hook: Any = _of_the_wrapped("register_load_state_dict_post_hook")

    def __getstate__(self) -> State:
        """All of it, for copies and pickles: torch's own would leave out what is wrapped.

        The model comes along, so that a copy moves a copy of the model, and of nothing else. A scheduler's counter
        (an attribute `step`) stays behind, as with any optimizer.
        """
        if self._group is not None:
            raise BadInput(
                f"a {type(self).__name__} over several processes cannot be copied or pickled. Save its state_dict() "
                "and load it into one made the same way."
            )
        return {key: value for key, value in self.__dict__.items() if key not in ("step", "_opt_called")}

    def __setstate__(self, state: State) -> None:
        self.__dict__.update(state)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Closure | None = None) -> Any:
        return self._inner_step(closure)

    def _inner_step(self, closure: Closure | None) -> Any:
        return self.optimizer.step() if closure is None else self.optimizer.step(closure)

    def remove(self) -> None:
        """Take the hooks off and be the wrapped optimizer from now on."""
        self.sample.remove()
        self.enabled = False

    def own_state(self) -> State:
        """Return what `state_dict` adds to that of the wrapped optimizer."""
        return {}

    def load_own_state(self, state: State) -> None:
        """Take back what `own_state` gave."""

    def state_dict(self) -> State:
        return self.optimizer.state_dict() | {self.KEY: self.own_state()}

    def load_state_dict(self, state_dict: State) -> None:
        """Load a state, also one of the wrapped optimizer alone: a run may begin without the wrapper."""
        inner = {key: value for key, value in state_dict.items() if key != self.KEY}
        self.optimizer.load_state_dict(inner)
        if self.KEY in state_dict:
            with torch.no_grad():
                self.load_own_state(state_dict[self.KEY])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"
