"""Inputs as plain JSON values, good, strange and hostile: what `tests.fuzz.attempts` tries.

Every input names its family and holds all that is needed to try it again, so that a corpus is a file of lines.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from edgewise.nouns.architecture import PERCEPTRON_KNOBS
from edgewise.nouns.knobs import ACTIVATIONS, KERNELS, KNOBS, NORM_KINDS, NORMS
from tests.fuzz import doors
from tests.fuzz.watched import records, runs
from tests.support.models import CONFIGS

Input = dict[str, Any]
STRANGE: SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            False,
            0,
            -1,
            1,
            2**31,
            10**12,
            10**400,
            -(10**30),
            0.0,
            -0.0,
            1e-320,
            1e-30,
            1e30,
            1e300,
            -1e300,
            "nan",
            "inf",
            "",
            " ",
            "relu",
            "null",
            "0x10",
            "١٢",
            "1e-3",
            "\x00",
            "{{data}}",
            "<img src=x onerror=a()>",
            [],
            {},
            [[]],
            [None],
            [1, "a"],
            {"a": {"a": {}}},
            "a" * 500,
        ]
    ),
    st.integers(-3, 100),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.lists(st.floats(0, 3), max_size=5),
)
GAINS = st.floats(0, 4).map(lambda x: round(x, 3))
PLAIN: dict[str, SearchStrategy[Any]] = {
    "depth": st.integers(1, 24),
    "tokens": st.integers(2, 48),
    "width": st.sampled_from([8, 48, 512, 4096]),
    "heads": st.sampled_from([0, 1, 2, 4, 8]),
    "head_width": st.sampled_from([None, 1, 16, 64]),
    "kv_heads": st.sampled_from([None, 1, 2]),
    "mlp_width": st.sampled_from([None, 0, 1, 64, 2048]),
    "activation": st.sampled_from((*ACTIVATIONS, "leaky_relu:0.2")),
    "gated": st.booleans(),
    "norm": st.sampled_from(NORMS),
    "norm_kind": st.sampled_from(NORM_KINDS),
    "norm_slope": st.floats(0.05, 3),
    "embedding_norm": st.sampled_from([1e-4, 0.02, 1.0, 30.0, 1e6]),
    "window": st.sampled_from([None, 1, 2, 7, 100]),
    "rope": st.sampled_from([True, False, 0.25, 1.0]),
    "rope_base": st.sampled_from([1.0, 10000.0, 5e5]),
    "kernel": st.sampled_from(KERNELS),
    "key_gain": st.none() | GAINS,
    "output_gain": st.none() | GAINS,
}
OVERLAPS = st.sampled_from([0.0, 0.0, 0.0, -0.04, 0.3, 0.999, 1.0]) | STRANGE


def _plain(name: str) -> SearchStrategy[Any]:
    if name in PLAIN:
        return PLAIN[name]
    kind = KNOBS[name].kind
    return st.booleans() if kind == "flag" else GAINS if KNOBS[name].minimum == 0 else st.floats(-2, 2)


@st.composite
def _knobs(draw: st.DrawFn) -> Input:
    """Half of them plausible networks, half with one value that is not."""
    names = draw(st.lists(st.sampled_from(sorted(KNOBS)), max_size=7, unique=True))
    knobs = {"depth": draw(PLAIN["depth"]), "tokens": draw(PLAIN["tokens"])}
    knobs |= {name: draw(_plain(name)) for name in names}
    if draw(st.booleans()):
        knobs[draw(st.sampled_from([*sorted(KNOBS), "heds", "name", ""]))] = draw(STRANGE)
    options = {"readout": draw(st.sampled_from(["token", "pooled"]))}
    if draw(st.integers(0, 3)) == 0:
        options["start_overlap"] = draw(OVERLAPS)
    verb = draw(
        st.sampled_from(["predict", "predict", "predict", "compare", "vector_field", "phase_diagram"])
    )
    return {"family": "knobs", "knobs": knobs, "options": options, "verb": verb}


@st.composite
def _perceptrons(draw: st.DrawFn) -> Input:
    knobs = {
        "activation": draw(PLAIN["activation"]),
        "weight_variance": draw(GAINS),
        "bias_variance": draw(GAINS),
        "depth": draw(st.integers(1, 60)),
        "width": draw(st.sampled_from([1, 10, 1000])),
    }
    if draw(st.booleans()):
        knobs[draw(st.sampled_from([*PERCEPTRON_KNOBS, "sigma"]))] = draw(STRANGE)
    verb = draw(st.sampled_from(["predict", "perceptron_maps", "critical_point"]))
    return {"family": "perceptrons", "knobs": knobs, "verb": verb}


@st.composite
def _configs(draw: st.DrawFn) -> Input:
    """A config of Hugging Face with some values lost, replaced or added."""
    name = draw(st.sampled_from(sorted(CONFIGS)))
    config = {"model_type": MODEL_TYPES.get(name, name), **CONFIGS[name][2]}
    if draw(st.integers(0, 9)) == 0:  # of a class that is read by making a small one
        config = json.loads(json.dumps(draw(st.sampled_from(BUILT))))
        part = draw(st.sampled_from([config, *(v for v in config.values() if isinstance(v, dict))]))
        part[draw(st.sampled_from(sorted(part)))] = draw(st.sampled_from([10**9, 10**5, 0, None]))
        return {"family": "configs", "config": config}
    if draw(st.integers(0, 9)) == 0:
        rotation = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0, "mscale": 1.0}
        config["rope_parameters"] = rotation | {draw(st.sampled_from(sorted(rotation))): draw(STRANGE)}
    for key in draw(st.lists(st.sampled_from([*sorted(config), *ADDED]), max_size=3, unique=True)):
        config[key] = draw(STRANGE)
    for key in draw(st.lists(st.sampled_from(sorted(config)), max_size=1)):
        del config[key]
    return {"family": "configs", "config": config}


BUILT = (
    {"model_type": "bart", "encoder_layers": 2, "decoder_layers": 2, "d_model": 64},
    {"model_type": "whisper", "encoder_layers": 2, "decoder_layers": 2, "d_model": 64},
    {
        "model_type": "clip",
        "vision_config": {"num_hidden_layers": 2},
        "text_config": {"num_hidden_layers": 2},
    },
    {"model_type": "swin", "depths": [2, 2], "num_heads": [2, 4], "embed_dim": 32},
)
MODEL_TYPES = {
    "pythia": "gpt_neox",
    "qwen3moe": "qwen3_moe",
    "deepseek3": "deepseek_v3",
    "gptoss": "gpt_oss",
    "gemma3": "gemma3_text",
}
ADDED = (
    "rope_scaling",
    "rope_theta",
    "hidden_act",
    "activation_function",
    "initializer_range",
    "layer_types",
    "tie_word_embeddings",
    "auto_map",
    "trust_remote_code",
    "quantization_config",
    "torch_dtype",
    "attention_dropout",
    "layer_norm_eps",
    "text_config",
    "num_key_value_heads",
    "architectures",
)
KNOB_FILES = st.fixed_dictionaries(
    {"depth": PLAIN["depth"], "tokens": PLAIN["tokens"]}, optional={"norm": PLAIN["norm"]}
)
PIECES = st.sampled_from(
    [
        "[",
        "{",
        '"',
        "\x00",
        ",",
        ":",
        "\n",
        "- ",
        "&a ",
        "*a",
        "!!python/object:os.system",
        "1e9",
        "1e999",
        "NaN",
        "-",
        "\\u0000",
        "\ufeff",
        "'",
        "}" * 9,
        "[" * 3000,
        "9" * 5000,
        "<<: *a",
    ]
)


@st.composite
def _files(draw: st.DrawFn) -> Input:
    """A file as text, cut, with pieces put in, under any ending; or something that is no regular file."""
    values = draw(st.one_of(KNOB_FILES, _configs().map(lambda x: x["config"]), STRANGE))
    suffix = draw(st.sampled_from([".json", ".yaml", ".yml", ".JSON", ".txt", "", ".pt", ".py", ".npz"]))
    text = json.dumps(values) if draw(st.booleans()) or not isinstance(values, dict) else as_yaml(values)
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(PIECES) + text[place + draw(st.sampled_from([0, 0, 1, 20])) :]
    kind = draw(st.sampled_from(["file"] * 12 + ["folder", "pipe", "loop", "device", "unreadable", "absent"]))
    return {"family": "files", "text": text, "suffix": suffix, "kind": kind}


def as_yaml(values: dict[str, Any]) -> str:
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())


@st.composite
def _models(draw: st.DrawFn) -> Input:
    """A small module, its state, and the verb that looks at it or changes it."""
    return {
        "family": "models",
        "kind": draw(st.sampled_from(MODELS)),
        "width": draw(st.sampled_from([8, 16, 16, 16, 3])),
        "depth": draw(st.sampled_from([1, 2, 2, 3])),
        "dtype": draw(st.sampled_from(["float32", "float32", "float32", "float64", "float16", "bfloat16"])),
        "weights": draw(
            st.sampled_from(["drawn"] * 5 + ["zero", "huge", "nan", "inf", "constant", "frozen", "meta"])
        ),
        "training": draw(st.booleans()),
        "tokens": draw(st.sampled_from([None, None, 2, 8, 8, 8, 8, 0, 40, 10**7])),
        "verb": draw(
            st.sampled_from(["measure", "measure", "describe", "predict", "audit", "plan", "total_changes"])
        ),
    }


MODELS = (
    "encoder",
    "encoder",
    "post",
    "tokens",
    "tokens",
    "tied",
    "batch_norm",
    "features",
    "channels",
    "spectral",
    "weight_norm",
    "parallel",
    "gru",
    "convolution",
    "linear",
    "no_parameters",
    "raises",
    "dictionary",
    "in_place",
    "shared",
)


@st.composite
def _streams(draw: st.DrawFn) -> Input:
    """What is sent through a network: a start for theory, or a batch for a model."""
    if draw(st.booleans()):
        rows = draw(st.integers(0, 5))
        matrix = [
            [draw(st.floats(-2, 2) | st.sampled_from(["nan", "inf", 0.0, 1e200])) for _ in range(rows)]
            for _ in range(rows)
        ]
        kind = draw(st.sampled_from(["as is", "gram", "gram", "gram", "correlation", "ragged"]))
        tokens = max(2, rows) if draw(st.integers(0, 5)) else 8
        return {
            "family": "streams",
            "start": matrix,
            "kind": kind,
            "tokens": tokens,
            "causal": draw(st.booleans()),
        }
    return {
        "family": "streams",
        "batch": draw(
            st.sampled_from(["ids", "ids", "floats", "keywords", "tuple", "list", "text", "none", "meta"])
        ),
        "shape": draw(
            st.sampled_from([[1, 8], [2, 8], [1, 8, 16], [2, 16, 16]])
            | st.lists(st.sampled_from([0, 1, 2, 5, 8, 16]), max_size=3)
        ),
        "value": draw(st.sampled_from([0, 3, 31, 32, -1, 2**40])),
        "model": draw(st.sampled_from(["tokens", "encoder"])),
    }


@st.composite
def _words(draw: st.DrawFn) -> Input:
    """A line of the shell."""
    others = ["measure", "run", "doctor", "", "--help", "--version", "pedict", *NEWER]
    verb = draw(st.sampled_from(["predict"] * 8 + others))
    described = verb in ("predict", "report")  # the others would build a preset, which takes minutes
    good = st.sampled_from(["transformer", "mlp:tanh", "mlp:relu", "gpt2", "GPT2", "bert-base"])
    source = draw(good | BAD_SOURCES if described else BAD_SOURCES)
    words = [verb, source]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2, 4]))):
        name, value = (
            draw(st.sampled_from(OPTIONS)),
            draw(STRANGE | st.sampled_from(["2", "4", "8", "fails"])),
        )
        words += [name, value if isinstance(value, str) else json.dumps(value)]
    small = (
        ["--depth", "2", "--tokens", "8"]
        if verb == "report" or (verb == "predict" and draw(st.booleans()))
        else []
    )
    settings = []
    for name in draw(st.lists(st.sampled_from(sorted(KNOBS)), max_size=2, unique=True)) if described else []:
        value = _plain(name) if draw(st.integers(0, 3)) else STRANGE
        settings += ["--set", f"{name}={json.dumps(draw(value))}"]
    words += [*small, *settings, *draw(st.sampled_from([[], ["--json"]]))]
    words = [word.replace("\x00", "?") for word in words]
    return {"family": "words", "words": [word for word in words if word or verb]}


NEWER = ["rate", "fix", "report", "report", "watch", "alarms", "export", "replay"]
BAD_SOURCES = st.sampled_from(
    ["mlp:", "gpt-2", "a/b", ".", "", "-", "absent.json", "absent.py:make", "~", "/dev/null", "transformer:"]
)
OPTIONS = (
    "--depth",
    "--tokens",
    "--set",
    "--readout",
    "--start-overlap",
    "--fail-on",
    "--figure",
    "--seeds",
    "--text",
    "--stack",
    "--workers",
    "--scale",
    "--bogus",
    "--steps",
    "--rates",
    "--optimizer",
    "--loss",
    "--batch",
    "--goal",
    "--write",
    "--keep",
    "--to",
    "--rank",
    "--once",
    "--every",
    "--output",
    "--measure",
)
FAMILIES: dict[str, SearchStrategy[Input]] = {
    "knobs": _knobs(),
    "perceptrons": _perceptrons(),
    "configs": _configs(),
    "files": _files(),
    "models": _models(),
    "streams": _streams(),
    "runs": runs(STRANGE),
    "records": records(),
    "words": _words(),
    "page": doors.pages(STRANGE),
    "training": doors.trainings(STRANGE),
    "traces": doors.traces(STRANGE),
    "tokenizers": doors.tokenizers(STRANGE),
}
LINES = st.tuples(_words(), st.sampled_from(sorted(doors.SETTINGS))).map(
    lambda pair: pair[0] | {"setting": pair[1]}
)
