"""Where the norms of a block stand, found by watching it work: for classes that nobody has described.

The block runs once on random input with random weights put in for the call (so that a zero-initialized branch
does not hide). What a norm is for follows from which tensor it was given and where its result went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgewise.adapters import site_types as roles
from edgewise.adapters.site_types import AttentionSite, MLPSite

if TYPE_CHECKING:
    from torch import Tensor, nn

TOKENS = 5
FAILURES = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, AssertionError)


@dataclass
class Seen:
    """First input and output of every module watched, by name."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)

    def same(self, one: Tensor | None, other: Tensor | None) -> bool:
        import torch

        if one is None or other is None or one.shape[-1] != other.shape[-1] or one.numel() != other.numel():
            return False
        return torch.allclose(one.reshape(other.shape), other, rtol=1e-5, atol=1e-7)


def trace_norms(
    model: nn.Module, block_name: str, norms: Sequence[str], attention: AttentionSite, mlp: MLPSite, width: int
) -> tuple[dict[str, str], bool] | str:
    """(role of every norm, whether the block is parallel), or a sentence why the block could not be run."""
    watched = {*norms, block_name, *_homes(attention, mlp)}
    seen = Seen()
    try:
        with _watching(model, watched, seen), _quiet(model):
            _run(model, block_name, width)
    except FAILURES as error:
        return f"{block_name} could not be run on its own ({type(error).__name__}: {str(error)[:120]})"
    return _roles(seen, block_name, norms, attention, mlp)


def _homes(attention: AttentionSite, mlp: MLPSite) -> set[str]:
    first = mlp.gate or mlp.input
    modules = {attention.name, attention.output.module, mlp.name, mlp.output.module, first.module}
    return {name for name in modules if name}


def _roles(
    seen: Seen, block: str, norms: Sequence[str], attention: AttentionSite, mlp: MLPSite
) -> tuple[dict[str, str], bool]:
    x, y = seen.inputs.get(block), seen.outputs.get(block)
    attended = seen.outputs.get(attention.output.module, seen.outputs.get(attention.name))
    thought = seen.outputs.get(mlp.output.module, seen.outputs.get(mlp.name))
    first = (mlp.gate or mlp.input).module
    fed = seen.inputs.get(first, seen.inputs.get(mlp.name))
    found: dict[str, str] = {}
    for name in norms:
        into, out = seen.inputs.get(name), seen.outputs.get(name)
        if seen.same(into, attended):
            found[name] = roles.AFTER_ATTENTION
        elif seen.same(into, thought):
            found[name] = roles.AFTER_MLP
        elif seen.same(into, x):
            taken = roles.BEFORE_ATTENTION in found.values()
            found[name] = roles.BEFORE_MLP if taken and seen.same(out, fed) else roles.BEFORE_ATTENTION
        elif seen.same(out, y):
            found[name] = roles.OUTSIDE_MLP
    rest = [name for name in norms if name not in found and name in seen.inputs]
    between = roles.OUTSIDE_ATTENTION if roles.OUTSIDE_MLP in found.values() else roles.BEFORE_MLP
    early = [x, *(seen.outputs[n] for n in found if found[n] in (roles.BEFORE_ATTENTION, roles.BEFORE_MLP)
                  and seen.same(seen.inputs[n], x))]  # fmt: skip
    parallel = any(seen.same(fed, tensor) for tensor in early)
    return found | dict.fromkeys(rest, between), parallel


def _run(model: nn.Module, block_name: str, width: int) -> None:
    """The block alone; if it wants more than the stream, the whole model on whatever it accepts."""
    import torch
    from torch.func import functional_call

    block = model.get_submodule(block_name)
    generator = torch.Generator().manual_seed(0)
    weights = {name: _drawn(p, generator) for name, p in block.named_parameters()}
    example = next(iter(weights.values()))
    x = torch.randn(1, TOKENS, width, generator=generator).to(example)
    attempts: list[Callable[[], Any]] = [
        lambda: functional_call(block, weights, (x,)),
        lambda: functional_call(block, weights, (x, None)),
        lambda: functional_call(block, weights, (x, x)),
        lambda: _run_whole(model, {f"{block_name}.{name}": w for name, w in weights.items()}),
    ]
    for number, attempt in enumerate(attempts):
        try:
            attempt()
            return
        except FAILURES:
            if number == len(attempts) - 1:
                raise


def _run_whole(model: nn.Module, weights: dict[str, Tensor]) -> None:
    import torch
    from torch.func import functional_call

    device = next(iter(weights.values())).device
    functional_call(model, weights, (torch.arange(TOKENS, device=device)[None],))


def _drawn(parameter: Tensor, generator: Any) -> Tensor:
    """A random tensor in place of a parameter: gain 1 for matrices, around 1 for vectors."""
    import torch

    noise = torch.randn(parameter.shape, generator=generator).to(parameter)
    return noise / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 1 + 0.1 * noise


@contextmanager
def _watching(model: nn.Module, names: set[str], seen: Seen) -> Iterator[None]:
    handles = []

    def hook(name: str) -> Callable[..., None]:
        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            given = next((a for a in (*args, *kwargs.values()) if hasattr(a, "shape")), None)
            result = out if hasattr(out, "shape") else next((o for o in out if hasattr(o, "shape")), None)
            if given is not None and result is not None:
                seen.inputs[name], seen.outputs[name] = given.detach().clone(), result.detach().clone()

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
def _quiet(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, the random stream kept; all as before afterwards."""
    import torch

    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        for module in training:
            module.training = True
