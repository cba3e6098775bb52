"""The blocks of a real model, what is around them, and in each the matrices, norms and branches, by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from edgewise.errors import BadInput
from edgewise.models.behavior.record import Stack
from edgewise.models.names import model_sites as site_types
from edgewise.models.names import norm as norm_sites
from edgewise.models.names.block import OpenBlock
from edgewise.models.names.model_sites import AttentionSite, BlockSite, MLPSite, ModelSites, StackSite
from edgewise.models.names.norm import find_norms, trace_norms
from edgewise.models.unwrap import is_quantized, unwrap

if TYPE_CHECKING:
    from torch import nn

    from edgewise.nouns.architecture import Architecture


def find_stacks(model: nn.Module) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The outermost lists of blocks of one class, as (name, names of the blocks), the encoder of two first.

    Other lists of blocks count when they hold at least a tenth of the parameters of the largest, so that a
    list of small heads is not a stack.
    """
    candidates = _candidates(model)
    if not candidates:
        raise BadInput(
            f"{type(model).__name__} has no list of blocks: no ModuleList or Sequential with modules of one "
            "class, each with matrices. Expected a transformer whose blocks are such a list."
        )
    largest = max(size for size, *_ in candidates)
    lists = [(name, blocks) for size, name, blocks in candidates if size >= largest / 10]
    return tuple(sorted(lists, key=lambda entry: "decoder" in entry[0] and len(lists) > 1))


def _candidates(model: nn.Module) -> list[tuple[int, str, tuple[str, ...]]]:
    """(parameters, name, blocks) of every outermost list; those of one block only without a longer one."""
    long, short = list(_lists(model, "", 2)), list(_lists(model, "", 1))
    return long or short


def _lists(module: nn.Module, name: str, least: int) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Walk down until a list of blocks is found; what is inside it is not inspected."""
    from torch import nn

    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        blocks = _blocks(module)
        if len(blocks) >= least:
            size = sum(p.numel() for _, block in blocks for p in block.parameters())
            yield size, name, tuple(f"{name}.{key}".lstrip(".") for key, _ in blocks)
            return
    for key, child in module.named_children():
        yield from _lists(child, f"{name}.{key}".lstrip("."), least)


def _blocks(container: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children of the class that is there most often, of those made of parts and holding two matrices."""
    inside = [(key, child) for key, child in container.named_children() if _is_composite(child)]
    if not inside:
        return []
    common, _ = Counter(type(child) for _, child in inside).most_common(1)[0]
    return [(key, child) for key, child in inside if type(child) is common]


def _is_composite(module: nn.Module) -> bool:
    matrices = sum(parameter.ndim >= 2 for parameter in module.parameters())
    return matrices >= 2 and any(True for _ in module.children())


EARLY = re.compile(r"embed|emb_|(^|_)pre(_|$)|input")
HEADS = re.compile(r"head|classif|output|decoder|score|predict|unembed|logits|readout")


def embeddings_of(model: nn.Module, blocks: Sequence[str], width: int) -> tuple[str, ...]:
    """Tables, patch projections and bare parameters (positions, class tokens) that make the first stream."""
    from torch import nn

    inside = tuple(f"{name}." for name in blocks)
    names: dict[int, str] = {}
    for name, module in model.named_modules():
        table = isinstance(module, nn.Embedding) and module.embedding_dim == width
        patches = isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and module.out_channels == width
        if (table or patches) and not f"{name}.".startswith(inside):
            names.setdefault(id(module.weight), name)
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        bare = any(True for _ in owner.children()) or not name.endswith(("weight", "bias"))
        if bare and parameter.ndim >= 2 and parameter.shape[-1] == width and not name.startswith(inside):
            names.setdefault(id(parameter), name)
    return tuple(names.values())


def final_norm_of(model: nn.Module, stack: str, blocks: Sequence[str]) -> str | None:
    """The nearest norm beside the stack, or beside what contains it, that is not of the embeddings."""
    parent = stack
    while parent:
        parent = parent.rpartition(".")[0]
        holder = model.get_submodule(parent)
        for path in find_norms(holder):
            name = f"{parent}.{path}".lstrip(".")
            if "." not in path and not EARLY.search(path.lower()) and not name.startswith(f"{stack}."):
                return name
    beside = [p for p in find_norms(model) if "." not in p and p not in blocks] if not stack else []
    return beside[-1] if beside else None


def head_of(model: nn.Module, blocks: Sequence[str], width: int) -> str | None:
    """The linear map that reads the last stream: the model's own answer, else the last one named like it."""
    from torch import nn

    inside = tuple(f"{name}." for name in blocks)
    ask = getattr(model, "get_output_embeddings", None)
    own = ask() if callable(ask) else None
    linear = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.in_features % width == 0 and not name.startswith(inside)
    ]
    if own is not None:
        return next((name for name, module in model.named_modules() if module is own), None)
    named = [name for name, _ in linear if HEADS.search(name.lower())]
    return (named or [name for name, _ in linear] or [None])[-1]


class NameReader:
    """Reads one model by its names; a block is taken apart once, however often it is asked for."""

    def __init__(self, model: nn.Module, family: Callable[[], Architecture | None]) -> None:
        self.model, self._family = unwrap(model), family
        self._opened: dict[str, OpenBlock] = {}

    def sites(self) -> ModelSites:
        """All stacks; raises if a role is found in some blocks and not in all."""
        model, assumed, lists = self.model, list[str](), find_stacks(self.model)
        stacks = tuple(self._stack(name, blocks, assumed) for name, blocks in lists)
        inside = tuple(name for _, blocks in lists for name in blocks)
        width = stacks[0].blocks[0].attention.output.fan_out
        return ModelSites(
            stacks=stacks,
            width=width,
            embeddings=embeddings_of(model, inside, width),
            head=head_of(model, inside, width),
            unrecognized=tuple(name for s in stacks for block in s.blocks for name in block.unrecognized),
            assumed=tuple(dict.fromkeys(assumed)),
        )

    def _open(self, names: Sequence[str]) -> list[OpenBlock]:
        config = getattr(self.model, "config", None)
        for index, name in enumerate(names):
            if name not in self._opened or self._opened[name].index != index:
                self._opened[name] = OpenBlock(self.model, name, index, config)
        return [self._opened[name] for name in names]

    def _stack(self, name: str, blocks: Sequence[str], assumed: list[str]) -> StackSite:
        opened = self._open(blocks)
        _refuse_partial(name, opened)
        roles, position, parallel = _norms(self.model, opened[0], self._family(), assumed)
        closed = tuple(block.close(_at(roles, block), parallel) for block in opened)
        _refuse_uneven_norms(closed)
        return StackSite(name, closed, final_norm_of(self.model, name, blocks), position, parallel)

    def roles_of(self, stack: Stack) -> tuple[tuple[BlockSite, ...], str]:
        """(the matrices of a stack that was read, by role, ""), or ((), why their names do not say).

        Names are hints: where the norms are, and whether branches are parallel, is what the model's behavior shows.
        """
        names = [block.module for block in stack.blocks]
        if stack.shared or None in names or len(set(names)) < len(names):
            return (
                (),
                f"the layers of {stack.name} are not modules of their own, so matrices have no role by name",
            )
        if stack.norm is None:
            return (), f"where the norms of {stack.name} stand was not read"
        parts = [
            part for name in names if name is not None for part in self.model.get_submodule(name).modules()
        ]
        if any(map(is_quantized, parts)):
            return (
                (),
                f"matrices of {stack.name} are integers, which have no gradients and no size of their own",
            )
        try:
            return self._closed(stack, [name for name in names if name is not None]), ""
        except BadInput as error:
            return (), str(error)
        except Exception as error:  # noqa: BLE001  strangers' norms are called here; names are hints, and this failed
            return (), f"looking at the names of {stack.name} raised {type(error).__name__}: {error}"

    def block(
        self,
        name: str,
        index: int,
        norm: str | None,
        parallel: bool,
        attention: AttentionSite,
        mlp: MLPSite | None,
    ) -> BlockSite:
        """A block whose matrices are known; its norms are left out if they do not fit the position that was read."""
        opened = OpenBlock(self.model, name, index, None, (attention, mlp))
        roles = (
            None if norm is None else norm_sites.by_position(opened.stream_norms, norm, parallel, cross=False)
        )
        return opened.close(roles or {}, parallel)

    def _closed(self, stack: Stack, names: Sequence[str]) -> tuple[BlockSite, ...]:
        opened = self._open(names)
        _refuse_partial(stack.name, opened)
        first, parallel = opened[0], bool(stack.parallel)
        assert stack.norm is not None
        inside: dict[str, str] = {}
        roles = norm_sites.by_position(first.stream_norms, stack.norm, parallel, first.cross is not None)
        if roles is None:
            inside = _inside_branches(first)
            outer = [path for path in first.stream_norms if path not in inside]
            roles = norm_sites.by_position(outer, stack.norm, parallel, first.cross is not None)
        if roles is None:
            raise BadInput(
                f"the norms {', '.join(first.stream_norms) or '(none)'} of {first.name} do not fit the position "
                f"{stack.norm!r} that its behavior shows."
            )
        closed = tuple(block.close(_at(roles | inside, block), parallel) for block in opened)
        _refuse_uneven_norms(closed)
        return closed


def _inside_branches(block: OpenBlock) -> dict[str, str]:
    """Norms inside the modules of attention and MLP: they normalize neither the stream nor a whole branch."""
    assert block.attention is not None and block.mlp is not None
    roles: dict[str, str] = {}
    for name, role in (
        (block.attention.name, site_types.INSIDE_ATTENTION),
        (block.mlp.name, site_types.INSIDE_MLP),
    ):
        inner = name.removeprefix(block.name).lstrip(".")
        roles |= {path: role for path in block.stream_norms if inner and path.startswith(f"{inner}.")}
    return roles


def _refuse_partial(stack: str, opened: Sequence[OpenBlock]) -> None:
    """Every role in every block, or in none (an error too)."""
    for role in opened[0].parts():
        lacking = [block.name for block in opened if block.parts()[role] is None]
        if len(lacking) == len(opened):
            names = ", ".join(m.path for m in opened[0].matrices)
            raise BadInput(
                f"no {role} was recognized in the blocks of {stack or 'the model'}: their matrices are {names}. "
                "Describe the network with flat knobs."
            )
        if lacking:
            raise BadInput(
                f"{role} was found in {len(opened) - len(lacking)} of {len(opened)} blocks of {stack}, not in "
                f"{', '.join(lacking)}. Nothing is averaged over a part of the layers."
            )


def _refuse_uneven_norms(blocks: Sequence[BlockSite]) -> None:
    for role in sorted({norm.role for block in blocks for norm in block.norms}):
        lacking = [block.name for block in blocks if block.norm(role) is None]
        if lacking:
            raise BadInput(
                f"the norm {role} is there in {len(blocks) - len(lacking)} of {len(blocks)} blocks, not in "
                f"{', '.join(lacking)}. Nothing is averaged over a part of the layers."
            )


def _norms(
    model: nn.Module, block: OpenBlock, family: Architecture | None, assumed: list[str]
) -> tuple[dict[str, str], str, bool]:
    """(role by path, position, parallel): from the config's family, the layer's flag, or by watching it run."""
    layout = _layout(block, family)
    if layout is not None:
        position, parallel = layout
        roles = norm_sites.by_position(block.stream_norms, position, parallel, block.cross is not None)
        if roles is not None:
            return roles, position, parallel
    return _norms_by_watching(model, block, assumed)


def _layout(block: OpenBlock, family: Architecture | None) -> tuple[str, bool] | None:
    if family is not None:
        return family.norm, family.parallel
    first = getattr(block.module, "norm_first", None)  # nn.TransformerEncoderLayer
    return None if first is None else ("pre" if first else "post", False)


def _norms_by_watching(
    model: nn.Module, block: OpenBlock, assumed: list[str]
) -> tuple[dict[str, str], str, bool]:
    assert block.attention is not None and block.mlp is not None
    full = [f"{block.name}.{path}" for path in block.stream_norms]
    outcome = trace_norms(model, block.name, full, block.attention, block.mlp, block.width)
    if isinstance(outcome, str):
        roles = norm_sites.by_position(block.stream_norms, "pre", False, block.cross is not None)
        if roles is None:
            raise BadInput(
                f"where the norms of {block.name} stand is not known: {outcome}, and {len(full)} norms "
                f"({', '.join(block.stream_norms)}) fit no usual position. Describe it with flat knobs."
            )
        assumed.append(f"norm: pre, assumed because {outcome}")
        return roles, "pre", False
    by_path = {name.removeprefix(f"{block.name}."): role for name, role in outcome[0].items()}
    position = norm_sites.position_of(list(by_path.values()))
    rest = [path for path in block.stream_norms if path not in by_path]
    crossing = {path: norm_sites.of_cross_attention(path, position) for path in rest}
    by_path |= {path: role for path, role in crossing.items() if role is not None}
    return by_path, position, outcome[1]


def _at(roles: Mapping[str, str], block: OpenBlock) -> dict[str, str]:
    return {path: role for path, role in roles.items() if path in block.norm_paths}
