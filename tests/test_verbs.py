"""The door: published recipes pass, dead networks are named, measured starts are taken, bad input is refused."""

import dataclasses
import gc
import weakref
from functools import partial

import numpy as np
import pytest

import edgewise
from edgewise.arrays import check_tokens
from edgewise.errors import BadInput
from edgewise.nouns.verdict import Kind, Outcome

PUBLISHED = (
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "llama-2-7b",
    "llama-3-8b",
    "llama-3-70b",
    "mistral-7b",
    "qwen3-8b",
    "pythia-1.4b",
    "bert-base",
    "bert-large",
    "roberta-base",
    "vit-base",
    "vit-large",
    "t5-base",
)
STEEP = (
    "bert-large",
)  # 24 blocks of post-norm: it trained, after a long warm-up; a third of such text models did


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_false_alarm_on_a_published_recipe(name):
    """Nobody keeps a tool that says GPT-2 cannot train; 32 tokens keep the dense recursion short."""
    network = edgewise.describe(name, tokens=32) if not name.startswith("vit") else edgewise.describe(name)
    verdict = edgewise.judge(edgewise.predict(network))
    expected = Outcome.RISKY if name in STEEP else Outcome.TRAINS
    assert verdict.outcome is expected, str(verdict)


DEAD = {
    "nn.TransformerEncoder, 48 layers": lambda: edgewise.describe("torch-encoder", depth=48),
    "attention alone": lambda: edgewise.transformer(depth=12, mlp_width=0, attention_skip=0.0, norm="none"),
    "attention alone, normed": lambda: edgewise.transformer(depth=12, mlp_width=0, attention_skip=0.0),
    "attention alone, causal and deep": lambda: edgewise.transformer(
        depth=30, tokens=16, width=64, heads=4, mlp_width=0, attention_skip=0.0, causal=True
    ),
    "chaos": lambda: edgewise.transformer(
        depth=64, activation="tanh", mlp_in_gain=4.0, mlp_skip=0.0, attention_branch=0.1
    ),
}


@pytest.mark.parametrize("name", DEAD)
def test_what_cannot_train_is_said_so_with_a_remedy(name):
    verdict = edgewise.judge(edgewise.predict(DEAD[name]()))
    assert verdict.outcome is Outcome.FAILS, str(verdict)
    assert any(f.severity == "fails" and f.remedy for f in verdict.findings)
    assert "WILL NOT TRAIN" in str(verdict)


def test_a_remedy_works_when_it_is_followed():
    network = edgewise.describe("torch-encoder", depth=48)
    text = next(
        f.remedy for f in edgewise.judge(edgewise.predict(network)).findings if f.kind is Kind.RANK_COLLAPSE
    )
    value = float(text.split("attention_branch = mlp_branch = ")[1].split(" ")[0])
    cured = network.replace(attention_branch=value, mlp_branch=value, attention_skip=1.0, mlp_skip=1.0)
    assert edgewise.judge(edgewise.predict(cured)).outcome is Outcome.TRAINS


def test_entropy_collapse_is_found_in_sharp_attention():
    verdict = edgewise.judge(edgewise.predict(edgewise.transformer(depth=4, tokens=64, score_gain=6.0)))
    assert Kind.ENTROPY_COLLAPSE in {f.kind for f in verdict.findings}
    assert verdict.attention.condensation > 1


def test_start_from_a_measured_trace_or_gram_matrix():
    network = edgewise.transformer(depth=3, tokens=16, width=64, heads=2)
    first = edgewise.predict(network, start_overlap=0.4)
    again = edgewise.predict(network, start=first)
    assert again.norm == pytest.approx(first.norm) and again.separation == pytest.approx(first.separation)
    gram = np.full((16, 16), 0.4) + 0.6 * np.eye(16)
    dense = edgewise.predict(network, start=gram)
    assert "gram" in dense.source
    assert dense.blocks("overlap") == pytest.approx(first.blocks("overlap"), abs=0.01)


def test_width_too_small_for_the_depth_is_extrapolated():
    verdict = edgewise.judge(edgewise.predict(edgewise.transformer(depth=40, width=64, heads=2, tokens=16)))
    assert "sqrt(2 L / d)" in verdict.extrapolated[0] and "Extrapolated" in str(verdict)


def test_sharp_attention_in_narrow_heads_is_extrapolated():
    wide = edgewise.transformer(depth=4, width=256, tokens=32, heads=2, score_gain=3.0)
    assert not edgewise.predict(wide).extrapolated
    (reason,) = edgewise.predict(wide.replace(head_width=8)).extrapolated
    assert "heads of width 8" in reason


def test_a_trace_without_description_has_no_asymptotics():
    from dataclasses import replace

    trace = replace(edgewise.predict(edgewise.transformer(depth=3, tokens=16)), architecture=None)
    verdict = edgewise.judge(trace)
    assert verdict.angle.asymptotic is None and verdict.fixed_points == ()


def test_compare_names_what_differs():
    a = edgewise.transformer(depth=6, tokens=16, norm="pre")
    found = edgewise.compare(a, a.replace(norm="post", score_gain=2.0))
    assert {d[0] for d in found.differences} == {"norm", "score_gain"}
    assert "norm: pre against post" in str(found)


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda: edgewise.judge("gpt2"), "judge takes a Trace"),
        (
            lambda: edgewise.predict("gpt2", readout="mean"),
            "readout must be one of token, class, pooled, got 'mean'",
        ),
        (
            lambda: edgewise.predict(edgewise.transformer(), start_overlap=1.0),
            "start_overlap must be .* got 1.0",
        ),
        (lambda: edgewise.predict(edgewise.transformer(), start_overlap=float("nan")), "must be .* got nan"),
        (lambda: edgewise.predict("mlp:tanh", readout="pooled"), "one readout"),
        (lambda: edgewise.predict("gpt2", start=np.eye(1024), start_overlap=0.1), "not both"),
        (lambda: edgewise.phase_diagram("mlp:tanh", {"a": (0, 1, 2), "b": (0, 1, 2)}), "needs a transformer"),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(BadInput, match=words):
        call()


def test_perceptron_through_the_same_door():
    network = edgewise.Perceptron("tanh", weight_variance=1.5, bias_variance=0.05, depth=30)
    verdict = edgewise.judge(edgewise.predict(network, start_overlap=0.6))
    facts = verdict.perceptron
    assert facts["chi_1"] == pytest.approx(np.exp(verdict.angle.asymptotic))
    assert verdict.phase.value == facts["phase"]
    assert "layers" in str(verdict) and "token" not in str(verdict).lower().replace("token readout", "")


def test_a_perceptron_that_explodes_is_a_verdict():
    verdict = edgewise.judge(edgewise.predict(edgewise.Perceptron("relu", weight_variance=50.0, depth=500)))
    assert verdict.outcome is Outcome.FAILS and verdict.findings[0].kind is Kind.STREAM_OUT_OF_RANGE


def test_a_mask_has_no_claimed_limit_where_the_norm_is_fixed():
    """Rows of a masked network average different tokens: the collapse exponent of the symmetric one is not its own."""
    verdict = edgewise.judge(edgewise.predict(edgewise.transformer(depth=3, tokens=8, norm="post", window=2)))
    assert verdict.angle.asymptotic is None and any("open problem" in note for note in verdict.notes)


def test_an_exponential_stream_has_no_claimed_limit():
    network = edgewise.transformer(depth=8, tokens=16, norm="none", mlp_width=0, score_gain=0.0)
    assert edgewise.judge(edgewise.predict(network)).angle.asymptotic is None


def test_rotating_an_odd_head_is_refused():
    with pytest.raises(BadInput, match="even head_width"):
        edgewise.transformer(width=28, heads=4, rope=True)


def test_sharp_attention_is_judged_in_seconds():
    verdict = edgewise.judge(edgewise.predict(edgewise.transformer(depth=4, tokens=32, score_gain=40.0)))
    assert Kind.ENTROPY_COLLAPSE in {f.kind for f in verdict.findings}


def test_a_perceptron_far_from_the_edge_is_told_where_it_is():
    verdict = edgewise.judge(edgewise.predict(edgewise.Perceptron("tanh", weight_variance=0.5, depth=100)))
    assert verdict.outcome is Outcome.FAILS
    assert "weight_variance = 1 instead of 0.5" in verdict.findings[0].remedy


def test_a_skip_that_overflows_at_once_explodes_and_does_not_vanish():
    made = edgewise.transformer(depth=4, width=64, tokens=8, heads=2, norm="none", attention_skip=1e100)
    trace = edgewise.predict(made)
    assert np.isinf(trace.norm[0, 1:]).all()
    assert "explodes" in str(edgewise.judge(trace))


def test_a_remedy_is_said_once_and_names_only_what_the_network_has():
    made = edgewise.transformer(depth=64, width=512, tokens=32, heads=8, norm="post", mlp_width=0)
    remedies = [finding.remedy for finding in edgewise.judge(edgewise.predict(made)).findings]
    assert sum("By theory" in remedy for remedy in remedies) == 1
    assert not any("mlp_branch = " in remedy for remedy in remedies)


def test_a_user_name_is_left_alone():
    named = edgewise.Perceptron(depth=8, width=200, weight_variance=1.0).replace(name="block of tokens")
    assert str(edgewise.judge(edgewise.predict(named))).startswith("block of tokens ")


def test_callables_do_not_stay_in_memory() -> None:
    """Each has tables of some megabytes: a few are remembered, not all."""
    from edgewise.theory.averages.activation_averages import activation

    references = []
    for scale in range(1, 41):
        function = partial(np.multiply, scale)
        assert activation(function) is activation(function)
        references.append(weakref.ref(function))
    del function
    gc.collect()
    assert sum(reference() is not None for reference in references) <= 16


def test_a_measured_start_of_centred_tokens_is_accepted() -> None:
    """n centred tokens have a mean cosine of -1/(n-1), which is no alignment."""
    network = edgewise.transformer(depth=2, tokens=4)
    first = edgewise.predict(network)
    centred = dataclasses.replace(first, separation=first.separation + (1 + 1 / 3) - first.separation[:, :1])
    assert centred.overlap[0, 0] == pytest.approx(-1 / 3)
    np.testing.assert_array_equal(edgewise.predict(network, start=centred).norm, first.norm)
    nothing = dataclasses.replace(first, separation=first.separation * np.nan)
    with pytest.raises(edgewise.BadInput):
        edgewise.predict(network, start=nothing)


@pytest.mark.parametrize("memory, fits", [(8.0e6, True), (7.9e6, False)])
def test_tokens_fit_if_the_attention_of_one_head_does(
    memory: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 bytes a pair: 1,000 tokens take 8 MB."""
    monkeypatch.setattr("edgewise.arrays.physical_memory", lambda: memory)
    if fits:
        return check_tokens(1000)
    with pytest.raises(BadInput, match=r"Use at most 993 tokens"):
        check_tokens(1000)
