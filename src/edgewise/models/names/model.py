"""The blocks of a real model, and in each the matrices, norms and branches, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from edgewise.errors import BadInput
from edgewise.models.behavior.record import Stack as ReadStack
from edgewise.models.names import norm as norm_sites
from edgewise.models.names import record as site_types
from edgewise.models.names.block import OpenBlock
from edgewise.models.names.find import embeddings_of, final_norm_of, find_stacks, head_of
from edgewise.models.names.norm import trace_norms
from edgewise.models.names.record import AttentionSite, BlockSite, MLPSite, ModelSites, Stack
from edgewise.models.quantized import is_quantized
from edgewise.models.unwrap import unwrap

if TYPE_CHECKING:
    from torch import nn

    from edgewise.nouns.architecture import Architecture


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
            unrecognised=tuple(name for s in stacks for block in s.blocks for name in block.unrecognised),
            assumed=tuple(dict.fromkeys(assumed)),
        )

    def _open(self, names: Sequence[str]) -> list[OpenBlock]:
        config = getattr(self.model, "config", None)
        for index, name in enumerate(names):
            if name not in self._opened or self._opened[name].index != index:
                self._opened[name] = OpenBlock(self.model, name, index, config)
        return [self._opened[name] for name in names]

    def _stack(self, name: str, blocks: Sequence[str], assumed: list[str]) -> Stack:
        opened = self._open(blocks)
        _refuse_partial(name, opened)
        roles, position, parallel = _norms(self.model, opened[0], self._family(), assumed)
        closed = tuple(block.close(_at(roles, block), parallel) for block in opened)
        _refuse_uneven_norms(closed)
        return Stack(name, closed, final_norm_of(self.model, name, blocks), position, parallel)

    def roles_of(self, stack: ReadStack) -> tuple[tuple[BlockSite, ...], str]:
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

    def _closed(self, stack: ReadStack, names: Sequence[str]) -> tuple[BlockSite, ...]:
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
                f"{stack.norm!r} that its behaviour shows."
            )
        closed = tuple(block.close(_at(roles | inside, block), parallel) for block in opened)
        _refuse_uneven_norms(closed)
        return closed


def _inside_branches(block: OpenBlock) -> dict[str, str]:
    """Norms inside the modules of attention and MLP: they normalise neither the stream nor a whole branch."""
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
    """Every role in every block, or in none (which is refused too)."""
    for role in opened[0].parts():
        lacking = [block.name for block in opened if block.parts()[role] is None]
        if len(lacking) == len(opened):
            names = ", ".join(m.path for m in opened[0].matrices)
            raise BadInput(
                f"no {role} was recognised in the blocks of {stack or 'the model'}: their matrices are {names}. "
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
