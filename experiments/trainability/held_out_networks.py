"""The networks of `population.json` as modules: called as model(inputs, labels) they return (loss, logits).

The readout begins at the frequencies of the labels in every kind, as in `starts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgewise.nets import build as network_of
from edgewise.nouns.architecture import transformer
from edgewise.study import tasks
from edgewise.study.tasks import Task

from .starts import READOUT_GAIN

Case = dict[str, Any]
HEADS = 2


def task_of(case: Case) -> Task:
    """Bytes in windows of the case's tokens; digits as 16 patches of 2x2 or as 64 pixels."""
    if case["task"] == "bytes":
        return tasks.byte_text(case["tokens"])
    digits = tasks.digits()
    if case["tokens"] == digits.tokens:
        return digits
    pairs = [(x.reshape(len(x), 64, 1), y) for x, y in (digits.train, digits.validation)]
    return replace(digits, inputs=1, train=pairs[0], validation=pairs[1])


class Headed(nn.Module):
    """A stack of blocks between its own embedding and a readout; the loss is the mean cross-entropy."""

    def __init__(self, stream: nn.Module, task: Task, width: int | None, readout: str) -> None:
        """width None: the stream ends in logits already, and only the prior is added."""
        super().__init__()
        self.stream, self.readout = stream, readout
        self.head = None if width is None else nn.Linear(width, task.outputs, bias=False)
        if self.head is not None and width is not None:
            nn.init.normal_(self.head.weight, std=READOUT_GAIN / math.sqrt(width))
        self.prior = nn.Parameter(task.prior.clone())

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        x = self.stream(inputs)
        if self.readout == "pooled":
            x = x.mean(1)
        if self.readout == "class":
            x = x[:, 0]
        logits = (x if self.head is None else self.head(x)) + self.prior
        if labels is None:
            return logits
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten()), logits


class Logits(nn.Module):
    """A causal model of Hugging Face on ids: its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, use_cache=False).logits  # type: ignore[no-any-return]


class Patches(nn.Module):
    """BERT on patches: a linear map of each, a class token in front."""

    def __init__(self, model: nn.Module, features: int, width: int, std: float) -> None:
        super().__init__()
        self.patch, self.first, self.model = (
            nn.Linear(features, width),
            nn.Parameter(torch.empty(1, 1, width)),
            model,
        )
        nn.init.normal_(self.patch.weight, std=std)
        nn.init.zeros_(self.patch.bias)
        nn.init.normal_(self.first, std=std)

    def forward(self, patches: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(len(patches), -1, -1), self.patch(patches)], 1)
        return self.model(inputs_embeds=x).last_hidden_state  # type: ignore[no-any-return]


class Pixels(nn.Module):
    """ViT on patches put together to images again."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, patches: Tensor) -> Tensor:
        n, count, features = patches.shape
        side, size = math.isqrt(count), math.isqrt(features)
        images = (
            patches.reshape(n, side, side, size, size).transpose(2, 3).reshape(n, 1, side * size, side * size)
        )
        return self.model(pixel_values=images).last_hidden_state  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """torch's encoder on vectors or ids, with positions of unit size; causal on text."""

    def __init__(self, encoder: nn.Module, task: Task, width: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(task.inputs, width) if task.vectors else nn.Embedding(task.inputs, width)
        self.position = nn.Parameter(torch.randn(task.tokens, width))
        self.encoder, self.causal = encoder, not task.pooled

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.embedding(inputs) + self.position
        if not self.causal:
            return self.encoder(x)  # type: ignore[no-any-return]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.encoder(x, mask=mask, is_causal=True)  # type: ignore[no-any-return]


def network(case: Case) -> nn.Module:
    """The network of one case, drawn from the global stream."""
    return BUILDERS[case["kind"]](case, task_of(case))


def _causal(case: Case, task: Task) -> nn.Module:
    import transformers

    width, depth, std = case["width"], case["depth"], case["initializer_range"]
    common = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": HEADS,
        "max_position_embeddings": 2 * task.tokens,
    }
    if case["kind"] == "gpt2":
        config: Any = transformers.GPT2Config(
            n_embd=width,
            n_layer=depth,
            n_head=HEADS,
            n_inner=2 * width,
            n_positions=2 * task.tokens,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            initializer_range=std,
            **common,
        )
    elif case["kind"] == "llama":
        config = transformers.LlamaConfig(
            **sizes, intermediate_size=2 * width, num_key_value_heads=1, initializer_range=std, **common
        )
    elif case["kind"] == "gpt_neox":
        config = transformers.GPTNeoXConfig(
            **sizes, intermediate_size=2 * width, initializer_range=std, **common
        )
    else:
        config = transformers.OPTConfig(
            **sizes,
            ffn_dim=2 * width,
            word_embed_proj_dim=width,
            init_std=std,
            dropout=0.0,
            layerdrop=0.0,
            do_layer_norm_before=case["norm"] == "pre",
            **(common | {"pad_token_id": 0}),
        )
    return Headed(Logits(transformers.AutoModelForCausalLM.from_config(config)), task, None, "token")


def _bert(case: Case, task: Task) -> nn.Module:
    import transformers

    width, std = case["width"], case["initializer_range"]
    config = transformers.BertConfig(
        vocab_size=2,
        hidden_size=width,
        num_hidden_layers=case["depth"],
        num_attention_heads=HEADS,
        intermediate_size=2 * width,
        max_position_embeddings=task.tokens + 1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=std,
    )
    model = transformers.BertModel(config, add_pooling_layer=False)
    return Headed(Patches(model, task.inputs, width, std), task, width, "class")


def _vit(case: Case, task: Task) -> nn.Module:
    import transformers

    width = case["width"]
    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=case["depth"],
        num_attention_heads=HEADS,
        intermediate_size=2 * width,
        image_size=8,
        patch_size=math.isqrt(task.inputs),
        num_channels=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=case["initializer_range"],
    )
    return Headed(Pixels(transformers.ViTModel(config, add_pooling_layer=False)), task, width, "class")


def _encoder(case: Case, task: Task) -> nn.Module:
    """Copies of one layer as its documentation builds it; or matrices of deviation gain/sqrt(fan in), each its own."""
    width = case["width"]
    layer = nn.TransformerEncoderLayer(
        width, HEADS, 2 * width, 0.0, case["activation"], batch_first=True, norm_first=case["norm_first"]
    )
    final = nn.LayerNorm(width) if case["norm_first"] else None
    encoder = nn.TransformerEncoder(layer, case["depth"], norm=final, enable_nested_tensor=False)
    for parameter in encoder.parameters():
        if "gain" in case and parameter.ndim > 1:
            nn.init.normal_(parameter, std=case["gain"] / math.sqrt(parameter.shape[1]))
    return Headed(Encoder(encoder, task, width), task, width, "pooled" if task.pooled else "token")


def _laboratory(case: Case, task: Task) -> nn.Module:
    """A family of `starts` at another depth, width and score gain."""
    sizes = {"depth": case["depth"], "width": case["width"], "mlp_width": 2 * case["width"]}
    described = transformer(**(sizes | case["knobs"] | sizes), tokens=task.tokens, causal=not task.pooled)
    model = network_of(
        described,
        inputs=task.inputs,
        outputs=task.outputs,
        vectors=task.vectors,
        pooled=task.pooled,
        readout_gain=READOUT_GAIN,
    )
    with torch.no_grad():
        model.readout.bias.copy_(task.prior)
    return model


BUILDERS: dict[str, Callable[[Case, Task], nn.Module]] = {
    "gpt2": _causal,
    "llama": _causal,
    "gpt_neox": _causal,
    "opt": _causal,
    "bert": _bert,
    "vit": _vit,
    "encoder_copied": _encoder,
    "encoder_drawn": _encoder,
    "paper": _laboratory,
    "gpt": _laboratory,
    "llama_like": _laboratory,
}
