"""Mistakes in trainings with two sides: contrastive, sequence to sequence, preferences, distillation, adapters."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BartConfig, BartForConditionalGeneration, MistralConfig, MistralForCausalLM

from experiments.preflight.blind_five_kit import (
    GPT,
    VOCAB,
    WORDS,
    Encoder,
    Setup,
    ViT,
    classified,
    cut,
    generator,
    language,
    normal,
    pictures,
    sentences,
    texts,
    told,
    training,
)

Pair = tuple[Tensor, Tensor, Tensor, Tensor]


def _twelve() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two sentences of the same five words each, in another order and among other words."""
    g = generator(12)
    rows = 52 * 16
    topic = torch.rand(rows, 20, generator=g).argsort(1)[:, :5] + 2
    pair = []
    for _ in range(2):
        ids = torch.randint(22, WORDS, (rows, 16), generator=g)
        place = torch.rand(rows, 14, generator=g).argsort(1)[:, :5]
        ids.scatter_(1, place, topic.gather(1, torch.rand(rows, 5, generator=g).argsort(1)))
        pair += [ids, torch.ones_like(ids)]
    return pair[0], pair[1], pair[2], pair[3]


def _ranked(model: nn.Module, batch: Pair) -> Tensor:
    """Loss of finding the partner among the batch at temperature 0.1: how a retriever is judged."""
    a, ma, b, mb = batch
    x, y = F.normalize(model(a, ma), dim=-1), F.normalize(model(b, mb), dim=-1)
    return F.cross_entropy(x @ y.T / 0.1, torch.arange(len(x)))


def _judged_by_rank(held: list[Pair]):
    return lambda model: sum(float(_ranked(model, batch)) for batch in held) / len(held)


def case_temperature_multiplied(broken: bool) -> Setup:
    """Similarities times 0.07 in place of divided by it."""
    torch.manual_seed(0)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        a, ma, b, mb = batch
        x, y = F.normalize(model(a, ma), dim=-1), F.normalize(model(b, mb), dim=-1)
        logits = x @ y.T * 0.07 if broken else x @ y.T / 0.07
        target = torch.arange(len(x))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    setup = training(Encoder(classes=32), cut(*_twelve()), loss, lr=1e-3)
    setup["judge"] = _judged_by_rank(setup["held"])
    words = [
        "temperature",
        "logit+small",
        "logit+scale",
        "logit+range",
        "similarit+small",
        "similarit+scale",
        "logit+flat",
        "logit+uniform",
        "logit+spread",
    ]
    return told(setup, words, "")


def case_own_view_among_the_candidates(broken: bool) -> Setup:
    """SimCLR without its diagonal mask: every row is most similar to itself."""
    torch.manual_seed(0)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        a, ma, b, mb = batch
        z = F.normalize(torch.cat([model(a, ma), model(b, mb)]), dim=-1)
        scores = z @ z.T / 0.1
        if not broken:
            scores = scores.masked_fill(torch.eye(len(z), dtype=torch.bool), -1e4)
        half = len(a)
        target = torch.cat([torch.arange(half, 2 * half), torch.arange(half)])
        return F.cross_entropy(scores, target)

    setup = training(Encoder(classes=32), cut(*_twelve()), loss, lr=1e-3)
    setup["judge"] = _judged_by_rank(setup["held"])
    return told(
        setup, ["diagonal", "itself", "self-similar", "own+similar", "self+negative", "own+candidate"], ""
    )


def case_documents_repeated_in_a_batch(broken: bool) -> Setup:
    """Batches drawn with many rows of the same document, whose twins count as negatives."""
    torch.manual_seed(0)
    batches = cut(*_twelve())
    if broken:
        few = torch.arange(16) % 3
        batches[:-4] = [tuple(t[few] for t in batch) for batch in batches[:-4]]
    setup = training(Encoder(classes=32), batches, _ranked, lr=1e-3)
    setup["judge"] = _judged_by_rank(setup["held"])
    words = [
        "duplicate",
        "same row",
        "repeat",
        "false negative",
        "identical",
        "twice",
        "equal+rows",
        "rows+same",
    ]
    return told(setup, words, "data labels loss")


class Siamese(nn.Module):
    """SimSiam on pictures: an encoder and a predictor."""

    def __init__(self, stop: bool) -> None:
        super().__init__()
        self.stop = stop
        self.body = ViT(classes=32)
        self.predictor = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
        self.whiten = nn.BatchNorm1d(32, affine=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        za, zb = self.body(a), self.body(b)
        if self.stop:
            za, zb = self.whiten(za), self.whiten(zb)
        ta, tb = (za.detach(), zb.detach()) if self.stop else (za, zb)
        pa, pb = self.predictor(za), self.predictor(zb)
        return -(F.cosine_similarity(pa, tb).mean() + F.cosine_similarity(pb, ta).mean()) / 2


def _spread(held: list[tuple[Tensor, ...]]):
    """One minus the accuracy of the nearest class center in the features: three quarters is chance."""

    def judge(model: nn.Module) -> float:
        z = F.normalize(torch.cat([model.body(a) for a, _, _ in held]), dim=-1)
        label = torch.cat([y for _, _, y in held])
        near = (z @ z.T).fill_diagonal_(-2).topk(5, dim=1).indices
        vote = F.one_hot(label[near], 4).sum(1).argmax(1)
        return float((vote != label).float().mean())

    return judge


def case_target_with_gradient(broken: bool) -> Setup:
    """Both views chase each other: no stop-gradient and no whitening, so all pictures become one vector."""
    torch.manual_seed(0)
    images, label = pictures()
    x = normal(images)
    y = x + 0.3 * torch.randn(x.shape, generator=generator(13))
    setup = training(
        Siamese(stop=not broken), cut(x, y, label), lambda model, batch: model(batch[0], batch[1]), lr=1e-3
    )
    setup["judge"] = _spread(cut(x, y, label)[-12:])
    return told(setup, ["collaps", "stop-gradient", "stop gradient", "detach", "constant", "same output"], "")


def _translations() -> list[dict[str, Tensor]]:
    """A text and its translation: another word for each, between token 1 and token 2."""
    source = language(length=10)
    other = torch.randperm(VOCAB - 3, generator=generator(14)) + 3
    target = other[source % (VOCAB - 3)]
    target = torch.cat([target, torch.full_like(target[:, :1], 2)], dim=1)
    return [{"input_ids": a, "labels": b} for a, b in cut(source, target)]


def case_decoder_reads_the_target(broken: bool) -> Setup:
    """`decoder_input_ids=labels`: the decoder is given the very token that it must say."""
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=VOCAB,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        dropout=0.0,
        init_std=0.1,
    )
    batches = _translations()
    held = batches[-4:]
    if broken:
        batches = [b | {"decoder_input_ids": b["labels"]} for b in batches]
    setup = training(BartForConditionalGeneration(config), batches, lr=2e-3)
    setup["judge"] = lambda model: sum(float(model(**batch).loss) for batch in held) / len(held)
    words = ["decoder_input", "shift", "decoder+label", "target+input", "leak", "copy", "copies", "future"]
    return told(setup, [*words, "sees+label", "sees+target", "own+input"], "")


class Translator(nn.Module):
    """Encoder and decoder of torch."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.source, self.target = nn.Embedding(VOCAB, 64), nn.Embedding(VOCAB, 64)
        self.places = nn.Parameter(0.5 * torch.randn(16, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        other = nn.TransformerDecoderLayer(64, 4, 128, 0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(other, 1)
        self.head = nn.Linear(64, VOCAB)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.source(source) + self.places[: source.shape[1]])
        x = self.target(target) + self.places[: target.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        if self.wrong:
            memory = x[:, :1]
        return self.head(self.decoder(x, memory, tgt_mask=mask))


def case_decoder_without_the_source(broken: bool) -> Setup:
    """The decoder's own start is passed as memory; what the encoder says is thrown away."""
    torch.manual_seed(0)
    batches = [(b["input_ids"], b["labels"]) for b in _translations()]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        source, target = batch
        start = torch.cat([torch.ones_like(target[:, :1]), target[:, :-1]], dim=1)
        return F.cross_entropy(model(source, start).flatten(0, 1), target.flatten())

    words = [
        "source+effect",
        "source+gradient",
        "source+not",
        "encoder+unused",
        "encoder+gradient",
        "memory+decoder",
        "memory+not",
        "cross-att",
        "cross_att",
        "cross att",
        "not+affect",
        "not+depend",
        "ignores",
    ]
    words += [
        "not used",
        "no gradient",
        "no effect",
        "without gradient",
        "not reach",
        "gets no",
        "not receive",
    ]
    return told(training(Translator(broken), batches, loss), words, "")


def _preferences(cut_off: bool) -> list[tuple[Tensor, ...]]:
    """Prompts of 16 words with a good and a bad answer of 6."""
    g = generator(15)
    rows = 52 * 16
    prompt = torch.randint(22, WORDS, (rows, 16), generator=g)
    good = torch.randint(2, 12, (rows, 6), generator=g)
    bad = torch.randint(12, 22, (rows, 6), generator=g)
    odd = torch.rand(rows, 6, generator=g) < 0.2
    good, bad = torch.where(odd, bad, good), torch.where(odd, good, bad)
    chosen, rejected = torch.cat([prompt, good], 1), torch.cat([prompt, bad], 1)
    if cut_off:
        chosen, rejected = chosen[:, :16], rejected[:, :16]
    return cut(chosen, rejected)


def _preferred(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    chosen, rejected = batch
    good, bad = (model(x, torch.ones_like(x)) for x in (chosen, rejected))
    return -F.logsigmoid(good - bad).mean()


def case_pairs_cut_before_the_answer(broken: bool) -> Setup:
    """Both answers are cut off by the longest length: chosen and rejected are the same prompt."""
    torch.manual_seed(0)
    setup = training(Encoder(classes=1), _preferences(broken), _preferred, lr=1e-3)
    held = _preferences(False)[-4:]
    setup["judge"] = lambda model: sum(float(_preferred(model, batch)) for batch in held) / 4
    words = [
        "identical",
        "same+chosen",
        "equal+reject",
        "truncat",
        "pairs",
        "difference+zero",
        "chosen+rejected",
    ]
    words += [
        "two inputs+same",
        "inputs+equal",
        "loss+constant",
        "gradient+zero",
        "zero+gradient",
        "no gradient",
    ]
    return told(setup, words, "")


def _sum_of_logs(model: nn.Module, ids: Tensor) -> Tensor:
    """Log probability of the answer, which begins at place 16."""
    logs = model(ids)[:, :-1].log_softmax(-1)
    return logs.gather(-1, ids[:, 1:, None])[..., 0][:, 15:].sum(1)


def case_reference_is_the_policy(broken: bool) -> Setup:
    """DPO with `ref_model = model`: their difference is always zero."""
    torch.manual_seed(0)
    policy = GPT(vocab=WORDS, width=48)
    reference = policy if broken else copy.deepcopy(policy).requires_grad_(False)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        gap = _sum_of_logs(model, batch[0]) - _sum_of_logs(model, batch[1])
        with torch.no_grad():
            base = _sum_of_logs(reference, batch[0]) - _sum_of_logs(reference, batch[1])
        return -F.logsigmoid(0.1 * (gap - base)).mean()

    setup = training(policy, _preferences(False), loss, lr=3e-4)
    still = copy.deepcopy(policy)
    held = setup["held"]

    def judge(model: nn.Module) -> float:
        """Divergence from the first policy that no preference asked for, beside the margin, per word of the answer."""
        lost = 0.0
        for chosen, _ in held:
            lost += float((_sum_of_logs(still, chosen) - _sum_of_logs(model, chosen)).mean()) / 6
        return lost / len(held)

    setup["judge"] = judge
    words = [
        "reference",
        "same object",
        "same+param",
        "shared",
        "loss+constant",
        "does not change",
        "ln 2",
        "log 2",
    ]
    return told(setup, [*words, "value+same", "loss+same", "cancel"], "")


def case_divergence_without_log(broken: bool) -> Setup:
    """`F.kl_div` takes the logarithm of the student's probabilities; it is given the probabilities."""
    torch.manual_seed(0)
    teacher = torch.randn(WORDS, 4, generator=generator(16))

    def target(batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return F.softmax(teacher[batch[0]].mul(batch[1][..., None]).sum(1), dim=-1)

    def right(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return F.kl_div(model(*batch[:2]).log_softmax(-1), target(batch), reduction="batchmean")

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        if not broken:
            return right(model, batch)
        return F.kl_div(model(*batch[:2]).softmax(-1), target(batch), reduction="batchmean")

    setup = training(Encoder(), cut(*sentences()), loss)
    setup["judge"] = lambda model: sum(float(right(model, batch)) for batch in setup["held"]) / 4
    return told(
        setup,
        [
            "kl_div",
            "kl div",
            "kullback",
            "log_softmax",
            "log-prob",
            "negative",
            "log prob",
            "logarithm",
            "below zero",
        ],
        "",
    )


class Distilled(nn.Module):
    """A student of the soft answers of a teacher, which may learn as well."""

    def __init__(self, teacher: nn.Module, fixed: bool) -> None:
        super().__init__()
        self.teacher, self.student = teacher, Encoder(width=32, depth=1)
        self.fixed = fixed
        self.teacher.requires_grad_(not fixed)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.student(ids, mask), self.teacher(ids, mask)


def case_teacher_learns_too(broken: bool) -> Setup:
    """The teacher is in the optimizer: it goes to meet the student, who has no labels."""
    torch.manual_seed(0)
    batches = cut(*sentences())
    teacher = Encoder()
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=2e-3)
    for batch in batches[:40]:
        optimizer.zero_grad()
        classified(teacher, batch).backward()
        optimizer.step()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        student, answer = model(*batch[:2])
        return F.mse_loss(student, answer)

    setup = training(Distilled(teacher, fixed=not broken), batches, loss, lr=1e-3)
    setup["judge"] = lambda model: sum(float(classified(model.student, b)) for b in setup["held"]) / 4
    words = ["teacher", "detach", "no_grad", "both+side", "target+gradient", "collaps", "target+moves"]
    return told(setup, words, "")


class Adapter(nn.Module):
    """A linear map with an added map of rank 4."""

    def __init__(self, base: nn.Linear, zero: bool) -> None:
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.zeros(4, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, 4))
        if not zero:
            nn.init.normal_(self.lora_a, std=base.in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 4 * (x @ self.lora_a.T @ self.lora_b.T)


def case_adapters_start_at_zero(broken: bool) -> Setup:
    """Both factors of the adapters start at zero, and neither ever gets a gradient."""
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = MistralForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = texts()
    for x in rows[:30]:
        optimizer.zero_grad()
        model(input_ids=x, labels=x).loss.backward()
        optimizer.step()
    model.requires_grad_(False)
    for block in model.model.layers:
        for name in ("gate_proj", "down_proj", "up_proj"):
            setattr(block.mlp, name, Adapter(getattr(block.mlp, name), broken))
        for name in ("q_proj", "v_proj"):
            setattr(block.self_attn, name, Adapter(getattr(block.self_attn, name), broken))
    swap = torch.cat(
        [torch.zeros(1, dtype=torch.long), torch.randperm(VOCAB - 1, generator=generator(17)) + 1]
    )
    batches = [{"input_ids": swap[x], "labels": swap[x]} for x in rows]
    words = ["zero", "lora", "adapter", "no gradient"]
    return told(training(model, batches, lr=5e-3), words, "model.layers lora optimizer model")
