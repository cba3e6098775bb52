"""The door of the shell: finds the verb, imports only it, and turns every ending into an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from edgewise.cli import exit_codes
from edgewise.errors import BadInput

# verb: its line in `edgewise --help`; edgewise/cli/<verb>.py holds a click command of that name.
VERBS = {
    "predict": "Say from a description alone whether a network will train.",
    "measure": "Read the same numbers from a real model, beside the predicted ones.",
    "run": "Run a recipe at any scale: measure, judge its claim, draw it.",
    "doctor": "Print versions and what is available on this machine.",
}
EPILOG = (
    "Exit codes: 0 fine, 1 risky or undecided, 2 will not train, 64 bad input, 70 internal error, "
    "130 interrupted."
)


class LazyGroup(click.Group):
    """A group whose commands are imported when they run, so that help answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"edgewise.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of verbs from their own lines: click would import every command to read its help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from edgewise import __version__

        click.echo(f"edgewise {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
              help="Show the version and exit.")  # fmt: skip
def edgewise() -> None:
    """Know whether a transformer will train before you train it."""


def main() -> NoReturn:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # where ± cannot be shown, a question mark and not a crash
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; none of click's own, which would read as verdicts."""
    try:
        with edgewise.make_context("edgewise", list(arguments)) as context:
            code = edgewise.invoke(context)
        sys.stdout.flush()  # a reader that went away is noticed here, not while the interpreter shuts down
        return int(code)
    except click.exceptions.Exit as ending:  # --help and --version
        return exit_codes.FINE if ending.exit_code == 0 else exit_codes.BAD_INPUT
    except click.ClickException as mistake:
        mistake.show()
        return exit_codes.BAD_INPUT
    except BadInput as mistake:
        click.echo(f"edgewise: {mistake}", err=True)
        return exit_codes.BAD_INPUT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # silent at shutdown too
        return exit_codes.BROKEN_PIPE
    except KeyboardInterrupt:
        click.echo("edgewise: interrupted", err=True)
        return exit_codes.INTERRUPTED
    except Exception as error:  # noqa: BLE001  the last door: whatever is left is our mistake, and says so
        return _internal_error(error)


def _internal_error(error: Exception) -> int:
    if os.environ.get("EDGEWISE_DEBUG"):
        import traceback

        traceback.print_exception(error)
    message = " ".join(str(error).split()) or "no message"
    hint = "" if os.environ.get("EDGEWISE_DEBUG") else " (set EDGEWISE_DEBUG=1 for the traceback)"
    click.echo(f"edgewise: internal error, {type(error).__name__}: {message}{hint}", err=True)
    return exit_codes.INTERNAL_ERROR
