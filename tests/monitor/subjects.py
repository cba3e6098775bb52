"""Small models that train, theirs and torch's, and a loop around them as people write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 64


def encoder(
    depth: int = 2, width: int = 32, heads: int = 4, dropout: float = 0.0, seed: int = 0
) -> nn.Module:
    """torch's own encoder between an embedding and a head."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True, norm_first=True)
    stack = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    for block in stack.layers:  # torch copies one layer; here each is drawn
        for parameter in block.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
    return nn.Sequential(nn.Embedding(VOCABULARY, width), stack, nn.Linear(width, VOCABULARY))


def hugging_face(kind: str, seed: int = 0, dropout: float = 0.0) -> Any:
    """A language model from a config, as transformers initializes it."""
    import transformers as t

    torch.manual_seed(seed)
    size = dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=VOCABULARY,
    )
    makers = {
        "gpt2": lambda: t.GPT2LMHeadModel(
            t.GPT2Config(
                n_embd=32,
                n_layer=2,
                n_head=4,
                vocab_size=VOCABULARY,
                n_positions=64,
                bos_token_id=0,
                eos_token_id=0,
                attn_pdrop=dropout,
                resid_pdrop=dropout,
                embd_pdrop=dropout,
            )
        ),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**size, num_key_value_heads=2)),
        "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**size, num_key_value_heads=2, head_dim=8)),
        "pythia": lambda: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**size)),
        "bert": lambda: t.BertForMaskedLM(
            t.BertConfig(
                **size, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, pad_token_id=None
            )
        ),
        "bloom": lambda: t.BloomForCausalLM(
            t.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, hidden_dropout=dropout)
        ),
    }
    model = makers[kind]().train()
    model.config.use_cache = False  # a cache, and a warning about the loss, break the graph of torch.compile
    if kind == "gpt2":
        model.loss_type = "ForCausalLM"
    return model


def batches(steps: int, sequences: int = 4, tokens: int = 16, seed: int = 1) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield torch.randint(0, VOCABULARY, (sequences, tokens), generator=generator)


def loss_of(model: nn.Module, x: Tensor, criterion: nn.Module | None = None) -> Tensor:
    """The model's own loss, or that of a criterion on the next token."""
    if hasattr(model, "config") or hasattr(getattr(model, "module", None), "config"):
        return model(input_ids=x, labels=x).loss
    return (criterion or nn.CrossEntropyLoss())(model(x).flatten(0, 1), x.flatten())


def train(
    model: nn.Module,
    steps: int,
    criterion: nn.Module | None = None,
    rate: float = 1e-3,
    backward: Callable[[Tensor], object] = lambda loss: loss.backward(),
    **options: int,
) -> list[float]:
    """A plain loop; returns the losses. With backward=torch.autograd.backward no loss is heard."""
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    losses = []
    for x in batches(steps, **options):
        optimizer.zero_grad()
        loss = loss_of(model, x, criterion)
        backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def train_unheard(model: nn.Module, steps: int) -> None:
    """A loop that asks for gradients without `backward`, so that the loss is not heard."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-3)
    for x in batches(steps):
        gradients = torch.autograd.grad(loss_of(model, x, None), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
