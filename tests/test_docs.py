"""Every example in the README and the docs is run, every shown output is compared, every table is current."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

import edgewise
from benchmarks import BENCHMARKS
from edgewise.models.source import preset_names
from edgewise.nouns.knobs import KNOBS, Knob

ROOT = Path(__file__).parents[1]
LONG = ("counterexamples.md",)  # forty small experiments
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(page for page in (ROOT / "research").glob("*.md") if page.name != "log.md"),
]
# Paths in backquotes; a pattern or placeholder (papers/*/recorded, papers/<author>) is not a path.
_FOLDERS = "src|tests|papers|experiments|benchmarks|docs|examples|tools|" + "|".join(
    sorted(
        path.name for path in (ROOT / "src/edgewise").iterdir() if path.is_dir() and path.name.isidentifier()
    )
)
PATH = re.compile(rf"[` (\[]((?:{_FOLDERS})/[\w./]*\w/?)(?=[`) ,;:#\]])")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Commands that set up an environment or run this very suite: shown to the reader, not run here.
NOT_RUN = (
    "make demo",
    "make test",
    "git clone",
    "cd edgewise",
    "python3 -m venv .venv",
    '.venv/bin/pip install -c constraints.txt -e ".[test]"',
    ".venv/bin/edgewise doctor",
)


def fences(page: Path, *languages: str) -> list[str]:
    return [text for language, text in FENCE.findall(page.read_text()) if language in languages]


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """The shell examples of a page: each `$ command` with the lines shown under it."""
    examples: list[tuple[str, list[str]]] = []
    for line in "\n".join(fences(page, "console")).splitlines():
        if line.startswith("$ "):
            examples.append((line[2:].strip(), []))
        elif examples and line.strip():
            examples[-1][1].append(line)
    return examples


def write_files(page: Path, folder: Path) -> None:
    """A python fence whose first line is `# name.py` is also a file, for the shell examples of its page."""
    for text in fences(page, "python"):
        if name := re.match(r"# (\w+\.py)\n", text):
            (folder / name[1]).write_text(text)


def with_examples(*languages: str) -> list[Any]:
    pages = [page for page in PAGES if fences(page, *languages)]
    return [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] * (page.name in LONG)) for page in pages
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_fence_says_how_it_is_checked(page: Path) -> None:
    """Fences are python, console (both run here), json (an extract) or text; `bash` would go unchecked."""
    languages = {language for language, _ in FENCE.findall(page.read_text())}
    assert languages <= {"python", "console", "json", "text"}


@pytest.mark.parametrize("page", with_examples("python"))
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The python fences of one page run in one namespace, in order, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    for number, text in enumerate(fences(page, "python"), 1):
        exec(compile(text, f"{page.name}, example {number}", "exec"), names)


@pytest.mark.parametrize("page", with_examples("console"))
def test_shell_examples_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`edgewise` lines run; the exit code is 0 unless `$ echo $?` shows another; shown lines are printed."""
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    shown = [(command, lines) for command, lines in commands(page) if command not in NOT_RUN]
    for position, (command, lines) in enumerate(shown):
        if command == "echo $?":
            continue
        after = shown[position + 1] if position + 1 < len(shown) else ("", [])
        expected = int(after[1][0]) if after[0] == "echo $?" else 0
        code = run_edgewise(command, monkeypatch)
        printed = capsys.readouterr()
        assert code == expected, f"{command}: exit code {code}\n{printed.out}{printed.err}"
        missing = [line for line in lines if not occurs(line, printed.out + printed.err)]
        assert not missing, f"{command} did not print {missing}; it printed\n{printed.out}{printed.err}"


def told(page: Path) -> list[str]:
    """The `edgewise` commands of a page's text fences, which are not run here: placeholders, a shell script."""
    lines = "\n".join(fences(page, "text")).splitlines()
    found = [re.match(r"(?:\$ |  run: )?(edgewise [a-z]\S*(?: \S+)*)", line) for line in lines]
    return [match[1] for match in found if match is not None and ":" not in match[1].split()[1]]


@pytest.mark.parametrize("page", [page for page in PAGES if told(page)], ids=lambda page: page.name)
def test_commands_that_are_only_told_are_understood(page: Path) -> None:
    """Verb, options and their values exist; what they name (a run, a cluster) is the reader's."""
    from edgewise.cli.main import edgewise as group

    for command in told(page):
        _, verb, *words = shlex.split(command)
        chosen = group.get_command(click.Context(group), verb)
        assert chosen is not None, command
        chosen.make_context(verb, words)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_opens_with_what_its_reader_can_do(page: Path) -> None:
    text = page.read_text()
    assert page.name == "index.md" or "After this page" in text.partition("\n\n")[2][:100]


def test_the_guide_stays_readable() -> None:
    pages = [page for page in (ROOT / "docs").glob("*.md") if not page.name.startswith("api")]
    words = sum(len(page.read_text().split()) for page in [*pages, ROOT / "README.md"])
    assert len(pages) <= 20 and words <= 45_000


def run_edgewise(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in this process (a new one would import torch again) and return its exit code."""
    from edgewise.cli.main import main

    words = shlex.split(command)
    assert words[0] == "edgewise", f"{command!r} is neither an edgewise command nor listed in NOT_RUN"
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def occurs(line: str, printed: str) -> bool:
    """True when the shown line is in the output, up to spacing; `...` stands for what was left out."""
    pieces = [re.escape(" ".join(piece.split())) for piece in line.split("...")]
    return re.search(".*".join(pieces), " ".join(printed.split())) is not None


def row(knob: Knob) -> str:
    values = ", ".join(f"`{choice}`" for choice in knob.choices) or knob.kind
    default = "–" if knob.default is None else f"`{str(knob.default).lower()}`"
    per_block = "yes" if knob.per_block else ""
    return f"| `{knob.name}` | {values} | {default} | {per_block} | {knob.meaning} |"


def test_knob_table_is_the_one_in_the_code() -> None:
    """docs/architecture.md lists exactly the knobs of edgewise.nouns.knobs.KNOBS, in their order and words."""
    section = (ROOT / "docs/architecture.md").read_text().partition("## The knobs")[2].partition("\n## ")[0]
    shown = [line for line in section.splitlines() if line.startswith("| `")]
    current = [row(knob) for knob in KNOBS.values()]
    assert shown == current, "the table should read\n" + "\n".join(current)


def test_every_preset_is_listed() -> None:
    section = (ROOT / "docs/architecture.md").read_text().partition("## Presets")[2].partition("They are")[0]
    assert re.findall(r"`([^`]+)`", section) == list(preset_names())


def test_every_public_name_is_in_the_api() -> None:
    """docs/api.md has the names of `edgewise`, docs/api_rooms.md those of every room; each path is that object."""
    names = re.findall(r"^::: edgewise\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(set(edgewise.__all__) - set(edgewise._ROOMS))
    rooms = (ROOT / "docs/api_rooms.md").read_text()
    for room in edgewise._ROOMS:
        section = rooms.partition(f"## edgewise.{room}\n")[2].partition("\n## ")[0]
        paths = re.findall(r"^::: (\S+)$", section, re.MULTILINE)
        module = getattr(edgewise, room)
        assert sorted(path.rpartition(".")[2] for path in paths) == sorted(module.__all__)
        for path in paths:
            home, _, name = path.rpartition(".")
            assert getattr(import_module(home), name) is getattr(module, name)


def test_every_benchmark_is_listed_and_imports() -> None:
    """benchmarks/README.md has one row per benchmark; its result exists, and what it uses of edgewise does."""
    table = (ROOT / "benchmarks/README.md").read_text()
    rows = re.findall(r"^\| `(\w+)\.py` .*\(results/(\w+)\.md\) \|$", table, re.MULTILINE)
    assert {name for name, _ in rows} == set(BENCHMARKS)
    for name, result in rows:
        assert name == result and (ROOT / f"benchmarks/results/{result}.md").is_file()
        import_module(f"benchmarks.{name}")


def test_changelog_begins_with_this_version() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None and first[1] == edgewise.__version__


def test_every_path_exists() -> None:
    """A path that a page names, from the root of the repository or from src/edgewise, is there."""
    named = [
        (page.name, path) for page in PAGES for path in PATH.findall(page.read_text()) if "..." not in path
    ]
    assert len(named) > 50  # the pattern still sees them
    missing = [
        pair
        for pair in named
        if not ((ROOT / pair[1]).exists() or (ROOT / "src/edgewise" / pair[1]).exists())
    ]
    assert not missing


def test_readme_stays_short_and_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 80
    assert "make demo" in text
    assert "make test" in text


def test_pictures_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
            assert (page.parent / target.partition("#")[0]).is_file(), (
                f"{page.name} shows {target}, which is not there"
            )


def test_no_text_names_a_machine() -> None:
    """Committed text must not depend on one machine's folders."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = [ROOT / name for name in listed.stdout.split()] or PAGES
    pattern = re.compile(r"(?<![\w.])/(?:work|root|home|opt)/\w")
    for path in names:
        if path.suffix in {".md", ".py", ".toml", ".txt", ".yml", ".yaml"} and path != Path(__file__):
            assert not pattern.search(path.read_text()), f"{path.name} names a folder of one machine"
