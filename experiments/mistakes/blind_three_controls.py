"""Third blind list: unusual but healthy runs of 300 steps; every alarm is false here."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.mistakes.blind_three_benches import (
    HELD,
    Bench,
    bench,
    both_ways,
    pairs,
    run,
    sentences,
    source,
)

CONTROLS_ONLY: dict[str, list[str]] = {
    "rows_grow_in_jumps": ["gpt", "llama"],
    "warm_restarts": ["mixer", "gpt"],
    "thawing_from_the_top": ["bert", "vit"],
    "accumulation_of_four": ["sound", "t5"],
    "smoothing_and_dropout": ["vit", "bert"],
    "bfloat16_autocast": ["gpt", "mixer"],
    "fine_tuning_at_a_small_rate": ["llama", "words"],
    "four_rows_a_batch": ["moe", "words"],
    "one_spike_that_recovers": ["series", "gpt"],
    "rewards_of_drawn_actions": ["words"],
    "new_task_at_150": ["words", "t5"],
    "stable_then_decay_to_zero": ["vit", "moe"],
    "noisy_labels": ["sound", "bert"],
    "average_evaluated_and_restored": ["llama", "vit"],
    "sgd_always_clipped": ["gpt", "sound"],
    "batch_grows_rate_stays": ["mixer", "series"],
    "sources_in_turn": ["series", "vit"],
    "adamw_to_sgd_with_its_own_rate": ["gpt"],
    "temperature_learned_with_a_clamp": ["towers"],
    "mixup": ["mixer", "vit"],
    "tied_readout": ["gpt"],
    "sharp_minority": ["words"],
    "checkpoint_restored_whole": ["moe", "sound"],
    "one_cycle_with_high_peak": ["mixer", "towers"],
    "already_learned": ["t5", "series"],
    "frozen_body": ["vit", "bert"],
}


def control_rows_grow_in_jumps(architecture: str) -> dict[str, Any]:
    """Curriculum: rows of 5, then 10, then 20 tokens."""
    own = bench(architecture)
    return run(own, own.adamw(), feed=lambda k: own.data(k, own.rows)[:, : (5, 10, 20)[min(2, k // 80)]])


def control_warm_restarts(architecture: str) -> dict[str, Any]:
    own = bench(architecture)
    optimizer = own.adamw()
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50, 2)
    return run(own, optimizer, after=lambda k: schedule.step())


def control_thawing_from_the_top(architecture: str) -> dict[str, Any]:
    """The head first, then a few more parts every 20 steps, each with the state of a fresh parameter."""
    own = bench(architecture)
    parts = list(own.model.parameters())
    for p in parts[:-2]:
        p.requires_grad_(False)

    def before(k: int) -> None:
        for p in parts[-(2 + 6 * (k // 20)) :]:
            p.requires_grad_(True)

    return run(own, own.adamw(), before=before)


def control_accumulation_of_four(architecture: str) -> dict[str, Any]:
    own = bench(architecture)
    optimizer = own.adamw()

    def step(k: int) -> Tensor:
        value = own.loss(own.model, own.data(k, 16)) / 4
        value.backward()
        if k % 4 == 3:
            nn.utils.clip_grad_norm_(own.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return value.detach() * 4

    return {"model": own.model, "step": step, "steps": 300, "held": own.held}


def control_smoothing_and_dropout(architecture: str) -> dict[str, Any]:
    own = bench(architecture)
    for module in own.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:  # noqa: ARG001
        out = m(pixel_values=batch[0]) if architecture == "vit" else m(input_ids=batch[0])
        return F.cross_entropy(out.logits, batch[1], label_smoothing=0.15)

    return run(own, own.adamw(), loss=loss)


def control_bfloat16_autocast(architecture: str) -> dict[str, Any]:
    own = bench(architecture)

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:  # noqa: ARG001
        with torch.autocast("cpu", torch.bfloat16):
            return own.loss(m, batch).float()

    return run(own, own.adamw(), loss=loss)


def control_fine_tuning_at_a_small_rate(architecture: str) -> dict[str, Any]:
    """A body that trained 80 steps on other data of its kind, then a twentieth of the rate."""
    own = bench(architecture)
    first = own.adamw()
    for k in range(80):
        first.zero_grad()
        own.loss(own.model, own.data(k + 7000, own.rows)).backward()
        first.step()
    first.zero_grad()
    return run(own, own.adamw(lr=own.rate / 20))


def control_four_rows_a_batch(architecture: str) -> dict[str, Any]:
    own = bench(architecture)
    return run(own, own.adamw(lr=own.rate / 2), feed=lambda k: own.data(k, 4))


def control_one_spike_that_recovers(architecture: str) -> dict[str, Any]:
    """One batch in 100 is of another kind (shuffled); the clipped step takes it in its stride."""
    own = bench(architecture)

    def feed(k: int) -> Tensor:
        x = own.data(k, own.rows)
        if k % 100 != 60:
            return x
        return x[:, torch.randperm(x.shape[1], generator=source(k))]

    return run(
        own,
        own.adamw(),
        feed=feed,
        gradients=lambda k: nn.utils.clip_grad_norm_(own.model.parameters(), 1.0) and None,
    )


def control_rewards_of_drawn_actions(architecture: str) -> dict[str, Any]:
    """REINFORCE with a baseline: noisy, and the loss wanders around zero."""
    own = bench(architecture)

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:  # noqa: ARG001
        log = m(batch[0]).log_softmax(-1)
        action = torch.multinomial(log.detach().exp(), 1)
        reward = (action[:, 0] == batch[1]).float()
        return -((reward - reward.mean()) * log.gather(1, action)[:, 0]).mean()

    return run(own, own.adamw(lr=1e-3), loss=loss, feed=lambda k: sentences(k, 96))


def control_new_task_at_150(architecture: str) -> dict[str, Any]:
    """By design, other labels from step 150 on: the loss jumps once and falls again."""
    own = bench(architecture)

    def feed(k: int) -> Any:
        now = own.data(k, own.rows)
        if k < 150:
            return now
        return (
            {**now, "labels": now["labels"].flip(1)} if isinstance(now, dict) else (now[0], (now[1] + 1) % 4)
        )

    return run(own, own.adamw(), feed=feed)


def control_stable_then_decay_to_zero(architecture: str) -> dict[str, Any]:
    """Warm-up of 30, stable, then linear to exactly zero at the last step."""
    own = bench(architecture)
    optimizer = own.adamw()
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min((k + 1) / 30, 1.0, max(0.0, (300 - k) / 60))
    )
    return run(own, optimizer, after=lambda k: schedule.step())


def control_noisy_labels(architecture: str) -> dict[str, Any]:
    """Three labels in ten are wrong from the first step to the last."""
    own = bench(architecture)

    def feed(k: int) -> Any:
        one, label = own.data(k, own.rows)
        wrong = torch.rand(len(label), generator=source(k + 1)) < 0.3
        return one, torch.where(wrong, torch.randint(0, 4, label.shape, generator=source(k + 2)), label)

    return run(own, own.adamw(lr=own.rate / 2), feed=feed)


def control_average_evaluated_and_restored(architecture: str) -> dict[str, Any]:
    """The average of the weights is swapped in for an evaluation every 50 steps, and the weights are put back."""
    own = bench(architecture)
    average = copy.deepcopy(own.model.state_dict())

    def after(k: int) -> None:
        for key, value in own.model.state_dict().items():
            if value.is_floating_point():
                average[key].lerp_(value, 0.05)
        if k % 50 == 49:
            kept = copy.deepcopy(own.model.state_dict())
            own.model.load_state_dict(average)
            own.held()
            own.model.load_state_dict(kept)

    return run(own, own.adamw(), after=after)


def control_sgd_always_clipped(architecture: str) -> dict[str, Any]:
    """SGD whose gradient is clipped to 0.2 at almost every step: the length of a step is set by the clipping."""
    own = bench(architecture)
    optimizer = torch.optim.SGD(own.model.parameters(), 0.5, momentum=0.9)

    def gradients(k: int) -> None:  # noqa: ARG001
        nn.utils.clip_grad_norm_(own.model.parameters(), 0.2)

    return run(own, optimizer, gradients=gradients)


def control_batch_grows_rate_stays(architecture: str) -> dict[str, Any]:
    own = bench(architecture)
    return run(own, own.adamw(), feed=lambda k: own.data(k, (8, 16, 32, 64)[min(3, k // 75)]))


def control_sources_in_turn(architecture: str) -> dict[str, Any]:
    """Two sources in turn, one twice as noisy as the other: the loss goes up and down at every step."""
    own = bench(architecture)

    def feed(k: int) -> Any:
        batch = own.data(k, own.rows)
        if k % 2:
            return batch
        noise = 0.5
        if isinstance(batch, Tensor):
            return batch + noise * torch.randn(batch.shape, generator=source(k))
        return batch[0] + noise * torch.randn(batch[0].shape, generator=source(k)), batch[1]

    return run(own, own.adamw(), feed=feed)


def control_adamw_to_sgd_with_its_own_rate(architecture: str) -> dict[str, Any]:
    own = bench(architecture)
    slot = {"now": own.adamw()}

    def step(k: int) -> Tensor:
        if k == 150:
            slot["now"] = torch.optim.SGD(own.model.parameters(), 0.1, momentum=0.9)
        slot["now"].zero_grad()
        value = own.loss(own.model, own.data(k, own.rows))
        value.backward()
        nn.utils.clip_grad_norm_(own.model.parameters(), 1.0)
        slot["now"].step()
        return value.detach()

    return {"model": own.model, "step": step, "steps": 300, "held": own.held}


def control_temperature_learned_with_a_clamp(architecture: str) -> dict[str, Any]:
    own = bench(architecture)

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:  # noqa: ARG001
        return both_ways(m(*batch))

    def after(k: int) -> None:  # noqa: ARG001
        own.model.logit_scale.data.clamp_(0, 4.6)

    return run(own, own.adamw(), loss=loss, after=after, feed=lambda k: pairs(k, 24))


def control_mixup(architecture: str) -> dict[str, Any]:
    own = bench(architecture)

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:
        image, label = batch
        share = float(torch.distributions.Beta(0.4, 0.4).sample())
        order = torch.randperm(len(image), generator=source(k))
        mixed = share * image + (1 - share) * image[order]
        out = m(pixel_values=mixed).logits if architecture == "vit" else m(mixed)
        return share * F.cross_entropy(out, label) + (1 - share) * F.cross_entropy(out, label[order])

    return run(own, own.adamw(), loss=loss)


def control_tied_readout(architecture: str) -> dict[str, Any]:
    own = bench(architecture)
    nn.init.normal_(own.model.embed.weight, std=0.1)
    own.model.head.weight = own.model.embed.weight
    return run(own, own.adamw(weight_decay=0.1))


def control_sharp_minority(architecture: str) -> dict[str, Any]:
    """A class of 3 %, weighted by 15 in the loss: rows of it make the loss jump."""
    own = bench(architecture)

    def feed(k: int) -> tuple[Tensor, Tensor]:
        seen = torch.randint(10, 40, (32, 10), generator=source(k))
        label = (torch.rand(32, generator=source(k + 1)) < 0.03).long()
        seen[label == 1, 4] = 2
        return seen, label

    def loss(m: nn.Module, batch: Any, k: int = 0) -> Tensor:  # noqa: ARG001
        return F.cross_entropy(m(batch[0]), batch[1], weight=torch.tensor([1.0, 15.0, 1.0, 1.0]))

    return run(own, own.adamw(), feed=feed, loss=loss, held=lambda: float(loss(own.model, feed(HELD))))


def control_checkpoint_restored_whole(architecture: str) -> dict[str, Any]:
    """Stopped every 70 steps; weights, optimizer and schedule come back as they were."""
    own = bench(architecture)
    optimizer = own.adamw()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)

    def after(k: int) -> None:
        schedule.step()
        if k % 70 == 69:
            saved = copy.deepcopy((own.model.state_dict(), optimizer.state_dict(), schedule.state_dict()))
            own.model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            schedule.load_state_dict(saved[2])

    return run(own, optimizer, after=after)


def control_one_cycle_with_high_peak(architecture: str) -> dict[str, Any]:
    own = bench(architecture)
    optimizer = own.adamw()
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3 * own.rate, total_steps=301)
    return run(own, optimizer, after=lambda k: schedule.step())


def control_already_learned(architecture: str) -> dict[str, Any]:
    """The training goes on for 300 steps after 150 that learned nearly all there is: flat, and rightly so."""
    own: Bench = bench(architecture)
    first = own.adamw()
    for k in range(150):
        first.zero_grad()
        own.loss(own.model, own.data(k + 9000, own.rows)).backward()
        first.step()
    return run(own, own.adamw(lr=own.rate / 4))


def control_frozen_body(architecture: str) -> dict[str, Any]:
    """Only the head trains, on the frozen body of a short training."""
    own = bench(architecture)
    first = own.adamw()
    for k in range(60):
        first.zero_grad()
        own.loss(own.model, own.data(k + 9000, own.rows)).backward()
        first.step()
    for name, p in own.model.named_parameters():
        p.requires_grad_(name.startswith("classifier"))
    torch.manual_seed(3)
    own.model.classifier.reset_parameters()
    head = torch.optim.AdamW(own.model.classifier.parameters(), lr=1e-2)
    return run(own, head)
