"""One small entry of whatever batch is given, and batches made up where none is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.behavior.batch import feeds, images_end_to_end, sequence_first
from edgewise.models.behavior.read import read
from edgewise.models.inputs import TOKENS, as_call, default_batches
from tests.models.behavior.strangers import WIDTH, blocks, ids


def test_an_entry_is_cut_and_repeated() -> None:
    batch = {"input_ids": torch.arange(300).view(3, 100), "scale": 2.0, "mask": torch.ones(3, 1, 100, 100)}
    feed = next(iter(feeds(batch)))
    args, kwargs = feed.entries(4)
    assert args == () and kwargs["scale"] == 2.0 and kwargs["input_ids"].shape == (4, TOKENS)
    assert (
        kwargs["mask"].shape == (4, 1, TOKENS, TOKENS)
        and (kwargs["input_ids"] == kwargs["input_ids"][0]).all()
    )
    assert batch["input_ids"].shape == (3, 100)


def test_the_entry_with_least_padding_is_taken_without_it() -> None:
    tokens = torch.arange(1, 31).view(3, 10)
    mask = torch.tensor([[1] * 4 + [0] * 6, [0] * 2 + [1] * 8, [1] * 7 + [0] * 3])
    kwargs = next(iter(feeds({"input_ids": tokens, "attention_mask": mask}))).entries(1)[1]
    assert kwargs["input_ids"].tolist() == [list(range(13, 21))] and bool(kwargs["attention_mask"].all())


def test_streams_with_the_batch_second() -> None:
    feed = sequence_first(torch.randn(20, 3, 8))
    assert feed is not None and feed.entries(5)[0][0].shape == (20, 5, 8)
    words = sequence_first(torch.randint(64, (20, 3)))
    assert words is not None and words.tokens == 20 and words.entries(5)[0][0].shape == (20, 5)
    assert sequence_first(torch.randn(2, 3, 8, 8)) is None


def test_what_a_batch_may_be() -> None:
    tensor = ids()
    assert as_call(tensor) == ((tensor,), {}) and as_call([tensor]) == ((tensor,), {})
    assert as_call({"x": 1}) == ((), {"x": 1})
    with pytest.raises(BadInput, match="cannot be of type str"):
        as_call("text")


def test_equal_tokens_are_equal_where_it_is_looked() -> None:
    feed = next(iter(feeds(ids(20)))).equal_tokens()
    second_half = feed.entries(1)[0][0][:, 10:]
    assert (second_half == second_half[:, :1]).all()


def test_made_up_batches_leave_the_random_stream_alone() -> None:
    model = blocks()
    state = torch.get_rng_state()
    first = next(iter(default_batches(model)))
    assert (
        isinstance(first, Tensor) and first.dtype == torch.long and torch.equal(torch.get_rng_state(), state)
    )


def test_images_times_and_classes_are_made_up_from_modules() -> None:
    class Picture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.blocks = nn.Conv2d(1, WIDTH, 8, 8), nn.ModuleList(b for b in blocks().stuff)

        def forward(self, image: Tensor, time: Tensor) -> Tensor:
            x = self.patch(image).flatten(2).transpose(1, 2) * time[:, None, None]
            for block in self.blocks:
                x = block(x)
            return x

    stack = read(Picture()).stacks[0]
    assert stack.depth == 3 and not stack.language and not stack.not_read


def test_a_model_that_takes_nothing_known_is_refused_with_what_was_tried() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 8)

        def forward(self, ids: Tensor) -> Tensor:  # noqa: ARG002
            raise KeyError("graph")

    tried = r"made-up batch \(argument 0 \(1, 47\)\), nor on \d+ others: KeyError: 'graph'.*Give a batch"
    with pytest.raises(BadInput, match=tried):
        read(Picky())


@pytest.mark.parametrize(
    ("grid", "rows", "sizes"),
    [
        ([[1, 2, 4], [1, 4, 4]], 24, [8, 16]),
        ([[1, 1, 1], [1, 1, 1]], 2, None),  # a mask of three tokens beside their ids
        ([[5, 0, 7], [1, 1, 2]], 2, None),  # ids of three tokens
        ([[1, 2, 4], [1, 4, 4]], 25, None),  # rows that the grids do not account for
    ],
)
def test_images_end_to_end_are_told_from_short_texts(
    grid: list[list[int]], rows: int, sizes: list[int] | None
) -> None:
    assert images_end_to_end([torch.tensor(grid), torch.zeros(rows, 3)]) == sizes
