"""Ask every verb about every stranger and print which class its answers belong to.

    python -m experiments.strangers.run --half development           go on where it stopped
    python -m experiments.strangers.run --half development "nanogpt"  again, these only
    python -m experiments.strangers.run --half all                    all four lists, in a file of their own
    python -m experiments.strangers.run --half development --table    the table of what is recorded; --json the same

Every verb is asked about a model of its own in a process of its own, with 60 s of processor time. The processes are
forked from one that has imported everything: a half takes about ten minutes of processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import importlib.util
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import edgewise
from tests.support.unchanged import differences, everything

from .everyone import EVERYONE
from .judge import CLASSES, judge, refusal
from .table import table, table_json
from .truth import Stranger
from .verbs import ASK, READING, VERBS

SECONDS, WAIT, MEMORY = 60, 900, 8 << 30
WARM = "torch encoder, norm first, gelu"  # of the development half
RESULTS = Path(__file__).with_name("results")
Row = dict[str, Any]


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--half", choices=("development", "blind", "third", "fourth", "all"), default="development"
    )
    arguments.add_argument("--table", action="store_true", help="print what is recorded, ask nothing")
    arguments.add_argument(
        "--judge", action="store_true", help="judge the recorded answers again, ask nothing"
    )
    arguments.add_argument("--json", action="store_true", help="print the table as one JSON document")
    arguments.add_argument("--verb", choices=VERBS, action="append", help="these only; default: all")
    arguments.add_argument("names", nargs="*", help="ask these again; default: those without a record")
    options = arguments.parse_args()
    file = RESULTS / f"{options.half}.jsonl"
    rows = recorded(file)
    if options.judge:
        rows = {key: row | classed(EVERYONE[row["name"]][0], row["verb"], row) for key, row in rows.items()}
        write(file, rows)
    elif not options.table:
        rows = ask_all(options.half, options.names, options.verb or VERBS, rows, file)
    names = {name for name, (_, half) in EVERYONE.items() if options.half in (half, "all")}
    kept = [row for row in rows.values() if row["name"] in names]
    print(json.dumps(table_json(kept), indent=1) if options.json else table(kept))


def recorded(file: Path) -> dict[tuple[str, str], Row]:
    """The last record of every model and verb."""
    lines = file.read_text().splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["name"], row["verb"]): row for row in rows}


def ask_all(
    half: str, names: list[str], verbs: Sequence[str], rows: dict[tuple[str, str], Row], file: Path
) -> dict[tuple[str, str], Row]:
    unknown = [name for name in names if half not in (EVERYONE.get(name, (None, ""))[1], "all")]
    if unknown:
        raise SystemExit(f"not in the half {half!r}: {', '.join(unknown)}")
    stamp = stamped()
    file.parent.mkdir(exist_ok=True)
    prepare()
    for name, (stranger, own) in EVERYONE.items():
        if half not in (own, "all") or (names and name not in names):
            continue
        for verb in verbs:
            if (name, verb) in rows and not names:
                continue
            row = {
                "name": name,
                "verb": verb,
                "origin": stranger.origin,
                "softmax": stranger.truths[0].softmax,
            }
            row |= (
                {"class": "skipped", "details": [f"{stranger.package} is missing"]}
                if stranger.missing
                else isolated(stranger, verb)
            )
            rows[name, verb] = row | stamp
            with file.open("a") as out:
                out.write(json.dumps(rows[name, verb]) + "\n")
            print(
                f"{row['class']:20} {verb:12} {name}  {' / '.join(row['details'])[:120]}",
                file=sys.stderr,
                flush=True,
            )
    write(file, rows)
    return rows


def write(file: Path, rows: dict[tuple[str, str], Row]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))


def stamped() -> Row:
    here = Path(__file__).parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {
        "version": edgewise.__version__,
        "commit": commit.stdout.strip(),
        "date": today,
        "torch": torch.__version__,
    }


def prepare() -> None:
    """Import what the forks need, once: the packages, and what each verb imports when it is first asked."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for package in {s.package for s, _ in EVERYONE.values() if s.package and not s.missing}:
        __import__(package)
    if importlib.util.find_spec("transformers"):
        importlib.import_module(
            "transformers.modeling_utils"
        )  # the package itself imports it late, in every fork
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for verb in VERBS:
            ask(EVERYONE[WARM][0], verb)


def isolated(stranger: Stranger, verb: str) -> Row:
    """One verb about one model in a forked process; a crash or a hang ends that process and nothing else."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(stranger, verb, theirs), daemon=True
    )
    process.start()
    theirs.close()
    try:
        if ours.poll(WAIT):
            answer: Row = ours.recv()
            return answer
        return {"class": "too slow", "details": [f"{WAIT} s by the clock"]}
    except EOFError:
        process.join()
        code = process.exitcode
        return {
            "class": "too slow" if code in (-9, -24) else "not judged",
            "details": [f"the process ended with {code}"],
        }
    finally:
        process.kill()
        process.join()
        ours.close()


def _work(stranger: Stranger, verb: str, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.chdir(tempfile.mkdtemp())
    pipe.send(ask(stranger, verb))
    pipe.close()
    os._exit(0)


def ask(stranger: Stranger, verb: str) -> Row:
    model, batch = stranger.build()
    model.train()
    before, start = everything(model), time.process_time()
    answer: Row = {}
    try:
        answer["facts"] = ASK[verb](model, batch)
    except edgewise.BadInput as error:
        answer["refusal"] = str(error)
    except Exception as error:  # what else leaves a verb is the finding
        frame = traceback.extract_tb(error.__traceback__)[-1]
        if Path(frame.filename).parent == Path(__file__).parent and Path(frame.filename).name == "verbs.py":
            raise  # a mistake of this experiment
        answer["traceback"] = [
            f"{type(error).__name__}: {error}"[:300],
            f"{Path(frame.filename).name} {frame.name}",
        ]
    seconds = round(time.process_time() - start, 2)
    changed = sorted(differences(before, everything(model)))[:8] if verb in READING else []
    return classed(stranger, verb, answer) | {"changed": changed, "seconds": seconds} | answer


def classed(stranger: Stranger, verb: str, answer: Row) -> Row:
    """The class of a recorded answer; what was never answered keeps its own."""
    if "facts" in answer:
        verdict, details = judge(verb, stranger.truths, answer["facts"])
    elif "refusal" in answer:
        verdict, details = refusal(stranger.truths, answer["refusal"])
    elif "traceback" in answer:
        verdict, details = "traceback", answer["traceback"]
    else:
        return {}
    return {"class": verdict, "details": details}


assert set(ASK) == set(VERBS) and CLASSES

if __name__ == "__main__":
    main()
