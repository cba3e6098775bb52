"""The store: every damage is seen, nothing good is lost, writers do not disturb each other."""

from __future__ import annotations

import os
import random
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from edgewise.errors import BadInput
from edgewise.study.store import Record, Stamp, Writer, dumps, files_of, read, read_line

STAMP = Stamp("0.1.0", "3e8a1c8", "2026-11-18", "2.13.0", "2.4.6", "AVX2", 2)


def record(x: int, value: dict[str, object] | None = None, error: str | None = None) -> Record:
    value = {"nan": float("nan"), "y": x * x} if value is None and error is None else value
    return Record({"x": x}, 0.5, value, error, STAMP)


def test_a_record_survives_its_line() -> None:
    again = read_line(record(3).line(), STAMP)
    assert again is not None
    assert repr(again) == repr(record(3))
    assert (
        read_line(record(3).line().replace(b"\n", b"\r\n")) is not None
    )  # a repository may change line ends


@pytest.mark.parametrize("line", [record(3).line(), STAMP.line()], ids=["record", "stamp"])
def test_every_truncation_of_a_line_is_seen(line: bytes) -> None:
    assert [length for length in range(len(line)) if read_line(line[:length]) is not None] == [len(line) - 1]


@pytest.mark.parametrize("line", [record(3).line(), STAMP.line()], ids=["record", "stamp"])
def test_every_changed_byte_of_a_line_is_seen(line: bytes) -> None:
    numbers = random.Random(0)
    for place in range(len(line) - 1):
        garbled = bytearray(line)
        garbled[place] ^= numbers.randrange(1, 256)
        assert read_line(bytes(garbled)) is None


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b'{"key":"a"}\n', b"\xff\xfe\x00\n", b"null\n"])
def test_other_lines_are_damage_and_not_errors(line: bytes) -> None:
    assert read_line(line) is None


def test_a_record_of_a_later_form_is_left_out(tmp_path: Path) -> None:
    from edgewise.study import store as form

    body = b'{"case":{},"later":1'
    line = body + form._MARK + form._check(body).encode() + b'"}\n'
    (tmp_path / "a.jsonl").write_bytes(line)
    assert read(files_of(tmp_path)).damaged == 1


def test_damaged_lines_are_counted_and_the_rest_is_kept(tmp_path: Path) -> None:
    lines = [record(x).line() for x in range(5)]
    lines[1] = lines[1][:40] + b"\n"  # torn, and the file went on: not by us, but an editor may do it
    lines[3] = os.urandom(100).replace(b"\n", b"?") + b"\n"
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines)[:-20])  # the last one half-written
    contents = read(files_of(tmp_path))
    assert contents.damaged == 3
    assert sorted(found.case["x"] for found in contents.done.values()) == [0, 2]


def test_writers_have_their_own_files_and_are_read_together(tmp_path: Path) -> None:
    writers = [Writer(tmp_path) for _ in range(3)]
    for x in range(9):
        writers[x % 3].append(record(x))
    assert len(files_of(tmp_path)) == 3
    contents = read(files_of(tmp_path))
    assert sorted(found.case["x"] for found in contents.done.values()) == list(range(9))
    assert contents.damaged == contents.differing == 0


def test_records_are_no_programs_and_nobody_else_writes_them(tmp_path: Path) -> None:
    Writer(tmp_path)
    (file,) = files_of(tmp_path)
    assert file.stat().st_mode & 0o133 == 0 and file.stat().st_mode & 0o600 == 0o600


def test_the_same_case_twice_is_harmless_and_a_difference_is_told(tmp_path: Path) -> None:
    first, second = Writer(tmp_path), Writer(tmp_path)
    for writer in (first, second):
        writer.append(record(1))
    first.append(record(2, {"y": 4}))
    second.append(record(2, {"y": 5}))
    contents = read(files_of(tmp_path))
    assert len(contents.done) == 2
    assert contents.differing == 1


def test_a_success_makes_a_failure_good_in_any_order(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for item in (record(1, error="no"), record(1), record(2), record(2, error="no"), record(3, error="no")):
        writer.append(item)
    contents = read(files_of(tmp_path))
    assert [found.case["x"] for found in contents.done.values()] == [1, 2]
    assert [found.case["x"] for found in contents.failed.values()] == [3]


def test_only_the_wanted_cases_are_kept(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for x in range(4):
        writer.append(record(x))
    assert list(read(files_of(tmp_path), {'{"x":2}'}).done) == ['{"x":2}']


def test_a_folder_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not visible from"):
        Writer(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_is_an_error_and_takes_no_record(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the write that does not fit raises, and is taken back, so
    that the next record, when there is room again, is not the end of a torn line."""
    import signal

    writer = Writer(tmp_path)
    writer.append(record(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = files_of(tmp_path)[0].stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, hard))
    try:
        with pytest.raises(OSError, match="only 50 of"):
            writer.append(record(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert files_of(tmp_path)[0].stat().st_size == size
    writer.append(record(3))
    contents = read(files_of(tmp_path))
    assert (len(contents.done), contents.damaged) == (2, 0)


def test_a_case_is_keyed_by_its_own_content(tmp_path: Path) -> None:
    """An integer is not the float of the same value; neither the time it took nor what measured it counts."""
    writer = Writer(tmp_path)
    for case in ({"x": 1}, {"x": 1.0}, {"b": 1, "a": 2}):
        writer.append(Record(case, 0.5, {"y": 1}))
    writer.append(Record({"a": 2, "b": 1}, 9.0, {"y": 1}, stamp=STAMP))
    contents = read(files_of(tmp_path))
    assert list(contents.done) == ['{"x":1}', '{"x":1.0}', '{"a":2,"b":1}']
    assert contents.differing == contents.damaged == 0


def test_a_stamp_holds_until_the_next_one_and_a_damaged_one_costs_no_record(tmp_path: Path) -> None:
    later = replace(STAMP, commit="ffffff0")
    writer = Writer(tmp_path)
    for x, stamp in enumerate((STAMP, STAMP, later)):
        writer.append(replace(record(x), stamp=stamp))
    (file,) = files_of(tmp_path)
    assert file.read_bytes() == b"".join(
        [STAMP.line(), record(0).line(), record(1).line(), later.line(), record(2).line()]
    )
    assert [each.stamp for each in read([file]).done.values()] == [STAMP, STAMP, later]
    file.write_bytes(file.read_bytes().replace(b"3e8a1c8", b"3e8a1c9"))
    contents = read([file])
    assert contents.damaged == 1
    assert [each.stamp for each in contents.done.values()] == [None, None, later]
    assert dumps(record(0).case) in contents.done


@pytest.mark.parametrize(
    ("kind", "words"),
    [("pipe", "it is a pipe"), ("device", "it is a device"), ("sparse", "at most 268,435,456 are expected")],
)
def test_what_is_no_file_of_records_is_rejected_by_name(kind: str, words: str, tmp_path: Path) -> None:
    """Each of them was read: for ever, or into memory."""
    path = tmp_path / "other.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 5 * 2**30)
    with pytest.raises(BadInput, match=rf"other\.jsonl: .*{words}"):
        read(files_of(tmp_path))


def test_asking_for_the_commit_takes_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a full disk stopped left git's index.lock behind, and git refused to work from then on."""
    import subprocess

    from edgewise.study import store

    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").touch()
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    os.utime(tmp_path / "src" / "a.py", (1, 1))  # git would write its index anew
    monkeypatch.setattr(store, "__file__", str(tmp_path / "src" / "edgewise" / "study" / "store.py"))
    before = (tmp_path / ".git" / "index").stat().st_mtime_ns
    assert store.commit.__wrapped__() is not None
    assert (tmp_path / ".git" / "index").stat().st_mtime_ns == before
