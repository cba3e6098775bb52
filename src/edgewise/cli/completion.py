"""`edgewise completion`: what a shell must load to complete verbs, options, presets and knobs; click writes it."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from edgewise.cli import exit_codes
from edgewise.cli.output import printing

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_EDGEWISE_COMPLETE"  # set by the script that the shell has loaded


@click.command(
    epilog='bash: add `eval "$(edgewise completion bash)"` to ~/.bashrc. zsh: the same to ~/.zshrc. '
    "fish: edgewise completion fish > ~/.config/fish/completions/edgewise.fish"
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Print the script that completes edgewise in a shell."""
    complete = get_completion_class(shell)
    assert complete is not None
    with printing():
        click.echo(complete.source_template % _names())
    return exit_codes.FINE


def _names() -> dict[str, str]:
    return {"complete_func": "_edgewise_completion", "complete_var": VARIABLE, "prog_name": "edgewise"}


def answer_shell(group: click.Group, instruction: str) -> int:
    """What a shell asks while the user presses the tab key; the answer goes to standard output."""
    return shell_complete(group, {}, "edgewise", VARIABLE, instruction)


def complete_source(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Presets by name, else files: bash forgets the names as soon as files are among them."""
    from edgewise.models.source import DEFAULT_KNOBS, preset_names

    names = [name for name in (*preset_names(), DEFAULT_KNOBS, "mlp:") if name.startswith(incomplete)]
    return list(map(CompletionItem, names)) or [CompletionItem(incomplete, type="file")]


def complete_knob(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Knobs with their meaning; after the equals sign the choices where there are some."""
    from edgewise.nouns.knobs import KNOBS

    name, equals, value = incomplete.partition("=")
    if equals:
        choices = KNOBS[name].choices if name in KNOBS else ()
        return [CompletionItem(f"{name}={choice}") for choice in choices if choice.startswith(value)]
    return [
        CompletionItem(f"{k.name}=", help=k.meaning) for k in KNOBS.values() if k.name.startswith(incomplete)
    ]
