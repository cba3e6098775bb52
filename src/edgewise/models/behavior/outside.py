"""Why the theory does not cover a stack, in plain words: every reason, the most telling first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from edgewise.models.behavior.block_ends import NOTE
from edgewise.models.behavior.record import Branch, Stack
from edgewise.models.behavior.visibility import PREFIX
from edgewise.nouns import knobs

SEES = {PREFIX: "a prefix of tokens from everywhere beside earlier tokens (a prefix mask)"}


def outside(stack: Stack, activation_known: bool = False) -> Iterator[str]:
    """The reasons as sentences; none where an Architecture can say what the stack is.

    activation_known  a config says what no formula fits exactly
    """
    yield from _mixers(stack)
    unread = list(_unread(stack))
    if unread:
        can = "cannot be described" if stack.layout is None else "can be measured but not described"
        yield f"{stack.name} {can}: {'; '.join(unread)}."
    yield from _sight(stack)
    if NOTE in stack.notes or any(branch.kind is None for branch in stack.branches):
        return  # what follows needs to know all branches and what they are
    yield from _blocks(stack)
    attention = next(iter(stack.attentions), None)
    if attention is not None:
        yield from _shape(stack, attention)
        yield from _sizes(stack, attention)
        yield from _functions(stack, activation_known)


def _unread(stack: Stack) -> Iterator[str]:
    """The reasons of the stack, then those of branches: once each, with the first branch that has it."""
    own = {reason for branch in stack.branches for reason in branch.not_read}
    yield from (
        reason for reason in stack.not_read if not reason.endswith(tuple(f": {text}" for text in own))
    )
    for text in dict.fromkeys(reason for branch in stack.branches for reason in branch.not_read):
        pairs = [(block, b) for block in stack.blocks for b in block.branches if text in b.not_read]
        block, branch = pairs[0]
        more = f" (and {len(pairs) - 1} others)" if len(pairs) > 1 else ""
        yield f"block {block.index}, {branch.module}{more}: {text}"


def _mixers(stack: Stack) -> Iterator[str]:
    mixers = [branch.module for branch in stack.mixers]
    if mixers:
        blocks = sum(any(branch in stack.mixers for branch in block.branches) for block in stack.blocks)
        yield (
            f"{blocks} of the {stack.depth} blocks of {stack.name} mix tokens without softmax attention (state "
            f"space, convolution or linear attention; {mixers[0]})."
        )


def _sight(stack: Stack) -> Iterator[str]:
    odd = sorted({str(b.sees) for b in stack.attentions if b.sees not in ("all", "causal")})
    if odd:
        listed = ", ".join(SEES.get(name, name) for name in odd)
        yield f"attention in {stack.name or 'the model'} sees {listed}, which the theory does not cover."


def _blocks(stack: Stack) -> Iterator[str]:
    """The first block that is not one attention and MLPs, in turn or in parallel."""
    for block in stack.blocks:
        kinds = [b.kind for b in block.branches if b.kind != "cross-attention"]
        order = [kind for i, kind in enumerate(kinds) if kind != kinds[i - 1] or i == 0]
        usual = order == ["attention", "mlp"] or (block.parallel and set(order) == {"attention", "mlp"})
        usual = usual or (order == ["attention"] and not stack.mlps)
        if not usual or kinds.count("attention") != 1:
            listed = ", ".join(str(kind) for kind in kinds) or "empty"
            yield (
                f"block {block.index} of {stack.name or 'the model'} is {listed}; the theory has blocks of "
                "one attention and then an MLP, or of one attention alone."
            )
            return


def _shape(stack: Stack, attention: Branch) -> Iterator[str]:
    if stack.norm is None:
        yield (
            f"the norms of {stack.name} stand in no position the theory knows: pre, post, sandwich, branch or "
            "none, the same in most blocks."
        )
    if stack.causal is None or stack.parallel is None:
        yield f"the blocks of {stack.name} are not alike in masks or order; not described."
    if attention.softmax and not attention.products:
        yield (
            f"the softmax of {attention.module} does not act on a product of queries and keys alone (a matrix mixes "
            "the scores of the heads, or scores are made in another way), which the theory does not cover."
        )


def _sizes(stack: Stack, attention: Branch) -> Iterator[str]:
    if not stack.start_norm:
        yield (
            f"the stream of {stack.name} is zero where it starts, so that there is no geometry to predict. "
            "It may come from a part that starts at zero, or from a batch of zeros."
        )
    if attention.heads is None:
        yield f"the number of heads of {attention.module} could not be read from the shapes of its queries and keys."
    if stack.mlps and hidden_width(stack) is None:
        yield f"the hidden width of {stack.mlps[0].module} could not be read: its first and last matrix were not found."
    different = sorted({b.heads for b in stack.attentions if b.heads is not None})
    if len(different) > 1:
        listed = ", ".join(map(str, different))
        yield f"the blocks of {stack.name or 'the model'} have {listed} heads; the theory has one number for all."


def _functions(stack: Stack, activation_known: bool) -> Iterator[str]:
    kind, name = stack.norm_kind or "layer", stack.activation
    if kind not in knobs.NORM_KINDS:
        yield f"the norms of {stack.name} are {kind}, which the theory does not have."
    if stack.mlps and name not in knobs.ACTIVATIONS and not (name is None and activation_known):
        what = "no formula fits its activation" if name is None else f"its activation is {name}"
        yield f"the MLP of {stack.name} cannot be described: {what}."


def hidden_width(stack: Stack) -> int | None:
    """What most of its MLPs have."""
    counted = Counter(branch.hidden_width for branch in stack.mlps).most_common(1)
    return counted[0][0] if counted else None
