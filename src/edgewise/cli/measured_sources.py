"""From the words of `edgewise measure` to something measurable: no pickle is loaded, nothing is downloaded."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgewise.adapters import presets
from edgewise.errors import BadInput
from edgewise.probe.isolation import random_streams
from edgewise.probe.subjects import as_config, build, is_config, model_class, shortened, transformers
from edgewise.probe.subjects import subject as understood

ACCEPTED = "a preset name, a config.json, a folder with a checkpoint in safetensors, or file.py:function"


def found(source: str) -> Any:
    """A config (initialised anew for every seed), a model with its weights, or the user's function."""
    if source.lower() in presets.names():
        return as_config(source.lower())
    path, _, function = source.rpartition(":")
    if path.endswith(".py"):
        return user_function(Path(path), function)
    place = Path(source)
    if place.is_dir():
        return checkpoint(place)
    if place.suffix == ".json" and place.is_file():
        return as_config(read_json(place))
    if place.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        raise pickled(place)
    raise BadInput(f"{source!r} cannot be measured: expected {ACCEPTED}. Presets: {', '.join(presets.names())}.")


def pickled(path: Path) -> BadInput:
    return BadInput(
        f"{path.name} is a pickle, which can run any code when it is loaded; none is ever loaded here. "
        "Convert it to safetensors, or give file.py:function that makes the model."
    )


def checkpoint(folder: Path) -> Any:
    """The model of a folder: its weights when they are safetensors, a new initialization when there are none."""
    if not (folder / "config.json").is_file():
        raise BadInput(f"the folder {folder} has no config.json. Give one that has it, or a config.json itself.")
    config = as_config(read_json(folder / "config.json"))
    if not any(folder.glob("*.safetensors")):
        for pattern in ("*.bin", "*.pt", "*.pth"):
            for path in sorted(folder.glob(pattern)):
                raise pickled(path)
        return config
    return loaded(folder, config)


def loaded(folder: Path, config: Any) -> Any:
    """All weights from the files: transformers would draw what is missing, and its numbers would be nobody's."""
    from safetensors import SafetensorError

    transformers().utils.logging.disable_progress_bar()  # bars are ours to draw, and only for a terminal
    options = {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
    try:
        model, info = model_class(config).from_pretrained(folder, **options)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"the checkpoint in {folder} cannot be loaded: {shortened(error)}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise BadInput(
            f"the checkpoint in {folder} has no weights for {', '.join(missing[:3])}"
            f"{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}. Expected all of {type(model).__name__}: "
            "name the class it was saved from as `architectures` in config.json."
        )
    return model


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as JSON ({error}).") from error
    if not isinstance(values, dict):
        raise BadInput(f"{path} holds a {type(values).__name__}; expected a Hugging Face config.")
    return values


def user_function(path: Path, name: str) -> Callable[[], Any]:
    """`file.py:function`, the user's own code, which makes a model."""
    if not path.is_file():
        raise BadInput(f"{path} is not there. Write file.py:function, with a function that returns a model.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise BadInput(f"{path.name} has no function {name!r} that makes a model.")
    made: Callable[[], Any] = function
    return made


def text_batch(path: Path, source: str, subject: Any, tokens: int) -> Any:
    """The beginning of a text as one sequence: by the checkpoint's own tokenizer, by bytes where there is none."""
    import torch

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the text {path} cannot be read ({error}).") from error
    if any((Path(source) / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        ids = transformers().AutoTokenizer.from_pretrained(source, local_files_only=True)(text)["input_ids"]
    else:
        ids = list(text.encode())
    if len(ids) < 2:
        raise BadInput(f"the text {path} has {len(ids)} tokens; an overlap needs two.")
    row = torch.tensor(ids[:tokens])[None]
    return as_arguments(row, meta_model(subject))


def meta_model(subject: Any) -> Any:
    """The model without its memory where it can be built so, to look at what it accepts."""
    import torch

    if is_config(subject) and not isinstance(subject, dict):
        with torch.device("meta"):
            return build(subject)
    module, factory, _ = understood(subject)
    if module is not None:
        return module
    assert factory is not None
    with random_streams():
        return factory()


def as_arguments(row: Any, model: Any) -> Any:
    """Ids (1, tokens) the way the model takes them; refused where it has no table for them, or too small a one."""
    from torch import nn

    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    if not tables:
        raise BadInput(f"{type(model).__name__} looks no tokens up, so a text cannot be given to it. Leave --text out.")
    if int(row.max()) >= max(tables):
        raise BadInput(
            f"the text holds token {int(row.max())}, but the largest table of {type(model).__name__} has {max(tables)} "
            "rows. Without a tokenizer a text is read as bytes, which needs 256."
        )
    accepted = inspect.signature(model.forward).parameters
    if "input_ids" not in accepted:
        return row
    return {"input_ids": row} | ({"labels": row.clone()} if "labels" in accepted else {})
