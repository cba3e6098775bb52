"""What a reading of a model says: frozen, without tensors, JSON both ways.

A stack is a chain of residual sums; a block is a run of them; a branch is what one sum adds to the stream.
`None` stands for "not read", and `not_read` says why as text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

POSITIONS = {  # (input norm, output norm, norm of the sum) to the name that `edgewise.nouns.knobs.NORMS` has for it
    (True, False, False): "pre",
    (True, True, False): "sandwich",
    (False, True, False): "branch",
    (False, False, True): "post",
    (False, False, False): "none",
}


BEYOND = "masks and windows of the others are not known"  # in a note on tokens behind those that were given


class Operation(NamedTuple):
    """One tensor operation of a forward pass, by a name that is the same in every pass."""

    module: str  # path of the module whose forward it belongs to
    call: int  # which call of that module, from 0: a block shared between layers is told apart by this
    function: str
    number: int  # which call of that function inside that call of the module


class BranchMatrix(NamedTuple):
    """A matrix of a branch: its role, the parameter that it is, how that is stored, and its bias."""

    role: str  # query, key, value, output; gate, input, output
    parameter: str
    transposed: bool  # stored (in, out)
    # groups, rows of a group, start and stop in each; None: all
    rows: tuple[int, int, int, int] | None = None
    bias: str | None = None
    layer: int | None = None  # which slice along the first axis of a parameter that holds all layers
    split: int = (
        1  # how many of its axes (of that slice) make the first axis of the matrix; the rest the second
    )
    derived: bool = False  # the matrix is computed from the parameter (weight norm, spectral norm)


class ProjectionCall(NamedTuple):
    """What gives the queries, keys or values of an attention, what adapters add to it included."""

    operation: Operation  # the matrix product, or the sum of it and of what an adapter (LoRA) adds
    module: str | None  # whose output that is; None if no module gives it
    call: int  # which call of that module
    parameters: tuple[
        str, ...
    ]  # the matrix first, those of adapters behind it; () if they are not parameters
    # of a fused matrix, as in `BranchMatrix`; None: all, or not read
    rows: tuple[int, int, int, int] | None = None


class AttentionCall(NamedTuple):
    """Where one attention is computed: operations by names that are the same in every pass.

    The scores are scale * queries . keys, plus masks and biases, at the input of `softmax`. In a fused call (torch's
    `scaled_dot_product_attention` or `multi_head_attention_forward`) `product` and `softmax` are that call.
    """

    product: Operation
    softmax: Operation
    values: Operation | None  # the weights times the values; None in a fused call
    query: ProjectionCall | None  # None if several matrices, or none, make them
    key: ProjectionCall | None
    value: ProjectionCall | None
    query_axes: str | None  # at the product: "batch head token width"; "batch*head" if they share an axis
    key_axes: str | None
    # between product and softmax; None if that is not one number (a cap, a learned temperature)
    scale: float | None
    heads: int | None = None  # of this call; None if they are not known


@dataclass(frozen=True)
class Powers:
    """Growth of a branch when the input of its first matrices is doubled, near zero and far out; its parity there."""

    small: float
    large: float
    parity: float  # cosine of b(+x) and b(-x) near zero: -1 odd, +1 even
    bend: float  # |b| near zero over |b| far out, both per input: 1 for a homogeneous function


@dataclass(frozen=True)
class Gains:
    """Root mean squares that the matrices of a branch give for a random stream of mean square one."""

    score: float | None  # standard deviation of a score
    position: float | None  # of what positions add to the scores of a query; None if that was not seen alone
    value: float | None  # value and output matrices together: what equal tokens become
    inward: float | None  # what the activation of an MLP reads
    linear: float | None  # what a gate multiplies
    outward: float | None  # of the last matrices, over what they read
    hidden: float | None  # what the last matrices read
    bias: float | None  # of the first matrices
    branch: float | None  # the branch as it is added, all multipliers included


@dataclass(frozen=True)
class Branch:
    """One residual branch: stream <- skip stream + multiplier branch(stream)."""

    kind: str | None  # attention, cross-attention, mlp, mixer (state space, convolution, linear attention)
    silent: bool  # gives nothing at this initialization; the rest was read with its zeros filled
    module: str  # path that holds all of its matrices
    step: int  # branches of a block with the same step read the same point and are added together
    point: Operation  # where it reads the stream
    total: Operation  # the sum that adds it to the stream
    outlet: Operation | None  # where the stream after it is read: the sum, or the norm on the sum
    skip: float | None  # what multiplies the stream in the sum
    multiplier: float  # what scalar multiplies the branch just before the sum
    layer_scale: float | None  # root mean square of a learned vector that multiplies the branch
    rescale: float | None  # what scalar multiplies the stream between this sum and the next branch
    share: float | None  # |branch| / |skip stream| at the true input
    sees: str | None  # token, causal, all, causal blocks, blocks, causal sparse, sparse, all but itself
    window: int | None  # keys seen to one side, the token itself included; None up to `Stack.horizon` tokens
    window_both_sides: bool
    softmax: bool
    # equal tokens: output proportional to input; attention that is not has a gate or MLP inside
    linear: bool | None
    rows_sum_to_one: bool | None  # equal tokens give equal outputs: weights of the keys sum to one
    memory: bool  # reads another stack
    other_layers: bool  # reads the stream at other layers of its own stack (shared keys and values)
    input_norm: bool | None
    output_norm: bool | None
    outside_norm: bool | None  # on the sum, before anything reads it
    norm_kind: str | None  # layer, rms, batch, tanh, erf, elementwise
    positions: tuple[str, ...] | None  # rotary, scaled, query or key, alibi, bias, unknown; () for none
    qk_norm: bool | None
    heads: int | None
    # of queries with keys: one for all heads, one for each, or two whose weights are subtracted
    products: int
    kv_heads: int | None
    head_width: int | None
    activation: str | None
    gated: bool | None
    hidden_width: int | None
    experts: bool  # some of its matrices are chosen by a router
    output_gate: bool  # what its last matrix gives is multiplied by something else that the input decides
    gains: Gains | None
    powers: Powers | None  # measured only if the activation was not recognized
    not_read: tuple[str, ...] = ()
    window_uneven: bool = False  # one key fewer to one side
    matrices: tuple[BranchMatrix, ...] = ()  # by role, if all of them are parameters whose role is certain
    conditioned: bool = False  # a gate made from another input multiplies it; `layer_scale` is its size here
    weights_seen: bool = False  # `rows_sum_to_one` rests on the weights themselves, not on equal tokens alone
    # of an attention: one, or one for each head or each part of the scores
    calls: tuple[AttentionCall, ...] = ()
    no_roles: str = ""  # why `matrices` are empty
    norm_slope: float | None = None  # inside a tanh or erf in the place of a norm
    middle_norm: bool = False  # between the activation of an MLP and its last matrix
    # the last matrices, if each is a parameter; also if roles are not certain
    writers: tuple[BranchMatrix, ...] = ()

    @property
    def softmaxes(self) -> tuple[Operation, ...]:
        """Its calls of softmax or of fused attention."""
        return tuple(dict.fromkeys(call.softmax for call in self.calls))

    @property
    def mixes(self) -> bool:
        """Tell if it moves anything between tokens of its own stack."""
        return self.sees not in (None, "token")


@dataclass(frozen=True)
class Block:
    """The branches that make one block; `module` is the one whose output is the stream after it, if there is one."""

    index: int
    module: str | None
    branches: tuple[Branch, ...]

    @property
    def outlet(self) -> Operation | None:
        return self.branches[-1].outlet

    @property
    def steps(self) -> int:
        return len({branch.step for branch in self.branches})

    @property
    def parallel(self) -> bool:
        """Attention and MLP read the same point and are added together."""
        mixing = {b.step for b in self.branches if b.mixes}
        return bool(mixing & {b.step for b in self.branches if b.kind == "mlp"})


@dataclass(frozen=True)
class Stack:
    """A chain of blocks along one residual stream."""

    name: str
    default: bool  # the language stack, or the only one
    language: bool  # its stream starts from an embedding of token ids
    width: int
    tokens: int  # of its stream in this reading
    horizon: int  # tokens up to which windows were looked for
    # "batch token feature" and so on ("one": an axis of size one), None if it was not proven
    layout: str | None
    start: Operation  # where the stream enters the first block
    start_norm: float  # mean square per coordinate there
    absolute: bool | None  # equal tokens differ by their position at the start of the stream
    blocks: tuple[Block, ...]
    copies: bool | None  # matrices of different blocks are equal numbers in different tensors
    shared: bool  # blocks use the same module
    notes: tuple[str, ...] = ()
    not_read: tuple[str, ...] = ()  # why it cannot be described; the stream itself can still be measured
    # parameters that its branches multiply the stream by; None: not all known
    weights: tuple[str, ...] | None = None
    # those of low-rank updates beside a matrix (LoRA), which `weights` leaves out
    adapters: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def branches(self) -> tuple[Branch, ...]:
        return tuple(branch for block in self.blocks for branch in block.branches)

    @property
    def attentions(self) -> tuple[Branch, ...]:
        return tuple(branch for branch in self.branches if branch.kind == "attention")

    @property
    def mlps(self) -> tuple[Branch, ...]:
        return tuple(branch for branch in self.branches if branch.kind == "mlp")

    @property
    def main_mlps(self) -> tuple[Branch, ...]:
        """Without those that no formula fits beside one that is known (Gemma's branch of per-layer inputs)."""
        known = {
            block.index for block in self.blocks for b in block.branches if b.kind == "mlp" and b.activation
        }
        return tuple(
            b
            for block in self.blocks
            for b in block.branches
            if b.kind == "mlp" and (b.activation or block.index not in known)
        )

    @property
    def mixers(self) -> tuple[Branch, ...]:
        return tuple(branch for branch in self.branches if branch.kind == "mixer")

    @property
    def norm(self) -> str | None:
        """Return the place of most branches' norms, one of `edgewise.nouns.knobs.NORMS`; None if unread."""
        places = [norm_position(branch) for branch in self.branches]
        name, count = Counter(places).most_common(1)[0] if places else (None, 0)
        return name if 2 * count > len(places) else None

    @property
    def norm_kind(self) -> str | None:
        return agreed(branch.norm_kind for branch in self.branches if branch.norm_kind is not None)

    @property
    def causal(self) -> bool | None:
        """Nothing looks ahead; None where attention was not read, or differs between blocks."""
        return agreed(
            None if b.sees is None else b.sees.startswith("causal") for b in self.attentions + self.mixers
        )

    @property
    def sees(self) -> tuple[str | None, ...]:
        """Of the attention in each block; a window is one of the patterns causal and all only."""
        return self._of_attentions("sees", None)

    @property
    def window(self) -> tuple[int | None, ...]:
        """Of the attention in each block."""
        return self._of_attentions("window", None)

    @property
    def positions(self) -> tuple[tuple[str, ...] | None, ...]:
        """Of the attention in each block."""
        return self._of_attentions("positions", ())

    def _of_attentions(self, fact: str, without: Any) -> tuple[Any, ...]:
        own = (next((b for b in block.branches if b.kind == "attention"), None) for block in self.blocks)
        return tuple(without if b is None else getattr(b, fact) for b in own)

    @property
    def qk_norm(self) -> bool | None:
        return agreed(branch.qk_norm for branch in self.attentions)

    @property
    def activation(self) -> str | None:
        return agreed(branch.activation for branch in self.main_mlps)

    @property
    def gated(self) -> bool | None:
        return agreed(branch.gated for branch in self.main_mlps)

    @property
    def parallel(self) -> bool | None:
        return agreed(block.parallel for block in self.blocks)


@dataclass(frozen=True)
class Reading:
    """Everything that was read of a model."""

    model: str  # class name
    batch: str  # what the model was run on
    passes: int  # forward passes; a backward pass counts as two
    stacks: tuple[Stack, ...]
    trained: bool | None  # matrices have directions that no random draw has
    spectral_edge: float | None  # median largest singular value over that of a random matrix of equal entries
    notes: tuple[str, ...] = ()
    not_read: tuple[str, ...] = ()  # containers that repeat and that no stack covers, with the reason

    @property
    def default(self) -> Stack | None:
        return next((stack for stack in self.stacks if stack.default), None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return _plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reading:
        """Read the JSON form."""
        return cls(**_tuples(values) | {"stacks": tuple(_stack(s) for s in values["stacks"])})


def agreed(values: Any) -> Any:
    """The one value that all have, else None."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def norm_position(branch: Branch) -> str | None:
    """The place of a branch's norms by name; None if it was not read or has no name."""
    places = (branch.input_norm, branch.output_norm, branch.outside_norm)
    return None if None in places else POSITIONS.get(places)  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _stack(values: Mapping[str, Any]) -> Stack:
    special = {"start": Operation(*values["start"]), "blocks": tuple(map(_block, values["blocks"]))}
    return Stack(**_tuples(values) | special)


def _block(values: Mapping[str, Any]) -> Block:
    return Block(values["index"], values["module"], tuple(map(_branch, values["branches"])))


def _branch(values: Mapping[str, Any]) -> Branch:
    parts = {"powers": Powers, "gains": Gains}
    records = {name: None if values[name] is None else kind(**values[name]) for name, kind in parts.items()}
    lists: dict[str, Any] = {name: tuple(_matrices(values.get(name, ()))) for name in ("matrices", "writers")}
    lists["calls"] = tuple(map(_call, values.get("calls", ())))
    return Branch(**_tuples(values) | dict(_operations(values)) | records | lists)


def _call(values: Sequence[Any]) -> AttentionCall:
    call = AttentionCall(*values)
    operations = {
        name: None if getattr(call, name) is None else Operation(*getattr(call, name))
        for name in ("product", "softmax", "values")
    }
    made = {name: _projection_call(getattr(call, name)) for name in ("query", "key", "value")}
    return call._replace(**operations, **made)  # type: ignore[arg-type]


def _projection_call(values: Sequence[Any] | None) -> ProjectionCall | None:
    if values is None:
        return None
    operation, module, call, parameters, rows = values
    return ProjectionCall(
        Operation(*operation), module, call, tuple(parameters), None if rows is None else tuple(rows)
    )


def _matrices(listed: Sequence[Any]) -> Iterator[BranchMatrix]:
    for role, parameter, transposed, rows, *rest in listed:
        yield BranchMatrix(role, parameter, transposed, None if rows is None else tuple(rows), *rest)


def _operations(values: Mapping[str, Any]) -> Iterator[tuple[str, Operation | None]]:
    for name in ("point", "total", "outlet"):
        yield name, None if values[name] is None else Operation(*values[name])
