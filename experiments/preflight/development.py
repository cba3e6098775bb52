"""The development list: classes of mistakes, planted in twelve architectures; the author of the facts knows them.

Each mistake is a function of a healthy training (`networks.setup`) and its network that breaks it and returns the
truth; it returns None where it cannot be planted.
"""

# ruff: noqa: ARG001  mistakes and hooks have one signature each

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.preflight.networks import NETWORKS, TOKENS, VOCABULARY, WIDTH, Network, logits, setup

Truth = dict[str, Any]
Mistake = Callable[[dict[str, Any], Network], Truth | None]
MISTAKES: dict[str, Mistake] = {}


def mistake(function: Mistake) -> Mistake:
    MISTAKES[function.__name__] = function
    return function


def truth(*kinds: str, places: list[str] | None = None, follows: tuple[str, ...] = ()) -> Truth:
    return {"words": [[k] for k in kinds], "places": places or [], "consequences": [[k] for k in follows]}


def block(s: dict[str, Any], n: Network, i: int) -> nn.Module:
    return s["model"].get_submodule(f"{n.blocks}.{i}")


def renew(s: dict[str, Any], **options: Any) -> None:
    s["optimizer"] = torch.optim.AdamW(s["model"].parameters(), **({"lr": 1e-3} | options))


def matrix(s: dict[str, Any], n: Network, i: int) -> nn.Parameter:
    weight: nn.Parameter = s["model"].get_submodule(f"{n.blocks}.{i}.{n.matrix}").weight
    return weight


def causal(n: Network) -> bool:
    return n.task == "next"


# --- tensors ---------------------------------------------------------------------------------------------------------
@mistake
def nan_in_a_matrix(s: dict[str, Any], n: Network) -> Truth:
    matrix(s, n, 2).data[3, 4] = math.nan
    return truth("not finite", places=[f"{n.blocks}.2"])


@mistake
def memory_in_a_matrix(s: dict[str, Any], n: Network) -> Truth:
    matrix(s, n, 1).data[:8] = 3e33
    return truth("never written", places=[f"{n.blocks}.1"])


@mistake
def norm_gain_zero(s: dict[str, Any], n: Network) -> Truth:
    s["model"].get_submodule(f"{n.blocks}.1.{n.norm}").weight.data.zero_()
    return truth("silent norm", places=[f"{n.blocks}.1"], follows=("dead",))


@mistake
def outliers_in_a_matrix(s: dict[str, Any], n: Network) -> Truth:
    matrix(s, n, 1).data.view(-1)[torch.arange(0, 6000, 1000)] = 2.0
    return truth("outliers", places=[f"{n.blocks}.1"])


@mistake
def new_rows_too_large(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task == "image":
        return None
    s["model"].get_submodule(n.table).weight.data[-8:].normal_(std=1.0)
    return truth("rows", places=[n.table, n.head], follows=("first loss",))


@mistake
def repeated_layer(s: dict[str, Any], n: Network) -> Truth:
    stack = s["model"].get_submodule(n.blocks)
    for i in range(1, len(stack)):
        stack[i] = stack[0]
    renew(s)
    return truth("shared", places=[n.blocks])


@mistake
def copied_layers(s: dict[str, Any], n: Network) -> Truth:
    stack = s["model"].get_submodule(n.blocks)
    for i in range(1, len(stack)):
        stack[i].load_state_dict(stack[0].state_dict())
    return truth("copies", places=[n.blocks])


@mistake
def constant_matrix(s: dict[str, Any], n: Network) -> Truth:
    matrix(s, n, 1).data.fill_(0.02)
    return truth("symmetric", places=[f"{n.blocks}.1"])


@mistake
def one_matrix_too_large(s: dict[str, Any], n: Network) -> Truth:
    matrix(s, n, 2).data.mul_(12)
    return truth("unlike siblings", places=[f"{n.blocks}.2"])


@mistake
def all_too_small(s: dict[str, Any], n: Network) -> Truth:
    for p in s["model"].parameters():
        if p.dim() == 2:
            p.data.mul_(0.01)
    return truth("weight scale")


@mistake
def loud_readout(s: dict[str, Any], n: Network) -> Truth | None:
    head = s["model"].get_submodule(n.head)
    if n.task == "image" or head.weight is s["model"].get_submodule(n.table).weight:
        return None
    head.weight.data.mul_(60)
    return truth("first loss", places=[n.head], follows=("unlike siblings", "update ratio"))


# --- optimizer -------------------------------------------------------------------------------------------------------
@mistake
def layers_not_in_optimizer(s: dict[str, Any], n: Network) -> Truth:
    left = {id(p) for p in block(s, n, 3).parameters()}
    s["optimizer"] = torch.optim.AdamW([p for p in s["model"].parameters() if id(p) not in left], lr=1e-3)
    return truth("not in the optimizer", places=[f"{n.blocks}.3", "optimizer"])


@mistake
def optimizer_of_another_model(s: dict[str, Any], n: Network) -> Truth:
    s["optimizer"] = torch.optim.AdamW(copy.deepcopy(s["model"]).parameters(), lr=1e-3)
    return truth("optimizer holds other", places=["optimizer"])


@mistake
def rate_is_zero(s: dict[str, Any], n: Network) -> Truth:
    renew(s, lr=0.0)
    return truth("rate zero", places=["optimizer"])


@mistake
def rate_is_one(s: dict[str, Any], n: Network) -> Truth:
    renew(s, lr=1.0)
    return truth("rate is far too high", places=["optimizer"])


@mistake
def rate_is_tiny(s: dict[str, Any], n: Network) -> Truth:
    renew(s, lr=1e-9)
    return truth("update ratio", "rounded away", places=["optimizer", "model"])


@mistake
def decay_is_ten(s: dict[str, Any], n: Network) -> Truth:
    renew(s, weight_decay=10.0)
    return truth("decay", places=["optimizer"])


@mistake
def betas_swapped(s: dict[str, Any], n: Network) -> Truth:
    renew(s, betas=(0.999, 0.9))
    return truth("betas", places=["optimizer"])


@mistake
def eps_is_large(s: dict[str, Any], n: Network) -> Truth:
    renew(s, eps=1.0)
    return truth("eps", places=["optimizer"])


@mistake
def maximized(s: dict[str, Any], n: Network) -> Truth:
    renew(s, maximize=True)
    return truth("uphill", places=["optimizer", "step"], follows=("loss rises",))


@mistake
def adam_with_decay_for_adamw(s: dict[str, Any], n: Network) -> Truth:
    s["optimizer"] = torch.optim.Adam(s["model"].parameters(), lr=1e-3, weight_decay=0.1)
    return truth("decay", places=["optimizer"])


@mistake
def one_group_rate_zero(s: dict[str, Any], n: Network) -> Truth:
    own = {id(p) for p in block(s, n, 1).parameters()}
    rest = [p for p in s["model"].parameters() if id(p) not in own]
    groups = [{"params": rest}, {"params": list(block(s, n, 1).parameters()), "lr": 0.0}]
    s["optimizer"] = torch.optim.AdamW(groups, lr=1e-3)
    return truth("rate of a group is zero", places=["optimizer"])


@mistake
def one_group_rate_typo(s: dict[str, Any], n: Network) -> Truth:
    own = {id(p) for p in block(s, n, 1).parameters()}
    rest = [p for p in s["model"].parameters() if id(p) not in own]
    groups = [{"params": rest}, {"params": list(block(s, n, 1).parameters()), "lr": 1e-7}]
    s["optimizer"] = torch.optim.AdamW(groups, lr=1e-3)
    return truth("rates of the groups", "one group", places=["optimizer"])


@mistake
def half_precision_weights(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task == "image" or n.name in ("own llama", "torch layers"):
        return None
    s["model"].to(torch.bfloat16)
    renew(s, lr=1e-5)
    return truth("rounded away", follows=("buffer",))


# --- loss and labels -------------------------------------------------------------------------------------------------
def next_loss(change: Callable[[Tensor], Tensor] = lambda x: x, **options: Any) -> Any:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(
            change(logits(model, ids[:, :-1]).flatten(0, 1)), ids[:, 1:].flatten(), **options
        )

    return loss


def planted_loss(s: dict[str, Any], n: Network, change: Callable[[Tensor], Tensor], **options: Any) -> bool:
    if n.task == "next":
        s["loss"] = next_loss(change, **options)
    elif n.task == "image":
        s["loss"] = lambda model, batch: F.cross_entropy(change(model(batch[0])), batch[1], **options)
    return n.task != "masked"


@mistake
def softmax_twice(s: dict[str, Any], n: Network) -> Truth | None:
    return truth("bounded", places=[n.head]) if planted_loss(s, n, lambda x: x.softmax(-1)) else None


@mistake
def tanh_before_the_loss(s: dict[str, Any], n: Network) -> Truth | None:
    return truth("bounded", places=[n.head]) if planted_loss(s, n, torch.tanh) else None


@mistake
def relu_before_the_loss(s: dict[str, Any], n: Network) -> Truth | None:
    return (
        truth("activation follows the readout", places=[n.head]) if planted_loss(s, n, torch.relu) else None
    )


@mistake
def loss_has_wrong_sign(s: dict[str, Any], n: Network) -> Truth:
    right = s["loss"]
    s["loss"] = lambda model, batch: -right(model, batch)
    return truth("wrong sign", places=["loss"], follows=("loss rises",))


@mistake
def loss_is_a_sum(s: dict[str, Any], n: Network) -> Truth | None:
    return truth("sum", places=["loss"]) if planted_loss(s, n, lambda x: x, reduction="sum") else None


@mistake
def smoothing_is_large(s: dict[str, Any], n: Network) -> Truth | None:
    return (
        truth("smoothing", places=["loss"]) if planted_loss(s, n, lambda x: x, label_smoothing=0.9) else None
    )


@mistake
def nll_of_logits(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "next":
        return None
    s["loss"] = lambda model, ids: F.nll_loss(logits(model, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    return truth("log-probabilities", places=["loss", n.head], follows=("loss rises", "first loss"))


@mistake
def labels_shifted_twice(s: dict[str, Any], n: Network) -> Truth | None:
    if not causal(n):
        return None
    s["loss"] = lambda m, ids: F.cross_entropy(
        logits(m, ids[:, :-1])[:, :-1].flatten(0, 1), ids[:, 2:].flatten()
    )
    return truth("shifted", places=["labels"])


@mistake
def labels_not_shifted(s: dict[str, Any], n: Network) -> Truth | None:
    if not causal(n):
        return None
    s["loss"] = lambda m, ids: F.cross_entropy(logits(m, ids[:, :-1]).flatten(0, 1), ids[:, :-1].flatten())
    return truth("not shifted", places=["labels"])


@mistake
def labels_of_another_sample(s: dict[str, Any], n: Network) -> Truth | None:
    if not causal(n):
        return None
    s["loss"] = lambda m, ids: F.cross_entropy(
        logits(m, ids[:, :-1]).flatten(0, 1), ids.roll(1, 0)[:, 1:].flatten()
    )
    return truth("other tokens", places=["labels"])


@mistake
def labels_reversed(s: dict[str, Any], n: Network) -> Truth | None:
    if not causal(n):
        return None
    s["loss"] = lambda m, ids: F.cross_entropy(
        logits(m, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flip(1).flatten()
    )
    return truth("reversed", places=["labels"])


@mistake
def words_not_masked(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "masked":
        return None

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids[:, :-1]
        hidden = (torch.arange(ids.shape[1]) * 7 + ids[:, :1]) % 5 == 0
        return F.cross_entropy(logits(model, ids).flatten(0, 1), ids.masked_fill(~hidden, -100).flatten())

    s["loss"] = loss
    return truth("not masked", places=["labels"])


@mistake
def padding_is_scored(s: dict[str, Any], n: Network) -> Truth | None:
    if not causal(n):
        return None
    for batch in s["batches"]:
        for i, row in enumerate(batch):
            row[TOKENS - 3 - 2 * i :] = 0
    return truth("padding", places=["labels"])


@mistake
def labels_are_constant(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "image":
        return None
    s["batches"] = [(x, torch.full_like(y, 3)) for x, y in s["batches"]]
    s["batches"] = [(torch.cat([x, x + 0.1]), torch.cat([y, y])) for x, y in s["batches"]]
    return truth("labels", places=["labels"])


@mistake
def detached_loss(s: dict[str, Any], n: Network) -> Truth:
    right = s["loss"]
    s["loss"] = lambda model, batch: right(model, batch).detach()
    return truth("no gradient", places=["loss"])


# --- flow and wiring -------------------------------------------------------------------------------------------------
def inside(
    kind: str, *names: str, each: bool = False, task: str = "next", block_level: bool = False
) -> Mistake:
    def plant(s: dict[str, Any], n: Network) -> Truth | None:
        if not n.own or (task and n.task != task) or (kind == "norm on the skip" and n.norm == "post"):
            return None
        for i in range(4) if each else (1,):
            target = block(s, n, i)
            if not block_level:
                target = target.attn
            target.mistake = kind
        if s["model"].__dict__.get("post") and kind in ("no skip", "double skip", "norm on the skip"):
            return None
        return truth(*names, places=[n.blocks])

    return plant


INSIDE = {
    "mask_missing": inside("no mask", "sees the token"),
    "mask_transposed": inside("transposed mask", "sees the token", each=True),
    "mask_inverted": inside("inverted mask", "sees the token"),
    "mask_after_softmax": inside("after", "after the softmax", each=True),
    "mask_is_weak": inside("weak", "dampens", each=True),
    "only_the_diagonal": inside("diagonal only", "no token sees another", each=True),
    "softmax_over_queries": inside("axis", "wrong axis", each=True),
    "heads_are_equal": inside("heads", "heads", each=True),
    "heads_reshaped": inside("reshape", "sees the token"),
    "no_activation": inside("no activation", "without an activation", each=True, block_level=True),
    "one_skip_missing": inside("no skip", "residual connection is missing", block_level=True),
    "skips_twice": inside("double skip", "added twice", each=True, block_level=True),
    "norm_is_on_the_skip": inside("norm on the skip", "after the norm", each=True, block_level=True),
}
MISTAKES |= INSIDE


@mistake
def scale_missing(s: dict[str, Any], n: Network) -> Truth | None:
    if not n.own:
        return None
    for i in range(4):
        block(s, n, i).attn.mistake = "scale"
        block(s, n, i).attn.qkv.weight.data.normal_(std=1.2 / math.sqrt(WIDTH) * 2)
    return truth("saturated", places=[n.blocks])


@mistake
def positions_missing(s: dict[str, Any], n: Network) -> Truth | None:
    if n.name != "own encoder":
        return None
    s["model"].mistake = "no positions"
    return truth("order", "positions", places=[])


@mistake
def positions_equal(s: dict[str, Any], n: Network) -> Truth | None:
    if not n.own or n.task == "image" or s["model"].pos is None:
        return None
    s["model"].mistake = "same position"
    return truth("same position", places=["pos"])


@mistake
def final_norm_missing(s: dict[str, Any], n: Network) -> Truth | None:
    if not n.own or n.task == "image" or s["model"].post:
        return None
    s["model"].mistake = "no final norm"
    return truth("final norm", places=["norm", n.blocks])


@mistake
def block_detached(s: dict[str, Any], n: Network) -> Truth:
    def cut(module: nn.Module, args: Any, out: Any) -> Any:
        return out.detach() if torch.is_tensor(out) else (out[0].detach(), *out[1:])

    block(s, n, 2).register_forward_hook(cut)
    return truth("no gradient", "graph is cut", places=[f"{n.blocks}.2"])


@mistake
def future_added(s: dict[str, Any], n: Network) -> Truth | None:
    if not causal(n):
        return None

    def mix(module: nn.Module, args: Any, out: Any) -> Any:
        x = out if torch.is_tensor(out) else out[0]
        x = x + 0.3 * x.roll(-1, 1)
        return x if torch.is_tensor(out) else (x, *out[1:])

    block(s, n, 1).register_forward_hook(mix)
    return truth("sees the token", places=[f"{n.blocks}.1"])


@mistake
def samples_are_mixed(s: dict[str, Any], n: Network) -> Truth:
    def mix(module: nn.Module, args: Any, out: Any) -> Any:
        x = out if torch.is_tensor(out) else out[0]
        x = x - x.mean(0, keepdim=True)
        return x if torch.is_tensor(out) else (x, *out[1:])

    block(s, n, 1).register_forward_hook(mix)
    return truth("samples", places=[f"{n.blocks}.1", "model"])


@mistake
def input_is_overwritten(s: dict[str, Any], n: Network) -> Truth:
    module = s["model"].get_submodule(n.table)
    module.register_forward_hook(lambda m, a, out: torch.ones_like(out) * out.mean() * 0)
    return truth(
        "do not depend on the input", places=[], follows=("no gradient", "dead", "order", "past", "collapse")
    )


@mistake
def branch_is_zero(s: dict[str, Any], n: Network) -> Truth:
    module = s["model"].get_submodule(f"{n.blocks}.2.{n.matrix}")
    module.register_forward_hook(lambda m, a, out: out * 0)
    return truth("dead", "never get a gradient", places=[f"{n.blocks}.2"], follows=("unlike",))


@mistake
def layers_in_a_list(s: dict[str, Any], n: Network) -> Truth | None:
    if not n.own:
        return None
    stack = list(s["model"].blocks)
    del s["model"].blocks
    s["model"].__dict__["blocks"] = stack
    renew(s)
    return truth("not registered", places=["model", "", n.blocks])


@mistake
def dropout_is_high(s: dict[str, Any], n: Network) -> Truth:
    drop = nn.Dropout(0.9)
    target = s["model"].get_submodule(f"{n.blocks}.1.{n.matrix}")
    target.register_forward_hook(lambda m, a, out: F.dropout(out, drop.p, m.training))
    return truth("dropout", places=[f"{n.blocks}.1"], follows=("loss rises",))


@mistake
def dropout_in_eval(s: dict[str, Any], n: Network) -> Truth:
    target = s["model"].get_submodule(f"{n.blocks}.1.{n.matrix}")
    target.register_forward_hook(lambda m, a, out: F.dropout(out, 0.1))
    return truth("eval mode", places=[f"{n.blocks}.1"])


@mistake
def left_in_eval_mode(s: dict[str, Any], n: Network) -> Truth | None:
    if not any(isinstance(m, nn.Dropout) and m.p > 0 for m in s["model"].modules()):
        return None
    s["model"].eval()
    return truth("eval mode")


# --- loop ------------------------------------------------------------------------------------------------------------
def loop(s: dict[str, Any], body: Callable[..., Any], sgd: bool = False) -> None:
    loss = s["loss"]
    if sgd:
        s["optimizer"] = torch.optim.SGD(s["model"].parameters(), lr=1e-3)
    s["step"] = lambda model, optimizer, batch, k: body(model, optimizer, batch, loss)


@mistake
def zero_grad_missing(s: dict[str, Any], n: Network) -> Truth:
    def body(model: nn.Module, optimizer: Any, batch: Any, loss: Any) -> Tensor:
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value

    loop(s, body)
    return truth("zero_grad", places=["step"])


@mistake
def zero_grad_between(s: dict[str, Any], n: Network) -> Truth:
    def body(model: nn.Module, optimizer: Any, batch: Any, loss: Any) -> Tensor:
        value = loss(model, batch)
        value.backward()
        optimizer.zero_grad()
        optimizer.step()
        return value

    loop(s, body)
    return truth("zero_grad", places=["step"])


@mistake
def clipped_before_backward(s: dict[str, Any], n: Network) -> Truth:
    def body(model: nn.Module, optimizer: Any, batch: Any, loss: Any) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        value.backward()
        optimizer.step()
        return value

    loop(s, body)
    return truth("clip", places=["step"])


@mistake
def clipped_to_nothing(s: dict[str, Any], n: Network) -> Truth:
    def body(model: nn.Module, optimizer: Any, batch: Any, loss: Any) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
        optimizer.step()
        return value

    loop(s, body, sgd=True)
    return truth("clip", places=["step"])


@mistake
def micro_batches_summed(s: dict[str, Any], n: Network) -> Truth:
    def body(model: nn.Module, optimizer: Any, batch: Any, loss: Any) -> Tensor:
        optimizer.zero_grad()
        for _ in range(4):
            value = loss(model, batch)
            value.backward()
        optimizer.step()
        return value

    loop(s, body)
    return truth("summed", places=["step"])


@mistake
def scale_not_undone(s: dict[str, Any], n: Network) -> Truth:
    def body(model: nn.Module, optimizer: Any, batch: Any, loss: Any) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        (value * 1024).backward()
        optimizer.step()
        return value

    loop(s, body)
    return truth("scaled", places=["step"])


@mistake
def step_before_backward(s: dict[str, Any], n: Network) -> Truth:
    def body(model: nn.Module, optimizer: Any, batch: Any, loss: Any) -> Tensor:
        value = loss(model, batch)
        optimizer.step()
        optimizer.zero_grad()
        value.backward()
        return value

    loop(s, body)
    return truth("before backward", places=["step"])


@mistake
def schedule_of_epochs(s: dict[str, Any], n: Network) -> Truth:
    scheduler = torch.optim.lr_scheduler.StepLR(s["optimizer"], 2, 0.1)
    s["also"] = [scheduler]

    def body(model: nn.Module, optimizer: Any, batch: Any, loss: Any) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        scheduler.step()
        return value

    loop(s, body)
    return truth("learning rate falls", places=["step", "optimizer"])


# --- data ------------------------------------------------------------------------------------------------------------
@mistake
def same_batch_again(s: dict[str, Any], n: Network) -> Truth:
    s["batches"] = [s["batches"][0]] * 4
    return truth("same batch", places=["data"])


@mistake
def images_not_normalized(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "image":
        return None
    s["batches"] = [(128 + 60 * x, y) for x, y in s["batches"]]
    return truth("not normalized", places=["data"])


@mistake
def nan_in_the_data(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task != "image":
        return None
    s["batches"][2][0][1, 0, 3, 3] = math.nan
    return truth("NaN", places=["data"])


@mistake
def ids_out_of_range(s: dict[str, Any], n: Network) -> Truth | None:
    if n.task == "image":
        return None
    s["batches"][0][0, 3] = VOCABULARY + 5
    return truth("does not run", places=[n.table, "loss"])


def more(
    networks: list[Network] = NETWORKS,
) -> Iterator[tuple[str, str, Callable[[], dict[str, Any] | None]]]:
    """Every mistake in every network, and every network as it is; None if a mistake cannot be planted there."""

    def broken(network: Network, plant: Mistake) -> dict[str, Any] | None:
        made = setup(network)
        wanted = plant(made, network)
        return None if wanted is None else made | {"truth": wanted}

    for network in networks:
        yield f"{network.name}: healthy", "twin", lambda n=network: setup(n)
        for name, plant in MISTAKES.items():
            yield f"{network.name}: {name}", "broken", lambda n=network, p=plant: broken(n, p)
