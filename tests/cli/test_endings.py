"""What user code and the system raise never reads as a verdict: every ending has its code and its sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgewise.cli.exit_codes import ending
from edgewise.cli.main import run
from tests.support.recipes import write_recipe

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]


def shell(script: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")} | settings
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)


def source(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(text)
    return f"{path}:make"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys\nsys.exit(0)\n", ["called sys.exit(0)", "mine.py, line 2"]),
        ("import sys\ndef make():\n    sys.exit()\n", ["called sys.exit()", "mine.py, line 3"]),
        ("def make(:\n", ["SyntaxError", "mine.py, line 1"]),
        ("import absent_module\n", ["ModuleNotFoundError", "absent_module", "mine.py, line 1"]),
        (
            "def make():\n    raise ValueError('no such size')\n",
            ["ValueError: no such size", "mine.py, line 2"],
        ),
        ("def make():\n    return make()\n", ["RecursionError", "mine.py, line 2"]),
        ("def make():\n    open('/nowhere/x')\n", ["FileNotFoundError", "mine.py, line 2"]),
        (
            "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.embedding = torch.nn.Embedding(8, 4)\n    def forward(self, ids):\n"
            "        raise SystemExit(0)\nmake = Net\n",
            ["called sys.exit(0)", "mine.py, line 7"],
        ),
    ],
)
def test_mistakes_of_user_code_are_bad_input_with_their_own_words(
    text: str, words: list[str], tmp_path: Path, capsys: Capture
) -> None:
    assert run(["measure", source(tmp_path, text), "--tokens", "8", "--json"]) == 64
    printed = capsys.readouterr()
    assert all(word in printed.err for word in words), printed.err
    document = json.loads(printed.out)
    assert document["exit_code"] == 64 and words[0] in document["error"]


def test_a_file_named_from_here_is_the_user_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Python calls it by its whole path, the user by a short one."""
    (tmp_path / "mine.py").write_text("def model():\n    raise ValueError('no such weights')\n")
    monkeypatch.chdir(tmp_path)
    assert run(["rate", "mine.py:model", "--json"]) == 64
    assert "mine.py, line 2" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("function", ["cases", "claim", "draw"])
def test_a_recipe_that_ends_the_process_has_no_answer(function: str, tmp_path: Path, capsys: Capture) -> None:
    recipe = write_recipe(tmp_path, **{function: f"def {function}(_):\n    raise SystemExit(0)\n"})
    assert run(["run", str(recipe), "--workers", "1", "--into", str(tmp_path / "runs")]) == 64
    assert "called sys.exit(0)" in capsys.readouterr().err


def test_a_case_that_ends_the_process_has_failed(tmp_path: Path, capsys: Capture) -> None:
    recipe = write_recipe(tmp_path, measure="def measure(case):\n    raise SystemExit(0)\n")
    assert run(["run", str(recipe), "--workers", "1", "--into", str(tmp_path / "runs")]) == 2
    assert "SystemExit" in capsys.readouterr().err


def test_prints_of_user_code_do_not_break_the_document(tmp_path: Path, capfd: Capture) -> None:
    """By print, and past Python by the descriptor."""
    loud = "    print('loud')\n    os.write(1, b'low')\n"
    measure = f"import os\ndef measure(case):\n{loud}    return {{'y': square(case['x'])}}\n"
    recipe = write_recipe(tmp_path, measure=measure)
    run(["run", str(recipe), "--workers", "1", "--into", str(tmp_path / "runs"), "--json"])
    printed = capfd.readouterr()
    assert json.loads(printed.out)["measured"] > 0
    assert "loud" in printed.err and "low" in printed.err


def test_usage_errors_are_documents_too(capsys: Capture) -> None:
    assert run(["predict", "gpt2", "--loud", "--json"]) == 64
    assert "No such option" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (PermissionError(13, "Permission denied", "/nowhere/runs"), 64, "'/nowhere/runs': Permission denied"),
        (RecursionError("maximum depth"), 64, "nested too deeply"),
        (OverflowError("math range error"), 64, "too large"),
        (MemoryError(), 64, "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 64, "not enough memory"),
        (SystemExit(0), 64, "called sys.exit(0)"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (AssertionError(), 70, "internal error, AssertionError: no message"),
    ],
)
def test_every_exception_has_its_code(error: BaseException, code: int, words: str) -> None:
    assert ending(error)[0] == code and words in ending(error)[1]


def test_an_interrupt_that_a_library_has_wrapped_is_an_interrupt() -> None:
    error = ImportError("numpy could not be imported")
    error.__context__ = KeyboardInterrupt()
    assert ending(error) == (130, "interrupted")


@pytest.mark.parametrize("library", ["click", "numpy"])
def test_an_interrupt_during_an_import_leaves_no_traceback(library: str) -> None:
    done = shell(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {library!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = ['edgewise', 'predict', 'transformer']\n"
        "from edgewise.__main__ import main\nmain()\n"
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "edgewise: interrupted\n", "")


def test_a_reader_that_is_gone_is_no_verdict() -> None:
    """`edgewise predict ... | head -1`: the reader is gone before anything is printed, the verdict would be 2."""
    script = "import sys; from edgewise.__main__ import main; sys.argv[0] = 'edgewise'; main()"
    words = ["predict", "transformer", "--depth", "48", "--tokens", "16", "--set", "norm=post"]
    command = [sys.executable, "-c", script, *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    lines = process.stderr.read().decode().splitlines()
    assert lines == ["edgewise: standard output could not be written: Broken pipe. The answer is lost."]
    assert process.wait() == 74
    process.stderr.close()


COMMANDS = {  # every verb that prints an answer, in a form that is quick; RUN is a watched run
    "predict": "predict gpt2 --json",
    "screen": "predict gpt2",
    "measure": "measure SOURCE --tokens 8 --json",
    "describe": "describe gpt2",
    "fix": "fix SOURCE --json",
    "report": "report gpt2 -o OUT.html",
    "watch": "watch RUN --once",
    "watch json": "watch RUN --json",
    "alarms": "alarms RUN",
    "alarms json": "alarms RUN --json",
    "export": "export RUN --to OUT.csv --json",
    "run": "run --list papers",
    "presets": "presets",
    "completion": "completion bash",
    "doctor": "doctor",
    "help": "--help",
    "version": "--version",
    "help of a verb": "predict --help",
    "bad input": "predict nothing --json",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.run_folders import write

    folder = tmp_path_factory.mktemp("lost")
    write(folder / "run", 25, seen=True)
    (folder / "mine.py").write_text("from tests.monitor.subjects import encoder as make\n")
    return folder


def words_of(command: str, folder: Path) -> str:
    words = COMMANDS[command].replace("RUN", str(folder / "run")).replace("OUT", str(folder / "out"))
    return words.replace("SOURCE", f"{folder / 'mine.py'}:make")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_cannot_be_written_has_a_code_of_its_own(
    command: str, written: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """It was 1 with a traceback, which reads as *risky*."""
    words = words_of(command, written).split()
    monkeypatch.chdir(ROOT)
    with Path("/dev/full").open("w", encoding="utf-8") as full, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        assert run(words) == 74
    lines = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("edgewise: standard output")
    ]
    reason = "No space left on device"
    assert lines == [f"edgewise: standard output could not be written: {reason}. The answer is lost."]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    "command", ["predict", "screen", "version", pytest.param("alarms", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("where", "reason"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")]
)
def test_a_shell_s_output_that_cannot_be_written(
    command: str, where: str, reason: str, written: Path
) -> None:
    """Also while the interpreter shuts down, and where standard output is closed."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -m edgewise {words_of(command, written)} {where}'],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 74, (done.returncode, done.stderr)
    assert done.stderr == f"edgewise: standard output could not be written: {reason}. The answer is lost.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    ("command", "code", "error"), [("predict nothing --json", 64, True), ("predict gpt2 --json", 0, False)]
)
def test_messages_that_cannot_be_written_change_no_ending(command: str, code: int, error: bool) -> None:
    """With a full standard error a refusal ended with 1, which reads as *risky*, and without a document."""
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -m edgewise {command} 2>/dev/full'],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == code
    assert ("error" in json.loads(done.stdout)) == error


@pytest.mark.parametrize("given", [None, "1"])
def test_a_shell_lets_no_library_fetch_code(given: str | None) -> None:
    """transformers takes kernels from the Hub where the package `kernels` is installed, also to build from a config."""
    environment = {name: value for name, value in os.environ.items() if name != "USE_HUB_KERNELS"}
    environment |= {"PYTHONPATH": str(ROOT / "src")} | ({} if given is None else {"USE_HUB_KERNELS": given})
    script = (
        "import os, sys; from edgewise.cli import main; main.run = lambda words: print(os.environ['USE_HUB_KERNELS'])\n"
        "main.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == (given or "0")


@pytest.mark.parametrize("columns", ["0", "1", "-5", "many", "9" * 30])
def test_a_strange_width_prints_normally(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    run(["predict", "transformer", "--depth", "2", "--tokens", "8"])
    printed = capsys.readouterr().out
    assert "TRAINS" in printed and "overlap" in printed


def test_without_torch_theory_answers_and_the_rest_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\n")
    script = f"""
import sys
sys.modules["torch"] = None  # as if it were not installed
import edgewise
from edgewise.cli.main import run

def said(call, *arguments):
    try:
        call(*arguments)
    except (ImportError, edgewise.BadInput) as error:
        return str(error)

assert edgewise.judge(edgewise.predict("torch-encoder")).outcome
assert [run(words) for words in (["predict", "bert-base"], ["describe", "gpt2"])] == [0, 0]
file = {str(tmp_path / "mine.py:make")!r}
for words in (["measure", file], ["check", file], ["fix", file], ["rate", file], ["predict", file]):
    assert run(words) == 64, words
for name in ("watch", "measure", "initialize_", "check", "landscape"):
    assert "pip install torch" in said(getattr, edgewise, name), name
"""
    finished = shell(script)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("this needs torch, which is not installed: pip install torch") == 5
