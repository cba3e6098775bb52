"""Relations that any training keeps: each is broken once, and is held by the healthy twin.

The trainings are those of the third and fourth lists, which are development material since their first look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise
from edgewise.preflight.contracts import backward_factor
from experiments.preflight import blind_four, blind_three
from experiments.preflight.run import checked, score

QUICK = [
    "sample_weights_broadcast",
    "pinball_with_min",
    "focal_weight_upside_down",
    "action_read_from_its_own_token",
    "examples_mixed_by_reshape",
    "scheduler_made_in_the_loop",
    "resumed_at_every_step",
    "own_backward_forgets_the_chain",
    "cosine_targets_zero_one",
]
QUICK += [
    "prefix_mask_covers_all",
    "shifted_the_wrong_way",
    "mixer_mixes_the_future",
    "adapter_bypassed",
    "negatives_alias_the_positives",
    "mask_from_a_real_token",
    "columns_counted_twice",
    "poisson_rate_taken_as_log",
    "logit_scale_without_its_log",
]
SLOW = [
    "returns_drown_the_policy",
    "spans_in_characters",
    "prompt_length_in_characters",
    "embeddings_not_scaled",
    "soft_prompt_masked_out",
    "new_token_hook_inverted",
    "task_of_the_first_example",
    "misspelled_group_key",
    "frozen_embeddings_freeze_the_head",
    "queue_before_the_positive",
    "ctc_of_raw_scores",
    "scaled_gradients_applied",
    "both_answers_are_the_chosen",
    "gaussian_nll_precision_sign",
    "optimizer_made_in_the_loop",
    "scaler_made_in_the_loop",
    "sharpness_step_never_undone",
    "gradient_reversal_left_in",
    "ctc_blank_is_a_letter",
    "ctc_lengths_of_another_front",
    "sampler_weights_per_class",
    "prompt_mask_inverted",
    "ignore_index_is_a_class",
    "most_words_masked",
    "class_axis_is_time",
    "divided_by_a_world_of_sixty_four",
    "balance_loss_outweighs",
    "cosine_readout_without_scale",
    "class_from_first_causal_state",
    "token_types_passed_as_mask",
    "soft_prompt_shifts_the_outputs",
    "dropout_on_the_logits",
    "new_words_alike_and_frozen",
    "relative_distance_clamped_to_zero",
    "sdpa_in_flash_layout",
    "from_meta_without_init",
    "plateau_mode_max",
    "second_task_overwrites_first",
    "targets_truncated_to_integers",
]
HEALTHY = [
    "prefix_tuning",  # outputs of the prompt are cut away
    "preferences_against_a_reference",
    "sigmoid_pairs",  # of all pairs of a batch, divided by the number of samples
    "robust_regression",  # targets and inputs are slices of one field
    "sharpness_aware",
    "mixed_images",
    "restarts_from_zero",
    "keys_shared_with_values",
    "two_passes_agree",
    "codes_with_straight_through",
    "topic_vectors",
    "expert_choice",
]


def training(name: str) -> Callable[..., dict[str, Any]]:
    """A training of the two lists."""
    found: Callable[..., dict[str, Any]] = getattr(blind_three, name, None) or getattr(blind_four, name)
    return found


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_a_broken_relation_is_named_and_its_twin_is_ready(name: str) -> None:
    case = training(f"case_{name}")
    torch.manual_seed(0)
    made = case(True)
    report = checked(made)
    assert score(report, made["truth"])["mark"] == "named", report
    torch.manual_seed(0)
    assert (twin := checked(case(False))).ok, twin


@pytest.mark.parametrize(
    "name", [*HEALTHY[:7], *(pytest.param(n, marks=pytest.mark.slow) for n in HEALTHY[7:])]
)
def test_a_relation_that_is_meant_to_be_broken_is_no_finding(name: str) -> None:
    torch.manual_seed(0)
    assert (report := checked(training(f"control_{name}")())).ok, report


class Straight(torch.autograd.Function):
    """Rounds, and passes the gradient by."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.round()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:  # noqa: ARG004
        return grad


class Halved(Straight):
    """The identity, whose gradient is half of what came in."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:  # noqa: ARG004
        return grad / 2


def test_a_hand_written_backward_is_measured_and_steps_are_left_out() -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    assert backward_factor(Straight, (x,), {}) is None
    found = backward_factor(Halved, (x,), {})
    assert found is not None
    assert found[0] == pytest.approx(0.5, rel=1e-6)


def test_apply_is_as_before_after_a_check() -> None:
    before = vars(torch.autograd.Function)["apply"]
    made = [vars(kind)["__init__"] for kind in (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)]
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1])

    def step(net: nn.Module, own: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], k: int) -> Tensor:  # noqa: ARG001
        own.zero_grad()
        value = loss(net, batch)
        value.backward()
        own.step()
        return value

    batches = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(3)]
    edgewise.check(model, batches, loss, optimizer, step=step)
    assert vars(torch.autograd.Function)["apply"] is before
    kinds = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    assert [vars(kind)["__init__"] for kind in kinds] == made
    assert "forward" not in vars(model)
