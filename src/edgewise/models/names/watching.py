"""One block of a model, run once and watched, on a copy: nothing of the model is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput
from edgewise.models.twin import holding, twin

if TYPE_CHECKING:
    from torch import Tensor, nn

TOKENS = 6
# What a forward pass that was given too little, or the wrong kind, may raise.
FAILURES = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, AssertionError)


@dataclass
class BlockRun:
    """First input and output of every module watched, by name; `alone`: the block ran without its model."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    alone: bool = True


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two modules were given the same numbers, whatever the layout."""
    import torch

    if one is None or other is None or one.shape[-1] != other.shape[-1] or one.numel() != other.numel():
        return False
    return torch.allclose(one.reshape(other.shape), other, rtol=1e-4, atol=1e-5)


def run_block(
    model: nn.Module, block: str, x: Tensor, watched: set[str], ids: tuple[int, ...] = tuple(range(TOKENS))
) -> BlockRun | str:
    """What the modules see when the block gets the stream x, on a copy with random weights.

    Random weights, so that a branch initialized at zero does not hide. A block that wants more than a stream
    runs inside its model, on these token ids. A sentence says why if neither works.
    """
    run = BlockRun()
    try:
        model = twin(model)
    except BadInput as error:
        return str(error)
    module = model.get_submodule(block)
    weights = drawn_weights(module)
    attempts: list[Callable[[], Any]] = [
        lambda: module(x),
        lambda: module(x, None),
        lambda: module(x, x),
        lambda: _run_whole(model, x, run, ids),
    ]
    failure: str | None = None
    with holding(module, weights), watching(model, watched | {block}, run), quiet():
        for attempt in attempts:
            run.inputs.clear()  # of an attempt that broke off half way
            run.outputs.clear()
            failure = _failure(attempt)
            if failure is None:
                return run
    return str(failure)


def _failure(attempt: Callable[[], Any]) -> str | None:
    try:
        attempt()
    except FAILURES as error:
        return f"it could not be run ({type(error).__name__}: {' '.join(str(error).split())[:100]})"
    return None


def _run_whole(model: nn.Module, like: Tensor, run: BlockRun, ids: tuple[int, ...]) -> None:
    import torch

    run.alone = False
    model(torch.tensor([ids], device=like.device))


def drawn_weights(module: nn.Module) -> dict[str, Tensor]:
    """Random tensors in place of the parameters: gain 1 for matrices, vectors near 1, always the same."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def draw(parameter: Tensor) -> Tensor:
        noise = torch.randn(parameter.shape, generator=generator)
        noise = noise if parameter.is_meta else noise.to(parameter)
        return noise / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 1 + 0.1 * noise

    return {name: draw(parameter) for name, parameter in module.named_parameters()}


def random_stream(model: nn.Module, width: int, seed: int = 0) -> Tensor:
    """A stream (1, tokens, width) of the model's type and place."""
    import torch

    like = next(model.parameters())
    x = torch.randn(1, TOKENS, width, generator=torch.Generator().manual_seed(seed))
    return x if like.is_meta else x.to(like)


@contextmanager
def watching(model: nn.Module, names: set[str], run: BlockRun) -> Iterator[None]:
    """Hooks that record the first tensor in and out of every named module; removed whatever happens."""
    handles = []

    def hook(name: str) -> Callable[..., None]:
        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            argument = next((a for a in (*args, *kwargs.values()) if hasattr(a, "shape")), None)
            result = out if hasattr(out, "shape") else next((o for o in out if hasattr(o, "shape")), None)
            if argument is not None and result is not None:
                run.inputs[name], run.outputs[name] = argument.detach().clone(), result.detach().clone()

        return record

    try:
        for name in sorted(names):
            module = model.get_submodule(name)
            handles.append(module.register_forward_hook(hook(name), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def quiet() -> Iterator[None]:
    """No gradients; the random streams of torch, numpy and Python are as before afterwards."""
    import random

    import numpy as np
    import torch

    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
