"""describe(): every kind of source, and every refusal."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from edgewise.errors import BadInput
from edgewise.models.config.translate import FAMILIES
from edgewise.models.describe import describe
from edgewise.models.source import preset_config, preset_names
from edgewise.nouns.architecture import Architecture, Perceptron, transformer

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rope_theta": 500000.0,
    "initializer_range": 0.02,
}
FLAT = {"depth": 5, "width": 128, "heads": 4, "tokens": 32, "norm": "post"}


class ConfigObject:
    """Has the two members by which a config of transformers is noticed; its to_dict leaves model_type out."""

    model_type = "llama"

    def to_dict(self) -> dict[str, object]:
        return {key: value for key, value in LLAMA.items() if key != "model_type"}


def write(path: Path, values: object) -> Path:
    text = json.dumps(values) if path.suffix == ".json" else yaml.safe_dump(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_an_architecture_and_a_perceptron_pass_unchanged() -> None:
    for known in (transformer(**FLAT), Perceptron("relu", 2.0)):
        assert describe(known) is known
        assert describe(describe(known)) is known


def test_a_flat_dict_is_the_knobs() -> None:
    assert describe(FLAT) == transformer(**FLAT)


def test_a_perceptron_dict_is_noticed_by_its_variances() -> None:
    assert describe({"activation": "erf", "weight_variance": 1.5}) == Perceptron("erf", 1.5)
    assert describe({"bias_variance": 0.1}).bias_variance == 0.1


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
@pytest.mark.parametrize("values", [FLAT, LLAMA], ids=["flat", "config"])
def test_files_of_either_form(tmp_path: Path, suffix: str, values: dict[str, object]) -> None:
    path = write(tmp_path / f"mine{suffix}", values)
    assert describe(path) == describe(str(path)) == describe(values)
    assert describe(path).name == "mine"


def test_a_folder_with_a_config_json_and_the_file_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "my-llama" / "config.json", LLAMA)
    assert describe(path.parent) == describe(str(path.parent)) == describe(path) == describe(LLAMA)
    assert describe(path.parent).name == describe(path).name == "my-llama"


def test_a_config_object_is_noticed_by_its_members() -> None:
    assert describe(ConfigObject()) == describe(LLAMA)


def test_preset_names_win_over_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "gpt2" / "config.json", LLAMA)
    assert describe("GPT2") == describe("gpt2") == describe(preset_config("gpt2"))
    assert describe("./gpt2") == describe(LLAMA)


def test_mlp_names_a_perceptron() -> None:
    assert describe("mlp:tanh") == Perceptron("tanh")
    assert describe("mlp:leaky_relu:0.1", depth=7) == Perceptron("leaky_relu:0.1", depth=7)


def test_depth_changes_the_config_before_it_is_translated() -> None:
    """GPT-2 scales its output matrices by 1/sqrt(2 depth): four times the depth, half the gain."""
    shallow, deep = describe("gpt2"), describe("gpt2", depth=48)
    assert (shallow.depth, deep.depth) == (12, 48)
    assert deep.value_gain == pytest.approx(shallow.value_gain / 2)
    assert deep.mlp_out_gain == pytest.approx(shallow.mlp_out_gain / 2)
    assert deep.mlp_in_gain == shallow.mlp_in_gain
    assert describe("torch-encoder", depth=48).depth == 48


def test_depth_and_tokens_of_flat_knobs_and_nouns() -> None:
    assert describe(FLAT, depth=9, tokens=8) == transformer(**FLAT | {"depth": 9, "tokens": 8})
    assert describe(transformer(**FLAT), depth=9) == transformer(**FLAT | {"depth": 9})


def test_a_pattern_of_layers_goes_on_at_another_depth() -> None:
    config = preset_config("gemma-2-9b") | {"layer_types": ["full_attention"] * 42}
    assert describe(config).window is None
    assert describe(config, depth=4).window == (4096, None, 4096, None)


def test_tokens_are_assumed_and_said_so() -> None:
    assert "tokens: 128, the context is 4096; set --tokens" in describe(LLAMA).assumed
    asked = describe(LLAMA, tokens=64)
    assert asked.tokens == 64
    assert not any(note.startswith("tokens") for note in asked.assumed)
    assert any("beyond the context of 512" in note for note in describe("t5-base", tokens=600).assumed)


def test_what_a_config_leaves_out_is_listed() -> None:
    bare = {key: value for key, value in LLAMA.items() if key not in ("initializer_range", "rope_theta")}
    described = describe(bare)
    assert described.rope_base == 10000.0
    assert described.score_gain == pytest.approx(0.02**2 * 256)
    about = {note.partition(":")[0] for note in described.assumed}
    assert about == {"tokens", "initializer_range", "rope_theta"}


def test_everything_described_survives_json() -> None:
    for name in preset_names():
        described = describe(name)
        again = Architecture.from_dict(json.loads(json.dumps(described.to_dict())))
        assert again == described
        assert again.name == name
        assert (again.assumed, again.unmodelled) == (described.assumed, described.unmodelled)


def test_transformers_is_never_imported() -> None:
    script = (
        "import sys\nfrom edgewise.models.source import preset_names\n"
        "from edgewise.models.describe import describe\n[describe(name) for name in preset_names()]\n"
        "print('transformers' in sys.modules, 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


class WithConfig:
    config = ConfigObject()


def without(key: str) -> dict[str, object]:
    return {name: value for name, value in LLAMA.items() if name != key}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (3.5, ["3.5 is not a source", "Accepted", "preset name"]),
        (None, ["None is not a source"]),
        ([1, 2], ["a list"]),
        (WithConfig(), ["a WithConfig", "has a config: give that"]),
        ("gtp2", ["'gtp2' is neither a file nor a preset", "Nearest presets", "gpt2", "Accepted"]),
        ("zzzz", ["Presets: gpt2", "torch-encoder"]),
        ("meta-llama/Llama-3-8B", ["Hugging Face Hub", "config.json", "llama-3-8b"]),
        ("nowhere.json", ["cannot read nowhere.json", "No such file"]),
        ({"depht": 3}, ["'depht'", "depth"]),
        ({"depth": 0}, ["depth must be", "got 0"]),
        ({"hidden_size": 64}, ["without model_type", "llama"]),
        ({"n_embd": 64, "n_layer": 2}, ["without model_type", "llama"]),
        (LLAMA | {"num_hidden_layers": 10**400}, ["num_hidden_layers", "from 1 to 1e+", "401 characters"]),
        (LLAMA | {"model_type": "lama"}, ["'lama'", "Did you mean llama", "flat knobs", *sorted(FAMILIES)]),
        (LLAMA | {"model_type": None}, ["model_type None"]),
        (without("hidden_size"), ["llama config has no hidden_size"]),
        (without("num_hidden_layers"), ["no num_hidden_layers or n_layer or num_layers"]),
        (
            LLAMA | {"hidden_size": "wide"},
            ["hidden_size in a llama config must be a whole number", "got 'wide'"],
        ),
        (
            LLAMA | {"hidden_size": math.inf},
            ["hidden_size in a llama config must be a whole number", "got inf"],
        ),
        (
            LLAMA | {"initializer_range": -1.0},
            ["initializer_range in a llama config", "from 0 to", "got -1.0"],
        ),
        (LLAMA | {"num_attention_heads": 6}, ["width of 256 is not a multiple of 6 heads"]),
        (LLAMA | {"num_key_value_heads": 3}, ["heads 8 is not a multiple of kv_heads 3", "divide heads"]),
        (
            preset_config("gpt2") | {"scale_attn_weights": 1},
            ["scale_attn_weights in a gpt2", "true or false, got 1"],
        ),
        (preset_config("gemma-2-9b") | {"layer_types": ["x"]}, ["layer_types has 1", "42 layers"]),
        (preset_config("pythia-160m") | {"init_method": "orthogonal"}, ["'orthogonal'", "small_init"]),
        (preset_config("vit-base") | {"patch_size": 300}, ["patch_size", "image_size"]),
        (preset_config("vit-base") | {"image_size": [224, "x"]}, ["image_size in a vit config", "got 'x'"]),
        ("mlp:nothing", ["activation must be", "got 'nothing'"]),
    ],
)
def test_refusals_say_what_was_seen_and_what_to_do(source: object, words: list[str]) -> None:
    with pytest.raises(BadInput) as refusal:
        describe(source)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("bad.json", "{", ["bad.json is not valid JSON", "line 1"]),
        ("bad.yaml", "a: [", ["bad.yaml is not valid YAML"]),
        ("list.yaml", "[1, 2]", ["holds a list", "knobs by name"]),
        ("empty.yaml", "", ["holds None"]),
        ("notes.txt", "depth: 3", ["is not a source", ".yaml"]),
    ],
)
def test_refusals_of_files(tmp_path: Path, name: str, text: str, words: list[str]) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as refusal:
        describe(tmp_path / name)
    for word in words:
        assert word in str(refusal.value)


def test_refusals_of_a_folder_without_a_config_and_of_bytes(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no config\.json"):
        describe(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not UTF-8 text"):
        describe(tmp_path / "bytes.json")


@pytest.mark.parametrize("override", [{"depth": 0}, {"tokens": -1}, {"depth": 2.5}, {"tokens": "many"}])
def test_impossible_overrides_are_refused_by_name(override: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=next(iter(override))):
        describe("gpt2", **override)


def test_a_perceptron_has_no_tokens() -> None:
    with pytest.raises(BadInput, match="a perceptron has no tokens"):
        describe("mlp:tanh", tokens=3)


def test_lists_cannot_change_their_depth() -> None:
    with pytest.raises(BadInput, match="value_gain"):
        describe({"depth": 2, "value_gain": [1.0, 2.0]}, depth=3)


def test_yaml_numbers_are_read_as_people_mean_them(tmp_path):
    (tmp_path / "net.yaml").write_text("depth: 4\nscore_gain: 1e-1\nvalue_gain: [1e0, 2E+0, 1, 1]\n")
    known = describe(str(tmp_path / "net.yaml"))
    assert known.score_gain == 0.1 and known.value_gain == (1.0, 2.0, 1.0, 1.0)


def test_an_empty_file_is_not_a_source(tmp_path):
    (tmp_path / "net.json").write_text("{}")
    with pytest.raises(BadInput, match="holds nothing"):
        describe(str(tmp_path / "net.json"))


def test_a_number_beyond_floating_point_is_refused():
    with pytest.raises(BadInput, match="finite number"):
        describe({"score_gain": 10**400})
