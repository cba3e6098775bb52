"""Attention and streams where they are computed: the numbers are those that the model itself uses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise


class Turned(nn.Module):
    """A block by hand: rotary or biased attention, eager or fused."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.kind, self.norm = kind, nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.rows: Tensor | None = None

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (4, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        if self.kind != "bias":
            q, k = turned(q), turned(k)
        n = x.shape[1]
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        if self.kind == "fused":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if self.kind == "bias":
            far = (torch.arange(n)[:, None] - torch.arange(n)).float()
            scores = scores - far * torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        self.rows = weights.detach()
        return (weights @ v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.o(self.attend(self.norm(x)))
        return x + self.down(self.up(x).relu())


def turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 10.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Net(nn.Module):
    def __init__(self, kind: str, calls: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.calls = nn.Embedding(64, 32), calls
        self.blocks = nn.ModuleList(Turned(32, kind) for _ in range(1 if calls > 1 else 2))
        self.readout = nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x)
        for block in self.blocks:
            for _ in range(self.calls):
                x = block(x)
        return self.readout(x)


class Turns(Net):
    """Two blocks that are called in turns."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x)
        for i in range(6):
            x = self.blocks[i % 2](x)
        return self.readout(x)


class ChannelsFirst(nn.Module):
    """The stream is (sequences, width, tokens), and matrices are convolutions."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
            self.qkv, self.proj = nn.Conv1d(32, 96, 1), nn.Conv1d(32, 32, 1)
            self.grow, self.shrink = nn.Conv1d(32, 64, 1), nn.Conv1d(64, 32, 1)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(self.norm1(x.mT).mT).unflatten(1, (3, 4, -1)).unbind(1)
            w = (q.mT @ k / 8**0.5).softmax(-1)
            x = x + self.proj((v @ w.mT).flatten(1, 2))
            return x + self.shrink(F.gelu(self.grow(self.norm2(x.mT).mT)))

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.net = nn.Embedding(64, 32), nn.ModuleList(self.Layer() for _ in range(3))
        self.readout = nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x).mT
        for layer in self.net:
            x = layer(x)
        return self.readout(x.mT)


def trained(model: nn.Module, watched: bool = True, steps: int = 4, **options: Any) -> Any:
    optimizer, criterion = torch.optim.SGD(model.parameters(), 0.01), nn.CrossEntropyLoss()
    options |= {"criterion": criterion, "everything": True, "quiet": True}
    handle = edgewise.watch(model, **options) if watched else None
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = torch.randint(0, 64, (2, 16), generator=generator)
        optimizer.zero_grad()
        criterion(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
    if handle is not None:
        handle.close()
        assert handle.error == ""
    return handle


@pytest.mark.parametrize("kind", ["rotary", "bias"])
def test_entropies_are_those_of_the_rows_that_the_model_computes(kind: str) -> None:
    model = Net(kind)
    handle = trained(model)
    row = handle.row()
    for i, block in enumerate(model.blocks):
        rows = block.rows  # type: ignore[union-attr]
        assert isinstance(rows, Tensor)
        own = -torch.special.xlogy(rows, rows).sum(-1)[:, :, 1:].mean()  # the first query sees one key
        assert row[f"block.{i}.entropy"] == pytest.approx(float(own), rel=1e-4)
        assert 0 < row[f"block.{i}.softmax_gain"] < 1


def test_fused_rotary_attention_is_that_of_the_eager_one() -> None:
    rows = [trained(Net(kind)).row() for kind in ("rotary", "fused")]
    for name in ("entropy", "largest_logit", "softmax_gain", "saturated"):
        assert rows[0][f"block.1.{name}"] == pytest.approx(rows[1][f"block.1.{name}"], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("kind", ["rotary", "bias", "fused"])
def test_bits_are_those_of_the_unwatched_run(kind: str) -> None:
    one, two = Net(kind), Net(kind)
    trained(one), trained(two, watched=False)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_block_that_is_called_three_times_has_three_rows() -> None:
    handle = trained(Net("rotary", calls=3))
    assert handle.places.depth == 3
    row = handle.row()
    norms = [row[f"block.{i}.norm"] for i in range(3)]
    assert len(set(norms)) == 3 and all(map(math.isfinite, norms))
    assert all(math.isfinite(row[f"block.{i}.entropy"]) for i in range(3))


@pytest.mark.parametrize(
    ("model", "depth"), [(Turns("rotary"), 6), (ChannelsFirst(), 3)], ids=["turns", "channels"]
)
def test_blocks_called_in_turns_and_features_before_tokens_are_seen_as_they_behave(
    model: nn.Module, depth: int
) -> None:
    handle = trained(model)
    row = handle.row()
    assert handle.places.depth == depth
    assert all(math.isfinite(row[f"block.{i}.{name}"]) for i in range(depth) for name in ("norm", "entropy"))
    assert math.isfinite(row["gradient_norm"])


def test_heads_are_stored_once_attention_is_seen_where_it_is_computed(tmp_path: Path) -> None:
    """Rows that cannot be rebuilt (biases) are refused at the first row, the only one of four on the slow clock."""
    trained(Net("bias"), to=tmp_path / "run")
    heads = edgewise.read(tmp_path / "run", heads=True, frame=False)
    for block in range(2):
        for head in range(4):
            assert math.isfinite(heads[f"block.{block}.head.{head}.entropy"][-1])


def test_an_error_in_the_forward_pass_is_the_users_own_and_leaves_no_mode_behind() -> None:
    model = Net("rotary", calls=3)
    criterion = nn.CrossEntropyLoss()
    handle = edgewise.watch(model, criterion=criterion, everything=True, quiet=True)
    with pytest.raises(IndexError):
        model(torch.full((2, 16), 99))
    assert torch.overrides._get_current_function_mode() is None
    assert handle.error == ""
    handle.close()


class FromTorch(nn.Module):
    """Torch's own attention, with a key of zeros beside the tokens, in blocks that a dictionary of tensors feeds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.readout = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.mix = nn.ModuleList(
            nn.MultiheadAttention(32, 4, batch_first=True, add_zero_attn=True) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)
        )

    def forward(self, x: Any) -> Tensor:
        x = self.table(x["words"] if isinstance(x, dict) else x)
        for i, (mix, feed) in enumerate(zip(self.mix, self.feed, strict=True)):
            y = self.norms[2 * i](x)
            x = x + mix(y, y, y, need_weights=bool(i))[0]
            x = x + feed(self.norms[2 * i + 1](x))
        return self.readout(x)


class WithoutCall(nn.TransformerEncoderLayer):
    """Torch's layer with an attention that uses the matrices of its own one, and never calls it."""

    def __init__(self) -> None:
        super().__init__(32, 4, 64, 0.0, batch_first=True, norm_first=True)

    def _sa_block(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        attention = self.self_attn
        qkv = F.linear(x, attention.in_proj_weight, attention.in_proj_bias).unflatten(-1, (3, 4, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        return attention.out_proj(mixed.transpose(1, 2).flatten(2))


class Picky(FromTorch):
    """No made-up batch has the key that it asks for."""

    def forward(self, x: Any) -> Tensor:
        return super().forward(x["words"])


def test_torchs_own_attention_is_seen_inside_its_call() -> None:
    handle = trained(FromTorch())
    row = handle.row()
    for block in range(2):
        assert 0 < row[f"block.{block}.entropy"] < math.log(17) and 0 < row[f"block.{block}.softmax_gain"] < 1


def test_attention_whose_module_is_not_called_is_seen_in_its_layer() -> None:
    """A module that no pass goes through is not compiled code."""
    torch.manual_seed(0)
    row = trained(nn.Sequential(nn.Embedding(64, 32), WithoutCall(), WithoutCall(), nn.Linear(32, 64))).row()
    assert all(math.isfinite(row[f"block.{i}.entropy"]) for i in range(2))


def test_a_model_is_mapped_on_the_first_batch_of_the_training_if_none_can_be_made_up(tmp_path: Path) -> None:
    model, plain = Picky(), Picky()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(64, (2, 16), generator=generator)
    optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in (model, plain)]
    criterion = nn.CrossEntropyLoss()
    options: dict[str, Any] = {"criterion": criterion, "everything": True, "quiet": True}
    with edgewise.watch(model, tmp_path / "run", optimizer=optimizers[0], **options) as handle:
        assert handle.places.depth == 0
        for _ in range(3):
            for each, optimizer in zip((model, plain), optimizers, strict=True):
                optimizer.zero_grad()
                criterion(each({"words": ids}).flatten(0, 1), ids.flatten()).backward()
                optimizer.step()
    assert handle.error == "" and handle.places.depth == 2
    rows = edgewise.read(tmp_path / "run", frame=False)
    assert len(rows["block.1.norm"]) == 3 and all(math.isfinite(x) for x in rows["block.1.norm"])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_a_watch_that_never_saw_a_batch_writes_its_folder_all_the_same(tmp_path: Path) -> None:
    edgewise.watch(Picky(), tmp_path / "run", quiet=True).close()
    assert (tmp_path / "run" / "run.json").exists()


def test_the_gradient_of_what_trains_is_seen_if_no_block_does() -> None:
    model = Net("rotary")
    model.blocks.requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("readout"))
    assert math.isfinite(trained(model).row()["gradient_norm"])
