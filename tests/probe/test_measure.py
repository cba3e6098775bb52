"""`measure` on networks with known answers, by every way of computing attention, and what it leaves behind."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgewise import BadInput, describe
from edgewise.models.behavior import read as reader
from edgewise.models.behavior.read import read as read_model
from edgewise.models.inputs import default_batch
from edgewise.probe.geometry import generator_for
from edgewise.probe.measure import measure
from tests.support.models import build
from tests.support.probe_networks import Net, ids

WAYS = ("fused", "function", "torch", "method")


def streams(net: Net, tokens: torch.Tensor) -> list[torch.Tensor]:
    """The sites, computed by hand, with a graph."""
    x = net.embedding(tokens)
    found = [x]
    for block in net.blocks:
        x = x + block.attention(x)
        found.append(x)
        x = x + block.mlp(x)
        found.append(x)
    return found


def test_sites_norms_and_overlaps_are_those_of_the_streams() -> None:
    net = Net().double()
    trace = measure(net, ids())
    assert trace.sites == ("embed", *(f"block.{i}.{part}" for i in range(3) for part in ("attention", "mlp")))
    for i, x in enumerate(streams(net, ids())):
        assert trace.norm[0, i] == pytest.approx(float(x.detach().square().mean()), rel=1e-12)
        cosine = torch.nn.functional.cosine_similarity(x[:, :, None], x[:, None], dim=-1)
        n = x.shape[1]
        off = (cosine.sum((1, 2)) - n) / (n * (n - 1))
        assert trace.overlap[0, i] == pytest.approx(off.mean().item(), abs=1e-12)


def test_own_gradient_is_autograds() -> None:
    net, tokens = Net().double(), ids()
    trace = measure(net, (tokens, tokens), readouts=("own",))
    found = streams(net, tokens)
    loss = torch.nn.functional.cross_entropy(net.head(found[-1]).flatten(0, 1), tokens.flatten())
    squares = torch.stack([g.square().sum() for g in torch.autograd.grad(loss, found)])
    expected = (squares / squares[-1]).log().numpy()
    assert trace.log_gradient is not None
    np.testing.assert_allclose(trace.log_gradient[0, 0], expected, atol=1e-10)


def test_orthogonal_linear_network() -> None:
    """Blocks x -> x + 0 then x -> x + (Q - 1) x: lengths, overlaps and gradients are all kept exactly."""
    net = Net(width=12).double()
    for block in net.blocks:
        nn.init.zeros_(block.attention.o_proj.weight)
        nn.init.orthogonal_(block.mlp.fc1.weight)
        with torch.no_grad():  # W_2 W_1 = Q - 1 for an orthogonal Q, with W_2 = (Q - 1) W_1^T
            Q = torch.linalg.qr(
                torch.randn(12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
            )[0]
            block.mlp.fc2.weight.copy_((Q - torch.eye(12)) @ block.mlp.fc1.weight.T)
    trace = measure(net, ids(), seeds=2)
    np.testing.assert_allclose(trace.norm, trace.norm[:, :1] * np.ones(7), rtol=1e-12)
    np.testing.assert_allclose(trace.separation, trace.separation[:, :1] * np.ones(7), rtol=1e-10)
    np.testing.assert_allclose(trace.log_gradient, 0.0, atol=1e-10)
    np.testing.assert_allclose(trace.statistics["pair_growth"], 0.0, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_uniform_attention(way: str) -> None:
    """Zero queries: every row is 1/n, its Jacobian has the one eigenvalue 1/n, n - 1 times."""
    net, n = Net(way=way), 10
    for block in net.blocks:
        nn.init.zeros_(block.attention.q_proj.weight)
    trace = measure(net, ids(tokens=n))
    assert trace.attention_entropy is not None and trace.softmax_condition is not None, trace.source
    here = [1, 3, 5]
    np.testing.assert_allclose(trace.attention_entropy[:, here], math.log(n), rtol=1e-6)
    np.testing.assert_allclose(trace.softmax_condition[:, here], 0.0, atol=1e-5)
    np.testing.assert_allclose(trace.statistics["softmax_eigenvalue"][:, here], 1 / n, rtol=1e-5)
    np.testing.assert_allclose(trace.statistics["effective_support"][:, here], n, rtol=1e-5)
    assert (trace.statistics["largest_logit"][:, here] == 0).all()
    assert np.isnan(trace.attention_entropy[:, [0, 2, 4, 6]]).all()


@pytest.mark.parametrize("way", WAYS)
def test_attention_statistics_by_hand(way: str) -> None:
    net, tokens = Net(way=way).double(), ids()
    trace = measure(net, tokens)
    module = net.blocks[0].attention
    x = net.embedding(tokens)
    q, k = (p(x).unflatten(-1, (2, -1)).transpose(1, 2) for p in (module.q_proj, module.k_proj))
    logits = q @ k.transpose(-1, -2) / math.sqrt(8)
    rows = logits.log_softmax(-1)
    entropy = -(rows.exp() * rows).sum(-1).mean((0, 2)).detach().numpy()
    assert trace.attention_entropy is not None
    np.testing.assert_allclose(trace.attention_entropy[0, 1], entropy, rtol=1e-10)
    largest = logits.abs().amax((0, 2, 3)).detach().numpy()
    np.testing.assert_allclose(trace.statistics["largest_logit"][0, 1], largest, rtol=1e-10)


def test_torch_encoder_by_both_of_its_paths() -> None:
    """nn.MultiheadAttention: fused inside the encoder layer; with weights returned, its own softmax."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=False, dropout=0.3)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(9, 3, 16, generator=torch.Generator().manual_seed(0))
    trace = measure(encoder, x)
    assert trace.attention_entropy is not None, trace.source
    assert trace.norm.shape == (1, 5)
    attention = encoder.layers[0].self_attn
    weights = attention.eval()(x, x, x, average_attn_weights=False)[1]
    expected = -(weights * weights.log()).sum(-1).mean((0, 2)).detach().numpy()
    np.testing.assert_allclose(trace.attention_entropy[0, 1], expected, rtol=1e-5)


@pytest.mark.parametrize("sequences", [1, 3])
def test_weight_gradients_are_autograds(sequences: int) -> None:
    """|dL/dW|^2 with sum over sequences of mean_a |g_a|^2 = 1 at the output; the readout is drawn by the same seed."""
    net, tokens = Net().double(), ids(sequences=sequences)
    trace = measure(net, tokens, readouts=("token",), attention=False, pair=False)
    found = streams(net, tokens)
    g = torch.randn(sequences, 10, 16, generator=generator_for(0, "readout")).double() / 4
    names = {
        "query": "attention.q_proj",
        "value": "attention.v_proj",
        "mlp_in": "mlp.fc1",
        "mlp_out": "mlp.fc2",
    }
    size = float(g.square().sum(-1).mean()) * sequences
    for name, module in names.items():
        weight = net.blocks[1].get_submodule(module).weight
        (gradient,) = torch.autograd.grad(found[-1], weight, g, retain_graph=True)
        site = 4 if name.startswith("mlp") else 3
        expected = math.log(float(gradient.square().sum()) / size)
        assert trace.statistics[f"weight_gradient.{name}"][0, site] == pytest.approx(expected, abs=1e-5)


def state(net: nn.Module) -> dict[str, Any]:
    hooks = [
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in net.modules()
    ]
    return {
        "hooks": hooks,
        "training": [m.training for m in net.modules()],
        "flags": [p.requires_grad for p in net.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in net.parameters()],
        "weights": [p.detach().clone() for p in net.parameters()],
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),  # noqa: NPY002
        "fast": torch.backends.mha.get_fastpath_enabled(),
        "functions": (torch.nn.functional.softmax, torch.nn.functional.scaled_dot_product_attention),
    }


def same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))
    return bool(first == second)


def odd_state() -> Net:
    """A net in the middle of somebody's work: training, partly frozen, with gradients."""
    net = Net().train()
    net.blocks[1].eval()
    net(ids()).sum().backward()
    net.blocks[0].mlp.fc1.weight.requires_grad_(False)
    net.head.weight.grad = None
    return net


def test_nothing_is_left_behind() -> None:
    net = odd_state()
    net.eval()
    plain = net(ids())
    net.train()
    before = state(net)
    measure(net, ids(), seeds=2)
    after = state(net)
    assert all(same(before[name], after[name]) for name in before), [
        n for n in before if not same(before[n], after[n])
    ]
    assert torch.equal(net.eval()(ids()), plain)


class Breaks(nn.Module):
    def forward(self, _: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("midway")


def test_nothing_is_left_behind_after_an_exception() -> None:
    net = odd_state()
    net.head = Breaks()  # type: ignore[assignment]
    before = state(net)
    with pytest.raises(BadInput, match="midway") as caught:
        measure(net, ids())
    assert isinstance(caught.value.__cause__, RuntimeError)
    after = state(net)
    assert all(same(before[name], after[name]) for name in before)


def test_works_inside_no_grad_and_inference_mode() -> None:
    net, tokens = Net(), ids()
    with torch.no_grad():
        first = measure(net, tokens)
    with torch.inference_mode():
        second = measure(net, tokens)
        with pytest.raises(BadInput, match="inference_mode"):
            measure(Net(), tokens)
    np.testing.assert_array_equal(first.log_gradient, second.log_gradient)


def test_frozen_weights_are_measured_too() -> None:
    frozen = Net().requires_grad_(False)
    np.testing.assert_array_equal(measure(frozen, ids()).log_gradient, measure(Net(), ids()).log_gradient)
    assert not any(p.requires_grad for p in frozen.parameters())


def test_seeds_of_a_factory_are_networks_and_of_weights_directions() -> None:
    made = measure(lambda: Net(seed=int(torch.randint(1 << 30, ()))), ids(), seeds=3)
    assert made.norm.std(0)[-1] > 0 and "new initialization" in made.source
    again = measure(lambda: Net(seed=int(torch.randint(1 << 30, ()))), ids(), seeds=3)
    np.testing.assert_array_equal(made.norm, again.norm)
    given = measure(Net(), ids(), seeds=3)
    assert (given.norm == given.norm[:1]).all() and "weights as given" in given.source
    assert given.log_gradient is not None and given.log_gradient[0].std(0)[0] > 0
    assert given.attention_entropy is not None and given.attention_entropy.shape[0] == 3


def test_pooled_readout_shares_one_gradient() -> None:
    """Zero attention leaves tokens apart, so the pooled and the token readout differ only through attention."""
    net = Net(depth=2).double()
    trace = measure(net, ids(), readouts=("token", "pooled"))
    assert trace.readouts == ("token", "pooled")
    for block in net.blocks:
        nn.init.zeros_(block.attention.q_proj.weight)
        nn.init.eye_(block.attention.v_proj.weight)
        nn.init.eye_(block.attention.o_proj.weight)
        nn.init.zeros_(block.mlp.fc2.weight)
    uniform = measure(net, ids(), readouts=("pooled",))
    assert uniform.log_gradient is not None
    assert uniform.log_gradient[0, 0, 0] == pytest.approx(
        2 * math.log(4), rel=1e-9
    )  # g -> g + mean g = 2 g, twice


def test_low_precision_models() -> None:
    half = measure(Net().to(torch.bfloat16), ids())
    np.testing.assert_allclose(half.norm, measure(Net(), ids()).norm, rtol=0.03)
    assert half.attention_entropy is not None, half.source


def test_the_output_is_compared_once_per_model_and_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    net, runs = Net(), []
    readings = {n: read_model(net, ids(tokens=n)) for n in (10, 12)}
    monkeypatch.setattr(reader, "read", lambda model, batch, rows: readings[batch.shape[1]])
    handle = net.register_forward_hook(lambda *_: runs.append(1))
    for tokens, expected in ((10, 2), (10, 1), (12, 2)):
        runs.clear()
        trace = measure(net, ids(tokens=tokens), pair=False)
        assert len(runs) == expected and trace.attention_entropy is not None
    handle.remove()


def test_a_silent_lie_is_refused() -> None:
    """An attention that adds to what the softmax gave back cannot be rebuilt from queries and keys: it is not used."""

    class Crooked(Net):
        pass

    net = Crooked()
    original = torch.nn.functional.scaled_dot_product_attention

    def crooked(x: torch.Tensor) -> torch.Tensor:
        module = net.blocks[0].attention
        q = x.unflatten(-1, (2, -1)).transpose(1, 2)
        first = original(q, q, q)
        second = original(q, 2 * q, q)
        return module.o_proj((first + second).transpose(1, 2).flatten(2))

    net.blocks[0].attention.forward = crooked  # type: ignore[method-assign]
    trace = measure(net, ids())
    assert trace.attention_entropy is None and "two attentions" in trace.source
    assert trace.log_gradient is not None


@pytest.mark.parametrize(
    "arguments, word",
    [
        (dict(seeds=0), "seeds"),
        (dict(readouts=("mine",)), "readouts"),
        (dict(readouts="token"), "readouts"),
        (dict(tokens=8), "leave it out"),
        (dict(stream=True), "config"),
    ],
)
def test_refusals(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        measure(Net(), ids(), **arguments)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(BadInput, match="3 is not a source"):
        measure(3)
    with pytest.raises(BadInput, match=r"must return a torch\.nn\.Module, got a int"):
        measure(lambda: 3)
    with pytest.raises(BadInput, match="neither a file nor a preset"):
        measure("nobody")
    with pytest.raises(BadInput, match="nothing in this model adds"):
        measure(nn.Linear(3, 3), torch.zeros(2, 3))


def test_the_readout_does_not_repeat_the_input() -> None:
    """An input made after manual_seed(0), as people do, is no special direction."""
    x = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(0))
    for purpose in ("readout", "nearby"):
        drawn = torch.randn(2, 16, 64, generator=generator_for(0, purpose))
        cosine = (drawn * x).sum() / drawn.norm() / x.norm()
        assert abs(float(cosine)) < 0.1


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_model_is_read_once(seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the measurement and for its description; the networks of a factory differ in their weights only."""
    calls: list[nn.Module] = []

    def counted(model: nn.Module, *arguments: Any, **more: Any) -> Any:
        calls.append(model)
        return read_model(model, *arguments, **more)

    monkeypatch.setattr(reader, "read", counted)
    net = Net()
    assert measure(net, ids(), seeds=seeds).architecture is not None
    assert calls == [net]
    measure(lambda: Net(), ids(), seeds=seeds)
    assert len(calls) == 2


def test_nan_weights_are_said_as_such() -> None:
    net = Net(seed=0)
    with torch.no_grad():
        next(net.parameters())[0] = math.nan
    for verb in (measure, describe):
        with pytest.raises(BadInput, match=r"hold NaN"):
            verb(net, tokens=8)


@pytest.mark.parametrize("verb", [measure, describe])
def test_a_batch_that_is_not_finite_is_refused_and_not_called_an_explosion(verb: Any) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for bad in (math.nan, math.inf):
        with pytest.raises(BadInput, match=r"the batch holds NaN or infinity, in a tensor of 2x24x16 values"):
            verb(encoder, torch.randn(2, 24, 16).index_fill(1, torch.tensor([3]), bad))
    masked = {"src": torch.randn(2, 24, 16), "mask": torch.full((24, 24), -math.inf).triu(1)}
    verb(encoder, masked)  # -infinity is how a mask hides a key


def test_a_length_beyond_the_positions_is_refused_and_not_cut() -> None:
    model = build("gpt2", n_positions=32)
    with pytest.raises(BadInput, match="tokens must be at most 32"):
        measure(model, tokens=1000)


def test_threads_take_turns_and_leave_the_fast_path_on() -> None:
    """Results in four threads equal to serial ones; the switches of torch as before."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoders = [nn.TransformerEncoder(layer, 2, enable_nested_tensor=False) for _ in range(4)]
    serial = [measure(encoder, tokens=8).norm for encoder in encoders]
    assert torch.backends.mha.get_fastpath_enabled()
    with ThreadPoolExecutor(4) as pool:
        traces = list(pool.map(lambda encoder: measure(encoder, tokens=8).norm, encoders))
    assert torch.backends.mha.get_fastpath_enabled()
    for one, other in zip(serial, traces, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_stream_has_the_type_of_the_model(dtype: torch.dtype) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(dtype)
    assert default_batch(encoder, torch.Generator().manual_seed(0), 8).dtype == dtype


@pytest.mark.parametrize(
    "kind, accepts, labelled",
    [("Classification", True, True), ("Classification", False, False), ("Segmentation", True, False)],
)
def test_images_have_a_label_where_a_classifier_takes_one(kind: str, accepts: bool, labelled: bool) -> None:
    """A model of another task takes labels of another shape."""

    def forward(self: Any, pixel_values: Any) -> None: ...
    def with_labels(self: Any, pixel_values: Any, labels: Any = None) -> None: ...

    made = type(f"ViTForImage{kind}", (nn.Linear,), {"forward": with_labels if accepts else forward})(
        2, 2
    ).half()
    made.config = SimpleNamespace(image_size=(4, 6), num_channels=2)
    batch = default_batch(made, torch.Generator())
    assert batch["pixel_values"].shape == (1, 2, 4, 6) and batch["pixel_values"].dtype == torch.float16
    assert ("labels" in batch) is labelled
