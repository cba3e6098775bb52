"""Unusual and healthy trainings that had a false error, warning or crash once: no error, and no warning but two."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from edgewise.preflight.check_report import CheckReport
from experiments.preflight import blind_six, unusual_two
from experiments.preflight.run import checked

ONCE_FALSE = (
    "batches_of_one_task_each",
    "a_head_that_is_only_watched",
    "sparse_table_with_its_own_optimizer",
    "two_optimizers_of_which_one_is_told",
    "a_batch_without_any_label",
    "the_first_batch_has_no_label",
    "texts_end_to_end_in_one_row",
    "four_codebooks_with_delays",
    "head_alone_in_the_optimizer_of_a_trained_body",
    "adversarial_inputs",
    "tasks_of_which_some_are_not_measured",
    "values_missing_in_a_later_batch",
    "patches_that_are_left_out_at_random",
    "bytes_in_patches",
    "clients_train_and_are_averaged",
    "low_precision_with_compensation",
    "every_norm_begins_silent",
    "target_of_a_network_that_is_not_frozen",
    "a_learned_base_of_frequencies",
)
UNDECIDABLE = ("a_distance_of_samples", "several_right_answers")  # look like mistakes, and are warnings


def report_of(name: str) -> CheckReport:
    torch.manual_seed(0)
    return checked(getattr(unusual_two, f"control_{name}")())


@pytest.mark.parametrize("name", ONCE_FALSE)
def test_an_unusual_training_has_no_finding(name: str) -> None:
    report = report_of(name)
    assert report.ok, str(report)
    assert not [reason for _, reason in report.undecided if "failed" in reason]


@pytest.mark.parametrize("name", UNDECIDABLE)
def test_what_looks_like_a_mistake_is_no_error(name: str) -> None:
    assert [f.severity for f in report_of(name).problems] == ["warning"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(n[8:] for n in vars(unusual_two) if n.startswith("control_")))
def test_the_whole_list(name: str) -> None:
    report = report_of(name)
    assert report.ok or name in UNDECIDABLE, str(report)


def test_gradients_of_a_network_that_the_model_only_asks_are_put_back() -> None:
    made = unusual_two.control_target_of_a_network_that_is_not_frozen()
    other = made["model"].other[0]
    kept = {p: torch.randn_like(p) for p in other.parameters()}
    for p, gradient in kept.items():
        p.grad = gradient
    numbers = [g.clone() for g in kept.values()]
    checked(made)
    assert all(p.grad is gradient for p, gradient in kept.items())
    assert all(torch.equal(a, b) for a, b in zip(kept.values(), numbers, strict=True))


def test_a_mask_that_is_added_to_scores_is_no_input_on_another_scale() -> None:
    """The first floating field of the batch is zero where tokens are seen, and the least number elsewhere."""

    def loss(model: unusual_two.Net, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        out = model(batch["ids"][:, :-1], mask=batch["mask"])
        return F.cross_entropy(out.flatten(0, 1), batch["ids"][:, 1:].flatten())

    future = torch.full((unusual_two.T - 1, unusual_two.T - 1), -1e9).triu(1)
    batches = [{"mask": future, "ids": ids} for ids in unusual_two.texts()]
    assert checked(unusual_two.made(unusual_two.Net(), loss, batches)).ok


@pytest.mark.parametrize(
    "name", ["case_its_own_positive", "case_square_mask_of_ones", "control_half_of_the_targets_missing"]
)
def test_what_had_a_false_warning_on_the_sixth_list_has_none(name: str) -> None:
    torch.manual_seed(0)
    make = getattr(blind_six, name)
    report = checked({k: v for k, v in (make(False) if "case" in name else make()).items() if k != "truth"})
    assert report.ok, str(report)
