"""ModelMap: one reading for several questions, and what each verb reads of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import edgewise
from edgewise.landscape.support import rebalanced
from edgewise.models.behavior import read as behavior
from edgewise.models.behavior.read import read as read_anew
from edgewise.models.config import translate as translating
from edgewise.models.model_map import ModelMap
from edgewise.models.module_description import describe_read_module
from edgewise.models.names import name_reader as roles
from edgewise.models.names.block import OpenBlock
from tests.support.models import build


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def test_the_kept_reading_is_the_first_one_and_another_model_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[nn.Module] = []
    model, other = encoder(), encoder()
    reading = read_anew(model)
    monkeypatch.setattr(behavior, "read", lambda model, *_, **__: (readings.append(model), reading)[1])
    where = ModelMap(model)
    first = where.reading()
    assert where.reading() is first and readings == [model]
    ModelMap(other).reading()
    ModelMap(model).reading()
    assert readings == [model, other, model]


def test_new_weights_are_read_with_their_gains_and_are_no_copies() -> None:
    model = encoder()
    where = ModelMap(model)
    before = where.reading().default
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    after, anew = where.reading(), read_anew(model)
    assert (
        before is not None and before.copies and after.default is not None and after.default.copies is False
    )
    kept, fresh = (describe_read_module(model, reading).knobs() for reading in (after, anew))
    for gain in ("value_gain", "score_gain", "mlp_in_gain", "mlp_out_gain"):
        assert kept[gain] == pytest.approx(fresh[gain], rel=1e-6)
    branches = zip(before.branches, after.default.branches, anew.default.branches, strict=True)
    for old, now, true in branches:
        assert now.share == pytest.approx(true.share, rel=0.1) and abs(old.share / true.share - 1) > 0.3


class Calls(dict[str, int]):
    """How often each reader ran: maps made, blocks opened, stacks found, configs translated, behavior read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(maps=0, blocks=0, stacks=0, configs=0, readings=0)
        for owner, name, key in (
            (ModelMap, "__init__", "maps"),
            (OpenBlock, "__init__", "blocks"),
            (roles, "find_stacks", "stacks"),
            (translating, "translate", "configs"),
            (behavior, "read", "readings"),
            (behavior, "read_closely", "readings"),
        ):
            patch.setattr(owner, name, self._counting(getattr(owner, name), key))

    def _counting(self, function: Any, key: str) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self[key] += 1
            return function(*args, **kwargs)

        return counted


BATCHES = [torch.arange(16)[None] + shift for shift in range(8)]


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(
        model(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
    )


def watch_steps(model: nn.Module) -> None:
    """The start of the run is checked too, by the same map."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with edgewise.watch(model, quiet=True, everything=True):
        for ids in BATCHES[:3]:
            optimizer.zero_grad()
            loss_of(model, ids).backward()
            optimizer.step()


VERBS: dict[str, tuple[Callable[[nn.Module], Any], dict[str, int]]] = {
    "sites": (edgewise.models.sites, {"blocks": 4, "stacks": 1, "configs": 1, "readings": 0}),
    "structure": (edgewise.structure, {"blocks": 4, "stacks": 0, "configs": 1, "readings": 1}),
    "describe": (edgewise.describe, {"blocks": 4, "stacks": 0, "configs": 1, "readings": 1}),
    "measure": (edgewise.measure, {"blocks": 4, "stacks": 0, "configs": 1, "readings": 1}),
    "audit": (edgewise.audit_initialization, {"blocks": 4, "stacks": 1, "configs": 1, "readings": 0}),
    "critical_plan": (edgewise.critical_plan, {"blocks": 4, "stacks": 1, "configs": 1, "readings": 1}),
    "initialize_": (edgewise.initialize_, {"blocks": 4, "stacks": 1, "configs": 1, "readings": 1}),
    "watch": (watch_steps, {"blocks": 4, "stacks": 1, "configs": 1, "readings": 0}),
    "optim": (
        lambda model: edgewise.optim.LogitTrust(torch.optim.SGD(model.parameters(), 0.1), model),
        {"blocks": 4, "stacks": 1, "configs": 1, "readings": 0},
    ),
    "rebalanced": (rebalanced, {"blocks": 4, "stacks": 1, "configs": 1, "readings": 0}),
    "check": (
        lambda model: edgewise.check(model, BATCHES, loss_of, torch.optim.SGD(model.parameters(), 0.01)),
        {"blocks": 4, "stacks": 1, "configs": 1, "readings": 0},
    ),
    "rate": (
        lambda model: edgewise.learning_rate(model, BATCHES, loss_of, steps=2, rates=3),
        {"blocks": 0, "stacks": 0, "configs": 0, "readings": 1},
    ),
    "landscape": (
        lambda model: edgewise.landscape.line(model, loss_of, BATCHES[0], "queries", points=5),
        {"blocks": 4, "stacks": 1, "configs": 1, "readings": 0},
    ),
    "total_changes": (edgewise.total_changes, {"blocks": 0, "stacks": 0, "configs": 0, "readings": 1}),
    "report": (
        lambda model: str(edgewise.judge(edgewise.measure(model))),
        {"blocks": 4, "stacks": 0, "configs": 1, "readings": 1},
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_names_behavior_and_config_once(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gpt2", n_layer=4)
    calls, (run, expected) = Calls(monkeypatch), VERBS[verb]
    run(model)
    assert calls == {"maps": 1, **expected}


def test_a_field_is_a_value_or_none_with_a_reason() -> None:
    """Names first, without a pass; behavior adds the rest."""
    where = ModelMap(build("gpt2", n_layer=2))
    before = where.fields()
    unread = {"branches", "skips", "gates", "shared", "token_axis"}
    assert {name for name, field in before.items() if field.value is None} == unread
    assert all(bool(field.why) == (field.value is None) for field in before.values())
    assert before["blocks"].value == ("transformer.h.0", "transformer.h.1") and before["devices"].value == (
        "cpu",
    )
    assert before["ties"].value == (("transformer.wte.weight", "lm_head.weight"),)
    where.reading()
    after = where.fields()
    assert all(field.value is not None and not field.why for field in after.values())
    assert (after["branches"].value[0], after["token_axis"].value) == (("attention", "mlp"), 1)
    assert (after["gates"].value, after["shared"].value) == ((False, False), False)


class Shifted(nn.Module):
    """Pre-norm attention by hand on a stream (tokens, sequences, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm2, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).transpose(0, 1).chunk(3, -1)
        x = x + self.out(((q @ k.transpose(1, 2)).softmax(-1) @ v).transpose(0, 1))
        return x + self.down(self.up(self.norm2(x)).relu())


def test_the_token_axis_is_the_one_that_behaves_like_it() -> None:
    """Written by hand, tokens first: no attribute says so."""
    torch.manual_seed(0)
    where = ModelMap(nn.Sequential(Shifted(), Shifted()))
    assert where.sequence_first
    where.reading(torch.randn(12, 2, 16))
    assert not where.sequence_first and where.fields()["token_axis"].value == 0
    failed = ModelMap(nn.Linear(4, 4)).fields()["blocks"]
    assert failed.value is None and "no list of blocks" in failed.why


class Adapted(nn.Linear):
    """A matrix with a low-rank update beside it."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, bias=False)
        self.requires_grad_(False)
        self.down = nn.Linear(width, 2, bias=False)
        self.up = nn.Linear(2, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 0.5 * self.up(self.down(x))


class Turned(nn.Module):
    """Attention by hand with rotated queries and keys; its queries are adapted, and its scores scaled by 0.4."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.ask = nn.LayerNorm(16), Adapted(16)
        self.both, self.back = nn.Linear(16, 32), nn.Linear(16, 16)
        self.norm2, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(z: torch.Tensor) -> torch.Tensor:
            return z.unflatten(-1, (2, 8)).transpose(1, 2)

        def turned(z: torch.Tensor) -> torch.Tensor:
            angle = torch.arange(z.shape[2])[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03])
            one, other = z.chunk(2, -1)
            return torch.cat(
                [one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos()], -1
            )

        y = self.norm(x)
        k, v = map(heads, self.both(y).chunk(2, -1))
        scores = turned(heads(self.ask(y))) @ turned(k).transpose(-1, -2) * 0.4
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        x = x + self.back(mixed.transpose(1, 2).flatten(2))
        return x + self.down(self.up(self.norm2(x)).relu())


class Looped(nn.Module):
    """One block, called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.block, self.head = nn.Embedding(31, 16), Turned(), nn.Linear(16, 31)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for _ in range(3):
            x = self.block(x)
        return self.head(x)


@pytest.mark.parametrize("model", [lambda: nn.Sequential(Turned(), Turned()), Looped])
def test_the_map_says_where_each_call_of_attention_gets_its_scores_from(
    model: Callable[[], nn.Module],
) -> None:
    """Adapters, rotation, mask and scale; a block that is called three times has a row for each call."""
    torch.manual_seed(0)
    found = ModelMap(model()).attentions()
    assert [block for block, _ in found] == list(range(len(found)))
    shared = len(found) == 3
    for block, branch in found:
        at, turn = ("block", block) if shared else (str(block), 0)
        assert (branch.heads, branch.head_width, branch.sees) == (2, 8, "causal")
        assert branch.positions is not None and branch.positions[0] == "rotary"
        (call,) = branch.calls
        assert call.scale == pytest.approx(0.4) and call.query_axes == "batch head token width"
        assert call.key_axes == "batch head width token"
        assert (call.softmax.module, call.softmax.call, call.softmax.function) == (at, turn, "softmax")
        query, key, value = call.query, call.key, call.value
        assert query is not None and key is not None and value is not None
        assert (query.module, query.call) == (f"{at}.ask", turn) and query.operation.function == "add"
        assert query.parameters == tuple(f"{at}.ask.{part}weight" for part in ("", "down.", "up."))
        assert key.module == value.module == f"{at}.both" and key.parameters == (f"{at}.both.weight",)


def test_a_reading_with_attention_calls_goes_through_json() -> None:
    torch.manual_seed(0)
    reading = read_anew(nn.Sequential(Turned(), Turned()))
    assert type(reading).from_dict(reading.to_dict()) == reading


class FusedParallel(nn.Module):
    """One matrix makes queries, keys, values and both halves of a gated MLP; the gate is the second half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.all = nn.LayerNorm(16), nn.Linear(16, 3 * 16 + 2 * 24, bias=False)
        self.back, self.down = nn.Linear(16, 16, bias=False), nn.Linear(24, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v, linear, gate = self.all(self.norm(x)).split((16, 16, 16, 24, 24), -1)
        q, k, v = (z.unflatten(-1, (2, 8)).transpose(1, 2) for z in (q, k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.back(mixed) + self.down(nn.functional.silu(gate) * linear)


def test_rows_of_a_matrix_that_attention_and_mlp_share_are_told_apart() -> None:
    torch.manual_seed(0)
    found = ModelMap(nn.Sequential(FusedParallel(), FusedParallel())).sites(torch.randn(2, 12, 16))
    assert found.depth == 2 and found.stacks[0].parallel
    block = found.blocks[0]
    rows = {p.role: None if p.rows is None else (p.rows.start, p.rows.stop) for p in block.projections[:3]}
    assert rows == {"query": (0, 16), "key": (16, 32), "value": (32, 48)}
    mlp = block.feed_forward
    assert mlp.gate is not None and mlp.gate.rows is not None and mlp.input.rows is not None
    assert (mlp.input.rows.start, mlp.input.rows.stop) == (48, 72)
    assert (mlp.gate.rows.start, mlp.gate.rows.stop) == (72, 96)


class FirstStreamAgain(nn.Module):
    """Before every block, a part of the first stream is added again, as speed runs of GPT-2 do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.blocks = nn.Embedding(31, 16), nn.ModuleList(Turned() for _ in range(3))
        self.kept = nn.Parameter(torch.tensor([1.0, 0.9, 0.8]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = first = self.table(ids)
        for kept, block in zip(self.kept, self.blocks, strict=True):
            x = block(kept * x + 0.1 * first)
        return x


def test_the_stream_at_two_depths_added_up_is_no_branch() -> None:
    torch.manual_seed(0)
    model = FirstStreamAgain()
    found = edgewise.structure(model)
    assert (
        found.depth == 3 and [[b.kind for b in block] for block in found.blocks] == [["attention", "MLP"]] * 3
    )
    assert [block[1].skip for block in found.blocks] == [1.0] * 3, "what is mixed in belongs to no branch"
    described = edgewise.describe(model)
    assert described.depth == 3 and any("an earlier one" in note for note in described.unmodelled)


class LongSkips(nn.Module):
    """The second half of the blocks reads the first half's streams beside its own, through functions of both."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.down = nn.Embedding(31, 16), nn.ModuleList(Turned() for _ in range(3))
        self.up, self.join = (
            nn.ModuleList(Turned() for _ in range(3)),
            nn.ModuleList(nn.Linear(32, 16) for _ in range(3)),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, kept = self.table(ids), []
        for block in self.down:
            kept.append(x := block(x))
        for block, join in zip(self.up, self.join, strict=True):
            x = block(join(torch.cat([x, kept.pop()], -1)).tanh())
        return x


def test_blocks_that_no_stack_covers_are_named() -> None:
    torch.manual_seed(0)
    model = LongSkips()
    for found in (edgewise.structure(model).left_out, edgewise.describe(model).unmodelled):
        assert any(line.startswith("up: its 3 blocks") for line in found)
