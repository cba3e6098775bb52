"""`edgewise check`: facts that must hold in any healthy training, before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgewise.cli.exit_codes import printing, prints_aside
from edgewise.cli.options import json_option
from edgewise.errors import BadInput

if TYPE_CHECKING:
    from edgewise.preflight.check_report import CheckReport

KEYS = ("model", "batches", "loss", "optimizer", "step", "also")
EPILOG = (
    "SOURCE is file.py:setup, a function that returns a dictionary with model, and any of batches, loss, "
    "optimizer, step, "
    "also; or a checkpoint folder, whose tensors are checked. `edgewise check -- python train.py ...` "
    "runs an unedited "
    "script and checks it at its first optimizer step. Exit codes: 0 nothing but notes, 1 warnings, 2 "
    "errors, 64 bad "
    "input, 70 internal error; of a script that is not stopped, its own."
)


@click.command(epilog=EPILOG, context_settings={"ignore_unknown_options": False})
@click.argument("source", nargs=-1, required=True, metavar="SOURCE | -- python train.py ...")
@click.option("--only", type=click.Choice(["tensors"]), help="Check the tensors only; no pass is made.")
@click.option("--steps", default=2, metavar="N", help="Real steps, which are undone.")
@click.option("--theory", is_flag=True, help="Also measure how signal and gradient run through the depth.")
@click.option(
    "--stop-on",
    type=click.Choice(["error", "warning", "never"]),
    default="never",
    help="Of a script: stop it at findings of this severity.",
)
@click.option("--html", metavar="F", help="Write the report as one HTML page.")
@json_option
def check(
    source: tuple[str, ...],
    only: str | None,
    steps: int,
    theory: bool,
    stop_on: str,
    html: str | None,
    as_json: bool,
) -> int:
    """Check a training before it runs: its tensors, flow, loss, loop and steps."""
    if len(source) > 1:
        from edgewise.preflight.script import run_script

        return run_script(list(source), stop_on=stop_on, show=lambda report: _show(report, as_json, err=True))
    with prints_aside():
        report = _checked(source[0], only, steps, theory)
        if html is not None:
            report.to_html(html)
    _show(report, as_json)
    return report.exit_code


def _checked(source: str, only: str | None, steps: int, theory: bool) -> CheckReport:
    from edgewise.preflight.entry import check

    if ".py:" not in source:
        if only != "tensors":
            raise BadInput(
                f"{source!r} has no batches and no loss. Write file.py:setup, or add --only tensors."
            )
        from edgewise.probe.subjects import seeded, subject

        target = subject(source)
        if target.module is not None:
            return check(target.module, only="tensors")
        assert target.factory is not None
        return check(seeded(target.factory, 0), only="tensors")
    from edgewise.models.source import load_name

    file, _, name = source.rpartition(":")
    function = load_name(Path(file), name)
    if not callable(function):
        raise BadInput(f"{Path(file).name} has no function {name!r}; expected one that returns a dictionary.")
    given = function()
    if not isinstance(given, dict) or "model" not in given:
        raise BadInput(f"{name}() returned {type(given).__name__}; expected a dictionary with 'model'.")
    unknown = sorted(set(given) - set(KEYS))
    if unknown:
        raise BadInput(f"{name}() returned unknown keys {unknown}; expected {', '.join(KEYS)}.")
    model = given.pop("model")
    return check(model, **given, only=only, steps=steps, theory=theory)


def _show(report: CheckReport, as_json: bool, err: bool = False) -> None:
    if as_json or err:
        with printing():
            click.echo(report.to_json() if as_json else str(report), err=err and not as_json)
        return
    from edgewise.present.terminal import console, show

    with printing():
        out = console()
        show(out, report.lines(min(out.width, 110)))
