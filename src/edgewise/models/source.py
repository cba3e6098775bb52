"""What a source is, for Python and the shell alike.

    gpt2                       a preset, by name
    transformer                the default knobs
    mlp:tanh                   a random perceptron
    config.json                a Hugging Face config; in Python also a dict, or a config object of transformers
    folder                     with a config.json, and weights in safetensors if they are to be measured
    knobs.yaml, knobs.json     knobs by name; in Python also a dict, an Architecture, a Perceptron
    file.py:function           a function that returns a model; in Python also the function, or an nn.Module

No pickle is ever loaded and nothing is downloaded; file.py is the user's own code, and is run.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput, register_user_code
from edgewise.files import LARGEST_JSON, LARGEST_YAML, read_json, read_text, read_yaml
from edgewise.models.config.translate import FAMILIES
from edgewise.nouns.architecture import Architecture, Perceptron, transformer

if TYPE_CHECKING:
    from torch import nn


from functools import cache
from importlib import resources

ACCEPTED = (
    "a preset name; `transformer` (the default knobs); mlp:ACTIVATION; a config.json of Hugging Face, or a folder "
    "with one; a .json or .yaml file of knobs; file.py:function, a function that returns a model"
)
IN_PYTHON = (
    "an Architecture or Perceptron; a config or knobs as a dict; a config object; a function; an nn.Module"
)
DEFAULT_KNOBS = "transformer"
FILES = (".json", ".yaml", ".yml")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
OF_CONFIGS = frozenset(
    {"architectures", "hidden_size", "d_model", "n_embd", "n_layer"}
)  # no knob has these names
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


@dataclass(frozen=True)
class Source:
    """What a source holds, before anything is derived from it or built; one of the last four fields is set."""

    name: str = ""
    notes: tuple[str, ...] = ()  # what a preset assumes
    folder: Path | None = None  # where the config was found, and perhaps its weights
    description: Architecture | Perceptron | None = None
    config: Any = None  # of Hugging Face: a mapping with model_type, or an object
    model: nn.Module | None = None
    factory: Callable[[], Any] | None = None


def read_source(source: Any) -> Source:
    """Look a source up: files are read, file.py is run, nothing else happens yet.

    >>> read_source("gpt2").config["n_layer"]
    12
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, (Architecture, Perceptron)):
        return Source(source.name, description=source)
    if isinstance(source, Mapping):
        return _from_mapping(source)
    if isinstance(source, str):
        return _from_text(source)
    if isinstance(source, Path):
        return _from_path(source)
    if hasattr(source, "to_dict") and hasattr(source, "model_type"):
        return Source(config=source)
    if _is_module(source):
        return Source(type(source).__name__, model=source)
    if callable(source):
        return Source(getattr(source, "__name__", type(source).__name__), factory=source)
    hint = " This object has a config: give that." if hasattr(source, "config") else ""
    raise BadInput(f"{_shown(source)} is not a source.{hint} Accepted: {IN_PYTHON}; {ACCEPTED}.")


def _is_module(source: Any) -> bool:
    """Return whether this is a model; torch is noticed, not imported: without it nothing can be one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.nn.Module)


def _from_mapping(values: Mapping[str, Any], name: str = "") -> Source:
    """A config is noticed by its model_type, a perceptron by its variances; anything else is knobs."""
    if "model_type" in values:
        return Source(name, config=values)
    if "weight_variance" in values or "bias_variance" in values:
        return Source(name, description=Perceptron.from_dict(values))
    if not OF_CONFIGS.isdisjoint(values):
        raise BadInput(
            "this looks like a Hugging Face config without model_type. Add it, for example "
            f'"model_type": "llama"; known: {", ".join(sorted(FAMILIES))}.'
        )
    knobs = Architecture.from_dict(values)
    return Source(name, description=knobs if knobs.name else replace(knobs, name=name))


def _from_text(text: str) -> Source:
    """A preset wins over a folder of its name: write ./gpt2 for the folder."""
    if text.startswith("mlp:"):
        return Source(text, description=Perceptron(activation=text.removeprefix("mlp:")))
    if text == DEFAULT_KNOBS:
        return Source(text, description=transformer().replace(name=text))
    if text.lower() in preset_names():
        return Source(text.lower(), preset_notes(text.lower()), config=preset_config(text.lower()))
    file, _, function = text.rpartition(":")
    if file.endswith(".py"):
        return Source(function, factory=_function(Path(file), function))
    path = Path(text)
    if path.exists() or path.suffix.lower() in (*FILES, *PICKLES, ".py"):
        return _from_path(path)
    if path.is_symlink():
        raise BadInput(f"{text} is a link that leads to no file. Give the path of the file itself.")
    raise _unknown_name(text)


def _from_path(path: Path) -> Source:
    suffix = path.suffix.lower()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadInput(
                f"the folder {path} has no config.json. Give a folder with one, or the file itself."
            )
        return replace(_from_path(path / "config.json"), folder=path)
    if suffix in PICKLES:
        raise pickle_refused(path)
    if suffix == ".py":
        raise BadInput(
            f"{path} holds Python code: write {path}:function, with a function that returns a model."
        )
    if suffix not in FILES:
        raise BadInput(
            f"{path} is not a source: a file must end in {', '.join(FILES)}. Accepted: {ACCEPTED}."
        )
    name = Path(os.path.abspath(path)).parent.name if path.name == "config.json" else path.stem
    return _from_mapping(_read(path), name)


def pickle_refused(path: Path) -> BadInput:
    """The error for a file that could run any code when it is loaded."""
    return BadInput(
        f"{path.name} is a pickle, which can run any code when it is loaded, so it is not loaded. "
        "Convert it to safetensors, or give file.py:function with a function that returns the model."
    )


def load_name(path: Path, name: str) -> Any:
    """A value of the user's own file, which is run once to define it; None if it has none of this name."""
    if not path.is_file():
        raise BadInput(f"{path} does not exist. Write file.py:name, with a name that it defines.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    register_user_code(path)
    sys.path[:] = dict.fromkeys([str(path.resolve().parent), *sys.path])  # for neighbors, as `python file.py`
    spec.loader.exec_module(module)
    return getattr(module, name, None)


def _function(path: Path, name: str) -> Callable[[], Any]:
    """A function that returns a model."""
    function: Callable[[], Any] | None = load_name(path, name)
    if function is None or not callable(function):
        raise BadInput(f"{path.name} has no function {name!r} that returns a model.")
    return function


def _read(path: Path) -> Mapping[str, Any]:
    if path.suffix.lower() == ".json":
        values = read_json(read_text(path, LARGEST_JSON), str(path))
    else:
        values = _with_numbers(read_yaml(read_text(path, LARGEST_YAML), str(path)))
    if not isinstance(values, Mapping) or not values:
        shown = "nothing" if values == {} else _shown(values)
        raise BadInput(f"{path} holds {shown}; expected knobs by name, or a Hugging Face config.")
    return values


def _with_numbers(values: Any) -> Any:
    """YAML reads 1e-1 as a word (its numbers need a dot and a sign); people mean the number."""
    if isinstance(values, dict):
        return {name: _with_numbers(value) for name, value in values.items()}
    if isinstance(values, list):
        return [_with_numbers(value) for value in values]
    if isinstance(values, str) and _EXPONENT.fullmatch(values):
        return float(values)
    return values


def _unknown_name(text: str) -> BadInput:
    short = text.rsplit("/", 1)[-1].lower()
    near = get_close_matches(short, preset_names(), n=3, cutoff=0.5)
    hint = f"Nearest presets: {', '.join(near)}." if near else f"Presets: {', '.join(preset_names())}."
    if text.count("/") == 1 and not text.startswith((".", "/", "~")):
        return BadInput(
            f"{text!r} looks like a model on the Hugging Face Hub, and nothing is downloaded here. "
            f"Download its config.json and give the path, or use a preset. {hint}"
        )
    return BadInput(f"{text!r} is neither a file nor a preset. {hint} Accepted: {ACCEPTED}.")


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, bool | int | float | str | None) else f"a {type(value).__name__}"


def preset_names() -> tuple[str, ...]:
    """All preset names."""
    return tuple(_presets())


def preset_config(name: str) -> dict[str, Any]:
    """The config of a preset, as Hugging Face would write it; KeyError if there is none of this name."""
    return dict(_presets()[name]["config"])


def preset_notes(name: str) -> tuple[str, ...]:
    """List what the preset's config leaves open and how it is read here."""
    entry = _presets()[name]
    return (entry["note"],) if "note" in entry else ()


@cache
def _presets() -> dict[str, dict[str, Any]]:
    import yaml  # here, because `edgewise --help` needs no presets

    text = resources.files("edgewise.models").joinpath("presets.yaml").read_text(encoding="utf-8")
    presets: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return presets
