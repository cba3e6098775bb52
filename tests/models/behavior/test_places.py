"""Keys that are no tokens: learned memory keys, a null key, registers that attention adds for itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from edgewise.models.behavior.read import read
from edgewise.models.behavior.record import Stack
from edgewise.models.behavior.score_operands import first_pair, first_token
from tests.models.behavior.test_odd_attention import Block
from tests.support.covering import covering

from .strangers import rotate

WIDTH, HEADS, TOKENS, DEPTH = 32, 4, 20, 2
STREAM = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
KERNELS = ("matmul", "einsum", "fused")


class Memory(nn.Module):
    """Attention that also sees keys of its own; `before` or behind those of the tokens."""

    def __init__(
        self,
        *,
        keys: int = 4,
        before: bool = True,
        causal: bool = False,
        slopes: bool = False,
        turn: bool = False,
        one_head: bool = False,
        registers: bool = False,
        zero: bool = False,
        kernel: str = "matmul",
    ) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        size = 0.0 if zero else 1.0
        self.k = nn.Parameter(size * torch.randn(HEADS, keys, WIDTH // HEADS), requires_grad=not zero)
        self.v = nn.Parameter(size * torch.randn(HEADS, keys, WIDTH // HEADS), requires_grad=not zero)
        self.q = nn.Parameter(torch.randn(HEADS, keys, WIDTH // HEADS)) if registers else None
        self.keys, self.before, self.causal, self.slopes, self.kernel = keys, before, causal, slopes, kernel
        self.turn, self.one_head = turn, one_head

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.one_head:
            k, v = (t[:, :1].expand_as(t) for t in (k, v))
        if self.turn:
            q, k = rotate(q), rotate(k)
        k, v = self.beside(k, self.k), self.beside(v, self.v)
        q = q if self.q is None else self.beside(q, self.q)
        mean = self.mean(q, k, v, self.bias(x.shape[1]))
        start = self.keys if self.before and self.q is not None else 0
        return self.out(mean[..., start : start + x.shape[1], :].transpose(1, 2).flatten(2))

    def beside(self, tokens: Tensor, own: Tensor) -> Tensor:
        pair = [own.expand(len(tokens), -1, -1, -1), tokens]
        return torch.cat(pair if self.before else pair[::-1], -2)

    def bias(self, n: int) -> Tensor:
        """What is added to the scores of the tokens; keys that are none are always seen."""
        distance = torch.arange(n)[:, None] - torch.arange(n)
        bias = -distance.abs() * SLOPES if self.slopes else torch.zeros(HEADS, n, n)
        bias = bias.masked_fill(distance < 0, -torch.inf) if self.causal else bias
        added = (self.keys, 0) if self.before else (0, self.keys)
        return F.pad(bias, (*added, *(added if self.q is not None else (0, 0))))

    def mean(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        if self.kernel == "fused":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None].expand(len(q), -1, -1, -1))
        if self.kernel == "einsum":
            scores = torch.einsum("bhid,bhjd->bhij", q, k)
            return torch.einsum("bhij,bhjd->bhid", (scores * q.shape[-1] ** -0.5 + bias).softmax(-1), v)
        return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v


def model_of(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(Memory(**options)) for _ in range(DEPTH))).eval()


def stack_of(model: nn.Module) -> Stack:
    stack = read(model, STREAM).default
    assert stack is not None
    return stack


def positions(model: nn.Module) -> set[str | None]:
    blocks = edgewise.structure(model, STREAM).blocks
    return {branch.positions for block in blocks for branch in block if branch.kind == "attention"}


BESIDE: list[dict[str, Any]] = [{}, {"keys": 1}, {"before": False}, {"registers": True}, {"zero": True}]


@pytest.mark.parametrize(
    ("kernel", "causal", "options"), covering(KERNELS, (False, True), BESIDE, strength=2)
)
def test_keys_beside_the_tokens_are_no_positions(kernel: str, causal: bool, options: dict[str, Any]) -> None:
    """Before them the first tokens had been taken for the memory keys, whose scores differ from each other."""
    model = model_of(kernel=kernel, causal=causal, **options)
    assert positions(model) == {"none"}
    described = edgewise.describe(model, STREAM)
    assert (described.position_bias, described.alibi, described.causal) == (0.0, False, causal)
    assert not any("what positions do" in line for line in described.unmodelled)
    assert any("left out" in line for line in described.unmodelled)
    assert not any("sum to one" in line for line in described.unmodelled)  # they do, over all keys


NAMED = {"linear bias": {"slopes": True}, "rotary": {"turn": True}}


@pytest.mark.parametrize(
    ("kernel", "options", "name"),
    covering(KERNELS, [{}, {"before": False}, {"registers": True}, {"causal": True}], [*NAMED], strength=2),
)
def test_positions_beside_learned_keys_are_what_they_are(
    kernel: str, options: dict[str, Any], name: str
) -> None:
    assert positions(model_of(kernel=kernel, **options, **NAMED[name])) == {name}


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_head_of_keys_stays_one_beside_learned_keys_of_every_head(kernel: str) -> None:
    attention = stack_of(model_of(kernel=kernel, one_head=True)).attentions[0]
    assert (attention.heads, attention.kv_heads) == (HEADS, 1)


def test_the_gain_of_scores_is_that_between_tokens() -> None:
    """Learned keys a hundred times as long as those of tokens do not change it."""
    model = model_of()
    before = edgewise.describe(model, STREAM).score_gain
    with torch.no_grad():
        for block in model:
            block.mix.k.mul_(100)  # type: ignore[union-attr, operator]
    assert edgewise.describe(model, STREAM).score_gain == pytest.approx(before)


class Summaries(Memory):
    """A key beside the tokens that is their mean: it moves with them, so that no keys are told from tokens."""

    def beside(self, tokens: Tensor, own: Tensor) -> Tensor:  # noqa: ARG002
        return torch.cat([tokens.mean(-2, keepdim=True), tokens], -2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_where_tokens_are_not_found_a_bias_is_not_named(kernel: str) -> None:
    torch.manual_seed(0)
    plain, sloped = (
        nn.Sequential(*(Block(Summaries(keys=1, slopes=slopes, kernel=kernel)) for _ in range(DEPTH))).eval()
        for slopes in (False, True)
    )
    assert positions(plain) <= {"none", None}
    assert positions(sloped) <= {"linear bias", None}


def test_the_first_token_is_found_by_the_two_that_changed() -> None:
    value = torch.randn(2, 3, 12, 5)
    value[1] = value[0]
    value[1, :, [6, 7]] = value[1, :, [7, 6]]
    assert first_token(value, 2, 0, 8) == 1  # of eight tokens the fifth and the sixth were exchanged
    assert first_token(value, 2, 0, 12) is None  # of twelve they were others
    value[1, :, 2] += 1
    assert first_token(value, 2, 0, 8) is None


def test_the_first_pair_is_found_by_rows_and_columns() -> None:
    query, key = torch.randn(2, 3, 8, 5), torch.randn(2, 3, 11, 5)
    query[1], key[1] = query[0], key[0]
    query[1, :, [5, 6]] = query[1, :, [6, 5]]
    key[1, :, [7, 8]] = key[1, :, [8, 7]]
    scores = query @ key.transpose(-1, -2)
    assert first_pair(scores, 8) == (0, 2)
    open_keys = torch.ones(8, 11, dtype=torch.bool).tril(2)
    assert first_pair(scores.masked_fill(~open_keys, -torch.inf), 8) == (0, 2)
    assert first_pair(scores[:1], 8) == (None, None)
    assert first_pair(scores[:, :, :4], 4) == (None, None)
