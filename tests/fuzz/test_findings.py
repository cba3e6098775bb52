"""What the long run showed, each as a test of its own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import edgewise
from edgewise.cli import exit_codes
from edgewise.cli.main import run
from edgewise.critical import exponents
from edgewise.errors import OutOfBudget, SearchBudget
from edgewise.judgement import remedies
from edgewise.study import load_recipe
from edgewise.theory import predict as theory
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.gram import drive as gram
from edgewise.theory.softmax import moments
from tests.fuzz import watched
from tests.fuzz.invariants import check_document
from tests.fuzz.networks import Tokens, build, with_weights
from tests.support.models import CONFIGS


@pytest.mark.parametrize(
    "knobs", [{"attention_branch": 0.0, "attention_skip": 0.0}, {"mlp_skip": 0.0, "mlp_out_gain": 0.0}]
)
def test_a_stream_that_vanishes_has_a_document_of_the_schema(knobs: dict[str, float]) -> None:
    """No gradient is followed, so that there is none in the document either."""
    trace = edgewise.predict(edgewise.transformer(depth=3, tokens=16, **knobs))
    document = edgewise.present.prediction(trace, edgewise.judge(trace))
    assert "gradient_norm" not in document["trace"]["blocks"]
    check_document(json.loads(json.dumps(document)))


def test_a_context_longer_than_the_vocabulary_is_no_reason_to_refuse() -> None:
    """Characters: 32 of them, 40 positions. The ids come from the first table, not from the largest."""
    model = Tokens(width=16, depth=3, kind="tokens")
    assert model.places.num_embeddings > model.table.num_embeddings
    assert edgewise.measure(model, tokens=8).depth == 3


def test_infinite_weights_are_refused_as_nan_is() -> None:
    model = Tokens(width=16, depth=2, kind="tokens")
    nn.init.constant_(model.blocks[1].up.weight, float("inf"))
    with pytest.raises(edgewise.BadInput, match=r"blocks\.1\.up\.weight of this Tokens hold NaN or infinity"):
        edgewise.measure(model, tokens=8)


def test_a_model_without_parameters_has_no_plan() -> None:
    with pytest.raises(edgewise.BadInput, match="Sequential has no parameters"):
        edgewise.critical_plan(nn.Sequential(nn.ReLU(), nn.Identity()))


def test_a_vanished_stream_is_drawn_without_warnings(recwarn: pytest.WarningsRecorder) -> None:
    trace = edgewise.predict(edgewise.Perceptron("linear", 0.0, 0.0, depth=2))
    edgewise.present.prediction(trace, edgewise.judge(trace))
    assert not [str(warning.message) for warning in recwarn if "log" in str(warning.message)]


def test_the_position_table_still_bounds_the_length() -> None:
    model = Tokens(width=16, depth=3, kind="tokens")
    with pytest.raises(edgewise.BadInput, match="tokens must be at most 32"):
        edgewise.measure(model, tokens=33)
    assert edgewise.measure(model, torch.zeros(1, 40, dtype=torch.long)).depth == 3


def test_more_tokens_than_the_machine_can_hold_are_refused_at_once() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with pytest.raises(edgewise.BadInput, match=r"10,000,000 tokens would need 800,000 GB"):
        edgewise.measure(model, tokens=10_000_000)
    with pytest.raises(edgewise.BadInput, match="10,000,000 tokens would need"):
        edgewise.critical_plan(with_weights(model, "huge", "float32"), tokens=10_000_000)


def test_a_model_that_raises_is_refused_with_its_own_words() -> None:
    with pytest.raises(
        edgewise.BadInput, match="no plan is possible for this Tokens: ValueError: no such size"
    ):
        edgewise.critical_plan(Tokens(width=16, depth=3, kind="raises"), torch.zeros(1, 8, dtype=torch.long))
    with pytest.raises(
        edgewise.BadInput, match="the totals of this Tokens cannot be read: ValueError: no such size"
    ):
        edgewise.total_changes(Tokens(width=16, depth=3, kind="raises"), torch.zeros(1, 8, dtype=torch.long))


LLAMA = {
    "model_type": "gemma2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": 76}, "layer_types in a gemma2 config must be a list of names"),
        ({"layer_types": [1, 2]}, "layer_types in a gemma2 config must be a list of names"),
        (
            {"max_position_embeddings": 10**400},
            "max_position_embeddings in a gemma2 config must be a number from 0",
        ),
        ({"num_key_value_heads": 10**400}, "num_key_value_heads in a gemma2 config must be a whole number"),
        (
            {
                "model_type": "gpt_oss",
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "initializer_range": 1e30,
            },
            "router logits of standard deviation",
        ),
    ],
)
def test_configs_with_impossible_values_are_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(edgewise.BadInput, match=words):
        edgewise.describe(LLAMA | changes)


def test_latent_attention_without_weights_is_refused_by_its_embedding() -> None:
    """The share of a head that is rotated is that of the fan-ins, whatever the standard deviation."""
    config = {"model_type": "deepseek_v3", **CONFIGS["deepseek3"][2]}
    assert edgewise.describe(config).rope == edgewise.describe(config | {"initializer_range": 0.1}).rope
    with pytest.raises(edgewise.BadInput, match="embedding_norm must be a finite number above 0, got 0"):
        edgewise.describe(config | {"initializer_range": 0})


def test_gradients_that_leave_the_numbers_are_refused() -> None:
    """The stream of weights of 30,000 stays finite in single precision, the way back does not."""
    model = with_weights(build("tokens", 16, 3), "huge", "float32")
    with pytest.raises(edgewise.BadInput, match=r"not a number at .*model\.double"):
        edgewise.measure(model, tokens=8)


@pytest.mark.parametrize("name", ["", "."])
def test_a_recipe_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(edgewise.BadInput):
        load_recipe(name)


def test_alarms_are_refused_before_anything_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder whose rows cannot be read: one refusal, and no alarm above it."""
    change = {"file": "schema", "how": "cut", "place": 0.5}
    words = watched.prepare(tmp_path, {"changes": [change], "verb": "alarms"})
    assert words is not None and run(words) == exit_codes.BAD_INPUT
    assert capsys.readouterr().out == ""


def test_logits_are_not_divided_by_zero() -> None:
    config = {"model_type": "gemma3_text", **CONFIGS["gemma3"][2], "query_pre_attn_scalar": 0}
    with pytest.raises(edgewise.BadInput, match=r"query_pre_attn_scalar .* must be a number above 0, got 0"):
        edgewise.describe(config)


def test_a_search_that_leaves_the_numbers_goes_on() -> None:
    """Newton's steps from a block without a skip reach lengths whose separation is 0/0."""
    knobs = {
        "norm": "none",
        "norm_kind": "rms",
        "parallel": True,
        "heads": 0,
        "depth": 13,
        "width": 256,
        "tokens": 16,
        "activation": "gelu",
        "embedding_norm": 0.426,
        "attention_skip": 5e-324,
        "attention_branch": 1.1008,
        "mlp_branch": 0.99999,
        "mlp_in_gain": 0.45,
        "mlp_out_gain": 3.3932,
        "value_gain": 3.3932,
        "score_gain": 7.8617,
    }
    assert (
        edgewise.judge(edgewise.predict(knobs, readout="pooled", start_overlap=0.918)).probability is not None
    )


def test_what_is_not_a_number_stays_one_in_the_averages_of_a_pair() -> None:
    gelu = activation("gelu")
    for average in (gelu.chord, gelu.slope_product_apart):
        found = average([1.0, 1.0, float("nan")], [0.5, float("nan"), 0.5])
        assert found[0] == average([1.0], [0.5])[0] and math.isnan(found[1]) and math.isnan(found[2])


def test_a_deep_network_with_one_wide_head_is_not_predicted_again_for_every_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPT-2 with one head was nine seconds a prediction, mostly for features 768 wide. The cost is estimated by its
    sizes, not by a clock, so that every machine names the same remedies."""
    begun: list[str] = []
    monkeypatch.setattr(gram, "GramOrbit", lambda *_: begun.append("run"))
    network = edgewise.describe("gpt2").replace(
        depth=400, tokens=512, heads=1, head_width=768
    )  # dear for sure
    with pytest.raises(OutOfBudget):
        theory.predict_transformer(network, budget=SearchBudget(remedies.EFFORT))
    assert not begun
    with pytest.raises(AttributeError):  # outside a search it is begun, with two draws
        theory.predict(network)
    assert len(begun) == 2


def test_a_search_that_is_cut_off_says_so_and_ends_at_the_same_step_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of all remedies of a post-norm network with a mask as many are tried as the effort allows."""
    network = edgewise.transformer(
        norm="post", depth=8, tokens=4, causal=True, attention_branch=4.0, mlp_branch=4.0
    )
    trace = edgewise.predict(network)
    whole = edgewise.judge(trace)
    assert (
        whole.remedies
        and not whole.findings[0].search.cut_off
        and "every change" not in whole.findings[0].remedy
    )
    monkeypatch.setattr(remedies, "EFFORT", 0.0)
    first, second = edgewise.judge(trace), edgewise.judge(trace)
    assert first.remedies == second.remedies == ()
    assert "No remedy was found. Not every change was tried" in first.findings[0].remedy
    assert "No remedy was found. Not every change was tried" in str(first)


@pytest.mark.parametrize(
    "depth", [4, 24]
)  # condensed attention, and a stream that leaves the range of numbers
def test_logits_beyond_the_table_of_moments_do_not_make_a_search_endless(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlp_skip = 3600 without norms: every state takes a quadrature, and a grid has thousands. The remedy that leads
    back into the table is tried first."""
    verdict = edgewise.judge(
        edgewise.predict(edgewise.transformer(norm="none", mlp_skip=3600.0, depth=depth, tokens=16))
    )
    tried: list[float] = []
    one_state = moments._one_state
    monkeypatch.setattr(moments, "_one_state", lambda v, *rest: tried.append(v) or one_state(v, *rest))
    monkeypatch.setattr(remedies, "EFFORT", 0.5)
    assert [remedy.changes for remedy in verdict.remedies] == [{"norm": "pre", "mlp_skip": 1.0}]
    assert "not every change was tried" in verdict.findings[0].remedy.lower()
    assert len(tried) <= 0.5 / moments.SECONDS


AXES = {"mlp_in_gain": (0.5, 2.0, 8), "attention_branch": (0.1, 1.0, 8)}


@pytest.mark.parametrize("ask", [lambda n: edgewise.phase_diagram(n, AXES), edgewise.critical_point])
def test_many_states_of_nearly_hard_attention_are_refused(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """attention_skip = 16 with norms inside the branches alone: the stream grows, and with it every logit."""
    network = edgewise.transformer(depth=18, tokens=7, score_gain=3.055, norm="branch", attention_skip=16.0)
    tried: list[float] = []
    one_state = moments._one_state
    monkeypatch.setattr(moments, "_one_state", lambda v, *rest: tried.append(v) or one_state(v, *rest))
    monkeypatch.setattr(exponents, "EFFORT", 0.5)
    with pytest.raises(edgewise.BadInput, match=r"attention is nearly hard here .* smaller score_gain"):
        ask(network)
    assert len(tried) <= 0.5 / moments.SECONDS


def test_a_window_beyond_whole_numbers_of_64_bits_hides_nothing() -> None:
    """It was compared with the keys as a number of numpy's, which has no room for it."""
    one, other = (
        edgewise.judge(edgewise.predict(edgewise.transformer(depth=2, tokens=14, window=window)))
        for window in (14, 10**40)
    )
    assert str(one.angle) == str(other.angle) and one.outcome is other.outcome


@pytest.mark.parametrize(
    "name", ["rope_theta", "factor", "attention_factor", "mscale", "original_max_position_embeddings"]
)
def test_a_number_of_rotation_that_is_none_is_named(name: str) -> None:
    """Inside `rope_parameters` each was an internal error."""
    rope = {"rope_type": "yarn", "factor": 2.0, "mscale_all_dim": 1.0, "mscale": 1.0, name: "x"}
    llama = {"model_type": "llama", **CONFIGS["llama"][2], "rope_parameters": rope}
    with pytest.raises(edgewise.BadInput, match=f"{name} in a llama config must be a number from 0 to"):
        edgewise.describe(llama)


def test_a_width_that_no_tensor_can_have_is_refused() -> None:
    """Small networks of it can be made; the one of full size, in no memory, was a RuntimeError of torch."""
    config = {"model_type": "whisper", "encoder_layers": 2, "decoder_layers": 2, "d_model": 10**9}
    with pytest.raises(edgewise.BadInput, match=r"of these sizes cannot be made: .*overflow"):
        edgewise.describe(config)
