"""Options of the shell that need reading: `--set knob=value` beside `--depth` and `--tokens`, and `--figure`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.errors import BadInput
from edgewise.files import read_yaml

if TYPE_CHECKING:
    from edgewise.models.describe import Description


def detail_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--explain` and `--verbose`, as the number `detail`: 0, 1 or 2."""

    @wraps(command)
    def with_number(*args: Any, detail: int | None, **options: Any) -> Any:
        return command(
            *args, detail=detail or 0, **options
        )  # click before 8.3 says None where neither is given

    verbose = click.option("--verbose", "detail", flag_value=2, type=int, help="Print all numbers.")
    return click.option(
        "--explain",
        "detail",
        flag_value=1,
        type=int,
        default=0,
        help="Print the numbers with a sentence on each.",
    )(verbose(with_number))


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """All settings as one dict; a knob set twice is refused rather than decided by order."""
    settings: dict[str, Any] = {}
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
    """A number, true, false, null, a list of these, or a word: JSON first, then YAML.

    YAML alone reads 1e-3 as a word, JSON alone refuses words, .5 and yes.
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


def describe_with(
    source: str, depth: int | None, tokens: int | None, settings: dict[str, Any]
) -> Description:
    """The description of a source: depth and tokens first (recipes scale with them), then the other settings."""
    from edgewise.models.describe import describe

    others = dict(settings)
    depth, tokens = _once("depth", depth, others), _once("tokens", tokens, others)
    description = describe(source, depth=depth, tokens=tokens)
    if others:
        return _change(description, others)
    return description if description.name else description.replace(name=source)


def _once(name: str, option: int | None, settings: dict[str, Any]) -> int | None:
    """`--depth 8` and `--set depth=8` mean the same; both together could mean two things."""
    if name not in settings:
        return option
    if option is not None:
        raise BadInput(f"--{name} and --set {name} were both given. Give one of them.")
    if settings[name] is None:
        raise BadInput(f"--set {name}=null says nothing. Give a whole number, or leave it out.")
    value: int | None = settings.pop(name)
    return value


def _change(description: Description, settings: dict[str, Any]) -> Description:
    """Knobs changed, and a name that says so: a verdict must not blame the original."""
    from edgewise.nouns.architecture import Architecture
    from edgewise.nouns.knobs import KNOBS, refuse_unknown
    from edgewise.nouns.perceptron import PERCEPTRON_KNOBS

    if isinstance(description, Architecture):
        refuse_unknown(settings, KNOBS, "knob")
        name = description.name or "this network"
    else:
        refuse_unknown(settings, PERCEPTRON_KNOBS, "knob of a perceptron")
        name = description.name or f"mlp:{description.to_dict()['activation']}"
    return description.replace(**settings, name=f"{name} with {as_text(settings)}")


def as_text(settings: dict[str, Any], longest: int = 3) -> str:
    """The settings as they are shown beside a name, long lists of them cut."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    shown = [f"{name}={text}" for name, text in texts.items()]
    more = len(shown) - longest
    return ", ".join(shown[:longest]) + (f" and {more} more" if more > 0 else "")


def figure_path(figure: str | None) -> Path | None:
    """A figure that cannot be written is refused before anything is computed."""
    if figure is None:
        return None
    from edgewise.present.draw import check_path

    return check_path(figure)


def new_file(path: str | None, suffix: str) -> Path | None:
    """A file to write, refused before anything is computed where its name or folder will not do."""
    if path is None:
        return None
    place = Path(path)
    if place.suffix.lower() != suffix:
        raise BadInput(f"{path!r} must end in {suffix}.")
    if not place.parent.is_dir():
        raise BadInput(f"the folder of {path!r} does not exist. Create it, or name another.")
    return place
