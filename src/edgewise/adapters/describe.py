"""Anything known becomes an Architecture (or a Perceptron): converted once, at the entrance."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from edgewise.adapters import presets
from edgewise.adapters.config.translate import FAMILIES, translate
from edgewise.architecture import Architecture
from edgewise.errors import BadInput
from edgewise.knobs import KNOBS
from edgewise.perceptron import Perceptron

ACCEPTED = (
    "an Architecture or Perceptron; a dict of knobs; a Hugging Face config (dict, object, config.json, or a "
    "folder with one); a model (nn.Module); a .json or .yaml file of either; a preset name; or mlp:ACTIVATION"
)
Described = Architecture | Perceptron
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
FILES = (".json", ".yaml", ".yml")


def describe(source: Any, *, depth: int | None = None, tokens: int | None = None) -> Described:
    """The description of anything known; an Architecture passes unchanged.

    depth and tokens replace those of the source. A Hugging Face config is changed before it is translated,
    so that what its family derives from the depth (GPT-2 scales its output matrices by 1/sqrt(2 depth))
    follows.

    >>> describe("gpt2", depth=48).depth
    48
    """
    depth, tokens = _count("depth", depth), _count("tokens", tokens)
    if isinstance(source, (Architecture, Perceptron)):
        return _override(source, depth, tokens)
    if isinstance(source, Mapping):
        return _from_mapping(source, depth, tokens)
    if isinstance(source, str):
        return _from_text(source, depth, tokens)
    if isinstance(source, Path):
        return _from_path(source, depth, tokens)
    if hasattr(source, "to_dict") and hasattr(source, "model_type"):
        return _from_mapping(_as_mapping(source), depth, tokens)
    if _is_module(source):
        from edgewise.adapters.module.describe import describe_module

        return describe_module(source, depth=depth, tokens=tokens)
    raise BadInput(f"cannot describe {_seen(source)}. Accepted: {ACCEPTED}.{_model_hint(source)}")


def _is_module(source: Any) -> bool:
    """Whether this is a model; torch is noticed, not imported: without it nothing can be one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.nn.Module)


def _count(name: str, value: Any) -> int | None:
    return None if value is None else KNOBS[name].check(value, 1)


def _override(known: Described, depth: int | None, tokens: int | None) -> Described:
    changes = {name: value for name, value in (("depth", depth), ("tokens", tokens)) if value is not None}
    if not changes:
        return known
    if isinstance(known, Architecture):
        return known.replace(**changes)
    if tokens is not None:
        raise BadInput(f"tokens = {tokens} was given for a perceptron, which has none. Leave tokens out.")
    return known.replace(**changes)


def _from_mapping(
    values: Mapping[str, Any], depth: int | None, tokens: int | None, name: str = ""
) -> Described:
    if "model_type" in values:
        return translate(values, depth=depth, tokens=tokens, name=name)
    if "weight_variance" in values or "bias_variance" in values:
        return _override(Perceptron.from_dict(values), depth, tokens)
    if "hidden_size" in values or "architectures" in values:
        raise BadInput(
            "this looks like a Hugging Face config without model_type. Add it, for example "
            f'"model_type": "llama"; known: {", ".join(sorted(FAMILIES))}.'
        )
    known = Architecture.from_dict(values)
    return _override(known if known.name else replace(known, name=name), depth, tokens)


def _as_mapping(config: Any) -> Mapping[str, Any]:
    """A config object of transformers, noticed by its shape and not by its import."""
    values = dict(config.to_dict())
    return {"model_type": config.model_type, **values}


def _from_text(text: str, depth: int | None, tokens: int | None) -> Described:
    """mlp:ACTIVATION, a preset (even if a folder has its name: write ./gpt2 for the folder), or a path."""
    if text.startswith("mlp:"):
        return _override(Perceptron(activation=text.removeprefix("mlp:")), depth, tokens)
    if text.lower() in presets.names():
        return presets.preset(text.lower(), depth=depth, tokens=tokens)
    path = Path(text)
    if path.exists() or text.lower().endswith(FILES):
        return _from_path(path, depth, tokens)
    raise _unknown_name(text)


def _from_path(path: Path, depth: int | None, tokens: int | None) -> Described:
    if path.is_dir():
        inside = path / "config.json"
        if not inside.is_file():
            raise BadInput(f"the folder {path} has no config.json. Give one that has it, or the file itself.")
        return _from_mapping(_read(inside), depth, tokens, path.resolve().name)
    if path.suffix.lower() not in FILES:
        raise BadInput(f"{path} is no description: expected a folder or a file ending in {', '.join(FILES)}.")
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return _from_mapping(_read(path), depth, tokens, name)


def _read(path: Path) -> Mapping[str, Any]:
    import yaml  # here, because most sources are not files

    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix.lower() == ".json" else _with_numbers(yaml.safe_load(text))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}. Check the path.") from error
    except (json.JSONDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not valid {path.suffix.lstrip('.').upper()}: {error}.") from error
    if not isinstance(values, Mapping):
        raise BadInput(f"{path} holds {_seen(values)}; expected knobs by name, or a Hugging Face config.")
    if not values:
        raise BadInput(f"{path} holds nothing; expected knobs by name (at least one), or a Hugging Face config.")
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
    near = get_close_matches(short, presets.names(), n=3, cutoff=0.5)
    hint = f"Nearest presets: {', '.join(near)}." if near else f"Presets: {', '.join(presets.names())}."
    if text.count("/") == 1 and not text.startswith((".", "/", "~")):
        return BadInput(
            f"{text!r} looks like a model on the Hugging Face Hub, and nothing is downloaded here. "
            f"Download its config.json and give the path, or use a preset. {hint}"
        )
    return BadInput(f"{text!r} is neither a file nor a preset. {hint} Accepted: {ACCEPTED}.")


def _seen(value: Any) -> str:
    simple = value is None or isinstance(value, (bool, int, float, str))
    return repr(value) if simple else f"a {type(value).__name__}"


def _model_hint(source: Any) -> str:
    return " This object has a config: give describe(model.config)." if hasattr(source, "config") else ""
