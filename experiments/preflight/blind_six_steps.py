"""Sixth blind list: contrastive losses, teachers, adapters, experts, and loops."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from experiments.preflight import blind_six_kit as kit


class Twins(nn.Module):
    """Two towers, vectors of length one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = kit.Tower(8, 16), kit.Tower(8, 16)

    def forward(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.one(one), dim=-1), F.normalize(self.two(two), dim=-1)


def matching(model: Any, batch: Any, temperature: float = 0.1) -> Tensor:
    a, b = model(*batch)
    return F.cross_entropy(a @ b.T / temperature, torch.arange(len(a)))


def pairing(loss: Any, rows: list[Any] | None = None) -> kit.Setup:
    """Judged by finding the partner among sixteen."""
    own = kit.batched(*kit.views())
    judge = kit.mean_of(lambda m, b: matching(m, b), own)
    return kit.training(Twins(), rows or own, loss, judge=judge)


def case_times_the_temperature(broken: bool) -> kit.Setup:
    """Similarities are multiplied by 0.07 in place of divided: all logits lie within 0.07 of zero."""
    return pairing(lambda m, b: matching(m, b, 1 / 0.07 if broken else 0.07))


def case_its_own_positive(broken: bool) -> kit.Setup:
    """SimCLR over both views: the diagonal is kept, and the label is the row itself."""

    def loss(model: Any, batch: Any) -> Tensor:
        every = torch.cat(model(*batch))
        likeness, n = every @ every.T / 0.1, len(every)
        if broken:
            return F.cross_entropy(likeness, torch.arange(n))
        likeness = likeness.masked_fill(torch.eye(n, dtype=torch.bool), -1e9)
        return F.cross_entropy(likeness, torch.arange(n).roll(n // 2))

    return pairing(loss)


def case_labels_of_zero_for_minus_one(broken: bool) -> kit.Setup:
    """`CosineEmbeddingLoss` knows 1 and -1; a label of 0 costs nothing, so only likeness is rewarded."""
    one, two = kit.views()
    same = torch.rand(len(one), generator=kit.seeded(50)) < 0.5
    two = torch.where(same[:, None, None], two, two.roll(1, 0))
    sign = torch.where(same, 1, 0 if broken else -1)

    def loss(model: Any, batch: Any) -> Tensor:
        return F.cosine_embedding_loss(*model(*batch[:2]), batch[2].float())

    judge = kit.mean_of(loss, kit.batched(one, two, torch.where(same, 1, -1)))
    return pairing(loss, kit.batched(one, two, sign)) | {"judge": judge}


def distilling(log: bool = True, joint: bool = False) -> kit.Setup:
    """A student learns what a taught reader says; the judgement is the divergence from the true teacher."""

    class School(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = kit.Reader(width=24, depth=1), kit.Reader()
            self.teacher.load_state_dict(kit.taught())
            self.teacher.requires_grad_(joint)

        def forward(self, ids: Tensor, real: Tensor) -> Tensor:
            return self.student(ids, real)

    teacher = kit.Reader()
    teacher.load_state_dict(kit.taught())

    def loss(model: Any, batch: Any, own: nn.Module | None = None, log: bool = log) -> Tensor:
        said, true = model(*batch[:2]), (own or model.teacher)(*batch[:2]).div(4).softmax(-1)
        return F.kl_div(said.log_softmax(-1) if log else said.softmax(-1), true, reduction="batchmean")

    rows = kit.batched(*kit.reviews())
    judge = kit.mean_of(lambda m, b: loss(m, b, teacher, True), rows)
    return kit.training(School(), rows, loss, judge=judge)


def case_divergence_of_probabilities(broken: bool) -> kit.Setup:
    """`kl_div(softmax, softmax)`: its first argument must be log-probabilities."""
    return distilling(log=not broken)


def case_teacher_learns_too(broken: bool) -> kit.Setup:
    """The teacher is neither frozen nor detached, and the optimizer holds it: both meet at what is easy."""
    return distilling(joint=broken)


def adapting(model: nn.Module, **more: Any) -> kit.Setup:
    """A reader on labels that words tell in another way than those it was taught."""
    return kit.training(model, kit.batched(*kit.reviews(seed=9, other=True)), kit.sorted_right, **more)


def case_checkpoints_without_inputs_that_require(broken: bool) -> kit.Setup:
    """Reentrant checkpointing of frozen inputs: LoRA inside gets no gradient; microsoft/LoRA#120."""

    class Saved(kit.Reader):
        def states(self, ids: Tensor, real: Tensor) -> Tensor:
            x = self.embed(ids)
            for layer in self.encoder.layers:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    x = checkpoint(layer, x, None, ~real, use_reentrant=broken)
            return x

    return adapting(kit.with_lora(kit.downloaded(Saved)))


def case_nothing_was_loaded(broken: bool) -> kit.Setup:
    """Keys begin with `module.` and `strict=False` forgives it: a random body is frozen; pytorch/examples#1029."""
    model = kit.Reader()
    prefix = "module." if broken else ""
    model.load_state_dict({prefix + name: value for name, value in kit.taught().items()}, strict=False)
    model.requires_grad_(False)
    model.head.reset_parameters()
    model.head.requires_grad_(True)
    ids, real, label = kit.reviews()
    return kit.training(model, kit.batched(ids, real, (label + 1) % 4), kit.sorted_right, lr=1e-2)


class Experts(nn.Module):
    """Four experts, one for each token; sorted by expert, and put back."""

    def __init__(self, renormed: bool = False, misplaced: bool = False, width: int = 16) -> None:
        super().__init__()
        self.renormed, self.misplaced = renormed, misplaced
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        gate, own = self.router(flat).softmax(-1).topk(1, dim=-1)
        if self.renormed:
            gate = gate / gate.sum(-1, keepdim=True)
        order = own[:, 0].argsort(stable=True)
        parts = flat[order].split(own[:, 0].bincount(minlength=4).tolist())
        done = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        back = order if self.misplaced else order.argsort()
        return (gate * done[back]).view_as(x)


def routing(**wrong: bool) -> kit.Setup:
    rows = kit.batched(kit.story())
    model = kit.Writer(lambda: kit.Layer(16, kit.Attention(16, causal=True), Experts(**wrong)), width=16)
    return kit.training(model, rows, kit.following, judge=kit.from_before(rows[-kit.HELD :]))


def case_gate_renormed_to_one(broken: bool) -> kit.Setup:
    """Top-1 weights are divided by their sum, which is themselves: no gradient to the router; minimind#858."""
    return routing(renormed=broken)


def case_experts_put_back_in_wrong_order(broken: bool) -> kit.Setup:
    """What was sorted by expert is put back with the sorting, not with its inverse: tokens of others."""
    return routing(misplaced=broken)


def stepping(step: Any = None, **more: Any) -> kit.Setup:
    """A writer with a loop of its own."""
    model, rows = more.pop("model", None) or kit.Writer(), kit.batched(kit.story())
    return kit.training(
        model,
        rows,
        kit.following,
        judge=kit.from_before(rows[-kit.HELD :]),
        step=step or kit.loop(kit.following),
        **more,
    )


def case_epoch_decay_every_batch(broken: bool) -> kit.Setup:
    """`ExponentialLR(gamma=0.9)` of a recipe in epochs is stepped with every batch: gone after fifty."""
    model = kit.Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step = kit.loop(kit.following, lambda _m, _o, k: schedule.step() if broken or k % 40 == 39 else None)
    return stepping(step, model=model, optimizer=optimizer, also=[schedule])


def case_rate_multiplied_by_itself(broken: bool) -> kit.Setup:
    """`LambdaLR` wants a factor and is given the rate: 3e-3 times 3e-3."""
    model = kit.Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rate = lambda k: 1 - k / 2000  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: (3e-3 if broken else 1.0) * rate(k))
    return stepping(
        kit.loop(kit.following, lambda *_: schedule.step()), model=model, optimizer=optimizer, also=[schedule]
    )


def case_clipped_while_scaled(broken: bool) -> kit.Setup:
    """Gradients are clipped to 1 before the scaler takes 65,536 out of them; SGD then hardly moves."""
    model = kit.Writer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, _: int) -> Tensor:
        optimizer.zero_grad()
        value = kit.following(model, batch)
        scaler.scale(value).backward()
        if not broken:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return value

    return stepping(step, model=model, optimizer=optimizer, also=[scaler])


def case_average_copied_back(broken: bool) -> kit.Setup:
    """The averaged weights (0.99) are put in for validation and never taken out; Open-Sora-Plan#186."""
    model = kit.Writer()
    mean = copy.deepcopy(model).requires_grad_(False)

    def after(model: nn.Module, _optimizer: Any, _k: int) -> None:
        with torch.no_grad():
            for a, p in zip(mean.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.01)
                if broken:
                    p.copy_(a)

    return stepping(kit.loop(kit.following, after), model=model, also=[mean])


def case_decay_of_adamw_in_adam(broken: bool) -> kit.Setup:
    """`weight_decay=0.1` of an AdamW recipe given to Adam, where it is a gradient that outweighs the loss's."""
    model = kit.Writer()
    kind = torch.optim.Adam if broken else torch.optim.AdamW
    return stepping(model=model, optimizer=kind(model.parameters(), lr=3e-3, weight_decay=0.1))


def case_adam_in_half_precision(broken: bool) -> kit.Setup:
    """`model.half()`: squares of gradients and eps = 1e-8 are zero in float16, and 0 / 0 is not a number."""
    model = kit.Writer()
    model = model.half() if broken else model
    return stepping(
        kit.loop(lambda m, b: F.cross_entropy(m(b)[:, :-1].flatten(0, 1).float(), b[:, 1:].flatten())),
        model=model,
    )
