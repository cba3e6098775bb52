"""Roles by behavior: models whose matrices have unusual names are read, and lying names are overruled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from edgewise.audit.finding import AuditKind
from edgewise.models.behavior.record import Reading
from edgewise.models.model_map import ModelMap
from tests.support.strange_names import (
    DEPTH,
    HEADS,
    LYING,
    UNUSUAL,
    VOCABULARY,
    WIDTH,
    Block,
    Normalizing,
    Strange,
    Turning,
)

USUAL = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "o_proj",
    "inward": "fc1",
    "outward": "fc2",
}
KINDS = {
    "apart": {},
    "gated": {"gated": True},
    "stacked": {"fused": "stacked"},
    "by head": {"fused": "by head"},
}


def true_matrices(model: Strange, kind: str, block: int) -> dict[str, Tensor]:
    """By hand: which rows of which parameter are queries, keys and values."""
    room = model.rooms[block]
    if kind == "stacked":
        key, query, value = room.zeta.weight.chunk(3)
    elif kind == "by head":
        key, value, query = (
            part.flatten(0, 1) for part in room.zeta.weight.unflatten(0, (HEADS, 3, -1)).unbind(1)
        )
    else:
        query, key, value = (room.part(role).weight for role in ("query", "key", "value"))
    return {"query": query, "key": key, "value": value, "output": room.part("output").weight}


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_with_unusual_names_have_their_roles(kind: str) -> None:
    model = Strange(**KINDS[kind])
    found = edgewise.models.sites(model)
    assert found.depth == DEPTH and "as the model behaves" in found.assumed[0] and not found.unrecognized
    assert (found.final_norm, found.head, found.embeddings) == ("last", "readout", ("table", "places"))
    for index, block in enumerate(found.blocks):
        for role, matrix in true_matrices(model, kind, index).items():
            assert torch.equal(getattr(block.attention, role).weight(model), matrix), role
        room = model.rooms[index]
        inward = room.north if kind == "gated" else None
        assert (block.mlp.gate.weight(model) is not None) if inward is not None else block.mlp.gate is None
        if inward is not None:
            assert torch.equal(block.mlp.gate.weight(model), inward.weight)
        assert torch.equal(block.mlp.input.weight(model), room.part("inward").weight)
        assert torch.equal(block.mlp.output.weight(model), room.part("outward").weight)
        assert block.attention.heads == block.attention.kv_heads == HEADS
        assert [norm.role for norm in block.norms] == ["before attention", "before mlp"]


@pytest.mark.parametrize("kind", ["apart", "by head"])
def test_an_audit_finds_a_wrong_matrix_under_an_unusual_name(kind: str) -> None:
    model = Strange(**KINDS[kind])
    room = model.rooms[1]
    keys = (
        room.zeta.weight.unflatten(0, (HEADS, 3, -1))[:, 0] if kind == "by head" else room.part("key").weight
    )
    with torch.no_grad():
        keys.mul_(5)
    departures = [
        f for f in edgewise.audit_initialization(model) if f.kind is AuditKind.DEPARTS_FROM_SIBLINGS
    ]
    assert [finding.observation.split(" has ")[0] for finding in departures] == ["attention.key of block 1"]


def rows_of(model: nn.Module, folder: Path) -> dict[str, np.ndarray]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(1)
    with edgewise.watch(model, to=folder, optimizer=optimizer) as handle:
        assert not handle.places.blind and handle.places.heads == [HEADS] * DEPTH
        for _ in range(3):
            ids = torch.randint(VOCABULARY, (4, 16), generator=generator)
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return edgewise.read(folder, frame=False)


@pytest.mark.parametrize("names", [UNUSUAL, LYING], ids=["unusual", "lying"])
def test_watch_reads_the_same_attention_under_any_names(names: dict[str, str], tmp_path: Path) -> None:
    """Against the same weights under usual names; there the number of heads is an attribute."""
    usual, strange = Strange(USUAL), Strange(names)
    for one, other in zip(usual.rooms, strange.rooms, strict=True):
        one.num_heads = HEADS
        for role in USUAL:
            other.part(role).load_state_dict(one.part(role).state_dict())
    rest = {k: v for k, v in usual.state_dict().items() if not any(f".{n}." in k for n in USUAL.values())}
    strange.load_state_dict(rest, strict=False)
    expected, found = rows_of(usual, tmp_path / "usual"), rows_of(strange, tmp_path / "strange")
    columns = [name for name in expected if "entropy" in name or "logit" in name]
    assert columns and any(np.isfinite(expected[name]).any() for name in columns)
    for name in columns:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", [Turning, Normalizing])
def test_logits_made_in_a_way_that_no_module_shows_are_read_at_the_softmax(
    kind: type[Block], tmp_path: Path
) -> None:
    """A rotation or norm written into the forward pass: rows are those of the model's own softmax."""
    with edgewise.watch(Strange(kind=kind), quiet=True) as handle:
        assert handle.places.depth == DEPTH and handle.places.heads == [HEADS] * DEPTH
    rows = rows_of(Strange(kind=kind), tmp_path / "run")
    columns = [name for name in rows if "entropy" in name]
    assert columns and all(np.isfinite(rows[name]).any() for name in columns)


def test_lying_names_are_overruled_and_said() -> None:
    model = Strange(LYING)
    with torch.no_grad():
        for room in model.rooms:
            room.part("value").weight.mul_(3)  # called k_proj
    described = edgewise.describe(model)
    notes = [line for line in described.assumed if "as the model behaves" in line]
    query = "attention query: rooms.0.v_proj.weight as the model behaves; rooms.0.q_proj.weight by its name"
    assert notes[0] == f"{query} (so in {DEPTH} blocks)"
    truth = edgewise.describe(_renamed(model))
    for gain in ("score_gain", "value_gain", "key_gain", "output_gain"):
        assert getattr(described, gain) == pytest.approx(getattr(truth, gain), rel=1e-6), gain
    where = ModelMap(model)
    where.reading()
    assert where.sites().blocks[2].attention.value.parameter == "rooms.2.k_proj.weight"
    assert notes[0] in where.sites().assumed


def _renamed(model: Strange) -> Strange:
    other = Strange(USUAL)
    for one, room in zip(other.rooms, model.rooms, strict=True):
        for role in USUAL:
            one.part(role).load_state_dict(room.part(role).state_dict())
    return other


def test_roles_survive_json() -> None:
    reading = ModelMap(Strange(fused="by head")).reading(rows=True)
    assert reading.stacks[0].attentions[0].matrices[0].rows == (
        HEADS,
        3 * WIDTH // HEADS,
        2 * WIDTH // HEADS,
        24,
    )
    assert Reading.from_dict(reading.to_dict()) == reading


def test_no_pass_is_tried_without_weights_and_nothing_is_read_on_where_nothing_attends() -> None:
    with pytest.raises(edgewise.BadInput, match="behavior is not read on the meta device"):
        edgewise.models.sites(Strange().to("meta"))
    plain = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3)])
    with pytest.raises(edgewise.BadInput, match="no softmax ran in this model"):
        edgewise.models.sites(plain)


class Spread(nn.Module):
    """A block whose matrices are stored in unusual ways: a filter of size one, (d, heads, d_h), a spectral norm."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.one, self.two = Gained(width), Gained(width)
        self.p = nn.utils.parametrizations.spectral_norm(nn.Linear(width, width, bias=False))
        self.r = nn.Parameter(torch.randn(width, heads, width // heads) / 4)
        self.s = nn.Conv1d(width, width, 1)
        self.t = nn.Linear(width, width)
        self.u, self.w = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        z = self.one(x)
        q = self.p(z).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = torch.einsum("bnd,dhe->bhne", z, self.r)
        v = self.s(z.transpose(1, 2)).transpose(1, 2).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        x = x + self.t(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.w(F.gelu(self.u(self.two(x))))


class Gained(nn.Module):
    """A norm that is not called one, and whose gain is not called `weight`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x / x.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt() * self.g


def test_matrices_that_are_stored_in_unusual_ways_have_roles() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Spread(), Spread())
    found = edgewise.models.sites(model)
    site = found.blocks[0].attention
    assert (site.heads, site.kv_heads, found.stacks[0].norm) == (2, 2, "pre")
    assert site.query.derived and site.query.parameter == "0.p.parametrizations.weight.original"
    block = model[0]
    assert torch.equal(site.key.weight(model), block.r.flatten(1).T)
    assert torch.equal(site.value.weight(model), block.s.weight[..., 0])
    assert site.value.bias(model) is block.s.bias or torch.equal(site.value.bias(model), block.s.bias)
    assert [norm.role for norm in found.blocks[0].norms] == ["before attention", "before mlp"]


def test_the_audit_reads_norms_whose_gain_is_not_called_weight() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Spread(), Spread())
    with torch.no_grad():
        model[1].two.g.mul_(3)
    gains = [f for f in edgewise.audit_initialization(model) if f.kind is AuditKind.NORM_GAIN_NOT_ONE]
    assert [f.parameters for f in gains] == [("1.two.g",)]
    exec(gains[0].repair, {"model": model, "torch": torch})
    assert not [f for f in edgewise.audit_initialization(model) if f.kind is AuditKind.NORM_GAIN_NOT_ONE]


class Alone(Block):
    """Attention without an MLP."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.part("output")(self.mix(self.first(x)))


def test_a_block_of_attention_alone_has_no_mlp() -> None:
    found = edgewise.models.sites(Strange(USUAL, kind=Alone))
    assert found.depth == DEPTH and [block.mlp for block in found.blocks] == [None] * DEPTH
    with pytest.raises(edgewise.BadInput, match="attention alone"):
        _ = found.blocks[0].feed_forward


def test_layers_that_share_a_module_are_counted_by_their_calls() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    found = edgewise.models.sites(nn.Sequential(*[layer] * 3))
    assert (found.depth, len(found.blocks), found.blocks[0].calls) == (3, 1, 3)


class Unread(Strange):
    """Its roles cannot be read: it runs on no batch that could be made up."""

    def forward(self, ids: Tensor) -> Tensor:
        if ids.shape[1] != 37:
            raise ValueError("37 tokens")
        return super().forward(ids)


def test_an_audit_without_roles_compares_layers_by_name_and_says_so() -> None:
    """Before, it was refused: a fault in a model whose parts have unusual names was not found."""
    model = Unread()
    with torch.no_grad():
        model.rooms[1].delta.weight.zero_()
        model.rooms[2].alpha.weight.copy_(model.rooms[0].alpha.weight)
    findings = {f.kind: f for f in edgewise.audit_initialization(model)}
    assert findings[AuditKind.NEVER_INITIALIZED].parameters == ("rooms.1.delta.weight",)
    assert findings[AuditKind.IDENTICAL_LAYERS].parameters == ("rooms.2.alpha.weight",)
    note = findings[AuditKind.ROLES_UNKNOWN]
    assert note.parameter == "" and "residual scaling" in note.expected and "not known." in str(note)
    told = edgewise.audit_initialization(model, batch=torch.randint(VOCABULARY, (2, 37)))
    assert AuditKind.ROLES_UNKNOWN not in {f.kind for f in told}
