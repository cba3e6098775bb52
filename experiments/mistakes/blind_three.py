"""Third blind list: what goes wrong during a run, its twins, and unusual but healthy runs.

Written by an author who has not read the monitor; costs were measured by `blind_three_measure.py` before the list landed.
"""
# ruff: noqa: E501, ARG001

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.mistakes.blind_three_benches import (
    BENCHES,
    HELD,
    Words,
    bench,
    both_ways,
    pairs,
    run,
    sentences,
    source,
    truth,
)
from experiments.mistakes.blind_three_controls import *  # noqa: F403

ARCHITECTURES = list(BENCHES)
UP = [
    ["loss", "rose"],
    ["loss", "rise"],
    ["loss", "jump"],
    ["diverg"],
    ["spike"],
    ["loss", "grow"],
    ["loss", "explod"],
]
STUCK = [
    ["stopped", "learn"],
    ["plateau"],
    ["stall"],
    ["no longer"],
    ["flat"],
    ["barely"],
    ["not", "improve"],
]
NOT_FINITE = [["nan"], ["finite"], [" inf"], ["infin"]]
BIG = [
    ["gradient", "large"],
    ["gradient", "explod"],
    ["gradient", "grow"],
    ["gradient", "jump"],
    ["weights", "grow"],
]
BIG += [["norm", "grow"], ["update", "large"], ["out of range"], ["activation", "grow"], ["logits", "grow"]]
SMALL = [
    ["gradient", "small"],
    ["gradient", "vanish"],
    ["gradient", "zero"],
    ["no gradient"],
    ["update", "small"],
]
SMALL += [
    ["weights", "stopped"],
    ["not", "moving"],
    ["frozen"],
    ["gradient", "disappear"],
    ["not change"],
    ["stand still"],
]
DATA = [
    ["data", "change"],
    ["input", "change"],
    ["label", "change"],
    ["batch"],
    ["data"],
    ["input"],
    ["label"],
]

OTHER = [
    [thing, word]
    for thing in ("data", "input", "batch")
    for word in ("change", "differ", "unlike", "shift", "jump", "unusual", "unseen", "new ", "drift", "other")
]

ONLY: dict[str, list[str]] = {
    **CONTROLS_ONLY,  # noqa: F405
    "rate_goes_negative": ["llama", "vit"],
    "loss_scale_only_falls": ["gpt"],
    "resumed_without_weights": ["vit"],
    "targets_lag_one_batch": ["t5"],
    "second_source_in_bytes": ["mixer"],
    "padded_batches_masked_backwards": ["words"],
    "decay_of_the_wrong_sign": ["mixer"],
    "temperature_annealed_to_nothing": ["moe"],
    "router_logits_rewarded": ["moe"],
    "freezing_where_thawing_was_meant": ["gpt"],
    "features_cached_at_the_start": ["words"],
    "penalty_ramps_without_a_cap": ["gpt"],
    "smoothing_grows": ["vit"],
    "advantages_over_a_vanishing_spread": ["words"],
    "empty_text_masks_everything": ["words"],
    "no_valid_frames": ["series"],
    "distance_of_a_duplicate": ["words"],
    "clip_threshold_decays": ["vit"],
    "second_phase_adds_gradients": ["llama"],
    "one_of_two_optimizers_stops": ["towers"],
    "swapped_to_sgd_at_the_same_rate": ["gpt"],
    "privacy_noise_not_divided": ["vit"],
    "logit_scale_unclamped": ["towers"],
    "dropout_left_high_by_evaluation": ["bert"],
    "validation_leaves_gradients": ["llama"],
    "quantized_in_place_by_evaluation": ["mixer"],
    "pruning_ramps_too_far": ["vit"],
    "hooks_pile_up": ["gpt"],
    "mined_negatives_are_positives": ["towers"],
    "trains_on_its_own_guesses": ["vit"],
    "parts_grow_and_are_summed": ["mixer"],
    "layers_dropped_more_and_more": ["bert"],
    "exponential_in_half": ["towers"],
    "normalizer_frozen_while_data_drift": ["series"],
    "gradients_of_eight_steps_ago": ["gpt"],
    "half_of_the_images_fail_to_load": ["vit"],
    "a_class_disappears": ["sound"],
    "batch_shrinks_to_one": ["towers"],
    "text_cut_to_its_first_words": ["words"],
    "rate_doubled_at_each_resume": ["llama"],
    "task_weight_runs_away": ["words"],
    "decay_loop_reaches_the_norms": ["gpt", "bert"],
}


def case_rate_goes_negative(architecture: str, broken: bool) -> dict[str, Any]:
    """Linear decay to step 150 without max(0, ...): the run goes on, and the rate passes through zero."""
    own = bench(architecture)
    optimizer = own.adamw()
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: (1 - k / 150) if broken else max(0.02, 1 - k / 150)
    )
    told = truth(
        "rate_goes_negative",
        [
            ["rate", "negative"],
            ["rate", "below zero"],
            ["ascent"],
            ["ascend"],
            ["learning rate"],
            ["the rate"],
            ["schedule"],
        ],
        UP + BIG + STUCK,
    )
    return run(own, optimizer, after=lambda k: schedule.step(), truth=told)


def case_loss_scale_only_falls(architecture: str, broken: bool) -> dict[str, Any]:
    """The loss scale of half precision is halved at each overflow and never raised; a rare bad row overflows often."""
    own = bench(architecture)
    optimizer = own.adamw(lr=own.rate)
    scale = {"now": 1024.0}

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:
        return own.loss(m, batch) * scale["now"]

    def gradients(k: int) -> None:
        for p in own.model.parameters():
            if p.grad is not None:
                p.grad.copy_((p.grad.half().float()) / scale["now"])
        if k % 5 == 4:
            scale["now"] /= 2
        elif not broken and scale["now"] < 1024:
            scale["now"] *= 2

    told = truth(
        "loss_scale_only_falls",
        [["loss scale"], ["scaler"], ["underflow"], ["half"], ["precision"]],
        SMALL + STUCK,
    )
    case = run(own, optimizer, loss=loss, gradients=gradients, truth=told)
    inner = case["step"]

    def step(k: int) -> Tensor:
        before = scale["now"]
        return inner(k) / before

    return case | {"step": step}


def case_resumed_without_weights(architecture: str, broken: bool) -> dict[str, Any]:
    """Resumed at step 150 with strict=False and a prefix on every key: no weight is loaded, the optimizer's state is.

    Keys that begin with "module." or "_orig_mod."; see also github.com/PolymathicAI/the_well/issues/77.
    """
    own = bench(architecture)
    optimizer = own.adamw()

    def before(k: int) -> None:
        if k != 150:
            return
        saved = copy.deepcopy(own.model.state_dict())
        torch.manual_seed(99)
        fresh = BENCHES[architecture]().model.state_dict()
        own.model.load_state_dict(fresh)
        own.model.load_state_dict(
            {("module." if broken else "") + key: v for key, v in saved.items()}, strict=False
        )

    told = truth(
        "resumed_without_weights",
        [
            ["weights", "replaced"],
            ["weights", "jump"],
            ["checkpoint"],
            ["resume"],
            ["weights", "outside"],
            ["outside", "optimizer"],
            ["weights", "load"],
            ["weights", "reset"],
            ["initial weights"],
        ],
        UP + BIG + DATA,
    )
    return run(own, optimizer, before=before, truth=told)


def case_targets_lag_one_batch(architecture: str, broken: bool) -> dict[str, Any]:
    """From step 120 on the prefetching loader hands out the inputs of one batch with the labels of the one before."""
    own = bench(architecture)

    def feed(k: int) -> Any:
        now, old = own.data(k, own.rows), own.data(max(k - 1, 0), own.rows)
        if not broken or k < 120:
            return now
        return {**now, "labels": old["labels"]} if isinstance(now, dict) else (now[0], old[1])

    told = truth(
        "targets_lag_one_batch",
        [["label"], ["target"], ["pairs"], *OTHER],
        UP + STUCK + DATA + BIG,
    )
    return run(own, own.adamw(), feed=feed, truth=told)


def case_second_source_in_bytes(architecture: str, broken: bool) -> dict[str, Any]:
    """From step 200 on all batches come from a second source that forgot the division by 255."""
    own = bench(architecture)

    def feed(k: int) -> Any:
        image, label = own.data(k, own.rows)
        return (image * 60 + 110, label) if broken and k >= 200 else (image, label)

    told = truth(
        "second_source_in_bytes",
        [*OTHER, ["input", "scale"], ["input", "large"], ["pixel"], ["normaliz"]],
        UP + BIG,
    )
    return run(own, own.adamw(), feed=feed, truth=told)


def case_padded_batches_masked_backwards(architecture: str, broken: bool) -> dict[str, Any]:
    """From step 100 on texts have different lengths; the mask of the padded batches is True for what is real."""
    own = bench(architecture)

    def feed(k: int) -> Any:
        text, label = own.data(k, own.rows)
        if k < 100:
            return text, label
        padding = torch.arange(24).expand(len(text), -1) >= 14
        return F.pad(text, (0, 10)), (~padding if broken else padding), label

    told = truth(
        "padded_batches_masked_backwards",
        [["mask"], ["padding"], *OTHER],
        UP + DATA + STUCK + BIG,
    )
    return run(own, own.adamw(), feed=feed, truth=told)


def case_decay_of_the_wrong_sign(architecture: str, broken: bool) -> dict[str, Any]:
    """Decoupled decay by hand: p += rate * decay * p grows the weights a little at each step."""
    own = bench(architecture)

    def after(k: int) -> None:
        with torch.no_grad():
            for p in own.model.parameters():
                p.mul_(1.02 if broken else 0.9995)

    told = truth(
        "decay_of_the_wrong_sign",
        [
            ["weight", "grow"],
            ["decay"],
            ["weights", "explod"],
            ["weights", "larger"],
            ["norm of the weights"],
        ],
        UP + BIG + NOT_FINITE,
    )
    return run(own, own.adamw(weight_decay=0.0), after=after, truth=told)


def case_temperature_annealed_to_nothing(architecture: str, broken: bool) -> dict[str, Any]:
    """The temperature of the router falls by 10 % a step without a floor; at 1e-5 its choice is hard and learns nothing."""
    own = bench(architecture)

    def before(k: int) -> None:
        for layer in own.model.mlps:
            layer.temperature = max(0.9**k, 1e-5 if broken else 0.5)

    told = truth(
        "temperature_annealed_to_nothing",
        [
            ["router"],
            ["temperature"],
            ["gate", "saturat"],
            ["expert", "collapse"],
            ["one-hot"],
            ["softmax", "saturat"],
        ],
        SMALL + UP + BIG + STUCK,
    )
    return run(own, own.adamw(), before=before, truth=told)


def case_router_logits_rewarded(architecture: str, broken: bool) -> dict[str, Any]:
    """The z-loss of the router (mean of logsumexp squared) is subtracted rather than added."""
    own = bench(architecture)

    def loss(m: nn.Module, batch: Tensor, k: int) -> Tensor:
        value = own.loss(m, batch)
        z = sum(layer.logits.logsumexp(-1).square().mean() for layer in m.mlps)
        return value + (-0.05 if broken else 0.001) * z

    told = truth(
        "router_logits_rewarded",
        [
            ["router"],
            ["z-loss"],
            ["auxiliary"],
            ["negative", "loss"],
            ["loss", "below zero"],
            ["gate", "logits"],
        ],
        UP + BIG + NOT_FINITE + [["expert"]],
    )
    return run(own, own.adamw(), loss=loss, truth=told)


def case_freezing_where_thawing_was_meant(architecture: str, broken: bool) -> dict[str, Any]:
    """Gradual thawing with the flag the wrong way round: at every step one more part freezes."""
    own = bench(architecture)
    parts = list(own.model.parameters())
    if not broken:
        for p in parts[: len(parts) // 2]:
            p.requires_grad_(False)

    def before(k: int) -> None:
        if k < len(parts) - 2:
            upto = k + 1
            for p in parts[:upto] if broken else parts[-upto:]:
                p.requires_grad_(not broken)
                p.grad = None if broken else p.grad

    told = truth(
        "freezing_where_thawing_was_meant",
        [
            ["frozen"],
            ["requires_grad"],
            ["freez"],
            ["no gradient"],
            ["gradient", "none"],
            ["stopped", "train"],
            ["not", "trained"],
        ],
        SMALL + STUCK,
    )
    return run(own, own.adamw(), before=before, truth=told)


def case_features_cached_at_the_start(architecture: str, broken: bool) -> dict[str, Any]:
    """From step 15 on the body's states are read from a cache filled by its first weights: only the head learns."""
    own = bench(architecture)
    kept: dict[str, nn.Module] = {}

    def before(k: int) -> None:
        if k == 15:
            kept["body"] = copy.deepcopy(own.model).requires_grad_(False)

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:
        if not broken or k < 15:
            return own.loss(m, batch)
        with torch.no_grad():
            states = kept["body"].states(batch[0])
        return F.cross_entropy(m.head(states), batch[1])

    told = truth(
        "features_cached_at_the_start",
        [
            ["no gradient"],
            ["gradient", "stopped"],
            ["gradient", "none"],
            ["detach"],
            ["cache"],
            ["frozen"],
            ["no longer", "run"],
        ],
        SMALL + STUCK + UP,
    )
    return run(own, own.adamw(), before=before, loss=loss, truth=told)


def case_penalty_ramps_without_a_cap(architecture: str, broken: bool) -> dict[str, Any]:
    """The weight of an L2 penalty on all weights grows by 4 % a step and is never capped."""
    own = bench(architecture)

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:
        weight = 1e-6 * 1.04**k
        penalty = sum(p.square().sum() for p in m.parameters())
        return own.loss(m, batch) + (weight if broken else min(weight, 1e-5)) * penalty

    told = truth(
        "penalty_ramps_without_a_cap",
        [
            ["penalty"],
            ["regulari"],
            ["weights", "shrink"],
            ["decay"],
            ["weights", "small"],
            ["auxiliary"],
            ["weights", "toward zero"],
        ],
        UP + SMALL + STUCK + BIG,
    )
    return run(own, own.adamw(), loss=loss, truth=told)


def case_smoothing_grows(architecture: str, broken: bool) -> dict[str, Any]:
    """Label smoothing is raised at every evaluation (0.1 each 25 steps) in the place of being set once."""
    own = bench(architecture)

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:
        out = m(pixel_values=batch[0]) if architecture == "vit" else m(input_ids=batch[0])
        return F.cross_entropy(
            out.logits, batch[1], label_smoothing=min(1.0, 0.1 * (1 + k // 25)) if broken else 0.1
        )

    told = truth(
        "smoothing_grows",
        [["smoothing"], ["label"], ["target"]],
        UP + STUCK + SMALL + DATA,
    )
    return run(own, own.adamw(), loss=loss, truth=told)


def case_advantages_over_a_vanishing_spread(architecture: str, broken: bool) -> dict[str, Any]:
    """REINFORCE divides by the spread of rewards; once all actions of a batch are right it is 0 / 0."""
    own = bench(architecture)

    def feed(k: int) -> tuple[Tensor, Tensor]:
        draw = source(k)
        label = torch.randint(0, 4, (64,), generator=draw)
        seen = torch.randint(10, 40, (64, 8), generator=draw)
        seen[:, 2] = seen[:, 5] = 1 + label
        return seen, label

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:
        log = m(batch[0]).log_softmax(-1)
        luck = -torch.log(-torch.log(torch.rand(log.shape, generator=source(k + 5)).clamp(1e-6, 1 - 1e-6)))
        action = (log.detach() + luck).argmax(-1, keepdim=True)
        reward = (action[:, 0] == batch[1]).float()
        gain = reward - reward.mean()
        gain = gain / (gain.std() if broken else gain.std().clamp(min=0.1))
        return -(gain * log.gather(1, action)[:, 0]).mean()

    told = truth(
        "advantages_over_a_vanishing_spread",
        [
            ["division"],
            ["divide"],
            ["divid"],
            ["0 / 0"],
            ["zero", "spread"],
            ["loss", "nan"],
            ["loss", "finite"],
        ],
        UP + NOT_FINITE + BIG,
    )
    return run(
        own,
        own.adamw(lr=3e-3),
        feed=feed,
        loss=loss,
        truth=told,
        held=lambda: float(F.cross_entropy(own.model(feed(HELD)[0]), feed(HELD)[1])),
    )


def case_empty_text_masks_everything(architecture: str, broken: bool) -> dict[str, Any]:
    """At step 130 the first empty text comes: its row is all padding, the mean divides by zero words."""
    own = bench(architecture)

    def feed(k: int) -> Any:
        text, label = own.data(k, own.rows)
        length = torch.randint(10, 15, (len(text), 1), generator=source(k))
        if k >= 130 and k % 10 == 0:
            length[3] = 0 if broken else 1
        return text, torch.arange(14) >= length, label

    told = truth(
        "empty_text_masks_everything",
        [
            ["mask"],
            ["padding"],
            *OTHER,
            ["bad batch"],
            ["this batch"],
            ["the batch"],
            ["input", "nan"],
            ["data", "nan"],
        ],
        NOT_FINITE + UP,
    )
    return run(own, own.adamw(), feed=feed, truth=told)


def case_no_valid_frames(architecture: str, broken: bool) -> dict[str, Any]:
    """Error over valid values divided by their number; at step 140 a batch has none."""
    own = bench(architecture)

    def loss(m: nn.Module, batch: Tensor, k: int) -> Tensor:
        valid = (torch.rand(len(batch), 4, generator=source(k)) < (0.0 if k == 140 else 0.8)).float()
        error = (m(batch[:, :32]) - batch[:, 32:]).square() * valid
        return error.sum() / (valid.sum() if broken else valid.sum().clamp(min=1))

    told = truth(
        "no_valid_frames",
        [
            ["division"],
            ["divid"],
            ["empty"],
            ["bad batch"],
            ["this batch"],
            ["the batch"],
            ["loss", "nan"],
            ["loss", "finite"],
        ],
        NOT_FINITE + UP,
    )
    return run(own, own.adamw(), loss=loss, truth=told)


def case_distance_of_a_duplicate(architecture: str, broken: bool) -> dict[str, Any]:
    """Contrast by Euclidean distance, sqrt without an epsilon: at step 120 a pair is a duplicate; the loss is finite,
    its gradient is not.
    """
    own = bench(architecture)

    def feed(k: int) -> tuple[Tensor, Tensor, Tensor]:
        one, label = sentences(k, 32)
        two, other = sentences(k + 50_000, 32)
        if k >= 120 and k % 6 == 0:
            two, other = two.clone(), other.clone()
            two[0], other[0] = one[0], label[0]
        return one, two, (label == other).float()

    def loss(m: nn.Module, batch: Any, k: int = 0) -> Tensor:
        one, two, same = batch
        gap = (m(one) - m(two)).square().sum(-1)
        gap = gap.sqrt() if broken else (gap + 1e-6).sqrt()
        return (same * gap.square() + (1 - same) * F.relu(2 - gap).square()).mean()

    told = truth(
        "distance_of_a_duplicate",
        [["backward"], ["gradient", "nan"], ["gradient", "finite"], ["sqrt"], ["gradient", " inf"]],
        NOT_FINITE + UP,
    )
    return run(
        own, own.adamw(), feed=feed, loss=loss, truth=told, held=lambda: float(loss(own.model, feed(HELD)))
    )


def case_clip_threshold_decays(architecture: str, broken: bool) -> dict[str, Any]:
    """The threshold of the clipping is multiplied by 0.95 at each step, as the rate was meant to be; SGD stops moving."""
    own = bench(architecture)
    optimizer = torch.optim.SGD(own.model.parameters(), 0.1 if architecture == "vit" else 0.3, momentum=0.9)

    def gradients(k: int) -> None:
        nn.utils.clip_grad_norm_(own.model.parameters(), 1.0 * (0.95**k if broken else 1.0))

    told = truth(
        "clip_threshold_decays",
        [
            ["clip"],
            ["gradient", "small"],
            ["gradient", "vanish"],
            ["gradient", "shrink"],
            ["gradient", "fell"],
        ],
        SMALL + STUCK,
    )
    return run(own, optimizer, gradients=gradients, truth=told)


def case_second_phase_adds_gradients(architecture: str, broken: bool) -> dict[str, Any]:
    """After step 100 another loop runs, and it forgot zero_grad()."""
    own = bench(architecture)
    optimizer = own.adamw()

    def step(k: int) -> Tensor:
        value = own.loss(own.model, own.data(k, own.rows))
        if k < 100 or not broken:
            optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    told = truth(
        "second_phase_adds_gradients",
        [["zero_grad"], ["gradients", "add"], ["accumulat"], ["gradient", "sum"]],
        UP + BIG + STUCK,
    )
    return {"model": own.model, "step": step, "steps": 300, "held": own.held, "truth": told}


def case_one_of_two_optimizers_stops(architecture: str, broken: bool) -> dict[str, Any]:
    """Two optimizers; the first one's step() stands inside `if k < warmup` and is never called after step 10."""
    own = bench(architecture)
    first = list((own.model.encoder if architecture == "t5" else own.model.one).parameters())
    known = {id(p) for p in first}
    one = torch.optim.AdamW(first, own.rate)
    two = torch.optim.AdamW([p for p in own.model.parameters() if id(p) not in known], own.rate)

    def step(k: int) -> Tensor:
        one.zero_grad()
        two.zero_grad()
        value = own.loss(own.model, own.data(k, own.rows))
        value.backward()
        if not broken or k < 10:
            one.step()
        two.step()
        return value.detach()

    told = truth(
        "one_of_two_optimizers_stops",
        [
            ["optimizer", "stop"],
            ["optimizer", "step"],
            ["optimizer", "not"],
            ["frozen"],
            ["stopped", "mov"],
            ["weights", "not", "mov"],
            ["weights", "not", "chang"],
            ["not updated"],
            ["stand still"],
            ["no longer"],
        ],
        SMALL + STUCK,
    )
    return {"model": own.model, "step": step, "steps": 300, "held": own.held, "truth": told}


def case_swapped_to_sgd_at_the_same_rate(architecture: str, broken: bool) -> dict[str, Any]:
    """At step 30 AdamW is exchanged for SGD (to generalize better), at AdamW's rate: the weights stand still."""
    own = bench(architecture)
    slot: dict[str, torch.optim.Optimizer] = {"now": own.adamw()}

    def step(k: int) -> Tensor:
        if k == 30:
            rate = own.rate if broken else (0.3 if architecture == "gpt" else 0.2)
            slot["now"] = torch.optim.SGD(own.model.parameters(), rate, momentum=0.0 if broken else 0.9)
        slot["now"].zero_grad()
        value = own.loss(own.model, own.data(k, own.rows))
        value.backward()
        nn.utils.clip_grad_norm_(own.model.parameters(), 1.0)
        slot["now"].step()
        return value.detach()

    told = truth(
        "swapped_to_sgd_at_the_same_rate",
        [
            ["optimizer", "change"],
            ["sgd"],
            ["optimizer", "other"],
            ["learning rate", "small"],
            ["learning rate", "low"],
            ["rate", "too low"],
            ["rate", "too small"],
            ["update", "small"],
            ["update", "fell"],
            ["weights", "barely"],
        ],
        SMALL + STUCK,
    )
    return {"model": own.model, "step": step, "steps": 300, "held": own.held, "truth": told}


def case_privacy_noise_not_divided(architecture: str, broken: bool) -> dict[str, Any]:
    """Noise for privacy is drawn for the sum over the batch and added to its mean: 32 times too large."""
    own = bench(architecture)
    draw = source(1)

    def gradients(k: int) -> None:
        nn.utils.clip_grad_norm_(own.model.parameters(), 1.0)
        for p in own.model.parameters():
            if p.grad is not None:
                p.grad += 0.05 / (1 if broken else 32) * torch.randn(p.shape, generator=draw)

    told = truth(
        "privacy_noise_not_divided",
        [["noise"], ["gradient", "noisy"], ["gradient", "random"], ["signal"], ["batch", "small"]],
        STUCK + UP + BIG,
    )
    return run(own, own.adamw(), gradients=gradients, truth=told)


def case_logit_scale_unclamped(architecture: str, broken: bool) -> dict[str, Any]:
    """The learned scale of a contrastive loss has a high rate and no clamp at 100 (CLIP clamps it)."""
    own = bench(architecture)
    rest = [p for n, p in own.model.named_parameters() if n != "logit_scale"]
    optimizer = torch.optim.AdamW(
        [{"params": rest}, {"params": [own.model.logit_scale], "lr": 0.15, "weight_decay": 0.0}], lr=own.rate
    )

    def after(k: int) -> None:
        if not broken:
            own.model.logit_scale.data.clamp_(0, 3.5)

    def feed(k: int) -> tuple[Tensor, Tensor]:
        words, bag = pairs(k % 12, own.rows)
        return words, bag

    told = truth(
        "logit_scale_unclamped",
        [
            ["logit_scale"],
            ["logit scale"],
            ["temperature"],
            ["logits", "grow"],
            ["logits", "large"],
            ["logits", "grew"],
        ],
        UP + BIG + STUCK + [["overfit"], ["memor"]],
    )
    return run(own, optimizer, feed=feed, after=after, truth=told)


def case_dropout_left_high_by_evaluation(architecture: str, broken: bool) -> dict[str, Any]:
    """At step 30 an evaluation of uncertainty sets every dropout to 0.9 and never sets it back."""
    own = bench(architecture)

    def before(k: int) -> None:
        if k == 30:
            for module in own.model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.9 if broken else 0.05

    told = truth(
        "dropout_left_high_by_evaluation",
        [["dropout"]],
        UP + STUCK + SMALL + BIG + [["activation"], ["noise"]],
    )
    return run(own, own.adamw(), before=before, truth=told)


def case_validation_leaves_gradients(architecture: str, broken: bool) -> dict[str, Any]:
    """zero_grad() stands after the step; every 10 steps a validation without no_grad() calls backward() on 30 batches."""
    own = bench(architecture)
    optimizer = torch.optim.SGD(own.model.parameters(), 0.3 if architecture == "llama" else 0.1, momentum=0.9)

    def step(k: int) -> Tensor:
        value = own.loss(own.model, own.data(k, own.rows))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        if k % 10 == 9 and k > 60:
            checked = sum(own.loss(own.model, own.data(HELD + n, 8)) for n in range(12)) * 3
            if broken:
                checked.backward()
        return value.detach()

    told = truth(
        "validation_leaves_gradients",
        [
            ["zero_grad"],
            ["gradient", "add"],
            ["accumulat"],
            ["validation"],
            ["evaluation"],
            ["gradient", "left"],
        ],
        UP + BIG,
    )
    return {"model": own.model, "step": step, "steps": 300, "held": own.held, "truth": told}


def case_quantized_in_place_by_evaluation(architecture: str, broken: bool) -> dict[str, Any]:
    """Every 20 steps an evaluation rounds the matrices to three bits in place, not on a copy."""
    own = bench(architecture)

    def after(k: int) -> None:
        if k % 20 == 19:
            model = own.model if broken else copy.deepcopy(own.model)
            with torch.no_grad():
                for p in model.parameters():
                    if p.dim() > 1:
                        unit = p.abs().amax() / 3
                        p.copy_((p / unit).round() * unit)

    told = truth(
        "quantized_in_place_by_evaluation",
        [
            ["weights", "outside"],
            ["weights", "jump"],
            ["outside", "optimizer"],
            ["rounded"],
            ["quantiz"],
            ["weights", "replaced"],
            ["in place"],
            ["evaluation"],
        ],
        UP + BIG + STUCK,
    )
    return run(own, own.adamw(), after=after, truth=told)


def case_pruning_ramps_too_far(architecture: str, broken: bool) -> dict[str, Any]:
    """Magnitude pruning during training: the share of zeros ramps to 99 % where 50 % was meant (0.5 taken twice)."""
    own = bench(architecture)

    def after(k: int) -> None:
        share = min(k / 200, 1.0) * (0.99 if broken else 0.4)
        with torch.no_grad():
            for p in own.model.parameters():
                if p.dim() > 1 and k % 5 == 0:
                    edge = p.abs().flatten().kthvalue(max(1, int(share * p.numel()))).values
                    p.mul_(p.abs() > edge)

    told = truth(
        "pruning_ramps_too_far",
        [
            ["weights", "zero"],
            ["prun"],
            ["spars"],
            ["weights", "shrink"],
            ["weights", "outside"],
            ["rank"],
            ["weights", "small"],
        ],
        UP + SMALL + STUCK + BIG,
    )
    return run(own, own.adamw(), after=after, truth=told)


def case_hooks_pile_up(architecture: str, broken: bool) -> dict[str, Any]:
    """Every 4 steps the evaluation registers the gradient hook (times 0.6) again; none is removed. SGD."""
    own = bench(architecture)
    optimizer = torch.optim.SGD(own.model.parameters(), 0.1 if architecture == "sound" else 0.3, momentum=0.9)

    def before(k: int) -> None:
        if k % 4 == 0 and (broken or k == 0):
            for p in own.model.parameters():
                p.register_hook(lambda g: 0.6 * g)

    told = truth(
        "hooks_pile_up",
        [
            ["hook"],
            ["gradient", "vanish"],
            ["gradient", "small"],
            ["gradient", "shrink"],
            ["gradient", "fell"],
        ],
        SMALL + STUCK,
    )
    return run(own, optimizer, before=before, truth=told)


def case_mined_negatives_are_positives(architecture: str, broken: bool) -> dict[str, Any]:
    """From step 100 on hard negatives are mined, and the miner returns copies of the right answers."""
    own = bench(architecture)

    def feed(k: int) -> tuple[Tensor, Tensor]:
        words, bag = pairs(k, own.rows)
        if k >= 100:
            half = own.rows // 2
            near = words[:half].clone()
            if not broken:
                near[:, :3] = torch.randint(0, 40, (half, 3), generator=source(k + 9))
            count = F.one_hot(near, 40).sum(1).float()
            words = torch.cat([words[:half], near])
            bag = torch.cat([bag[:half], count + 0.3 * torch.randn(half, 40, generator=source(k + 3))])
        return words, bag

    told = truth(
        "mined_negatives_are_positives",
        [["label"], ["negatives"], ["duplicate"], *OTHER],
        UP + STUCK + DATA,
    )
    return run(own, own.adamw(), feed=feed, truth=told)


def case_trains_on_its_own_guesses(architecture: str, broken: bool) -> dict[str, Any]:
    """From step 12 on the labels are the network's own guesses, without a threshold: it agrees with itself."""
    own = bench(architecture)

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:
        if not broken or k < 12:
            return own.loss(m, batch)
        out = m(pixel_values=batch[0]).logits if architecture == "vit" else m(batch[0])
        return F.cross_entropy(out, out.detach().argmax(-1))

    told = truth(
        "trains_on_its_own_guesses",
        [["label"], ["target"], ["collapse"], ["one class"], ["too easy"], *OTHER],
        [["loss", "fell"], ["loss", "drop"], ["zero"], *SMALL, *STUCK, *BIG],
    )
    return run(own, own.adamw(), loss=loss, truth=told)


def case_parts_grow_and_are_summed(architecture: str, broken: bool) -> dict[str, Any]:
    """Batch-size warm-up by accumulation, 1 to 8 parts; their gradients are summed, not averaged. SGD."""
    own = bench(architecture)
    optimizer = torch.optim.SGD(own.model.parameters(), 0.5 if architecture == "gpt" else 0.2, momentum=0.9)

    def step(k: int) -> Tensor:
        parts = 1 + min(7, k // 15)
        optimizer.zero_grad()
        total = torch.zeros(())
        for n in range(parts):
            value = own.loss(own.model, own.data(20 * k + n, 8))
            (value if broken else value / parts).backward()
            total += value.detach() / parts
        optimizer.step()
        return total

    told = truth(
        "parts_grow_and_are_summed",
        [
            ["accumulat"],
            ["gradient", "grow"],
            ["gradient", "grew"],
            ["gradient", "sum"],
            ["not divided"],
            ["rate", "too high"],
            ["rate", "too large"],
            ["learning rate"],
            ["gradients", "add"],
        ],
        UP + BIG + NOT_FINITE + STUCK,
    )
    return {"model": own.model, "step": step, "steps": 300, "held": own.held, "truth": told}


def case_layers_dropped_more_and_more(architecture: str, broken: bool) -> dict[str, Any]:
    """LayerDrop whose chance grows with the step and is not capped: in the end no layer runs."""
    own = bench(architecture)
    draw = source(3)
    chance = {"now": 0.0}

    def skip(module: nn.Module, given: tuple, out: Any) -> Any:
        if module.training and float(torch.rand((), generator=draw)) < chance["now"]:
            return (given[0], *out[1:]) if isinstance(out, tuple) else given[0]
        return out

    for layer in own.model.bert.encoder.layer:
        layer.register_forward_hook(skip)

    def before(k: int) -> None:
        chance["now"] = min(1.0, k / 80) if broken else min(0.1, k / 800)

    told = truth(
        "layers_dropped_more_and_more",
        [
            ["no gradient"],
            ["gradient", "none"],
            ["gradient", "zero"],
            ["layer", "skip"],
            ["not", "run"],
            ["skipped"],
            ["dropped"],
            ["unused"],
            ["layerdrop"],
            ["frozen"],
        ],
        UP + SMALL + STUCK,
    )
    return run(own, own.adamw(), before=before, truth=told)


def case_exponential_in_half(architecture: str, broken: bool) -> dict[str, Any]:
    """The contrast exponentiates scores in half precision without taking off their maximum: past 11 it overflows."""
    own = bench(architecture)
    rest = [p for n, p in own.model.named_parameters() if n != "logit_scale"]
    optimizer = torch.optim.AdamW(
        [{"params": rest}, {"params": [own.model.logit_scale], "lr": 8e-3, "weight_decay": 0.0}], lr=own.rate
    )

    def loss(m: nn.Module, batch: Any, k: int) -> Tensor:
        scores = m(*batch)
        if not broken:
            return both_ways(scores)
        right = scores.diagonal()
        one, two = (scores.half().exp().float().sum(axis).log() for axis in (0, 1))
        return ((one - right) + (two - right)).mean() / 2

    told = truth(
        "exponential_in_half",
        [
            ["overflow"],
            ["precision"],
            ["half"],
            ["loss", "nan"],
            ["loss", "finite"],
            ["loss", " inf"],
            ["float16"],
        ],
        NOT_FINITE + UP + BIG,
    )
    return run(own, optimizer, loss=loss, truth=told)


def case_normalizer_frozen_while_data_drift(architecture: str, broken: bool) -> dict[str, Any]:
    """Level and spread of the series are taken once at step 40; the data drift away and the inputs with them."""
    own = bench(architecture)
    seen = {"level": torch.zeros(()), "spread": torch.ones(())}

    def raw(k: int) -> Tensor:
        drift = max(0, min(k, 300) - 40)
        return own.data(k, own.rows) * (1 + 0.05 * drift) + 0.2 * drift

    def feed(k: int) -> Tensor:
        x = raw(k)
        if k <= 40 or not broken:
            seen["level"], seen["spread"] = x[:, :32].mean(), x[:, :32].std() + 1e-3
        return (x - seen["level"]) / seen["spread"]

    def held() -> float:
        x = raw(299)
        level, spread = (seen["level"], seen["spread"]) if broken else (x[:, :32].mean(), x[:, :32].std())
        with torch.no_grad():
            y = (x - level) / spread
            return float(own.loss(own.model, y) * (spread / x.std()) ** 2)

    told = truth(
        "normalizer_frozen_while_data_drift",
        [
            *OTHER,
            ["drift"],
            ["input", "scale"],
            ["input", "grow"],
            ["input", "grew"],
            ["normaliz"],
            ["input", "large"],
        ],
        UP + BIG,
    )
    return run(own, own.adamw(), feed=feed, truth=told, held=held)


def case_gradients_of_eight_steps_ago(architecture: str, broken: bool) -> dict[str, Any]:
    """From step 50 on an asynchronous worker applies the gradients of eight steps ago. SGD with momentum."""
    own = bench(architecture)
    optimizer = torch.optim.SGD(own.model.parameters(), 0.3 if architecture == "gpt" else 0.15, momentum=0.9)
    line: list[list[Tensor]] = []

    def gradients(k: int) -> None:
        line.append([p.grad.clone() for p in own.model.parameters()])
        old = line[-9] if broken and k >= 50 else line[-1]
        for p, g in zip(own.model.parameters(), old, strict=True):
            p.grad.copy_(g)
        del line[:-9]

    told = truth(
        "gradients_of_eight_steps_ago",
        [["stale"], ["delay"], ["oscillat"], ["learning rate"], ["rate", "too high"], ["old gradient"]],
        UP + BIG + STUCK + NOT_FINITE,
    )
    return run(own, optimizer, gradients=gradients, truth=told)


def case_half_of_the_images_fail_to_load(architecture: str, broken: bool) -> dict[str, Any]:
    """From step 60 on a share of the images cannot be decoded; the loader returns zeros with their labels."""
    own = bench(architecture)

    def feed(k: int) -> Any:
        image, label = own.data(k, own.rows)
        share = 0.9 if broken and k >= 60 else 0.02
        lost = torch.rand(len(image), generator=source(k)) < share
        return torch.where(lost[:, None, None, None], 0.0, image), label

    told = truth(
        "half_of_the_images_fail_to_load",
        [*OTHER, ["input", "constant"], ["input", "zero"], ["zeros"], ["rows", "same"], ["input", "small"]],
        UP + STUCK + SMALL + DATA,
    )
    return run(own, own.adamw(), feed=feed, truth=told)


def case_a_class_disappears(architecture: str, broken: bool) -> dict[str, Any]:
    """From step 80 on a filter drops every row of the last class; the network forgets it while its loss looks fine."""
    own = bench(architecture)

    def feed(k: int) -> Any:
        one, label = own.data(k, 2 * own.rows)
        kept = (label < 3) if broken and k >= 80 else torch.ones_like(label).bool()
        return one[kept][: own.rows], label[kept][: own.rows]

    told = truth(
        "a_class_disappears",
        [["class"], ["label"], ["distribution"], *OTHER],
        [["loss", "fell"], ["loss", "drop"], *DATA, *STUCK],
    )
    return run(own, own.adamw(), feed=feed, truth=told)


def case_batch_shrinks_to_one(architecture: str, broken: bool) -> dict[str, Any]:
    """From step 20 on the sharded loader hands out one row (two for pairs) a batch, at the rate of the full batch."""
    own = bench(architecture)
    few = 2 if architecture == "towers" else 1
    optimizer = own.adamw(lr=3e-3)

    def feed(k: int) -> Any:
        return own.data(k, few if broken and k >= 20 else own.rows)

    told = truth(
        "batch_shrinks_to_one",
        [
            *OTHER,
            ["batch size"],
            ["smaller batch"],
            ["small batch"],
            ["one row"],
            ["gradient", "noisy"],
            ["rows"],
        ],
        UP + STUCK + BIG + DATA,
    )
    return run(own, optimizer, feed=feed, truth=told)


def case_text_cut_to_its_first_words(architecture: str, broken: bool) -> dict[str, Any]:
    """From step 70 on texts are truncated to 3 words, before what the label is about."""
    own = bench(architecture)

    def feed(k: int) -> Any:
        text, label = own.data(k, own.rows)
        return (text[:, :3] if broken and k >= 70 else text), label

    told = truth(
        "text_cut_to_its_first_words",
        [["length"], ["shorter"], ["trunc"], ["label"], *OTHER],
        UP + STUCK + DATA + SMALL,
    )
    return run(own, own.adamw(), feed=feed, truth=told)


def case_rate_doubled_at_each_resume(architecture: str, broken: bool) -> dict[str, Any]:
    """Preempted every 40 steps; each resume multiplies the loaded rate by the world size (2) once more."""
    own = bench(architecture)
    optimizer = own.adamw()

    def before(k: int) -> None:
        if k and k % 40 == 0:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer.load_state_dict(saved)
            if broken:
                for group in optimizer.param_groups:
                    group["lr"] *= 2

    told = truth(
        "rate_doubled_at_each_resume",
        [["learning rate"], ["the rate"], ["rate", "doubl"], ["rate", "jump"], ["rate", "grew"]],
        UP + BIG + STUCK,
    )
    return run(own, optimizer, before=before, truth=told)


def case_task_weight_runs_away(architecture: str, broken: bool) -> dict[str, Any]:
    """Two tasks with balanced weights that are multiplied by 1.04 at each step for the slower one, never renormalized."""
    own = bench(architecture)
    model = own.model
    model.second = nn.Linear(32, 8)
    weight = {"now": 1.0}

    def loss(m: Words, batch: Any, k: int) -> Tensor:
        state = m.states(batch[0])
        noise = torch.randint(0, 8, (len(batch[0]),), generator=source(k))
        one, two = F.cross_entropy(m.head(state), batch[1]), F.cross_entropy(m.second(state), noise)
        if float(two) > float(one):
            weight["now"] = weight["now"] * 1.04 if broken else min(2.0, weight["now"] * 1.04)
        return one + 0.3 * weight["now"] * two

    def gradients(k: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    told = truth(
        "task_weight_runs_away",
        [["loss", "weight"], ["second."], ["task"], ["loss", "grow"], ["loss", "grew"], ["clip"]],
        UP + BIG + STUCK,
    )
    return run(
        own,
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        loss=loss,
        gradients=gradients,
        truth=told,
    )


def case_decay_loop_reaches_the_norms(architecture: str, broken: bool) -> dict[str, Any]:
    """A "shrink large weights" loop of 3 % a step, meant for matrices, takes every parameter above 0.5: the gains of all norms."""
    own = bench(architecture)

    def after(k: int) -> None:
        with torch.no_grad():
            for p in own.model.parameters():
                if (broken and p.dim() == 1 and k > 40 and float(p.abs().max()) > 0.02) or (
                    p.dim() > 1 and float(p.abs().max()) > 9
                ):
                    p.mul_(0.95)

    told = truth(
        "decay_loop_reaches_the_norms",
        [
            ["gains"],
            ["layernorm"],
            ["norms"],
            ["norm", "shrink"],
            ["norm", "shrank"],
            ["weights", "shrink"],
            ["decay"],
            ["outside", "optimizer"],
            ["weights", "outside"],
        ],
        UP + SMALL + STUCK + BIG,
    )
    return run(own, own.adamw(weight_decay=0.0), after=after, truth=told)
