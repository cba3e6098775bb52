"""One forward pass watched call by call, and edited where asked; nothing of the model is touched.

Every python-level tensor call under a `TorchFunctionMode` becomes a node. A tensor that depends on the batch carries
its node as an attribute; module paths come from hooks for all modules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from edgewise.errors import BadInput
from edgewise.interrupts import check
from edgewise.models.behavior.graph import (
    ADD,
    CUTTING,
    DIVIDE,
    FUSED,
    LIKE_NOTHING,
    LIKE_OTHER,
    MULTIHEAD,
    MULTIPLY,
    NEGATE,
    SUBTRACT,
    TOTAL,
    WITH_PRODUCT,
    Constant,
    Graph,
    Node,
    address,
    carries_signal,
)
from edgewise.models.behavior.record import Operation
from edgewise.models.behavior.weight_calls import (
    WITH_ADDEND,
    Edits,
    Precision,
    WeightCall,
    constant_factor,
    draw_for_zeros,
    equation_of_tensordot,
    is_edited,
    plain_number,
    seed_of,
)
from edgewise.models.inputs import collected, tensors
from edgewise.models.unwrap import is_quantized

LABEL = "_edgewise_node"
SCALING = MULTIPLY | DIVIDE
OVERWRITING = ("add_", "__iadd__", "lerp_", "sub_", "__isub__", "subtract_", "addcmul_", "addcdiv_")
SUMS = ADD | SUBTRACT
PRODUCT = ".product"  # after the name of a call: the product inside it, which is added to something
SCORING = frozenset((*FUSED, MULTIHEAD))
INPUT = "input"
JOINING = ("cat", "concat", "concatenate")
COPYING = ("expand", "repeat", "tile", "broadcast_to")
ROUNDING = ("round", "__round__")
QUANTIZED = "quantized"  # a module whose weights are integers
KEEPING = ("requires_grad_", "detach_", "share_memory_", "rename_")  # the numbers
AUGMENTED: dict[str, Callable[..., Any]] = {  # as x += y arrives
    "add_": torch.add,
    "sub_": torch.sub,
    "mul_": torch.mul,
    "div_": torch.div,
}
WRITING = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")


class Finished(BaseException):
    """Ends a pass when all that was asked for has been seen; not an error that a model may catch."""


@dataclass
class _Term:
    """One term of a sum: its node, its numbers when they are asked for, and what multiplies it."""

    node: Node
    value: Callable[[], Tensor]
    shape: torch.Size | tuple[int, ...]
    weight: float = 1.0
    mixed: bool = False  # weighed by something that is not one number


class Tracer(TorchFunctionMode):
    """The mode of one pass. Afterwards `graph` has its nodes."""

    _serial = count()

    def __init__(
        self, model: nn.Module, edits: Edits, precision: Precision, parameters: frozenset[int] = frozenset()
    ) -> None:
        super().__init__()
        self._names = {id(module): name for name, module in model.named_modules()}
        self._in_integers = frozenset(id(module) for module in model.modules() if is_quantized(module))
        self.graph, self.edits = Graph(), edits
        self._plain = next(edits.operations(), None) is None  # the pass whose graph is kept
        self._precision = precision
        self._serial_number = next(Tracer._serial)
        self._places: list[tuple[str, int]] = [("", 0)]
        self._calls: dict[str, int] = {}
        self._counts: dict[tuple[str, int, str], int] = {}
        self._draws: dict[int, Tensor | None] = {}
        self._parameters = parameters
        self._opaque: list[Node] | None = None  # what a quantized matrix that runs now has been given
        own = map(Constant.of, (*model.parameters(), *model.buffers())) if self._plain else ()
        self._storages = {constant.storage for constant in own if constant is not None}

    def _owned(self, constants: tuple[Constant, ...]) -> tuple[Constant, ...]:
        """Numbers that a pass computes have no owner: others may have their place once they are let go."""
        alone = -len(self.graph.nodes) - 1
        return tuple(c if c.storage in self._storages else c._replace(storage=alone) for c in constants)

    def enter(self, module: nn.Module, args: Any) -> Any:
        path = self._names.get(id(module))
        if path is None:
            return None
        self._calls[path] = self._calls.get(path, -1) + 1
        self._places.append((path, self._calls[path]))
        if self._opaque is not None or id(module) not in self._in_integers:
            return None
        self._opaque = [node for node in map(self.node, tensors(args)) if node is not None]
        edit = self.edits.weight_inputs.get(Operation(path, self._calls[path], QUANTIZED, 0))
        return None if edit is None else tuple(edit(a) if self.node(a) is not None else a for a in args)

    def leave(self, module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG002
        path = self._names.get(id(module))
        if path is None or self._places[-1][0] != path:
            return None
        place = self._places.pop()
        if id(module) in self._in_integers:
            if self._opaque and isinstance(output, Tensor):
                output = self._quantized(module, Operation(*place, QUANTIZED, 0), output, self._opaque)
            self._opaque = None
        first = next(tensors(output), None)
        node = None if first is None else self.node(first)
        if node is not None:
            self.graph.outputs.setdefault(node.index, []).append(place)
        return output

    def _quantized(
        self, module: nn.Module, operation: Operation, output: Tensor, parents: list[Node]
    ) -> Tensor:
        """A matrix in integers is one step: inside it what depends on the batch is integers, which are not followed."""
        bias = getattr(module, "bias", None)
        if operation in self.edits.without_bias and bias is not None:
            output = output - bias.to(output.dtype)
        for edits in (self.edits.first_outputs, self.edits.last_outputs, self.edits.results):
            output = edits[operation](output) if operation in edits else output
        self._mark(output, self._new(QUANTIZED, parents, output, operation, weight=True))
        return output

    def node(self, value: Any) -> Node | None:
        """The node of a tensor, if it depends on the batch of this pass."""
        label = getattr(value, LABEL, None)
        return self.graph.nodes[label[1]] if label is not None and label[0] == self._serial_number else None

    def feed(self, place: int, value: Tensor) -> None:
        """Mark a tensor of the batch as the start of everything that depends on it."""
        whole = not carries_signal(value)
        self._mark(value, self.graph.add(Operation("", 0, INPUT, place), (), value.shape, integer=whole))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        check()
        kwargs = kwargs or {}
        if self._opaque is not None:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if (
            args
            and name not in KEEPING
            and (name in WRITING or (name.endswith("_") and not name.endswith("__")))
        ):
            self._refuse_writing(name, args[0])
        if self.edits.fill_zeros:
            args, kwargs = self._filled(args), self._filled(kwargs)
        if name == "__get__":
            return self._property(func, args)
        flat = collected(kwargs, collected(args, [])) if kwargs else collected(args, [])
        parents = [node for node in map(self.node, flat) if node is not None]
        if name in LIKE_NOTHING:
            parents = []
        elif name in LIKE_OTHER:
            parents = [node for node in [self.node(args[0])] if node is not None]
        if not parents:
            self.graph.mapped |= any(torch._C._functorch.is_functorch_wrapped_tensor(value) for value in flat)
            output = self._precision.run(func, name, args, kwargs)
            return self._latents(name, args, output) if name in COPYING else output
        return self._call(func, name, args, kwargs, flat, parents)

    def _latents(self, name: str, args: Any, output: Any) -> Any:
        """Rows of a parameter that are copied for every entry of a batch start a stream (a Perceiver's)."""
        given = args[0] if args else None
        if not isinstance(given, Tensor) or not isinstance(output, Tensor) or not given.requires_grad:
            return output
        copied = output.dim() == 3 and given.dim() > 1 and output.shape[-2:] == given.shape[-2:]
        if not copied or output.shape[-2] < 2 or output.numel() == given.numel():
            return output
        node = self._new(name, [], output)
        self._mark(output, node)
        if node.operation in self.edits.results:
            value = self.edits.results[node.operation](output)
            return output if value is output else self._replace(output, value, node, [])
        return output

    def _refuse_writing(self, function: str, value: Any) -> None:
        """Before a model changes its own parameters, which a reading could not put back."""
        if isinstance(value, Tensor) and value.numel() and address(value) in self._parameters:
            raise BadInput(
                f"{self._places[-1][0] or 'the model'} writes into a parameter when it runs ({function}), so that no "
                "two passes are alike. Give a model whose forward pass leaves its parameters alone."
            )

    def _property(self, func: Any, args: Any) -> Any:
        result = func(*args)
        if isinstance(result, Tensor) and result is not args[0]:
            node = self.node(args[0])
            if node is not None and carries_signal(result):
                own = self._new("__get__", [node], result)
                self._mark(result, own)
                if own.operation in self.edits.results:
                    value = self.edits.results[own.operation](result)
                    result = result if value is result else self._replace(result, value, own, [])
        return result

    def _call(
        self, func: Any, name: str, args: Any, kwargs: Any, flat: list[Tensor], parents: list[Node]
    ) -> Any:
        if name in WITH_ADDEND and self._adds_to_stream(args):
            return self._product_added(func, name, args, kwargs, flat)
        if name == "stack" and args and "dim" in kwargs:
            args, kwargs = (args[0], kwargs["dim"]), {k: v for k, v in kwargs.items() if k != "dim"}
        weight = WeightCall.of(name, args, kwargs, self.node)
        operation = self._name(name)
        if weight is not None and self._plain:
            self.graph.constants[operation] = self._owned(weight.constants(flat))
            fixed = [place for place, value in enumerate(flat) if self.node(value) is None]
            if name == "einsum" and len(fixed) == 1:
                self.graph.equations[operation] = str(args[0]), fixed[0]
            elif name == "tensordot" and len(fixed) == 1 and len(flat) == 2:
                self.graph.equations[operation] = equation_of_tensordot(*args[:3], **kwargs), fixed[0]
        if name in SCORING:
            *both, third = ([self.node(value) for value in (*args, *kwargs.values())[:3]] + [None] * 3)[:3]
            found = (*both, third) if None not in both else both
            self.graph.score_operands[operation] = tuple(node.index for node in found if node is not None)
        if self.edits.fill_zeros and name in MULTIPLY:
            args = tuple(self._filled_factor(operation, value) for value in args)
        if self.edits.unrounded and name in ROUNDING:
            func = torch.clone
        if operation in self.edits.calls:
            self.edits.calls[operation](args, kwargs)
        if weight is not None and is_edited(operation, self.edits):
            args, kwargs = weight.edit(operation, self.edits)
        terms = self._terms(operation, args, kwargs)
        versions = [(tensor, tensor._version) for tensor in flat if not tensor.is_inference()]
        if self.edits.out_of_place and name in AUGMENTED:
            output = self._precision.run(AUGMENTED[name], name, args, kwargs).to(args[0].dtype)
        else:
            output = self._precision.run(func, name, args, kwargs)
        if weight is not None and is_edited(operation, self.edits):
            output = weight.edit_output(output, operation, self.edits)
        self._written(versions, output, name, parents)
        output = self._results(operation, name, args, output, parents, weight is not None, terms, versions)
        if operation == self.edits.last:
            raise Finished
        return output

    def _results(
        self,
        operation: Operation,
        name: str,
        args: Any,
        output: Any,
        parents: list[Node],
        weight: bool,
        terms: list[_Term],
        versions: list[tuple[Tensor, int]],
    ) -> Any:
        if not isinstance(output, Tensor):
            whole, replaced = self._joined_parts(name, args, output), dict[int, Tensor]()
            for place, tensor in enumerate(tensors(output)):
                if whole:  # what was joined is taken apart again
                    part = self._new(name, [whole[place]], tensor)
                    part.scale = 1.0
                    self._mark(tensor, part)
                    replaced |= self._edited(place, tensor, part)
                elif self._signal(tensor, parents):
                    key = operation if place == 0 else self._name(name)
                    own = (
                        weight and place == 0
                    )  # of attention, its weights are handed out beside what it gives
                    node = self._new(name, parents, tensor, key, weight=own)
                    self._mark(tensor, node)
                    replaced |= self._edited(place, tensor, node) if name in CUTTING else {}
            return (
                type(output)(replaced.get(i, part) for i, part in enumerate(output)) if replaced else output
            )
        if any(output is tensor and tensor._version == version for tensor, version in versions):
            return output  # x.float() of a float tensor is x itself
        if not self._signal(output, parents):
            return output
        if any(term.shape != output.shape for term in terms):
            terms = []
        terms = self._joined(terms, output)
        node = self._new(name, parents, output, operation, weight=weight)
        node.scale = self._scale(name, args, output)
        self._mark(output, node)
        if name == "stack":
            self._keep_stack(node, args)
        elif name in JOINING and args and isinstance(args[0], (list, tuple)):
            parts = [self.node(value) for value in args[0]]
            if None not in parts:
                self.graph.joined[node.index] = tuple(part.index for part in parts if part is not None)
        if terms:
            self._sum(node, terms)
        if operation in self.edits.results:
            value = self.edits.results[operation](output)
            return output if value is output else self._replace(output, value, node, versions)
        return output

    def _joined_parts(self, name: str, args: Any, output: Any) -> list[Node]:
        """The tensors that were concatenated, if a call cuts them out again as they were."""
        whole = self.node(args[0]) if name in CUTTING and args else None
        parts = self.graph.joined.get(whole.index, ()) if whole is not None else ()
        cut = list(tensors(output))
        same = len(parts) == len(cut) > 1 and all(
            self.graph[part].shape == tuple(value.shape) for part, value in zip(parts, cut, strict=True)
        )
        return [self.graph[part] for part in parts] if same else []

    def _edited(self, place: int, part: Tensor, node: Node) -> dict[int, Tensor]:
        """One of several parts, if it is edited."""
        if node.operation not in self.edits.results:
            return {}
        value = self.edits.results[node.operation](part)
        return {} if value is part else {place: self._replace(part, value, node, [])}

    def _replace(
        self, output: Tensor, value: Tensor, node: Node, versions: list[tuple[Tensor, int]]
    ) -> Tensor:
        """The edited value; after an in-place call it is written where other names of the tensor see it too."""
        if any(output is tensor for tensor, _ in versions):
            output.copy_(value)
            value = output
        self._mark(value, node)
        return value

    def _sum(self, node: Node, terms: list[_Term]) -> None:
        """Two terms, as operands of their sum."""
        one, other = terms
        node.operands, node.weights = (one.node.index, other.node.index), (one.weight, other.weight)
        node.mixed = one.mixed
        if node.operation in self.edits.sums:
            self.edits.sums[node.operation](one.value(), other.value())

    def _joined(self, terms: list[_Term], output: Tensor) -> list[_Term]:
        """Two terms: those before the last of several are a sum of their own, which the call does not give."""

        def partial_sum(a: _Term, b: _Term) -> Callable[[], Tensor]:
            return lambda: a.weight * a.value() + b.weight * b.value()

        while len(terms) > 2:
            one, other = terms[:2]
            node = self._new("sum", [one.node, other.node], output, self._name("sum.part"))
            self._sum(node, [one, other])
            partial = _Term(node, partial_sum(one, other), output.shape)
            terms = [partial, *terms[2:]]
        return terms

    def _keep_stack(self, node: Node, args: Any) -> None:
        """Return what lies in a stack of tensors, in case it is summed."""
        parts = [self.node(value) for value in args[0]] if isinstance(args[0], (list, tuple)) else []
        if len(parts) > 1 and all(part is not None for part in parts):
            dim = int(args[1]) if len(args) > 1 else 0
            self.graph.stacked[node.index] = (dim, tuple(part.index for part in parts if part is not None))

    def _terms(self, operation: Operation, args: Any, kwargs: Any) -> list[_Term]:
        """What a call adds up, if it does: a sum, a difference, a mix, a sum with a product, the sum of a stack."""
        name = operation.function
        values = [*args, *(kwargs[key] for key in ("other", "end") if key in kwargs)]
        if name in TOTAL:
            return self._stack_terms(operation, args, kwargs)
        if name not in SUMS | WITH_PRODUCT or len(values) < 2:
            return []
        first = self.node(values[0])
        if first is None or not values[0].is_floating_point():
            return []
        overwrites = name in OVERWRITING or kwargs.get("out") is not None
        copied = values[0].clone() if overwrites and operation in self.edits.sums else values[0]
        one = _Term(first, lambda: copied, values[0].shape)
        if name in WITH_PRODUCT:
            other = self._product_term(name, values, kwargs)
            return [] if other is None else [one, other]
        second = self.node(values[1])
        if second is None:
            return []
        other = _Term(second, lambda: values[1], values[1].shape)
        if name in ("lerp", "lerp_"):
            number = plain_number(values[2] if len(values) > 2 else kwargs["weight"])
            one.mixed, one.weight, other.weight = number is None, 1 - (number or 0.0), number or 0.0
        else:
            other.weight = float(kwargs.get("alpha", args[2] if len(args) > 2 else 1))
            if name in SUBTRACT:
                other.weight = -other.weight
            if name in ("__rsub__", "rsub"):
                one.weight, other.weight = other.weight, one.weight
        return [one, other]

    def _product_term(self, name: str, values: list[Any], kwargs: Any) -> _Term | None:
        """The product in x + value a b, as a node before the sum."""
        if len(values) < 3:
            return None
        a, b = values[1], values[2]
        factor, divides = float(kwargs.get("value", 1)), name.startswith("addcdiv")
        shape = torch.broadcast_shapes(a.shape, b.shape)
        parents = [node for node in (self.node(a), self.node(b)) if node is not None]
        if not parents or (divides and self.node(b) is not None):
            return None
        like = a if self.node(a) is not None else b
        node = self.graph.add(
            self._name(name + PRODUCT), [p.index for p in parents], shape, integer=not carries_signal(like)
        )
        if len(parents) == 1:
            constant = b if self.node(a) is not None else a
            scale = constant_factor(constant, like.expand(shape))
            if scale is not None:
                node.scale = (1 / scale if divides else scale) * factor
        whole = (lambda: factor * a / b) if divides else (lambda: factor * a * b)
        return _Term(node, lambda: whole().expand(shape), shape)

    def _stack_terms(self, operation: Operation, args: Any, kwargs: Any) -> list[_Term]:
        """Of a sum or mean along the axis of a stack."""
        node = self.node(args[0]) if args else None
        if node is None or node.index not in self.graph.stacked:
            return []
        axis, parts = self.graph.stacked[node.index]
        dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
        dim = dim[0] if isinstance(dim, (list, tuple)) and len(dim) == 1 else dim
        if not isinstance(dim, int) or dim % args[0].dim() != axis % args[0].dim():
            return []
        weight = 1.0 if operation.function == "sum" else 1 / len(parts)
        shape = args[0].select(dim, 0).shape
        stacked = args[0]
        return [
            _Term(self.graph[part], lambda i=i: stacked.select(dim, i), shape, weight)  # type: ignore[misc]
            for i, part in enumerate(parts)
        ]

    def _adds_to_stream(self, args: Any) -> bool:
        """Return whether addmm and the like add a product to something that depends on the batch and has its shape."""
        if len(args) < 3 or self.node(args[0]) is None or not args[0].is_floating_point():
            return False
        return tuple(args[0].shape) == (*args[1].shape[:-1], args[2].shape[-1])

    def _product_added(self, func: Any, name: str, args: Any, kwargs: Any, flat: list[Tensor]) -> Any:
        """addmm(x, a, b) is x + a b: a product, which may be with a weight, and a sum."""
        product, operation = self._name(name + PRODUCT), self._name(name)
        beta, alpha = float(kwargs.get("beta", 1)), float(kwargs.get("alpha", 1))
        weight = WeightCall.of("matmul", args[1:3], {}, self.node)
        if weight is not None and self._plain:
            self.graph.constants[product] = self._owned(weight.constants(flat))
        if product in self.edits.calls:
            self.edits.calls[product](args[1:3], {})
        parents = [node for node in map(self.node, args[1:3]) if node is not None]
        edited = weight is not None and is_edited(product, self.edits)

        def multiplied() -> Tensor:
            factors = weight.edit(product, self.edits)[0] if weight is not None and edited else args[1:3]
            value = torch.matmul(*factors)
            return weight.edit_output(value, product, self.edits) if weight is not None and edited else value

        value = multiplied() if edited or operation in self.edits.sums else None
        output = (
            beta * args[0] + alpha * value
            if edited and value is not None
            else self._precision.run(func, name, args, kwargs)
        )
        node = self._new(name + PRODUCT, parents, output, product, weight=weight is not None)
        first = self.node(args[0])
        assert first is not None
        one = _Term(first, lambda: args[0], output.shape, beta)
        other = _Term(node, lambda: value if value is not None else multiplied(), output.shape, alpha)
        output = self._results(operation, name, args, output, [first, node], False, [one, other], [])
        if operation == self.edits.last:
            raise Finished
        return output

    def _scale(self, name: str, args: Any, output: Tensor) -> float | Tensor | None:
        """Return what a product with something constant multiplies by: one number, or one number per feature."""
        if name in ADD and any(isinstance(value, (int, float)) and value == 0 for value in args):
            return 1.0  # x + 0, as an empty update is written
        if name in NEGATE:
            return -1.0
        if name not in SCALING or len(args) < 2:
            return None
        first = self.node(args[0]) is not None
        other = args[1] if first else args[0]
        if self.node(other) is not None or (name in DIVIDE and not first):
            return None
        value = constant_factor(other, output)
        if value is None or name not in DIVIDE:
            return value
        return None if isinstance(value, float) and value == 0 else 1 / value

    def _written(
        self, versions: list[tuple[Tensor, int]], output: Any, name: str, parents: list[Node]
    ) -> None:
        """Tensors that the call wrote into without returning them (`out[i] = x`, `index_add_` on a view)."""
        for tensor, version in versions:
            if tensor is not output and tensor._version != version and self._signal(tensor, parents):
                self._mark(tensor, self._new(name, parents, tensor))
            base = tensor._base if tensor._version != version else None
            if base is not None and self._signal(base, parents):
                own = self.node(base)
                self._mark(base, self._new("written", [*parents, *([own] if own is not None else [])], base))

    def _new(
        self,
        name: str,
        parents: list[Node],
        value: Tensor,
        operation: Operation | None = None,
        weight: bool = False,
    ) -> Node:
        return self.graph.add(
            operation or self._name(name),
            [p.index for p in parents],
            value.shape,
            weight=weight,
            integer=not carries_signal(value),
        )

    def _signal(self, value: Tensor, parents: list[Node]) -> bool:
        """Integers made from real numbers (routes, masks) carry none; made from integers they may be looked up."""
        return carries_signal(value) or all(parent.integer for parent in parents)

    def _mark(self, value: Tensor, node: Node) -> None:
        setattr(value, LABEL, (self._serial_number, node.index))

    def _name(self, function: str) -> Operation:
        key = (*self._places[-1], function)
        number = self._counts[key] = self._counts.get(key, -1) + 1
        return Operation(*key, number)

    def _filled_factor(self, operation: Operation, value: Any) -> Any:
        """A vector of zeros that was made from parameters (a gain kept as its distance from one), drawn likewise."""
        if not isinstance(value, Tensor) or self.node(value) is not None or not value.dim():
            return value
        draw = draw_for_zeros(value, seed_of(operation))
        return value if draw is None else draw

    def _filled(self, value: Any) -> Any:
        if isinstance(value, nn.Parameter):
            if id(value) not in self._draws:
                self._draws[id(value)] = draw_for_zeros(value, len(self._draws))
            draw = self._draws[id(value)]
            return value if draw is None else draw
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(self._filled(item) for item in value)
        return {k: self._filled(v) for k, v in value.items()} if type(value) is dict else value
