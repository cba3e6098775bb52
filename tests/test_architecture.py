"""The description: canonical, hashable, JSON both ways, and impossible values refused by name."""

import json

import numpy as np
import pytest

from edgewise.errors import BadInput
from edgewise.nouns.architecture import PERCEPTRON_KNOBS, Architecture, Perceptron, transformer
from edgewise.nouns.blocks import MLP, Attention
from edgewise.nouns.knobs import KNOBS


def test_defaults_follow_from_the_knob_table():
    network = transformer()
    for name, knob in KNOBS.items():
        if not knob.optional:
            assert getattr(network, name) == knob.default
    assert (network.head_width, network.kv_heads, network.mlp_width) == (64, 8, 2048)


def test_json_round_trip_keeps_equality_and_hash():
    network = transformer(depth=3, score_gain=[1, 2, 3], window=[4, None, 4], rope=True, causal=True)
    again = Architecture.from_dict(json.loads(json.dumps(network.to_dict())))
    assert again == network and hash(again) == hash(network)
    assert again.score_gain == (1.0, 2.0, 3.0) and again.window == (4, None, 4)


def test_a_constant_list_is_one_value():
    assert transformer(depth=3, score_gain=[2, 2, 2]) == transformer(depth=3, score_gain=2.0)
    assert transformer(depth=2, mlp_in_gain=np.array([1.0, 2.0])).mlp_in_gain == (1.0, 2.0)


def test_blocks_are_branches_as_values():
    (block,) = transformer(depth=1, norm="sandwich", attention_branch=0.5, mlp_skip=0.9).blocks
    attention, mlp = block
    assert isinstance(attention.layers[0], Attention) and isinstance(mlp.layers[0], MLP)
    assert attention.norm.before and attention.norm.after and not attention.norm.outside
    assert attention.layers[0].branch == 0.5 and mlp.skip == 0.9
    (parallel,) = transformer(depth=1, parallel=True).blocks
    assert [layer.name for layer in parallel[0].layers] == ["attention", "mlp"]


def test_sites_name_every_branch():
    assert transformer(depth=2).sites() == (
        "embed",
        "block.0.attention",
        "block.0.mlp",
        "block.1.attention",
        "block.1.mlp",
    )
    assert transformer(depth=1, parallel=True).sites() == ("embed", "block.0.attention+mlp")
    assert transformer(depth=1, mlp_width=0).sites() == ("embed", "block.0.attention")
    assert transformer(depth=1, heads=0).sites() == ("embed", "block.0.mlp")


def test_replace_lets_what_followed_follow_again():
    network = transformer(width=512, heads=8).replace(width=1024)
    assert (network.head_width, network.mlp_width) == (128, 4096)
    assert transformer(width=512, mlp_width=100).replace(width=1024).mlp_width == 100


@pytest.mark.parametrize(
    "knobs,words",
    [
        ({"depht": 3}, "did you mean depth"),
        ({"depth": 0}, "depth must be .* at least 1, got 0"),
        ({"depth": 2.5}, "whole number"),
        ({"tokens": 1}, "at least 2"),
        ({"score_gain": -1.0}, "score_gain must be .* at least 0, got -1.0"),
        ({"score_gain": float("nan")}, "finite"),
        ({"score_gain": "big"}, "finite number"),
        ({"embedding_norm": 0.0}, "above 0"),
        ({"norm": "middle"}, "one of pre, post"),
        ({"kernel": "cosine"}, "one of softmax"),
        ({"activation": "swash"}, "a callable or one of"),
        ({"causal": 1}, "true or false"),
        ({"rope": 1.5}, "fraction"),
        ({"score_gain": [1.0, 2.0]}, "2 entries and depth is 12"),
        ({"tokens": [1, 2]}, "one value for the whole network"),
        ({"width": 100, "heads": 3}, "does not divide"),
        ({"heads": 8, "kv_heads": 3}, "not a multiple"),
        ({"heads": 0, "mlp_width": 0}, "leave no layer"),
        ({"parallel": True, "mlp_skip": 0.5}, "one skip"),
    ],
)
def test_impossible_values_are_refused_by_name(knobs, words):
    with pytest.raises(BadInput, match=words):
        transformer(**knobs)


def test_depth_cannot_change_under_a_list():
    with pytest.raises(BadInput, match="score_gain are lists of length 2"):
        transformer(depth=2, score_gain=[1.0, 2.0]).replace(depth=3)


def test_unknown_keys_in_json_are_refused():
    with pytest.raises(BadInput, match="'colour' is not a knob"):
        Architecture.from_dict({"depth": 2, "colour": "red"})
    for values in (3, "abc", [3], {"a": 1}):
        with pytest.raises(BadInput, match="assumed must be a list of sentences, got"):
            Architecture.from_dict({"norm": "pre", "assumed": values})


PER_BLOCK = (
    "score_gain",
    "value_gain",
    "key_gain",
    "output_gain",
    "mlp_in_gain",
    "mlp_linear_gain",
    "mlp_out_gain",
    "mlp_bias",
    "attention_skip",
    "attention_branch",
    "mlp_skip",
    "mlp_branch",
    "position_bias",
    "rope",
    "rope_base",
    "window",
)


def test_every_gain_skip_branch_window_and_position_may_differ_from_block_to_block():
    assert {name for name, knob in KNOBS.items() if knob.per_block} == {*PER_BLOCK}
    for name in PER_BLOCK:
        values = {"window": (4, 8), "rope": (0.5, 1.0), "rope_base": (100.0, 200.0)}.get(name, (0.5, 0.25))
        network = transformer(depth=2, gated=True, **{name: values})
        assert getattr(network, name) == values and network != transformer(
            depth=2, gated=True, **{name: values[0]}
        )


def test_the_defaults_of_a_perceptron_are_those_of_its_knobs():
    network = Perceptron()
    assert {name: getattr(network, name) for name in PERCEPTRON_KNOBS} == {
        name: knob.default for name, knob in PERCEPTRON_KNOBS.items()
    }
