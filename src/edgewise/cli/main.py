"""Entry point of the shell: find the verb, import only it, and turn every ending into an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

import click

from edgewise.cli import exit_codes
from edgewise.errors import BadInput

# verb: its line in `edgewise --help`; FILES says which file of edgewise/cli holds the click command of that name.
VERBS = {
    "check": "Check your own training before it runs: facts that must hold.",
    "predict": "Say from a description alone whether a network will train.",
    "measure": "Read the same numbers from a real model, beside theory.",
    "describe": "Say what a model is, block by block, in theory or not.",
    "fix": "Plan the weights so that a model trains: table, code, proof.",
    "report": "Write one page that says all of it, to share or print.",
    "rate": "Rehearse learning rates on copies of a model and name one.",
    "explore": "Open a local page: move a model to where it trains.",
    "watch": "Show a watched training run while it grows.",
    "alarms": "Say what went wrong in a watched run, since when, what to try.",
    "replay": "Repeat the step of an alarm: which explanation survives?",
    "export": "Write the rows of a watched run as CSV or Parquet.",
    "run": "Run a recipe at any scale: measure, judge its claim, draw it.",
    "presets": "List the networks that are known by name.",
    "completion": "Print the script for completion in bash, zsh or fish.",
    "doctor": "Print versions and what is available on this machine.",
}
FILES = {
    **dict.fromkeys(("describe", "presets"), "predict_command"),
    "report": "measure_command",
    **dict.fromkeys(("watch", "alarms", "replay", "export"), "watch_commands"),
    **dict.fromkeys(("explore", "completion", "doctor"), "local_commands"),
}
EPILOG = (
    "Exit codes: 0 fine, 1 risky or undecided, 2 will not train, 3 too little was seen of a watched run, 64 bad input, "
    "70 internal error, 74 the output could not be written, 130 interrupted."
)


class LazyGroup(click.Group):
    """A group whose commands are imported when they run, so that help answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in VERBS:
            return None
        command: click.Command = getattr(
            import_module(f"edgewise.cli.{FILES.get(name, f'{name}_command')}"), name
        )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; suggest a verb for one that does not exist."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], VERBS, 1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of verbs from `VERBS`: click would import every command to read its help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from edgewise import __version__

        click.echo(f"edgewise {__version__}")
        ctx.exit()


CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings=CONTEXT)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def edgewise() -> None:
    """Know whether a transformer will train before you train it."""


def main() -> NoReturn:
    """Run the console script."""
    # transformers fetches compiled code from the Hub where the package `kernels` is installed: not for a config
    os.environ.setdefault("USE_HUB_KERNELS", "0")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell, as in `>&-`
            nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  no other file gets its number
            setattr(sys, name, exit_codes.ClosedOutput(nowhere) if name == "stdout" else nowhere)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # where ± cannot be shown, a question mark and not a crash
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; none of click's own, which would read as verdicts."""
    try:
        with exit_codes.checked_output(), redirect_stderr(exit_codes.ForgivingErrors(sys.stderr)):
            code = _run(arguments)
            sys.stdout.flush()  # what cannot be written is noticed here, not while the interpreter shuts down
            return code
    except exit_codes.OutputLost as lost:
        exit_codes.forget(sys.stdout)
        click.echo(f"edgewise: standard output could not be written: {lost}. The answer is lost.", err=True)
        return exit_codes.OUTPUT_LOST


def _run(arguments: Sequence[str]) -> int:
    if instruction := os.environ.get("_EDGEWISE_COMPLETE"):
        from click.shell_completion import shell_complete

        return shell_complete(edgewise, {}, "edgewise", "_EDGEWISE_COMPLETE", instruction)
    try:
        with edgewise.make_context("edgewise", list(arguments)) as context:
            return int(edgewise.invoke(context))
    except click.exceptions.Exit as end:  # --help and --version
        return exit_codes.FINE if end.exit_code == 0 else exit_codes.BAD_INPUT
    except exit_codes.OutputLost:
        raise
    except BaseException as error:  # noqa: BLE001  the last door: every other ending becomes a code and a sentence
        return _tell(error, "--json" in arguments)


def _tell(error: BaseException, as_json: bool) -> int:
    """Return the sentence on standard error, and for machines as one object on standard output."""
    if isinstance(error, click.ClickException):
        code, sentence = exit_codes.BAD_INPUT, error.format_message()
        error.show()
    else:
        code, sentence = exit_codes.ending(error)
        if os.environ.get(exit_codes.DEBUG) and not isinstance(error, BadInput):
            import traceback

            traceback.print_exception(error)
        click.echo(f"edgewise: {exit_codes.visible(sentence, lines=True)}", err=True)
    if as_json:
        import json

        with exit_codes.printing():
            click.echo(json.dumps({"error": sentence, "exit_code": code}))
    return code
