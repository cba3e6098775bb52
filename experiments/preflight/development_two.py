"""The second half of the development list: classes that the first blind list added, in the same architectures."""

# ruff: noqa: ARG001  mistakes and hooks have one signature each

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.preflight.development import (  # noqa: F401
    MISTAKES,
    Truth,
    block,
    inside,
    loop,
    mistake,
    more,
    renew,
    truth,
)
from experiments.preflight.networks import NETWORKS as ALL
from experiments.preflight.networks import TOKENS, WIDTH, Network, logits, setup


def plain(after: Callable[[nn.Module], None] = lambda model: None) -> Callable[..., Tensor]:
    def body(model: nn.Module, optimizer: Any, batch: Any, loss: Any) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        after(model)
        return value

    return body


# --- loop ------------------------------------------------------------------------------------------------------------
@mistake
def accumulation_is_wiped(s: dict[str, Any], n: Network) -> Truth:
    loss = s["loss"]

    def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch) / 4
        value.backward()
        if k % 4 == 3:
            optimizer.step()
        return value

    s["step"] = step
    return truth("thrown away", places=["step"])


@mistake
def average_is_copied_back(s: dict[str, Any], n: Network) -> Truth:
    slow = [p.detach().clone() for p in s["model"].parameters()]

    def after(model: nn.Module) -> None:
        with torch.no_grad():
            for average, fast in zip(slow, model.parameters(), strict=True):
                fast.copy_(average.lerp_(fast, 0.01))

    loop(s, plain(after))
    return truth("undone", places=["step"])


@mistake
def eval_mode_after_a_validation(s: dict[str, Any], n: Network) -> Truth | None:
    if not any(isinstance(m, nn.Dropout) and m.p > 0 for m in s["model"].modules()):
        return None
    loop(s, plain(lambda model: model.eval() and None))
    return truth("eval mode", places=["step"])


def scheduled(s: dict[str, Any], scheduler: Any) -> None:
    s["also"] = [scheduler]
    loop(s, plain(lambda model: scheduler.step()))


@mistake
def warm_up_by_whole_numbers(s: dict[str, Any], n: Network) -> Truth:
    scheduled(s, torch.optim.lr_scheduler.LambdaLR(s["optimizer"], lambda k: min(1, (k + 1) // 100)))
    return truth("warm-up does not rise", places=["step", "optimizer"])


@mistake
def cosine_of_a_few_steps(s: dict[str, Any], n: Network) -> Truth:
    scheduled(s, torch.optim.lr_scheduler.CosineAnnealingLR(s["optimizer"], T_max=4))
    return truth("swings", "learning rate falls", places=["step", "optimizer"])


# --- loss and labels -------------------------------------------------------------------------------------------------
@mistake
def many_labels_in_a_cross_entropy(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "image":
        return None
    tags = [(F.one_hot(y, 10) + F.one_hot((y + 3) % 10, 10)).float() for _, y in s["batches"]]
    s["batches"] = [(x, t) for (x, _), t in zip(s["batches"], tags, strict=True)]
    return truth("sum to one", places=["labels", "loss"])


@mistake
def relu_after_a_regression(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "image":
        return None
    s["loss"] = lambda m, b: F.mse_loss(m(b[0]).relu()[:, 0], b[1].float() / 5 - 1)
    return truth("cannot reach", places=["head", "labels"])


@mistake
def balance_is_subtracted(s: dict[str, Any], n: Network) -> Truth | None:
    right, table = s["loss"], s["model"].get_submodule(n.table).weight
    s["loss"] = lambda model, batch: right(model, batch) - 0.1 - 0.01 * table.pow(2).sum()
    return truth("subtracted", places=["loss"]) if n.task != "masked" else None


@mistake
def visible_words_are_scored(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "masked":
        return None

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids[:, :-1]
        hidden = (torch.arange(ids.shape[1]) * 7 + ids[:, :1]) % 5 == 0
        return F.cross_entropy(logits(model, ids.masked_fill(hidden, 2)).flatten(0, 1), ids.flatten())

    s["loss"] = loss
    return truth("visible", places=["labels"])


@mistake
def one_batch_without_labels(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "next":
        return None
    s["batches"] = [(ids[:, :-1], ids[:, 1:].clone()) for ids in s["batches"]]
    s["batches"][2][1].fill_(-100)
    s["loss"] = lambda m, b: F.cross_entropy(logits(m, b[0]).flatten(0, 1), b[1].flatten())
    return truth("no label that is scored", places=["labels", "data"])


@mistake
def target_among_the_features(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "image":
        return None
    for x, y in s["batches"]:
        x[:, 1, 7, 7] = y.float() / 5 - 1
    s["loss"] = lambda m, b: F.mse_loss(m(b[0])[:, 0], b[1].float() / 5 - 1)
    return truth("among the inputs", places=["data"])


@mistake
def temperature_is_inverted(s: dict[str, Any], n: Network) -> Truth | None:
    return truth("bounded", places=["loss"]) if contrast(s, n, 20.0) else None


def contrast(s: dict[str, Any], n: Network, temperature: float) -> bool:
    """Two views of images, each asked for its own partner."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        one, other = (F.normalize(model(batch[0] + 0.1 * k), dim=-1) for k in (0, 1))
        return F.cross_entropy(one @ other.T / temperature, torch.arange(len(one)))

    s["loss"] = loss
    return n.task == "image"


# --- positions and padding -------------------------------------------------------------------------------------------
@mistake
def positions_of_samples(s: dict[str, Any], n: Network) -> Truth | None:
    if not n.own or n.task == "image" or s["model"].pos is None:
        return None
    s["model"].mistake = "batch position"
    return truth("count samples", places=["pos"])


@mistake
def positions_are_not_added(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "image":
        return None
    s["model"].mistake = "no positions"
    return truth("not used", places=["pos"])


@mistake
def rotary_on_queries(s: dict[str, Any], n: Network) -> Truth | None:
    if n.name != "own llama":
        return None
    for i in range(4):
        block(s, n, i).attn.mistake = "rotary queries"
    return truth("attention does not see them", places=[n.blocks])


@mistake
def alibi_with_the_wrong_sign(s: dict[str, Any], n: Network) -> Truth | None:
    if not n.own or n.task != "next":
        return None
    for i in range(4):
        block(s, n, i).attn.slope = 0.5
    return truth("distant keys", places=[n.blocks])


def packed(s: dict[str, Any], n: Network, kept_apart: bool) -> bool:
    """Two documents in every row, as their position ids say."""
    if not n.own or n.task != "next":
        return False
    places = torch.cat([torch.arange(TOKENS // 2), torch.arange(TOKENS - TOKENS // 2)]).expand(6, -1)
    s["batches"] = [{"ids": i[:, :-1], "labels": i[:, 1:], "position_ids": places} for i in s["batches"]]
    apart = torch.block_diag(*[torch.ones(TOKENS // 2, TOKENS // 2)] * 2).bool()
    for i in range(4):
        block(s, n, i).attn.apart = apart if kept_apart else None
    s["loss"] = lambda m, b: F.cross_entropy(m(b["ids"]).flatten(0, 1), b["labels"].flatten())
    return True


@mistake
def documents_see_one_another(s: dict[str, Any], n: Network) -> Truth | None:
    return truth("packed into one row", places=[n.blocks]) if packed(s, n, False) else None


def filled(s: dict[str, Any], n: Network, padding: int) -> bool:
    """Rows of different lengths, filled with token 0, whose classes are asked for, and the mask of the text."""
    if not n.own or n.task != "masked":
        return False
    s["model"].head = nn.Linear(WIDTH, 4)
    s["model"].tok.padding_idx = padding
    rows = []
    for ids in s["batches"]:
        text = torch.arange(TOKENS + 1) < TOKENS - 2 * torch.arange(len(ids))[:, None]
        ids = torch.where(torch.rand(ids.shape) < 0.1, 7, ids)
        rows.append({"ids": ids * text, "mask": text.long(), "labels": ids[:, 0] % 4})
    renew(s)
    s["batches"] = rows

    def loss(model: nn.Module, b: dict[str, Tensor]) -> Tensor:
        keep = b["mask"][..., None].float()
        out = model(b["ids"], b["mask"] == 0)
        return F.cross_entropy((out * keep).sum(1) / keep.sum(1), b["labels"])

    s["loss"] = loss
    return True


@mistake
def padding_row_is_a_word(s: dict[str, Any], n: Network) -> Truth | None:
    return truth("padding_idx", places=[n.table]) if filled(s, n, 7) else None


@mistake
def classifier_without_the_mask(s: dict[str, Any], n: Network) -> Truth | None:
    if not filled(s, n, 0):
        return None
    s["loss"] = lambda m, b: F.cross_entropy(m(b["ids"]).mean(1), b["labels"])
    return truth("mask is not applied", places=[n.blocks])


# --- wiring ----------------------------------------------------------------------------------------------------------
class Summed(nn.Module):
    """RMSNorm that divides by the root of the sum, not of the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6) * self.weight


@mistake
def norm_divides_by_the_sum(s: dict[str, Any], n: Network) -> Truth | None:
    if not n.own or n.name == "own post-norm":
        return None
    for i in range(4):
        block(s, n, i).norm1, block(s, n, i).norm2 = Summed(), Summed()
    renew(s)
    return truth("not of size one", places=[n.blocks])


MISTAKES["no_skips_at_all"] = inside("no skip", "residual connections", each=True, block_level=True)


@mistake
def new_head_is_frozen(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "image":
        return None
    s["model"].requires_grad_(False)
    for module in s["model"].blocks.modules():
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(std=0.05)
    s["model"].blocks[0].requires_grad_(True)
    s["optimizer"] = torch.optim.AdamW(s["model"].blocks[0].parameters(), lr=1e-3)
    return truth("frozen layer was never trained", places=["head"])


def twins() -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    """The same trainings without the mistake, where they differ from a network's own."""

    def made(name: str, change: Callable[..., Any], *others: Any) -> Callable[[], dict[str, Any]]:
        def build() -> dict[str, Any]:
            network = next(x for x in ALL if x.name == name)
            s = setup(network)
            assert change(s, network, *others) is not False
            return s

        return build

    def right_bias(s: dict[str, Any], n: Network) -> None:
        for i in range(4):
            block(s, n, i).attn.slope = -0.5

    def warm(s: dict[str, Any], n: Network) -> None:
        scheduled(s, torch.optim.lr_scheduler.LambdaLR(s["optimizer"], lambda k: min(1, (k + 1) / 100)))

    def average(s: dict[str, Any], n: Network) -> None:
        slow = [p.detach().clone() for p in s["model"].parameters()]

        def after(model: nn.Module) -> None:
            for one, fast in zip(slow, model.parameters(), strict=True):
                one.lerp_(fast.detach(), 0.01)

        loop(s, plain(after))

    def validated(s: dict[str, Any], n: Network) -> None:
        s["model"].eval()
        right = s["loss"]

        def step(model: nn.Module, optimizer: Any, batch: Any, k: int) -> Tensor:
            model.train()
            value = plain()(model, optimizer, batch, right)
            model.eval()
            return value

        s["step"] = step

    def signed(s: dict[str, Any], n: Network) -> None:
        s["loss"] = lambda m, b: F.mse_loss(m(b[0])[:, 0], b[1].float() / 5 - 1)

    return [
        ("contrastive, temperature 0.05", made("vision", contrast, 0.05)),
        ("alibi", made("own unfused", right_bias)),
        ("warm-up over 100 steps", made("own gpt", warm)),
        ("an average beside the weights", made("own gpt", average)),
        ("train mode inside the step", made("torch layers", validated)),
        ("documents kept apart", made("own gpt", packed, True)),
        ("padded rows with their mask", made("own encoder", filled, 0)),
        ("negative regression targets", made("vision", signed)),
    ]
