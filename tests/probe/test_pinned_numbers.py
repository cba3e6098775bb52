"""What would be terrible if it were wrong in a measurement, each number computed again with numpy.

Entropy, support, eigenvalues and saturation of attention rows; gains and spreads of heads; the gradient's size; growth
of a pair; the first loss with masks; tokens that are padding; which part of a fused matrix a gradient belongs to.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.probe.attention_rows import RowBlocks, head_statistics, row_blocks, row_statistics
from edgewise.probe.batches import counted
from edgewise.probe.geometry import (
    Unreached,
    log_norms,
    mean_square,
    nearby_input,
    output_gradient,
    pair_growth,
    square_sum,
    weight_logs,
)
from edgewise.probe.readout import first_loss


def logits(heads: int = 3) -> torch.Tensor:
    """(sequences, heads, rows, keys), causal, sharper head by head; the last row of the first sequence sees nothing."""
    values = torch.randn(2, heads, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values *= torch.tensor([0.5, 2.0, 9.0], dtype=torch.float64)[:heads, None, None]
    values = values.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    values[0, :, -1] = -math.inf
    return values


def test_statistics_of_rows_are_those_of_their_own_jacobians() -> None:
    z = logits()
    seen = row_statistics(z)
    for head in range(3):
        entropy, support, largest, condition, saturated = [], [], [], [], []
        for row in z[:, head].reshape(-1, 5).numpy():
            keys = row[np.isfinite(row)]
            if not len(keys):
                continue
            p = np.exp(keys - keys.max())
            p /= p.sum()
            entropy.append(-(p * np.log(p)).sum())
            support.append(math.exp(entropy[-1]))
            if len(keys) > 1:
                eigenvalues = np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[1:]
                largest.append(eigenvalues[-1])
                condition.append(math.log(eigenvalues[-1] / eigenvalues[0]))
                saturated.append(1 - p.max() < 1e-2)
        assert seen.attention_entropy[head] == pytest.approx(np.mean(entropy), rel=1e-9)
        assert seen.effective_support[head] == pytest.approx(np.mean(support), rel=1e-9)
        assert seen.softmax_eigenvalue[head] == pytest.approx(np.mean(largest), rel=2e-3)
        assert seen.softmax_condition[head] == pytest.approx(
            sorted(condition)[(len(condition) - 1) // 2], rel=2e-3
        )
        assert seen.saturated_fraction[head] == pytest.approx(np.mean(saturated))
        finite = z[:, head][torch.isfinite(z[:, head])]
        assert seen.largest_logit[head] == float(finite.abs().max())
    assert seen.saturated_fraction[2] > 0 == seen.saturated_fraction[0]


def test_gains_of_rows_are_products_with_their_jacobians() -> None:
    z = logits()[1, 0]
    upstream = torch.randn(5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    blocks = row_blocks(z, upstream)
    assert torch.isnan(blocks.gain[0]) and torch.isnan(blocks.log_gradient[0])  # one key
    for row in range(1, 5):
        p, signal = torch.softmax(z[row], -1).numpy(), upstream[row].numpy().copy()
        signal[row + 1 :] = 0.0  # hidden keys receive nothing
        moved = (np.diag(p) - np.outer(p, p)) @ signal
        assert float(blocks.gain[row]) == pytest.approx(
            np.linalg.norm(moved) / np.linalg.norm(signal), rel=1e-9
        )
        assert float(blocks.log_gradient[row]) == pytest.approx(math.log(np.linalg.norm(moved)), rel=1e-9)


def test_statistics_of_heads_are_medians_and_spreads_over_all_their_rows() -> None:
    """(sequences, heads, rows) of one head: medians are the lower of two, unknown rows left out."""
    nan = math.nan
    gain = torch.tensor([[[0.1, 0.4]], [[nan, 0.2]]])
    gradient = torch.tensor([[[-1.0, 3.0]], [[nan, 0.5]]])
    largest = torch.tensor([[[-2.0, -1.0]], [[nan, -4.0]]])
    smallest = torch.tensor([[[-5.0, -9.0]], [[nan, -6.0]]])
    seen = head_statistics(RowBlocks(largest, smallest, gain, gradient))
    assert seen["softmax_gain"] == pytest.approx([0.2])
    assert seen["row_gradient_spread"] == pytest.approx([2.5])  # 3 - 0.5
    assert seen["row_eigenvalue_spread"] == pytest.approx([8.0])  # -1 - (-9)


def test_the_size_of_a_gradient_is_that_of_whole_vectors_over_counted_tokens() -> None:
    gradient = torch.tensor([[[3.0, 4.0], [0.0, 2.0]], [[1.0, 0.0], [100.0, 100.0]]])
    mask = torch.tensor([[True, True], [True, False]])
    assert log_norms([gradient], ["x"], mask) == pytest.approx([math.log((25 + 4 + 1) / 3)])
    assert log_norms([gradient], ["x"], None) == pytest.approx([math.log((25 + 4 + 1 + 20000) / 4)])
    assert mean_square(gradient, mask) == pytest.approx(5.0)
    assert log_norms([torch.zeros(1, 2, 3)], ["x"], None) == [-math.inf]
    with pytest.raises(Unreached, match="no gradient reaches second"):
        log_norms([gradient, None], ["first", "second"], None)
    with pytest.raises(BadInput, match="not a number at x"):
        log_norms([gradient * math.nan], ["x"], None)
    assert square_sum(gradient) == pytest.approx(20030.0)
    assert weight_logs({("query", 0): math.e, ("key", 1): 0.0}) == {("query", 0): 1.0, ("key", 1): -math.inf}


def test_a_pair_grows_by_the_square_of_the_angle_between_them() -> None:
    """1 - cos of angles 0.1, 0.2, 0.05: log-changes of (1 - cos), nothing at the first site."""
    angles = [0.1, 0.2, 0.05]
    streams = [torch.tensor([[[1.0, 0.0], [0.0, 3.0]]], dtype=torch.float64)] * 3
    near = [
        torch.tensor([[[math.cos(a), math.sin(a)], [-2 * math.sin(a), 2 * math.cos(a)]]], dtype=torch.float64)
        for a in angles
    ]
    logs = [math.log(1 - math.cos(a)) for a in angles]
    assert pair_growth(streams, near, None) == pytest.approx([0.0, logs[1] - logs[0], logs[2] - logs[1]])


def test_readouts_and_nearby_inputs_have_the_sizes_they_claim() -> None:
    last = torch.zeros(2, 64, 256)
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(2, 64, dtype=torch.bool)
    mask[0, :10] = False
    token = output_gradient(last, "token", generator, mask)
    assert float(token.square().sum(-1)[mask].mean()) == pytest.approx(1.0, abs=0.05)
    assert not token[0, :10].any() and not torch.equal(token[1, 0], token[1, 1])
    pooled = output_gradient(last, "pooled", generator, None)
    assert torch.equal(pooled[0, 0], pooled[0, 63]) and not torch.equal(pooled[0], pooled[1])
    first = 5.0 * torch.ones(1, 8, 512)
    apart = (nearby_input(first, 0) - first).norm() / first.norm()
    assert float(apart) == pytest.approx(1e-3, rel=0.05)
    assert torch.equal(nearby_input(first, 0), nearby_input(first, 0))
    assert not torch.equal(nearby_input(first, 0), nearby_input(first, 1))


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:  # noqa: ARG002
        return self.table(ids)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_the_first_loss_is_the_smaller_of_random_labels_and_of_the_ids(causal: bool, masked: bool) -> None:
    z = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64).numpy()
    ids = np.array([[1, 2, 3, 4, 5], [6, 5, 4, 0, 0]])
    counts = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool) if masked else np.ones((2, 5), bool)
    logs = z - np.log(np.exp(z).sum(-1, keepdims=True))
    uniform = -logs[counts].mean()
    own = []
    for row in range(2):
        for place in range(4 if causal else 5):
            label = place + causal
            if counts[row, place] and counts[row, label]:
                own.append(-logs[row, place, ids[row, label]])
    seen = first_loss(
        Reader(),
        {"ids": torch.tensor(ids)},
        SimpleNamespace(logits=torch.tensor(z)),
        None,
        torch.tensor(counts) if masked else None,
        causal,
    )
    assert seen is not None and seen.chance == pytest.approx(math.log(7))
    assert seen.value == pytest.approx(min(uniform, np.mean(own)), rel=1e-5)
    easy = torch.nn.functional.one_hot(torch.tensor(np.roll(ids, -1, 1) if causal else ids), 7) * 9.0
    seen = first_loss(Reader(), {"ids": torch.tensor(ids)}, SimpleNamespace(logits=easy), None, None, causal)
    assert seen is not None and seen.value < 0.01


def test_padding_and_zeros_are_counted_and_said() -> None:
    first = torch.ones(2, 4, 3)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    batch = {"ids": torch.ones(2, 4, dtype=torch.long), "attention_mask": mask}
    seen = counted(Reader(), batch, first)
    assert seen.mask is not None and torch.equal(seen.mask, mask.bool())
    assert seen.left_out == "1 of 8 tokens left out: padding" and seen.tokens(4) == 4  # 3.5, to even
    first[1, 0] = 0.0
    seen = counted(Reader(), batch, first)
    assert seen.left_out == "2 of 8 tokens left out: 1 padding, 1 with a stream of zeros at the start"
    assert seen.tokens(4) == 3 and seen.mask is not None and not seen.mask[1, 0]
    assert counted(Reader(), {"ids": batch["ids"]}, torch.ones(2, 4, 3)).mask is None
    with pytest.raises(BadInput, match="a sequence has 1 left"):
        counted(Reader(), batch | {"attention_mask": torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]])}, first)
