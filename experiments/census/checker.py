"""What is true of a model, found without edgewise: tokens are perturbed, streams scaled, and outputs looked at.

    facts = check(model, lambda: model(**batch), sequences=4)

Every fact is about one stack of `block_calls.find_stacks`. A fact that these means cannot decide is None, and the
census then holds nothing against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .block_calls import Call, Run, Stack, find_stacks, forced, scaled

MOVED = 1e-6  # of a token's size: smaller changes are rounding (float32 inside norms gives 1e-7)
FEW = 6  # tokens below which nothing can be said about order and windows


@dataclass
class Facts:
    """One stack; lists have one entry for each block."""

    name: str
    depth: int
    causal: list[bool | None] = field(default_factory=list)
    window: list[Any] = field(default_factory=list)
    norm: list[str | None] = field(default_factory=list)
    skip: list[float | None] = field(default_factory=list)
    branch: list[list[float] | None] = field(default_factory=list)
    order: list[bool | None] = field(default_factory=list)
    qk_norm: list[bool | None] = field(default_factory=list)
    gated: list[bool | None] = field(default_factory=list)
    parallel: bool | None = None
    heads: int | None = None
    softmax: int = 0
    sizes: list[float] = field(
        default_factory=list
    )  # mean square of the stream at the start and after each block
    overlaps: list[float] = field(
        default_factory=list
    )  # mean cosine between different tokens, there; nan if unknown


MOST = 4  # stacks that are checked; a net of many stages has more, all alike


def check(model: nn.Module, run: Run, sequences: int) -> tuple[list[Facts], int]:
    """The facts of every stack in which tokens meet, and how often a softmax over keys ran in one pass.

    The model must be in evaluation mode, in double precision if it can be.
    sequences: how many the batch holds, by which the axis of the tokens is told from that of the batch.
    """
    with _Softmax() as seen:
        stacks, _ = find_stacks(model, run)
    facts = [_Reader(model, run, stack, seen, sequences).facts() for stack in stacks[:MOST]]
    return [f for f in facts if not f.causal or any(c is not None for c in f.causal)], len(seen.heads)


class _Softmax(TorchFunctionMode):
    """Notes the shape of every softmax over keys; heads are its second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, first = getattr(func, "__name__", ""), args[0] if args else None
        if name == "multi_head_attention_forward":
            self.heads.append(int(args[4]))
        elif name in ("softmax", "_softmax", "scaled_dot_product_attention") and isinstance(first, Tensor):
            self.heads.append(
                int(first.shape[1]) if first.dim() == 4 and first.shape[1] < first.shape[2] else 0
            )
        return func(*args, **(kwargs or {}))


Layout = Callable[[Tensor], Tensor]


def _layout(x: Tensor, sequences: int) -> Layout | None:
    """A view of the stream as (sequence, token, feature); None where the axes cannot be told apart."""
    if x.dim() == 3 and x.shape[0] == sequences != x.shape[1]:
        return lambda y: y
    if x.dim() == 3 and x.shape[1] == sequences != x.shape[0]:
        return lambda y: y.transpose(0, 1)
    if x.dim() == 2 and x.shape[0] % sequences == 0:
        return lambda y: y.view(sequences, -1, y.shape[-1])
    return None


def unit(x: Tensor) -> Tensor:
    """The stream at mean square one, so that the small constants in norms play no part."""
    return x / x.pow(2).mean().sqrt().clamp_min(1e-30)


def relative(x: Tensor, y: Tensor) -> float:
    return float((x - y).norm() / y.norm().clamp_min(1e-30))


class _Reader:
    """The tests of one stack; each is one forward pass in which all blocks see an edited copy of their true input."""

    def __init__(self, model: nn.Module, run: Run, stack: Stack, seen: _Softmax, sequences: int) -> None:
        self.model, self.run, self.stack = model, run, stack
        self.modules = dict(model.named_modules())
        self.found = Facts(stack.name, stack.depth, softmax=len(seen.heads))
        heads = {h for h in seen.heads if h > 1}
        self.found.heads = heads.pop() if len(heads) == 1 else None
        self.layout = _layout(stack.inputs[0], sequences)
        self.units = [unit(x) for x in stack.inputs]
        self.base, self.calls = self._forced(unit)

    def _forced(self, edit: Callable[[Tensor], Tensor]) -> tuple[list[Tensor], list[Call]]:
        return forced(self.model, self.run, self.stack, edit)

    def facts(self) -> Facts:
        self._geometry()
        if self.layout is not None and self.layout(self.units[0]).shape[1] >= FEW:
            self._reach(self.layout)
            self._order(self.layout)
        self._sums()
        self._parallel_and_mlp()
        return self.found

    def _geometry(self) -> None:
        for x in (self.stack.inputs[0], *self.stack.outputs):
            self.found.sizes.append(float(x.pow(2).mean()))
            self.found.overlaps.append(_overlap(self.layout(x)) if self.layout else math.nan)

    # who sees whom ----------------------------------------------------------------------------------------------
    def _reach(self, layout: Layout) -> None:
        """One token replaced, another in each sequence: which outputs of the block move?"""
        entries, count = layout(self.units[0]).shape[:2]
        pokes = [(count // 2, count // 4, 1, 3 * count // 4)[entry % 4] for entry in range(entries)]

        def poke(x: Tensor) -> Tensor:
            y = unit(x).clone()
            for entry, token in enumerate(pokes):
                layout(y)[entry, token] = -layout(y)[entry, token].roll(1)
            return y

        outputs, _ = self._forced(poke)
        for before, after in zip(self.base, outputs, strict=True):
            moved = layout(after - before).norm(dim=-1) > MOVED * before.norm(dim=-1).mean()
            causal, window = _pattern(
                [sorted(row.nonzero().flatten().tolist()) for row in moved], pokes, count
            )
            self.found.causal.append(causal)
            self.found.window.append(window)

    def _order(self, layout: Layout) -> None:
        """Two tokens before the last change places: does the last one notice?"""

        def swap(x: Tensor) -> Tensor:
            y = unit(x).clone()
            layout(y)[:, [-2, -3]] = layout(y)[:, [-3, -2]]
            return y

        outputs, _ = self._forced(swap)
        for before, after in zip(self.base, outputs, strict=True):
            self.found.order.append(relative(layout(after)[:, -1], layout(before)[:, -1]) > 10 * MOVED)

    # sums and norms ---------------------------------------------------------------------------------------------
    def _inside(self, block: int) -> list[Call]:
        """Calls within one block: those that ended between the end of the block before and its own."""
        ends = [i for i, call in enumerate(self.calls) if call.name in self.stack.blocks]
        begin = ends[block - 1] + 1 if block else 0
        name = self.stack.blocks[block]
        return [call for call in self.calls[begin : ends[block]] if call.name.startswith(f"{name}.")]

    def _sums(self) -> None:
        """y = skip x + sum of branch * (something a module inside returned): a least-squares fit, exact or not."""
        far, farther = self._forced(lambda x: 1e3 * unit(x))[0], self._forced(lambda x: 1e4 * unit(x))[0]
        for block, (x, y) in enumerate(zip(self.units, self.base, strict=True)):
            inside = self._inside(block)
            columns = _columns(inside, y, x)
            weights, rest = _fit(y, [x, *(call.out for call in columns)])
            exact = rest < 1e-4
            used = [call for call, w in zip(columns, weights[1:], strict=True) if abs(w) > 1e-4]
            normed = {call.name for call in inside if self._is_norm(call)}
            place = _place(x, inside, used, normed, exact, _growth(far[block], farther[block], x))
            known = exact and place != "post"
            self.found.skip.append(round(weights[0], 5) if known else None)
            self.found.branch.append([round(w, 5) for w in weights[1:] if abs(w) > 1e-4] if known else None)
            self.found.norm.append(place)
            self.found.qk_norm.append(self._inner_norm(inside, x, used, normed))

    def _is_norm(self, call: Call) -> bool:
        """A leaf that returns the same when its input is a hundred times larger."""
        module = self.modules[call.name]
        if call.out is None or len(call.given) != 1 or any(True for _ in module.children()):
            return False
        x = next(iter(call.given.values()))
        if (
            x.shape != call.out.shape
            or relative(call.out, x) < 1e-6
            or any(p.dim() > 1 for p in module.parameters())
        ):
            return False
        try:
            with torch.no_grad():
                return relative(module(100 * x), module(x.clone())) < 1e-2
        except Exception:  # noqa: BLE001  a stranger's module may not like to be called out of place: then no norm
            return False

    @staticmethod
    def _inner_norm(inside: list[Call], x: Tensor, used: list[Call], normed: set[str]) -> bool | None:
        """A norm of neither the stream nor a branch, whose output meets no matrix: of queries and keys."""
        after = {id(call) for call in used}
        matrices = [_print(v) for c in inside if c.name not in normed for v in c.given.values()]
        for call in (c for c in inside if c.name in normed and id(c) not in after):
            given = next(iter(call.given.values()))
            if given.shape == x.shape and torch.equal(given, x):
                continue
            if call.out is not None and not any(_alike(_print(call.out), m) for m in matrices):
                return True
        return None

    # attention beside the MLP, and the MLP's gate -----------------------------------------------------------------
    def _parallel_and_mlp(self) -> None:
        """Does the second branch notice when the first one grows?"""
        block = self.stack.depth // 2
        x, y = self.units[block], self.base[block]
        columns = _columns(self._inside(block), y, x)
        weights, rest = _fit(y, [x, *(call.out for call in columns)])
        used = [call for call, w in zip(columns, weights[1:], strict=True) if abs(w) > 1e-4]
        if rest >= 1e-4 or len(used) != 2 or len(set(self.stack.blocks)) != self.stack.depth:
            return
        first, second = used
        with scaled(self.model, {first.name}, 3.0):
            _, calls = self._forced(unit)
        again = [call.out for call in calls if call.name == second.name]
        if second.out is not None and again and again[-1] is not None:
            self.found.parallel = relative(again[-1], second.out) < 1e-6


def _overlap(x: Tensor) -> float:
    unit_tokens = nn.functional.normalize(x.double(), dim=-1)
    total, own, count = unit_tokens.sum(1).pow(2).sum(-1), unit_tokens.pow(2).sum((1, 2)), x.shape[1]
    return float(((total - own) / (count * (count - 1))).mean())  # a token of zeros has no own part


def _pattern(moved: list[list[int]], pokes: list[int], count: int) -> tuple[bool | None, Any]:
    """Causal or not, and the window: keys to one side with the token itself, or words where it is none of these."""
    offsets = [[i - poke for i in row] for row, poke in zip(moved, pokes, strict=True)]
    if not any(len(row) > 1 for row in offsets):
        return None, None
    causal = all(row[0] >= 0 for row in offsets if row)
    reach = max(row[-1] for row in offsets if row) + 1
    low = 0 if causal else -reach + 1
    expected = [[d for d in range(low, reach) if 0 <= d + poke < count] for poke in pokes]
    if offsets != expected:
        return causal, "sparse"
    whole = reach >= count - min(pokes)
    return causal, None if whole else reach


def _print(x: Tensor) -> tuple[int, float, float]:
    """Size, sum and square sum: the same for a tensor and its views."""
    y = x.detach().double()
    return x.numel(), float(y.sum()), float(y.pow(2).sum())


def _alike(a: tuple[int, float, float], b: tuple[int, float, float]) -> bool:
    return a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=1e-6) and math.isclose(a[2], b[2], rel_tol=1e-6)


def _columns(inside: list[Call], y: Tensor, x: Tensor) -> list[Call]:
    """Calls that return something of the stream's shape, without the stream and without sums of earlier ones."""
    kept: list[Call] = []
    for call in inside:
        out = call.out
        if out is None or out.numel() != y.numel() or out.shape[-1] != y.shape[-1]:
            continue
        if _fit(out, [x, *(c.out for c in kept)])[1] > 1e-5:
            kept.append(call)
    return kept


def _fit(y: Tensor, columns: list[Tensor | None]) -> tuple[list[float], float]:
    """Least-squares weights of columns in y and the share that is left."""
    every = max(1, y.numel() // 8192)  # a few thousand numbers decide
    matrix = torch.stack([c.reshape(-1)[::every].double() for c in columns if c is not None], 1)
    target = y.reshape(-1)[::every].double()
    scale = matrix.norm(dim=0).clamp_min(1e-30)
    weights = torch.linalg.lstsq(matrix / scale, target[:, None]).solution[:, 0] / scale
    rest = float((target - matrix @ weights).norm() / target.norm().clamp_min(1e-30))
    return weights.tolist(), rest


def _growth(far: Tensor, farther: Tensor, x: Tensor) -> tuple[float, float]:
    """How a block's output, and what it adds to the stream, grow when the stream grows from 1e3 to 1e4."""
    whole = float(farther.norm() / far.norm().clamp_min(1e-30))
    slope = float((farther * x).sum() / (1e4 * x.pow(2).sum()))
    added = float((farther - 1e4 * slope * x).norm() / (far - 1e3 * slope * x).norm().clamp_min(1e-30))
    return whole, added


def _place(
    x: Tensor,
    inside: list[Call],
    used: list[Call],
    normed: set[str],
    exact: bool,
    growth: tuple[float, float],
) -> str | None:
    """Where the norms stand: what a norm was given, and whether what is added is a norm's output."""
    whole, added = growth
    norms = [call for call in inside if call.name in normed]
    if whole < 2:
        return "post"
    if not norms:
        return "none" if added > 5 else None
    if not exact:
        return None
    before = any(g.shape == x.shape and torch.equal(g, x) for call in norms for g in call.given.values())
    after = bool(used) and all(call.name in normed for call in used)
    return "sandwich" if before and after else "branch" if after else "pre" if before else None
