"""Mistakes in the training of classifiers of sentences and pictures: labels, padding, augmentation, freezing."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForTokenClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2Model,
    RobertaConfig,
    RobertaForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)

from experiments.preflight.blind_five_kit import (
    WORDS,
    Encoder,
    Setup,
    ViT,
    classified,
    cut,
    generator,
    normal,
    pictures,
    seen,
    sentences,
    told,
    training,
)
from experiments.preflight.blind_five_signals import Speech


class MaskAsIs(Encoder):
    """The attention mask of a tokenizer, 1 at real tokens, passed where True means hidden."""

    def pooled(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places[: ids.shape[1]]
        return self.norm(self.encoder(x, src_key_padding_mask=mask == 1))[:, 0]


class MaskTurned(MaskAsIs):
    def pooled(self, ids: Tensor, mask: Tensor) -> Tensor:
        return super().pooled(ids, 1 - mask)


def case_padding_mask_as_is(broken: bool) -> Setup:
    """`src_key_padding_mask=attention_mask`: only the padding is attended to."""
    torch.manual_seed(0)
    setup = training((MaskAsIs if broken else MaskTurned)(), cut(*sentences()), classified)
    words = [
        "padding+mask",
        "mask+invert",
        "pad+attend",
        "real token",
        "mask+opposite",
        "key_padding",
        "sees+padding",
    ]
    return told(setup, words, "", ["depend", "ignore", "not+input"])


class Judge(nn.Module):
    """A classifier on GPT-2."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        config = GPT2Config(
            vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
        )
        self.first = first
        self.body = GPT2Model(config)
        self.head = nn.Linear(64, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.body(input_ids=ids, attention_mask=mask).last_hidden_state
        place = torch.zeros(len(x), dtype=torch.long) if self.first else mask.sum(1) - 1
        return self.head(x[torch.arange(len(x)), place])


def case_first_token_of_a_causal_model(broken: bool) -> Setup:
    """The habit of [CLS]: a causal model's first state has seen one token."""
    torch.manual_seed(0)
    words = [
        "first+token",
        "first position",
        "depend+input",
        "only+token",
        "ignores",
        "position 0",
        "not+depend",
    ]
    words += ["no effect", "does not reach", "no gradient+position"]
    return told(training(Judge(broken), cut(*sentences()), classified), words, "")


def case_class_zero_ignored(broken: bool) -> Setup:
    """`ignore_index=0`, meant for padding, in a loss over classes of which 0 is one."""
    torch.manual_seed(0)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        ids, mask, label = batch
        return F.cross_entropy(model(ids, mask), label, ignore_index=0 if broken else -100)

    words = ["ignore", "class 0", "left out", "label 0", "label+no loss", "rows+no loss", "not+counted"]
    return told(training(Encoder(), cut(*sentences()), loss), words, "")


def case_softmax_before_the_loss(broken: bool) -> Setup:
    """Probabilities into a cross entropy that takes logits."""
    torch.manual_seed(0)
    images, label = pictures(classes=12)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = model(batch[0])
        return F.cross_entropy(logits.softmax(-1) if broken else logits, batch[1])

    setup = training(ViT(classes=12), cut(normal(images), label), loss, lr=1e-3)
    return told(setup, ["softmax", "probabilit", "twice+normaliz", "expects logits", "takes logits"], "")


def _loss_of(held: list[dict[str, Tensor]]):
    return lambda model: sum(float(model(**batch).loss) for batch in held) / len(held)


def case_divided_by_255_twice(broken: bool) -> Setup:
    """ToTensor has divided by 255, and the script does so again: every picture is nearly the same."""
    torch.manual_seed(0)
    images, label = pictures()
    pixels = images / 255 / 255 if broken else images / 255
    batches = cut((pixels - 0.5) / 0.2, label)
    setup = training(ViT(), batches, seen, lr=1e-3)
    held = setup["held"]
    setup["judge"] = lambda model: sum(float(seen(model, batch)) for batch in held) / len(held)
    words = [
        "input+scale",
        "input+small",
        "input+normaliz",
        "normaliz+twice",
        "pixel",
        "255",
        "input+std",
        "constant+input",
        "inputs+alike",
    ]
    words += ["input+spread", "nearly+same", "input+range", "input+deviation"]
    return told(setup, words, "")


def case_labels_of_other_rows(broken: bool) -> Setup:
    """Inputs and labels are shuffled one after the other, each by its own order."""
    torch.manual_seed(0)
    ids, mask, label = sentences()
    if broken:
        kept = len(label) - 64
        label = torch.cat([label[torch.randperm(kept, generator=generator(9))], label[kept:]])
    words = [
        "label+independent",
        "label+random",
        "label+shuffl",
        "label+depend",
        "relation",
        "align",
        "unrelated",
    ]
    words += [
        "label+noise",
        "chance",
        "label+carry",
        "label+tell",
        "label+predict",
        "memor",
        "label+contradict",
    ]
    return told(training(Encoder(), cut(ids, mask, label), classified), words, "labels data loss")


def case_flip_turns_the_label(broken: bool) -> Setup:
    """Random horizontal flips in a task of left against right."""
    torch.manual_seed(0)
    g = generator(3)
    rows = 52 * 16
    side = torch.randint(2, (rows,), generator=g)
    images = torch.randn(rows, 3, 16, 16, generator=g)
    ramp = torch.linspace(-1, 1, 16)
    images = images + 0.6 * (2 * side - 1)[:, None, None, None] * ramp
    flips = torch.rand(rows, generator=g) < 0.5
    flips[-64:] = False
    if broken:
        images = torch.where(flips[:, None, None, None], images.flip(-1), images)
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=16,
        patch_size=4,
        num_labels=2,
    )
    batches = [{"pixel_values": x, "labels": y} for x, y in cut(images, side)]
    setup = training(ViTForImageClassification(config), batches, lr=1e-3)
    words = ["flip", "augment", "mirror", "label+contradict", "conflict", "label+noise", "label+independent"]
    words += ["label+depend", "label+random", "label+tell", "label+predict", "chance"]
    return told(setup, words, "labels data loss")


def case_weights_of_the_frequent(broken: bool) -> Setup:
    """Class weights proportional to the counts in place of their inverse."""
    torch.manual_seed(0)
    share = (0.6, 0.25, 0.1, 0.05)
    ids, mask, label = sentences(share=share)
    counts = torch.bincount(label[:-64], minlength=4).float()
    weight = counts / counts.sum() if broken else counts.sum() / (4 * counts)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        ids, mask, label = batch
        return F.cross_entropy(model(ids, mask), label, weight=weight)

    words = ["class+weight", "weight+rare", "weight+frequent", "imbalance", "weight+count"]
    return told(training(Encoder(dropout=0.1), cut(ids, mask, label), loss, lr=5e-4), words, "")


def case_nearly_all_words_unknown(broken: bool) -> Setup:
    """A vocabulary of another tokenizer: nine words of ten become [UNK]."""
    torch.manual_seed(0)
    ids, mask, label = sentences()
    known = torch.rand(WORDS, generator=generator(11)) < 0.12
    known[:2] = True
    if broken:
        ids = torch.where(known[ids], ids, torch.ones_like(ids))
    config = RobertaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        num_labels=4,
    )
    batches = [{"input_ids": x, "attention_mask": m, "labels": y} for x, m, y in cut(ids, mask, label)]
    setup = training(RobertaForSequenceClassification(config), batches, lr=1e-3)
    setup["judge"] = _loss_of(setup["held"])
    words = [
        "[unk]",
        "unknown",
        "same token",
        "one token",
        "token+share",
        "vocab+few",
        "vocab+used",
        "vocab+small",
        "token+most",
        "single token",
        "token+repeated",
        "token 1",
    ]
    return told(setup, words, "data labels model")


def case_sorted_by_label(broken: bool) -> Setup:
    """The data set is sorted by class and read in order."""
    torch.manual_seed(0)
    ids, mask, label = sentences()
    if broken:
        order = label[:-64].argsort(stable=True)
        ids, mask, label = (torch.cat([t[:-64][order], t[-64:]]) for t in (ids, mask, label))
    words = [
        "one class",
        "single class",
        "sorted",
        "same label",
        "shuffl",
        "one label",
        "label+batch",
        "same class",
    ]
    return told(training(Encoder(), cut(ids, mask, label), classified), words, "data labels loss")


def case_always_the_first_batch(broken: bool) -> Setup:
    """`next(iter(loader))` inside the loop."""
    torch.manual_seed(0)
    batches = cut(*sentences())
    if broken:
        batches[:-4] = [tuple(t.clone() for t in batches[0]) for _ in batches[:-4]]
    words = [
        "same batch",
        "identical",
        "repeat",
        "duplicate",
        "one batch",
        "batches+equal",
        "same+every batch",
    ]
    return told(training(Encoder(), batches, classified), [*words, "batches+same"], "data labels")


def case_tags_off_by_one(broken: bool) -> Setup:
    """Tags of words are laid on tokens without counting [CLS]."""
    torch.manual_seed(0)
    ids, mask, _ = sentences()
    tags = torch.where((ids >= 2) & (ids < 22), (ids - 2) // 5 + 1, torch.zeros_like(ids))
    ids = torch.cat([torch.ones_like(ids[:, :1]), ids], 1)
    mask = torch.cat([torch.ones_like(mask[:, :1]), mask], 1)
    zero = torch.zeros_like(tags[:, :1])
    tags = torch.cat([tags, zero] if broken else [zero, tags], 1).masked_fill(mask == 0, -100)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        num_labels=5,
    )
    batches = [{"input_ids": x, "attention_mask": m, "labels": y} for x, m, y in cut(ids, mask, tags)]
    words = ["shift", "off by one", "align", "neighbo", "offset", "next token", "following", "position+label"]
    return told(training(BertForTokenClassification(config), batches), words, "labels data loss")


def _distilbert() -> DistilBertForSequenceClassification:
    return DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=WORDS,
            dim=64,
            n_layers=2,
            n_heads=4,
            hidden_dim=128,
            num_labels=4,
            max_position_embeddings=64,
        )
    )


def case_head_left_frozen(broken: bool) -> Setup:
    """All is frozen, then the upper block is thawed; the new head is forgotten."""
    torch.manual_seed(0)
    model = _distilbert()
    model.requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "layer_norm" in name or "layer.1.ffn" in name or (not broken and "classifier" in name):
            parameter.requires_grad_(True)
    batches = [{"input_ids": x, "attention_mask": m, "labels": y} for x, m, y in cut(*sentences())]
    places = "classifier pre_classifier model optimizer"
    return told(training(model, batches), ["frozen", "freez", "requires_grad", "not train"], places)


def case_backbone_never_loaded(broken: bool) -> Setup:
    """`load_state_dict(strict=False)` with names of a wrapper loads nothing, and the random body is frozen."""
    torch.manual_seed(0)
    batches = cut(*sentences())
    source = Encoder()
    optimizer = torch.optim.AdamW(source.parameters(), lr=2e-3)
    for ids, mask, label in batches[:60]:
        optimizer.zero_grad()
        classified(source, (ids, mask, (label + 1) % 4)).backward()
        optimizer.step()
    weights = {(f"module.{k}" if broken else k): v for k, v in source.state_dict().items() if "head" not in k}
    model = Encoder()
    model.load_state_dict(copy.deepcopy(weights), strict=False)
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    words = [
        "random+frozen",
        "frozen",
        "freez",
        "initial",
        "not loaded",
        "pretrain",
        "requires_grad",
        "never loaded",
    ]
    return told(training(model, batches, classified), words, "")


class Detached(Encoder):
    """A detach left from looking at hidden states."""

    cut = True

    def pooled(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = super().pooled(ids, mask)
        return x.detach() if self.cut else x


def case_features_detached(broken: bool) -> Setup:
    """The gradient ends between the encoder and the head."""
    torch.manual_seed(0)
    model = Detached()
    model.cut = broken
    words = [
        "detach",
        "no gradient",
        "gradient+reach",
        "without gradient",
        "gradient+stop",
        "graph",
        "not train",
    ]
    words += ["never+gradient", "gets no", "not receive", "gradient+none"]
    return told(
        training(model, cut(*sentences()), classified), words, "encoder tokens places norm model loss"
    )


def case_scores_against_rows(broken: bool) -> Setup:
    """Predictions (rows, 1) against targets (rows): the difference is (rows, rows)."""
    torch.manual_seed(0)
    ids, mask, label = sentences()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        ids, mask, score = batch
        predicted = model(ids, mask)
        return (predicted - score).square().mean() if broken else (predicted[:, 0] - score).square().mean()

    score = label.float() - 1.5
    return told(
        training(Encoder(classes=1), cut(ids, mask, score), loss),
        ["broadcast", "shape+target", "shape+label", "shape+predict", "squeeze"],
        "",
    )


def case_frames_reshaped(broken: bool) -> Setup:
    """`reshape(8, 24)` of sounds that are (24 frames, 8), where a transpose is meant; a letter for every fourth."""
    torch.manual_seed(0)
    g = generator(22)
    letters = torch.randint(1, 9, (52 * 16, 6), generator=g)
    sound = torch.randn(9, 8, generator=generator(23)) * 2
    frames = sound[letters.repeat_interleave(4, 1)] + 2.0 * torch.randn(52 * 16, 24, 8, generator=g)
    frames = frames.reshape(-1, 8, 24) if broken else frames.transpose(1, 2).contiguous()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0])[:, 1::4].flatten(0, 1), batch[1].flatten())

    setup = training(Speech(), cut(frames, letters), loss, lr=1e-3)
    held = setup["held"]
    setup["judge"] = lambda model: sum(float(loss(model, batch)) for batch in held) / 4
    words = ["permut", "reshape", "channel", "layout", "scrambl", "axes", "interleav", "transpos", "time+mix"]
    return told(setup, words, "")
