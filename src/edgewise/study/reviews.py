"""Labelled texts as a task: no duplicates across parts, equal labels, a vocabulary from the training part alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from edgewise.errors import BadInput
from edgewise.study.tasks import Pair, Task

PADDING, UNKNOWN = 0, 1
_WORD = re.compile(r"[a-z0-9']+|[!?]")


@dataclass(frozen=True)
class Review:
    """A text and whether it is positive."""

    text: str
    label: int

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Lower-case words, with ! and ?; line breaks of HTML are not words."""
        return tuple(_WORD.findall(self.text.lower().replace("<br />", " ")))


@dataclass(frozen=True)
class Parts:
    train: tuple[Review, ...]
    test: tuple[Review, ...]
    duplicates: int


@dataclass(frozen=True)
class Corpus:
    """Reviews as they came; `test` is None where the source has no test part."""

    train: tuple[Review, ...]
    test: tuple[Review, ...] | None

    def part(self, count: int, seed: int) -> Corpus:
        """About `count` reviews; where there is a test part it keeps a fifth of them."""
        if self.test is None:
            return Corpus(_chosen(self.train, count // 2, seed), None)
        held = count // 5
        return Corpus(_chosen(self.train, (count - held) // 2, seed), _chosen(self.test, held // 2, seed))

    def parts(self, share: int, seed: int) -> Parts:
        """Train and test with equal labels and no text twice; without a test part, one in `share` is held out."""
        if self.test is not None:
            test = _distinct(self.test, frozenset())
            train = _distinct(self.train, frozenset(review.words for review in test))
            total = len(self.train) + len(self.test)
            return Parts(_chosen(train, None, seed), _chosen(test, None, seed), total - len(train) - len(test))
        every = _distinct(self.train, frozenset())
        left = len(self.train) - len(every)
        every = _chosen(every, None, seed)  # labels in turn, so that a slice of even length is balanced
        cut = 2 * (len(every) // (2 * share))
        if not cut:
            raise BadInput(f"{len(every)} different reviews are too few to hold out one in {share} of each label.")
        return Parts(every[cut:], every[:cut], left)


def _distinct(reviews: Sequence[Review], taken: frozenset[tuple[str, ...]]) -> tuple[Review, ...]:
    """The first review of every sequence of words that is not taken; a review without words says nothing."""
    first = {review.words: review for review in reversed(reviews) if review.words and review.words not in taken}
    return tuple(reversed(first.values()))


def _chosen(reviews: Sequence[Review], of_each: int | None, seed: int) -> tuple[Review, ...]:
    """The same number of both labels, in turn, in a random order; as many as there are unless fewer are wanted."""
    sides = [[review for review in reviews if review.label == label] for label in (0, 1)]
    if not all(sides):
        raise BadInput(f"{len(sides[0])} negative and {len(sides[1])} positive reviews: expected some of both.")
    count = min(*(len(side) for side in sides), *([] if of_each is None else [of_each]))
    random = np.random.default_rng(seed)
    orders = [random.permutation(len(side))[:count] for side in sides]
    return tuple(side[k] for pair in zip(*orders, strict=True) for side, k in zip(sides, pair, strict=True))


def as_task(
    name: str, train: Sequence[Review], test: Sequence[Review], tokens: int, words: int
) -> tuple[Task, tuple[str, ...]]:
    """Ids of the first `tokens` words; the `words` most frequent of the training part, ties by the alphabet."""
    counts = Counter(word for review in train for word in review.words)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))[:words]
    ids = {word: k + 2 for k, word in enumerate(ordered)}
    task = Task(name, len(ordered) + 2, 2, False, True, _pair(train, ids, tokens), _pair(test, ids, tokens))
    return task, tuple(ordered)


def _pair(reviews: Sequence[Review], ids: dict[str, int], tokens: int) -> Pair:
    rows = np.full((len(reviews), tokens), PADDING, np.int64)
    for row, review in zip(rows, reviews, strict=True):
        words = review.words[:tokens]
        row[: len(words)] = [ids.get(word, UNKNOWN) for word in words]
    return torch.from_numpy(rows), torch.tensor([review.label for review in reviews])
