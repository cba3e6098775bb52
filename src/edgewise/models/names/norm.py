"""The norms of a block and what each is for: by the family's position, by the class's own flag, or by watching.

What a norm is for follows from which tensor it was given and where its result went, in one block that runs on a copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput
from edgewise.models.names import model_sites as roles
from edgewise.models.names import names
from edgewise.models.names.model_sites import AttentionSite, MLPSite, NormSite
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
    """Tell if two modules were given the same numbers, whatever the layout."""
    import torch

    if one is None or other is None or one.shape[-1] != other.shape[-1] or one.numel() != other.numel():
        return False
    return torch.allclose(one.reshape(other.shape), other, rtol=1e-4, atol=1e-5)


def run_block(model: nn.Module, block: str, x: Tensor, watched: set[str]) -> BlockRun | str:
    """Record what the modules see when the block gets the stream x, on a copy with random weights.

    Random weights, so that a branch initialized at zero does not hide. A block that wants more than a stream
    runs inside its model, on an input that is made up. A sentence says why if neither works.
    """
    import torch

    from edgewise.models.state import random_streams

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
        lambda: _run_whole(model, run),
    ]
    failure: str | None = None
    with holding(module, weights), watching(model, watched | {block}, run), random_streams(), torch.no_grad():
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


def _run_whole(model: nn.Module, run: BlockRun) -> None:
    import torch

    from edgewise.models.inputs import call, default_batch

    run.alone = False
    call(model, default_batch(model, torch.Generator().manual_seed(0), TOKENS))


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


ROLES = {
    "pre": (roles.BEFORE_ATTENTION, roles.BEFORE_CROSS, roles.BEFORE_MLP),
    "post": (roles.OUTSIDE_ATTENTION, roles.OUTSIDE_CROSS, roles.OUTSIDE_MLP),
    "branch": (roles.AFTER_ATTENTION, roles.AFTER_CROSS, roles.AFTER_MLP),
}
SHIFTS = ("bias", "beta", "b", "shift", "offset")  # what norms call the vector that they add
LATE = re.compile(r"mlp|ffn|feed_?forward|^ff|after|final|2$|3$|^output")


def find_norms(block: nn.Module) -> list[str]:
    """Paths of the norms of a block, those inside attention included.

    By class or name; a module that has vectors alone, and neither name, is one if it behaves as one. An Identity in a
    norm's place on the stream counts (ModernBERT's first); inside a branch it is a norm that was left out.
    """
    from torch import nn

    paths = []
    for path, module in block.named_modules():
        leaf = path.rpartition(".")[2].lower()
        on_weights = "parametrizations" in path.split(".")  # weight_norm: of a matrix, not of the stream
        if not path or on_weights or any(True for _ in module.children()):
            continue
        named = "norm" in type(module).__name__.lower() or (names.NORM.search(leaf) and gain_name(module))
        stands_in = isinstance(module, nn.Identity) and names.NORM.search(leaf) and "." not in path
        if named or stands_in or _normalizes(module):
            paths.append(path)
    return paths


def gain_name(module: nn.Module) -> str | None:
    """The parameter of a norm that multiplies, whatever it is called; None if it has none."""
    vectors = [name for name, p in module._parameters.items() if p is not None and p.ndim == 1]
    if "weight" in vectors:
        return "weight"
    gains = [name for name in vectors if name.lower() not in SHIFTS]
    return gains[0] if len(gains) == 1 else None


def _normalizes(module: nn.Module) -> bool:
    """Return whether a module of one vector, or two of a length, forgets how large its input is."""
    import torch

    shapes = [tuple(p.shape) for p in module.parameters(recurse=False)]
    standard = type(module).__module__.startswith("torch.nn")
    if (
        standard
        or not 1 <= len(shapes) <= 2
        or len(set(shapes)) > 1
        or len(shapes[0]) != 1
        or shapes[0][0] < 2
    ):
        return False
    copy, x = twin(module), torch.randn(1, 3, shapes[0][0], generator=torch.Generator().manual_seed(0))
    try:
        with (
            torch.no_grad(),
            holding(copy, {name: torch.ones(p.shape) for name, p in module.named_parameters()}),
        ):
            one, other = copy(100 * x), copy(300 * x)
    except FAILURES:
        return False
    same = isinstance(one, torch.Tensor) and one.shape == x.shape == other.shape
    return same and torch.allclose(one, other, rtol=1e-3, atol=1e-3) and float(one.std()) > 0.1


def inner_role(path: str) -> str | None:
    """The role of a norm inside attention, which its name says; None for the others."""
    leaf = path.rpartition(".")[2].lower()
    for pattern, role in (
        (names.LATENT_NORMS, roles.LATENT_NORM),
        (names.QUERY_NORMS, roles.QUERY_NORM),
        (names.KEY_NORMS, roles.KEY_NORM),
    ):
        if pattern.search(leaf):
            return role
    return None


def site(block: nn.Module, block_name: str, path: str, role: str) -> NormSite:
    module = block.get_submodule(path)
    gain = gain_name(module)
    width = None if gain is None else module.get_parameter(gain).numel()
    return NormSite(f"{block_name}.{path}", role, norm_kind(module), width)


def norm_kind(module: nn.Module) -> str:
    """layer or rms, measured: a LayerNorm forgets a constant added to its input, an RMSNorm does not.

    The name of its class if it does not run on batch, tokens and features (batch and group norms).
    """
    import torch
    from torch import nn

    if isinstance(module, nn.Identity):
        return "identity"
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return "layer" if isinstance(module, nn.LayerNorm) else "rms"
    gain = gain_name(module)
    width = getattr(module, "normalized_shape", (8,)) if gain is None else module.get_parameter(gain).shape
    ones = {name: torch.ones(p.shape) for name, p in module.named_parameters()}  # a meta model has no values
    x = torch.randn(1, 3, int(tuple(width)[-1]), generator=torch.Generator().manual_seed(0))
    copy = twin(module)
    try:
        with torch.no_grad(), holding(copy, ones):
            plain, shifted = (copy(z) for z in (x, x + 2.0))
    except FAILURES:
        return type(module).__name__
    return "layer" if torch.allclose(plain, shifted, rtol=1e-3, atol=1e-3) else "rms"


def by_position(paths: Sequence[str], position: str, parallel: bool, cross: bool) -> dict[str, str] | None:
    """Roles of the norms of the stream when the position is known; None if their number does not fit."""
    ordered = _ordered(paths, position)
    if position == "none":
        return {} if not ordered else None
    if position == "sandwich":
        return _sandwich(ordered)
    expected: tuple[str, ...] = ROLES[position] if cross else ROLES[position][::2]
    if parallel and len(ordered) == 1:
        expected = expected[:1]
    return dict(zip(ordered, expected, strict=True)) if len(ordered) == len(expected) else None


def _sandwich(paths: Sequence[str]) -> dict[str, str] | None:
    """Four norms, in the order of definition or told apart by `pre` and `post`."""
    order = (roles.BEFORE_ATTENTION, roles.AFTER_ATTENTION, roles.BEFORE_MLP, roles.AFTER_MLP)
    return dict(zip(paths, order, strict=True)) if len(paths) == 4 else None


def _ordered(paths: Sequence[str], position: str) -> list[str]:
    """The norm of attention before that of the MLP, whatever the order of definition."""
    if position == "sandwich" or any(any(w.isdigit() for w in path.split(".")) for path in paths):
        return list(paths)
    return sorted(paths, key=lambda path: _is_late(path, position))


def _is_late(path: str, position: str) -> bool:
    words = path.lower().split(".")
    if "post_attention" in words[-1]:  # after attention is before the MLP, unless norms follow branches
        return position == "pre"
    return any(LATE.search(word) for word in words) and not any("att" in word for word in words)


def of_cross_attention(path: str, position: str) -> str | None:
    """The role of a norm that a run without an encoder does not reach; its name says whose it is."""
    if position not in ROLES or not names.any_word(names.CROSS, path):
        return None
    return ROLES[position][1]


def position_of(norm_roles: Sequence[str]) -> str:
    """The position that a set of roles amounts to; `mixed` for what the theory has no word for."""
    before = any(role.startswith("before") for role in norm_roles)
    after = any(role.startswith("after") for role in norm_roles)
    outside = any(role.startswith("outside") for role in norm_roles)
    table = {
        (1, 0, 0): "pre",
        (1, 1, 0): "sandwich",
        (0, 1, 0): "branch",
        (0, 0, 1): "post",
        (0, 0, 0): "none",
    }
    return table.get((before, after, outside), "mixed")


def trace_norms(
    model: nn.Module, block: str, norms: Sequence[str], attention: AttentionSite, mlp: MLPSite, width: int
) -> tuple[dict[str, str], bool] | str:
    """(role of every norm, whether the block is parallel), or a sentence why the block could not be run."""
    first = (mlp.gate or mlp.input).module
    homes = {attention.name, attention.output.module, mlp.name, mlp.output.module, first}
    run = run_block(model, block, random_stream(model, width), {*norms, *homes} - {""})
    return run if isinstance(run, str) else _read(run, block, norms, attention, mlp)


def _read(
    run: BlockRun, block: str, norms: Sequence[str], attention: AttentionSite, mlp: MLPSite
) -> tuple[dict[str, str], bool]:
    x, y = run.inputs.get(block), run.outputs.get(block)
    attended = run.outputs.get(attention.output.module, run.outputs.get(attention.name))
    thought = run.outputs.get(mlp.output.module, run.outputs.get(mlp.name))
    fed = run.inputs.get((mlp.gate or mlp.input).module, run.inputs.get(mlp.name))
    norm_roles: dict[str, str] = {}
    for name in norms:
        into, out = run.inputs.get(name), run.outputs.get(name)
        role = _inside(run, out, attention, mlp) or _role(into, out, x, y, attended, thought)
        if role == roles.BEFORE_ATTENTION and role in norm_roles.values() and same(out, fed):
            role = roles.BEFORE_MLP  # two norms of one input: a parallel block
        if role is not None:
            norm_roles[name] = role
    return _with_the_middle(run, norms, norm_roles), _parallel(run, norm_roles, x, fed)


def _inside(run: BlockRun, out: Tensor | None, attention: AttentionSite, mlp: MLPSite) -> str | None:
    """A norm whose result enters an output matrix stands inside its branch [Wang 2022, sub-norm]."""
    if (
        same(out, run.inputs.get(attention.output.module))
        and attention.output.module != attention.query.module
    ):
        return roles.INSIDE_ATTENTION
    apart = mlp.output.module != mlp.input.module  # experts in one module show their common input only
    return roles.INSIDE_MLP if apart and same(out, run.inputs.get(mlp.output.module)) else None


def _role(
    into: Tensor | None,
    out: Tensor | None,
    x: Tensor | None,
    y: Tensor | None,
    attended: Tensor | None,
    thought: Tensor | None,
) -> str | None:
    """The role that one norm's input and output prove; None for those of the stream between the branches."""
    for tensor, role in (
        (attended, roles.AFTER_ATTENTION),
        (thought, roles.AFTER_MLP),
        (x, roles.BEFORE_ATTENTION),
    ):
        if same(into, tensor):
            return role
    return roles.OUTSIDE_MLP if same(out, y) else None


def _with_the_middle(run: BlockRun, norms: Sequence[str], norm_roles: dict[str, str]) -> dict[str, str]:
    """The norms in the middle see x + attention: outside if the block ends in a norm too, else the MLP's."""
    rest = [name for name in norms if name not in norm_roles and name in run.inputs]
    middle = roles.OUTSIDE_ATTENTION if roles.OUTSIDE_MLP in norm_roles.values() else roles.BEFORE_MLP
    return norm_roles | dict.fromkeys(rest, middle)


def _parallel(run: BlockRun, norm_roles: dict[str, str], x: Tensor | None, fed: Tensor | None) -> bool:
    """Return whether the MLP reads the block's input, or a norm of it."""
    early = [run.outputs[name] for name in norm_roles if same(run.inputs.get(name), x)]
    return any(same(fed, tensor) for tensor in (x, *early))
