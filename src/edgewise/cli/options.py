"""Options that several verbs share: `--set`, `--batch`, `--json`, `--explain`, and their completion in the shell."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from edgewise.errors import BadInput
from edgewise.files import Document, read_yaml

if TYPE_CHECKING:
    from edgewise.models.describe import Description


Command = Callable[..., Any]
Batch = Any  # what a user's model takes
EXPLAIN = "Print the numbers with a sentence on each."
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."
)
fail_on_option = click.option(
    "--fail-on",
    type=click.Choice(["risky", "fails"]),
    default="risky",
    help="The mildest verdict whose exit code is not 0.",
)
stack_option = click.option(
    "--stack", metavar="NAME", help="Which stack of a model with several.  [default: the language stack]"
)


def detail_options(command: Command) -> Command:
    """Add `--explain` and `--verbose`, as the number `detail`: 0, 1 or 2."""

    @wraps(command)
    def with_number(*args: Any, detail: int | None, **options: Any) -> Any:
        return command(*args, detail=detail or 0, **options)  # click before 8.3 says None if neither is given

    explain = click.option(
        "--explain", "detail", flag_value=1, type=int, default=0, show_default=False, help=EXPLAIN
    )
    verbose = click.option("--verbose", "detail", flag_value=2, type=int, help="Print all numbers.")
    return explain(verbose(with_number))


def batch_option(default: str) -> Callable[[Command], Command]:
    """Return `--batch FILE.PY:NAME`, the same for every verb of a model; `load_batches` reads it."""
    return click.option(
        "--batch",
        metavar="FILE.PY:NAME",
        help=f"A batch, a list or loader of batches, or a function that returns one.  [default: {default}]",
    )


@dataclass(frozen=True)
class Batches:
    """What `--batch` names: a batch, a list or loader of batches, or a function of nothing or of a seed."""

    text: str
    value: Any

    def several(self, seed: int = 0) -> Batch:
        """Return the batches as they are named, or what the function returns."""
        if not callable(self.value) or hasattr(self.value, "__iter__"):
            return self.value
        needed = [p for p in inspect.signature(self.value).parameters.values() if p.default is p.empty]
        return self.value(seed) if needed else self.value()

    def first(self, seed: int = 0) -> Batch:
        """Return one batch: of a list or loader the first; a tensor, a tuple or a dict is a batch itself."""
        batches = self.several(seed)
        if (
            isinstance(batches, (tuple, Mapping))
            or hasattr(batches, "shape")
            or not hasattr(batches, "__iter__")
        ):
            return batches
        for batch in batches:
            return batch
        raise BadInput(f"--batch {self.text} holds no batch. Give at least one.")


def load_batches(text: str | None) -> Batches | None:
    """Read the option `--batch`; None if it is not given."""
    return (
        None if text is None else Batches(text, load_named("batch", text, "a batch, batches or a function"))
    )


def load_function(option: str, text: str, what: str) -> Command:
    """Read an option FILE.PY:NAME that names a function."""
    value = load_named(option, text, what)
    if not callable(value):
        raise BadInput(f"--{option} {text} is a {type(value).__name__}; expected {what}.")
    function: Command = value
    return function


def load_named(option: str, text: str, what: str) -> Any:
    """Read an option FILE.PY:NAME: run the file, return the value of that name."""
    from edgewise.models.source import load_name

    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name:
        raise BadInput(f"--{option} {text!r} is not file.py:name, with {what}.")
    value = load_name(Path(file), name)
    if value is None:
        raise BadInput(f"{Path(file).name} has no {name!r}; expected {what}.")
    return value


def complete_source(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete presets by name, else files: bash drops the names as soon as files are among them."""
    from edgewise.models.source import DEFAULT_KNOBS, preset_names

    names = [name for name in (*preset_names(), DEFAULT_KNOBS, "mlp:") if name.startswith(incomplete)]
    return list(map(CompletionItem, names)) or [CompletionItem(incomplete, type="file")]


def complete_knob(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete knobs with their meaning; after the equals sign their choices."""
    from edgewise.nouns.knobs import KNOBS

    name, equals, value = incomplete.partition("=")
    if equals:
        choices = KNOBS[name].choices if name in KNOBS else ()
        return [CompletionItem(f"{name}={choice}") for choice in choices if choice.startswith(value)]
    return [
        CompletionItem(f"{k.name}=", help=k.meaning) for k in KNOBS.values() if k.name.startswith(incomplete)
    ]


def network_options(command: Command) -> Command:
    """Add `--depth`, `--tokens`, `--set` and `--start-overlap`, which change a described network."""
    overlap = click.option(
        "--start-overlap", type=float, default=0.0, metavar="C", help="Mean cosine between two input tokens."
    )
    knob = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KNOB=VALUE",
        help="Change a knob; repeatable.",
        shell_complete=complete_knob,
    )
    tokens = click.option("--tokens", type=int, metavar="N", help="Sequence length instead of the source's.")
    depth = click.option("--depth", type=int, metavar="N", help="Number of blocks instead of the source's.")
    return depth(tokens(knob(overlap(command))))


def parse_settings(texts: Iterable[str]) -> Document:
    """Return all settings as one dict; a knob set twice is rejected rather than decided by order."""
    settings: Document = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not (name and equals and value.strip()):
            raise BadInput(f"--set {text!r} is not a setting. Write knob=value, as in --set score_gain=2.")
        if name in settings:
            raise BadInput(f"--set {name} was given twice. Give it once.")
        settings[name] = parse_value(value.strip())
    return settings


def parse_value(text: str) -> Any:
    """Return a number, true, false, null, a list of these, or a word: JSON first, then YAML.

    YAML alone reads 1e-3 as a word, JSON alone rejects words, .5 and yes.
    """
    name = f"the value {text if len(text) < 60 else text[:57] + '...'!r}"
    for read in (json.loads, float):
        try:
            return read(text)
        except RecursionError as error:
            raise BadInput(
                f"{name} is nested too deeply. Give a number, a word, or a list of them."
            ) from error
        except ValueError:
            continue
    try:
        return read_yaml(text, "it")
    except BadInput as error:
        raise BadInput(f"{name} cannot be read: {error}") from error


def describe_with(source: str, depth: int | None, tokens: int | None, settings: Document) -> Description:
    """Return the description of a source: depth and tokens first (recipes scale with them), then the other settings."""
    from edgewise.models.describe import describe

    others = dict(settings)
    depth, tokens = _once("depth", depth, others), _once("tokens", tokens, others)
    description = describe(source, depth=depth, tokens=tokens, **others)
    return description if description.name else description.replace(name=source)


def _once(name: str, option: int | None, settings: Document) -> int | None:
    """`--depth 8` and `--set depth=8` mean the same; both together could mean two things."""
    if name not in settings:
        return option
    if option is not None:
        raise BadInput(f"--{name} and --set {name} were both given. Give one of them.")
    if settings[name] is None:
        raise BadInput(f"--set {name}=null says nothing. Give a whole number, or leave it out.")
    value: int | None = settings.pop(name)
    return value


def figure_option(what: str) -> Callable[[Command], Command]:
    """Return `--figure`; raise `BadInput` before anything is computed if it cannot be written."""

    def checked(_: click.Context, __: click.Parameter, figure: str | None) -> Path | None:
        if figure is None:
            return None
        from edgewise.present.draw import check_path

        return check_path(figure)

    return click.option("--figure", metavar="F", callback=checked, help=f"{what} (.png, .svg, .pdf).")


def new_file(path: str | None, suffix: str) -> Path | None:
    """Return the path of a new file; raise `BadInput` before anything is computed if it cannot be written."""
    if path is None:
        return None
    place = Path(path)
    if place.suffix.lower() != suffix:
        raise BadInput(f"{path!r} must end in {suffix}.")
    if not place.parent.is_dir():
        raise BadInput(f"the folder of {path!r} does not exist. Create it, or name another.")
    return place
