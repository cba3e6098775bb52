"""Leave no trace: random streams, modes, flags, gradients and hooks are as before, also after an exception."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from edgewise.adapters.reading.restore import as_before
from edgewise.errors import BadInput

_one_at_a_time = threading.RLock()  # random streams and switches of torch are the process's: threads take turns


@contextmanager
def random_streams() -> Iterator[None]:
    """Whatever is drawn inside, the global streams of torch (all devices), numpy and Python go on as if it were not."""
    with _one_at_a_time:
        python, legacy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
            torch.set_rng_state(cpu)
            if devices is not None:
                torch.cuda.set_rng_state_all(devices)


@contextmanager
def observed(model: nn.Module) -> Iterator[ExitStack]:
    """The model in eval mode with every floating parameter differentiable; handles on the stack are removed at the end.

    Only leaves that are floating can require a gradient; `.grad` is never written (autograd.grad returns values).
    """
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise BadInput(
            "the model was built in torch.inference_mode, which forbids gradients permanently. Build it outside."
        )
    # Compiled code, of the whole model or of a block, runs as it was written: hooks inside it would be compiled in.
    # The stance is set when it is made, so it is made after what it replaces has been noted; all that after the turn
    # of this thread has come.
    with (
        random_streams(), as_before(model), torch.compiler.set_stance("force_eager"), torch.inference_mode(False),
        torch.enable_grad(), ExitStack() as stack,
    ):  # fmt: skip
        modes = [(module, module.training) for module in model.modules()]
        flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        fast = torch.backends.mha.get_fastpath_enabled()
        try:
            torch.backends.mha.set_fastpath_enabled(False)  # the fused encoder layer hides its inside
            for module, _ in modes:
                module.training = False
            for parameter, _ in flags:
                if parameter.is_floating_point() and parameter.is_leaf:
                    parameter.requires_grad_(True)
            yield stack
        finally:
            stack.close()
            torch.backends.mha.set_fastpath_enabled(fast)
            for module, mode in modes:
                module.training = mode
            for parameter, flag in flags:
                if parameter.requires_grad != flag:
                    parameter.requires_grad_(flag)


def call(model: nn.Module, batch: Any) -> Any:
    """One forward pass with whatever the model accepts: keywords, positions, or one tensor."""
    if hasattr(batch, "keys"):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an output, in order; what is neither a container nor a tensor (a cache) is passed over."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif hasattr(value, "values") and hasattr(value, "keys"):
        for item in value.values():
            yield from tensors(item)


def same(first: Any, second: Any) -> bool:
    """Bit for bit the same tensors (NaN equal to NaN)."""
    pairs = list(tensors(first)), list(tensors(second))
    if [t.shape for t in pairs[0]] != [t.shape for t in pairs[1]]:
        return False
    return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in zip(*pairs, strict=True))
