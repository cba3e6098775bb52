"""A forward pass as a graph: one node for every tensor operation that depends on the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edgewise.models.behavior.record import Operation


def _set_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


MATRIX = _set_of(
    """
    linear matmul __matmul__ __rmatmul__ bmm mm mv addmm baddbmm addbmm einsum tensordot bilinear conv1d
    conv2d conv3d conv_transpose1d conv_transpose2d grouped_mm _grouped_mm _scaled_mm chain_matmul
    """
)
FOURIER = frozenset(
    ("fft_fft", "fft_fft2", "fft_fftn", "fft_rfft", "fft_rfft2")
)  # mix tokens without a weight
MULTIHEAD = "multi_head_attention_forward"  # torch's own attention, one opaque call
DOT_PRODUCT = "scaled_dot_product_attention"
FLEX = "flex_attention"
FUSED = (DOT_PRODUCT, FLEX)  # queries and keys are the first two arguments, the softmax is inside
SOFTMAX = frozenset(("softmax", "_softmax", "softmax_", MULTIHEAD, *FUSED))
ADD = frozenset(("add", "__add__", "__radd__", "__iadd__", "add_", "lerp", "lerp_"))
SUBTRACT = frozenset(("sub", "__sub__", "__rsub__", "rsub", "__isub__", "sub_", "subtract", "subtract_"))
NEGATE = frozenset(("neg", "__neg__", "negative", "neg_"))
WITH_PRODUCT = frozenset(("addcmul", "addcmul_", "addcdiv", "addcdiv_"))  # x + value a b, x + value a / b
TOTAL = frozenset(("sum", "mean"))  # of a stack of tensors
MULTIPLY = frozenset(("mul", "__mul__", "__rmul__", "__imul__", "mul_", "multiply"))
DIVIDE = frozenset(("div", "__truediv__", "__itruediv__", "div_", "divide"))
SAME_NUMBERS = _set_of(
    """
    dropout dropout_ dropout1d dropout2d feature_dropout alpha_dropout to type type_as float double half
    bfloat16 contiguous clone detach view reshape view_as reshape_as flatten unflatten transpose
    swapaxes permute movedim squeeze unsqueeze t identity __get__ expand cuda cpu
    """
)
LIKE_OTHER = frozenset(
    ("type_as", "expand_as", "view_as", "reshape_as")
)  # only the shape or type of the second
LIKE_NOTHING = _set_of(
    """
    zeros_like ones_like empty_like full_like rand_like randn_like new_zeros new_ones new_empty new_full
    new_tensor
    """
)
CUTTING = ("chunk", "split", "split_with_sizes", "tensor_split")
CHOICE = frozenset(("topk", "argmax", "sort", "argsort"))  # what a router does with its scores


@dataclass(slots=True)
class Node:
    """One operation: which nodes it reads, and what the search for residual sums needs to know of it."""

    index: int
    operation: Operation
    parents: tuple[int, ...]
    shape: tuple[int, ...]
    integer: bool = False  # integers and booleans carry no signal
    weight: bool = False  # a matrix product (or convolution, or Fourier transform) with something constant
    scale: float | Tensor | None = None  # multiplies its one parent by a scalar or by one number per feature
    operands: tuple[int, int] | None = None  # of a sum of two tensors of its own shape
    weights: tuple[float, float] = (1.0, 1.0)  # of the operands of a sum (alpha of torch.add, lerp)
    mixed: bool = False  # a lerp whose weight is not one number

    @property
    def function(self) -> str:
        return self.operation.function


class Constant(NamedTuple):
    """Where the numbers of something constant are in memory."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, value: Tensor) -> Constant | None:
        """None for what has no numbers of its own here: shards, stand-ins, the meta device."""
        if type(value) not in (Tensor, nn.Parameter) or value.is_meta:
            return None
        try:
            storage = value.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):  # a stand-in of `vmap` or `torch.compile`
            return None
        return (
            cls(storage, int(value.storage_offset()), tuple(value.shape), value.stride()) if storage else None
        )


@dataclass(frozen=True)
class Update:
    """What is added to a matrix by others that read the same input: W x + B A x."""

    total: Operation  # the sum of both
    first: tuple[Operation, ...]  # A
    weights: tuple[Operation, ...]  # A and B


@dataclass
class Graph:
    """The nodes in the order they ran, and what went into and came out of every call of a module."""

    nodes: list[Node] = field(default_factory=list)
    # node to (module, call) it leaves
    outputs: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    # queries, keys and values of a fused attention
    score_operands: dict[Operation, tuple[int, ...]] = field(default_factory=dict)
    updates: dict[Operation, Update] = field(default_factory=dict)  # of a matrix
    # that a matrix product reads
    constants: dict[Operation, tuple[Constant, ...]] = field(default_factory=dict)
    # of an einsum with a constant: its text, and which operand that is
    equations: dict[Operation, tuple[str, int]] = field(default_factory=dict)
    # node of a torch.stack to (axis, nodes in it)
    stacked: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    joined: dict[int, tuple[int, ...]] = field(default_factory=dict)  # node of a torch.cat to the nodes in it
    # node of a sum of the stream at two depths (x + 0.1 x_0) to the later operand
    mixes: dict[int, int] = field(default_factory=dict)

    # sum whose own skip is added to it again, x + (x + f(x)), to (node of that, weights of the sum and of the skip)
    doubled: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    mapped: bool = False  # something ran on the stand-ins of `torch.vmap`

    @cached_property
    def by_operation(self) -> dict[Operation, int]:
        """The node of every operation; of a finished pass."""
        return {node.operation: node.index for node in reversed(self.nodes)}

    @cached_property
    def leaving(self) -> dict[str, list[int]]:
        """The nodes that every module gives, in order; of a finished pass."""
        table: dict[str, list[int]] = {}
        for node, leaving in self.outputs.items():
            for module, _ in leaving:
                table.setdefault(module, []).append(node)
        return table

    @property
    def inner(self) -> set[Operation]:
        """Matrices that are part of an update of another."""
        return {operation for update in self.updates.values() for operation in update.weights}

    def add(self, operation: Operation, parents: Iterable[int], shape: Iterable[int], **more: Any) -> Node:
        node = Node(len(self.nodes), operation, tuple(dict.fromkeys(parents)), tuple(shape), **more)
        self.nodes.append(node)
        return node

    def __getitem__(self, index: int) -> Node:
        return self.nodes[index]

    def parents(self, node: Node) -> Iterator[Node]:
        return (self.nodes[index] for index in node.parents)

    def transparent(self, node: Node) -> bool:
        """Hands its one parent on: a cast, a view, a dropout, or times a constant."""
        if len(node.parents) != 1:
            return False
        if node.scale is not None:
            return True
        same = _count(node.shape) == _count(self.nodes[node.parents[0]].shape)
        return node.function in SAME_NUMBERS and same

    def between(self, root: int, tip: int) -> list[int]:
        """Nodes on paths from root to tip in order, root left out; empty without a path."""
        above, todo = {root}, [tip]
        while todo:
            index = todo.pop()
            if index not in above and index > root:
                above.add(index)
                todo.extend(self.nodes[index].parents)
        reached = {root}
        for index in sorted(above):
            if index != root and any(parent in reached for parent in self.nodes[index].parents):
                reached.add(index)
        return sorted(reached - {root}) if tip in reached and tip != root else []

    def below(self, root: int, last: int) -> set[int]:
        """The root and all nodes before `last` that depend on it."""
        reached = {root}
        for index in range(root + 1, last):
            if not reached.isdisjoint(self.nodes[index].parents):
                reached.add(index)
        return reached

    def above(self, tip: int, stops: set[int]) -> set[int]:
        """All nodes that the tip depends on without passing through a stop; stops are left out."""
        visited: set[int] = set()
        todo = [tip]
        while todo:
            index = todo.pop()
            if index not in visited and index not in stops:
                visited.add(index)
                todo.extend(self.nodes[index].parents)
        return visited


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def parameters_by_storage(model: nn.Module) -> dict[int, dict[str, Tensor]]:
    """Every parameter by its storage and name; those whose numbers are elsewhere (meta, shards) are left out."""
    table: dict[int, dict[str, Tensor]] = {}
    for name, parameter in model.named_parameters():
        constant = Constant.of(parameter)
        if constant is not None:
            table.setdefault(constant.storage, {})[name] = parameter
    return table


def address(value: Tensor) -> int:
    """Return the address of the numbers of a tensor; of a sharded one, of this process's part."""
    local = value.to_local() if hasattr(value, "to_local") else value
    inside = torch._C._functorch.is_functorch_wrapped_tensor(
        local
    )  # a stand-in under `vmap`, without numbers
    if type(local) not in (Tensor, nn.Parameter) or inside:
        return id(value)
    try:
        return local.data_ptr()
    except RuntimeError:  # a stand-in of `torch.compile`, which has no numbers either
        return id(value)


def carries_signal(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()
