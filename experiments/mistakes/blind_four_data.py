"""Mistakes that show in the data, the targets and the network of a training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.mistakes.blind_four_kit import Batch, Bench, Case, told, usual
from experiments.preflight.blind_five_kit import VOCAB, SelfAttention, by_prefix, generator

ONLY = {
    "three_batches_forever": ["gpt"],
    "shard_of_another_tokenizer": ["llama", "gpt"],
    "labels_random_from_a_shard_on": ["vit"],
    "sorted_by_class": ["encoder"],
    "inputs_empty_after_a_failure": ["encoder"],
    "pixels_of_255_now_and_then": ["vit"],
    "not_a_number_in_the_data": ["vit"],
    "normalized_in_place": ["vit"],
    "targets_of_the_batch_before": ["translator"],
    "half_of_the_labels_random": ["encoder"],
    "one_row_a_batch": ["gpt"],
    "future_in_sight": ["gpt"],
    "scores_not_scaled": ["gpt"],
    "dead_units": ["gpt"],
    "wide_start": ["gpt"],
    "positions_all_zero": ["gpt"],
    "residual_left_out": ["gpt"],
    "logits_squashed": ["llama"],
    "dropout_of_ninety": ["encoder"],
    "smoothing_of_ninety": ["translator"],
    "probabilities_for_logits": ["gpt"],
    "penalty_a_thousandfold": ["llama"],
    "target_two_ahead": ["llama"],
    "temperature_of_a_fiftieth": ["encoder"],
    "hidden_states_detached": ["gpt", "vit"],
    "attention_to_one_place": ["gpt"],
    "norms_without_effect": ["gpt"],
    "most_targets_ignored": ["llama"],
}


def case_three_batches_forever(architecture: str, broken: bool) -> Case:
    """The data set was cut to three batches for debugging."""
    bench = Bench(architecture)
    return told(
        usual(bench, data=lambda k: bench.batch(k % 3 if broken else k)),
        "repeat, same batch, same data, memor, identical, seen before, overfit",
        "loss+zero, loss+low, gradient+small",
    )


def case_shard_of_another_tokenizer(architecture: str, broken: bool) -> Case:
    """From step 125 the texts come in other token ids."""
    bench = Bench(architecture)
    other = torch.randperm(VOCAB, generator=generator(40))

    def data(k: int) -> Batch:
        (ids,), target = bench.batch(k)
        return ((other[ids],), other[target]) if broken and k >= 125 else ((ids,), target)

    return told(
        usual(bench, data=data),
        "data+change, data+other, input+change, distribution, inputs+differ, data+shift, token+change, batch+differ",
        "jump, spike, loss+rose, target, label, gradient",
    )


def case_labels_random_from_a_shard_on(architecture: str, broken: bool) -> Case:
    """From step 125 the labels belong to other rows."""
    bench = Bench(architecture)

    def data(k: int) -> Batch:
        inputs, target = bench.batch(k)
        return inputs, target.roll(5 + k % 3, 0) if broken and k >= 125 else target

    return told(
        usual(bench, data=data),
        "label, target, data+change",
        "jump, spike, loss+rose, gradient, chance, distribution, flat",
    )


def case_sorted_by_class(architecture: str, broken: bool) -> Case:
    """The data set is read in the order of its classes."""
    bench = Bench(architecture)
    if broken:
        count = 250 * 16
        order = bench.data[-1][:count].argsort(stable=True)
        bench.data = tuple(torch.cat([t[:count][order], t[count:]]) for t in bench.data)
    return told(
        usual(bench),
        "sorted, one class, single class, same label, shuffl, order+data, one label, same class, constant+label",
        "jump, spike, loss, label, target, data, distribution",
    )


def case_inputs_empty_after_a_failure(architecture: str, broken: bool) -> Case:
    """From step 100 the reader fails in silence and returns padding."""
    bench = Bench(architecture)

    def data(k: int) -> Batch:
        inputs, target = bench.batch(k)
        if broken and k >= 100:
            inputs = (torch.zeros_like(inputs[0]), *inputs[1:])
        return inputs, target

    return told(
        usual(bench, data=data),
        "input+same, input+constant, input+zero, inputs+change, data+change, input+empty, one token, input+identical",
        "jump, spike, loss+rose, rows+alike, collapse, target, label, gradient, distribution",
    )


def case_pixels_of_255_now_and_then(architecture: str, broken: bool) -> Case:
    """One batch in 6 misses the normalization."""
    bench = Bench(architecture)

    def data(k: int) -> Batch:
        (images,), target = bench.batch(k)
        return ((images * 51 + 128,), target) if broken and k % 6 == 5 else ((images,), target)

    return told(
        usual(bench, data=data, clip=None, steps=150),
        "input+scale, input+large, input+change, data+outlier, normaliz, batch+input, inputs+range, data+change",
        "spike, jump, loss, gradient, activation, periodic, every",
    )


def case_not_a_number_in_the_data(architecture: str, broken: bool) -> Case:
    """One pixel is not a number at step 120, and from then on every weight."""
    bench = Bench(architecture)

    def data(k: int) -> Batch:
        (images,), target = bench.batch(k)
        if broken and k == 120:
            images = images.clone()
            images[0, 0, 0, 0] = torch.nan
        return (images,), target

    return told(
        usual(bench, data=data),
        "input+nan, input+not a number, data+nan, input+finite, batch+nan, input+non-finite, inputs+not",
        "nan, finite, not a number",
    )


def case_normalized_in_place(architecture: str, broken: bool) -> Case:
    """A cached data set is normalized in place whenever it is read: 12 batches in turn, each time wider."""
    bench = Bench(architecture)
    few = [bench.batch(k) for k in range(12)]
    held = [((x.clone(),), y.clone()) for (x,), y in few]

    def data(k: int) -> Batch:
        (images,), target = few[k % 12] if broken else held[k % 12]
        if broken:
            images.sub_(0.5).mul_(4.0)
        return (images,), target

    return told(
        usual(bench, data=data),
        "input+scale, input+grow, input+change, input+large, normaliz, data+change, inputs+drift, input+rose",
        "spike, jump, loss, gradient, activation, repeat, memor",
    )


def case_targets_of_the_batch_before(architecture: str, broken: bool) -> Case:
    """A queue hands out inputs and targets one batch apart."""
    bench = Bench(architecture)

    def data(k: int) -> Batch:
        inputs, _ = bench.batch(k)
        return inputs, bench.batch(k - 1 if broken and k else k)[1]

    return told(
        usual(bench, data=data),
        "label, target",
        "flat, plateau, chance, gradient, input+ignored, not learn, loss",
    )


def case_half_of_the_labels_random(architecture: str, broken: bool) -> Case:
    """Two thirds of the labels are drawn at random by a broken merge."""
    bench = Bench(architecture)
    g = generator(41)

    def data(k: int) -> Batch:
        inputs, target = bench.batch(k)
        wrong = torch.rand(len(target), generator=g) < 0.67
        drawn = torch.randint(bench.classes, target.shape, generator=g)
        return inputs, torch.where(wrong, drawn, target) if broken else target

    return told(
        usual(bench, data=data),
        "label, target, noise",
        "flat, plateau, chance, gradient, loss, floor",
    )


def case_one_row_a_batch(architecture: str, broken: bool) -> Case:
    """From step 60 the loader gives one row, cut to six words, at the rate of the large batch."""
    bench = Bench(architecture)
    optimizer = bench.adam(lr=1e-2)

    def data(k: int) -> Batch:
        (ids,), target = bench.batch(k)
        return ((ids[:1, :6],), target[:1, :6]) if broken and k >= 60 else ((ids,), target)

    return told(
        usual(bench, optimizer, data=data),
        "batch+small, batch size, rows+fewer, batch+shape, tokens+fewer, batch+change, shorter, one row",
        "noise, noisy, loss, spike, jump, gradient, rate, oscillat",
    )


class Seeing(SelfAttention):
    causal = False


def case_future_in_sight(architecture: str, broken: bool) -> Case:
    """No causal mask."""
    bench = Bench(architecture, attention=Seeing if broken else SelfAttention)
    rows = [torch.cat([x, y[:, -1:]], 1) for (x,), y in bench.held()]
    case = usual(bench, judge=by_prefix(rows, ends=(8, 16, 24)))
    return told(
        case,
        "future, causal, leak, attention+mask, sees+target",
        "loss+low, loss+zero, loss+fell, copy, too good",
    )


class Unscaled(SelfAttention):
    """Scores of wide queries and keys, not divided by anything."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(12 * q, 12 * k, v, is_causal=True, scale=1.0)


def case_scores_not_scaled(architecture: str, broken: bool) -> Case:
    """The norm of queries and keys is applied with a gain of 12, and scores are not divided by the width."""
    bench = Bench(architecture, attention=Unscaled if broken else SelfAttention)
    return told(
        usual(bench),
        "attention+scale, score+large, softmax+saturat, attention+one, attention+sharp, entropy, scores",
        "gradient, loss, slow, flat, attention, spike, rate",
    )


def case_dead_units(architecture: str, broken: bool) -> Case:
    """ReLU behind biases of -4, meant for the gates."""
    bench = Bench(architecture)
    for block in bench.blocks:
        block.mlp[1] = nn.ReLU()
        if broken:
            nn.init.constant_(block.mlp[0].bias, -4.0)
    return told(
        usual(bench),
        "dead, relu, units+zero, never active, inactive, no gradient, activations+zero",
        "flat, slow, plateau, gradient, not moving, update, mlp",
    )


def case_wide_start(architecture: str, broken: bool) -> Case:
    """Every weight is drawn at deviation 1."""
    bench = Bench(architecture)
    if broken:
        for p in bench.model.parameters():
            if p.ndim > 1:
                nn.init.normal_(p)
    return told(
        usual(bench),
        "initial+large, initial+wide, initializ, weights+large, weights+wide, deviation, logits+wide, saturat, std",
        "loss, gradient, attention, entropy, activation, logit, update+small, slow, norm",
    )


def case_positions_all_zero(architecture: str, broken: bool) -> Case:
    """The table of positions is zero and frozen."""
    bench = Bench(architecture)
    if broken:
        nn.init.zeros_(bench.model.places.weight)
        bench.model.places.weight.requires_grad_(False)
    return told(
        usual(bench),
        "position, places, frozen, freez, requires_grad, order",
        "plateau, flat, slow, loss, attention+uniform, not moving",
    )


class Bare(nn.Module):
    """A block without its residual paths."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = (
            block.norm1,
            block.attention,
            block.norm2,
            block.mlp,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm2(self.attention(self.norm1(x))))


def case_residual_left_out(architecture: str, broken: bool) -> Case:
    """Four blocks, none with `x +`."""
    bench = Bench(architecture, depth=4)
    if broken:
        bench.model.blocks = nn.ModuleList(Bare(block) for block in bench.blocks)
    return told(
        usual(bench),
        "residual, skip, shortcut, signal+lost, rank, collapse, alike",
        "flat, plateau, gradient, vanish, slow, loss, attention, entropy, uniform",
    )


def case_logits_squashed(architecture: str, broken: bool) -> Case:
    """A tanh behind the head."""
    bench = Bench(architecture)

    def loss(inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        scores = bench.scores(inputs)
        if broken:
            scores = scores.tanh()
        return F.cross_entropy(scores.flatten(0, -2), target.flatten())

    return told(
        usual(bench, loss=loss),
        "tanh, bound, squash, satur, logit+range, logits+cannot, logit+small, logit+cap",
        "flat, plateau, loss, floor, gradient, logit",
    )


def case_dropout_of_ninety(architecture: str, broken: bool) -> Case:
    """Dropout 0.9, the share to keep."""
    bench = Bench(architecture, dropout=0.9 if broken else 0.1)
    return told(usual(bench), "dropout", "plateau, slow, flat, noise, gradient, loss, train")


def case_smoothing_of_ninety(architecture: str, broken: bool) -> Case:
    """Label smoothing 0.9."""
    bench = Bench(architecture)

    def loss(inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        scores = bench.scores(inputs).flatten(0, -2)
        return F.cross_entropy(scores, target.flatten(), label_smoothing=0.9 if broken else 0.1)

    return told(
        usual(bench, loss=loss), "smooth, target+soft, target+uniform", "plateau, flat, floor, loss, logit"
    )


def case_probabilities_for_logits(architecture: str, broken: bool) -> Case:
    """Softmax twice."""
    bench = Bench(architecture)

    def loss(inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        scores = bench.scores(inputs).flatten(0, -2)
        return F.cross_entropy(scores.softmax(-1) if broken else scores, target.flatten())

    return told(
        usual(bench, loss=loss),
        "softmax, probabilit, normalized twice",
        "plateau, flat, floor, loss, gradient, logit",
    )


def case_penalty_a_thousandfold(architecture: str, broken: bool) -> Case:
    """The weight of a penalty on the hidden weights, 1e-5 in the recipe, is 1e-1."""
    bench = Bench(architecture)
    weight = 1e-1 if broken else 1e-5

    def loss(inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        size = sum(p.abs().sum() for p in bench.model.parameters() if p.ndim > 1)
        return bench.loss(inputs, target) + weight * size

    return told(
        usual(bench, loss=loss),
        "penalty, regulari, decay, loss+term, l1, loss+dominat, loss+part",
        "weights+small, weight+shrink, norm+fall, plateau, flat, loss, logit, collapse",
    )


def case_target_two_ahead(architecture: str, broken: bool) -> Case:
    """Labels shifted by the data set and by the loss."""
    bench = Bench(architecture)

    def data(k: int) -> Batch:
        (ids,), target = bench.batch(k)
        return ((ids[:, :-1],), target[:, 1:]) if broken else ((ids,), target)

    return told(
        usual(bench, data=data),
        "shift, two+ahead, target+position, label+position, second+next",
        "plateau, flat, floor, loss, slow, label, target",
    )


def case_temperature_of_a_fiftieth(architecture: str, broken: bool) -> Case:
    """Logits divided by 0.02."""
    bench = Bench(architecture)

    def loss(inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        scores = bench.scores(inputs).flatten(0, -2)
        return F.cross_entropy(scores / 0.02 if broken else scores, target.flatten())

    return told(
        usual(bench, loss=loss),
        "temperature, logit+scale, logit+large, logits+divid, logit+multipl, logits+wide",
        "loss, gradient, spike, rate, update, overconfident, confident, satur, start",
    )


def case_hidden_states_detached(architecture: str, broken: bool) -> Case:
    """A detach before the final norm, left from a look at the states."""
    bench = Bench(architecture)
    if broken:
        bench.model.norm.register_forward_pre_hook(lambda module, args: (args[0].detach(),))
    return told(
        usual(bench),
        "detach, no gradient, without gradient, gradient+reach, gets no, gradient+none, never+gradient, frozen, graph",
        "not moving, do not change, flat, plateau, slow, blocks",
    )


class Bent(SelfAttention):
    """A mask of padding built wrongly: only the first place may be seen."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        mask[:, 1:] = False
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def case_attention_to_one_place(architecture: str, broken: bool) -> Case:
    """All heads may look at the first token only."""
    bench = Bench(architecture, attention=Bent if broken else SelfAttention)
    return told(
        usual(bench),
        "attention+one, mask, attention+first, attention+place, attention+same, entropy, attention+token, context",
        "plateau, flat, loss, slow, gradient, query, key, no gradient, not moving",
    )


def case_norms_without_effect(architecture: str, broken: bool) -> Case:
    """Epsilon of the norms is 1,000: states are divided by a constant, and nothing is normalized."""
    bench = Bench(architecture)
    for module in bench.model.modules():
        if isinstance(module, nn.LayerNorm) and broken:
            module.eps = 1e3
    return told(
        usual(bench),
        "norm+epsilon, norm+small, norm+output, normaliz, layernorm, signal+small, activations+small",
        "slow, flat, plateau, loss, gradient, attention+uniform, logit+small, vanish",
    )


def case_most_targets_ignored(architecture: str, broken: bool) -> Case:
    """From step 10 the truncation leaves one target in a batch."""
    bench = Bench(architecture)

    def data(k: int) -> Batch:
        (ids,), target = bench.batch(k)
        if broken and k >= 10:
            target = target.masked_fill(torch.arange(24)[None] != 2, -100)
            target[1:] = -100
        return (ids,), target

    return told(
        usual(bench, data=data),
        "ignored, -100, target+few, label+few, labels+missing, target+fewer, tokens+fewer, target+mask, label+mask",
        "noise, noisy, spike, jump, loss, gradient, slow, plateau, memor",
    )
