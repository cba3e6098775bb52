"""Which default tests reach which lines of edgewise, and how long each takes, by coverage's contexts.

    python -m tests.mutants.reach [GROUP ...]

runs the tests group by group and leaves one file per group in `.mutants/reach/`; a group that is there is not run
again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]
FOLDER = HOME / ".mutants" / "reach"
# Tests whose subject is a page, a browser, the text of the repository or other processes: no mutant is tried on them.
LEFT_OUT = {
    "tests/explorer/test_browser",  # and _runs and _views
    "tests/explorer/test_fuzz.py",
    "tests/test_docs.py",
    "tests/test_house.py",
    "tests/test_recipes.py",
    "tests/mutants",
    "tests/test_interrupts.py",
    "tests/test_door.py",
}  # alarms inside coverage's lock; doctests of everything


class Reach:
    """Switches coverage's context to the test that runs, and keeps its outcome and seconds."""

    def __init__(self, coverage: object):
        self.coverage, self.seconds, self.failed = coverage, {}, set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        began = time.process_time()  # not the clock, which other processes of a busy machine stretch
        result = yield
        self.seconds[item.nodeid] = time.process_time() - began
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)


def record(paths: list[str], target: Path) -> None:
    """Run these tests; write seconds by test, and by file and line the numbers of the tests that reach it and pass."""
    import coverage

    measured = coverage.Coverage(data_file=None, source=[str(HOME / "src" / "edgewise")], messages=False)
    reach = Reach(measured)
    measured.start()
    pytest.main(["-q", "-p", "no:cacheprovider", *paths], plugins=[reach])
    measured.stop()
    passed = sorted(set(reach.seconds) - reach.failed)
    number = {node: place for place, node in enumerate(passed)}
    data, lines = measured.get_data(), {}
    for file in data.measured_files():
        reached = {
            line: sorted(number[node] for node in nodes if node in number)
            for line, nodes in data.contexts_by_lineno(file).items()
        }
        lines[str(Path(file).relative_to(HOME))] = {line: nodes for line, nodes in reached.items() if nodes}
    document = {
        "tests": {node: round(reach.seconds[node], 3) for node in passed},
        "failed": sorted(reach.failed),
        "lines": lines,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".part").write_text(json.dumps(document))
    target.with_suffix(".part").rename(target)


def groups() -> dict[str, list[str]]:
    """Test files by room: a folder of tests is a group, the files above the folders are one."""
    result: dict[str, list[str]] = {}
    for file in sorted((HOME / "tests").rglob("test_*.py")):
        path = str(file.relative_to(HOME))
        if not any(path.startswith(left_out) for left_out in LEFT_OUT):
            parts = Path(path).parts
            result.setdefault(parts[1] if len(parts) > 2 else "floor", []).append(path)
    return result


def main() -> None:
    if "--" in sys.argv:
        return record(sys.argv[3:], FOLDER / f"{sys.argv[1]}.json")
    for name, paths in groups().items():
        if (len(sys.argv) == 1 or name in sys.argv[1:]) and not (FOLDER / f"{name}.json").exists():
            subprocess.run(
                [sys.executable, "-m", "tests.mutants.reach", name, "--", *paths], cwd=HOME, check=True
            )


if __name__ == "__main__":
    main()
