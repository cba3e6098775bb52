"""Families of Hugging Face in small configurations, fresh and trained: nothing but notes may be said of them."""

# ruff: noqa: ARG001  a step has one signature

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from experiments.preflight.healthy import LowRank, trained
from experiments.preflight.networks import (
    BATCH,
    DEPTH,
    NETWORKS,
    TOKENS,
    VOCABULARY,
    WIDTH,
    data,
    huggingface,
    setup,
)

HUGGING_FACE = [network for network in NETWORKS if network.name in ("gpt2", "llama", "opt", "bert")]


def own_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss as the model itself computes it."""
    return model(**batch).loss


def language(kind: str, seed: int = 0, **more: Any) -> dict[str, Any]:
    """A causal language model with the loss inside it, as most users call it."""
    torch.manual_seed(seed)
    model = huggingface(kind, **more)
    model.train()
    batches = [{"input_ids": ids, "labels": ids.clone()} for ids in data(NETWORKS[0], seed)]
    return _with_optimizer(model, batches)


def _with_optimizer(model: nn.Module, batches: list[dict[str, Tensor]]) -> dict[str, Any]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    return {"model": model, "batches": batches, "loss": own_loss, "optimizer": optimizer}


def control_mixtral() -> dict[str, Any]:
    return language("mixtral", num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)


def control_qwen2_moe() -> dict[str, Any]:
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    return language("qwen2_moe", shared_expert_intermediate_size=64, **sizes)


def control_qwen2() -> dict[str, Any]:
    return language("qwen2")


def control_qwen3() -> dict[str, Any]:
    return language("qwen3", head_dim=16)


def control_gemma2() -> dict[str, Any]:
    return language("gemma2", head_dim=16, sliding_window=16, query_pre_attn_scalar=16)


def control_gemma3() -> dict[str, Any]:
    return language("gemma3_text", head_dim=16, sliding_window=16, query_pre_attn_scalar=16)


def control_olmo2() -> dict[str, Any]:
    return language("olmo2")


def control_phi() -> dict[str, Any]:
    return language("phi")


def control_gpt_neox() -> dict[str, Any]:
    return language("gpt_neox")


def control_bloom() -> dict[str, Any]:
    return language("bloom", n_layer=DEPTH, n_head=4)


def _translation(seed: int = 0) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(4):
        source = torch.randint(3, VOCABULARY, (BATCH, TOKENS), generator=draw)
        target = (source + 5 - 3) % (VOCABULARY - 3) + 3
        out.append({"input_ids": source, "labels": target[:, : TOKENS - 4].contiguous()})
    return out


def control_t5() -> dict[str, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": WIDTH, "d_kv": 16, "d_ff": 4 * WIDTH, "num_layers": DEPTH, "num_heads": 4}
    config = T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes)
    return _with_optimizer(T5ForConditionalGeneration(config).train(), _translation())


def control_bart() -> dict[str, Any]:
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(0)
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in _BART.items()}
    config = BartConfig(vocab_size=VOCABULARY, d_model=WIDTH, max_position_embeddings=64, **sizes)
    return _with_optimizer(BartForConditionalGeneration(config).train(), _translation())


_BART = {"layers": DEPTH, "attention_heads": 4, "ffn_dim": 4 * WIDTH}
_ENCODER = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "intermediate_size": 4 * WIDTH,
}


def control_vit() -> dict[str, Any]:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, num_labels=10, **_ENCODER))
    batches = [{"pixel_values": images, "labels": labels} for images, labels in data(NETWORKS[7])]
    return _with_optimizer(model.train(), batches)


def control_sequence_classifier_with_padding() -> dict[str, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, num_labels=3, **_ENCODER))
    batches = []
    for ids in data(NETWORKS[0]):
        mask = torch.arange(ids.shape[1]) < ids.shape[1] - 2 * torch.arange(len(ids))[:, None]
        labels = ids.sum(1) % 3
        batches.append({"input_ids": ids * mask, "attention_mask": mask.long(), "labels": labels})
    return _with_optimizer(model.train(), batches)


def control_padded_batches_with_ignored_labels() -> dict[str, Any]:
    made = language("llama")
    for batch in made["batches"]:
        ids = batch["input_ids"]
        mask = torch.arange(ids.shape[1]) < ids.shape[1] - 2 * torch.arange(len(ids))[:, None]
        batch |= {"input_ids": ids * mask, "attention_mask": mask.long()}
        batch["labels"] = ids.masked_fill(~mask, -100)
    return made


def control_adapters() -> dict[str, Any]:
    made = trained(language("llama"))
    made["model"].requires_grad_(False)
    for layer in made["model"].model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
        layer.self_attn.v_proj = LowRank(layer.self_attn.v_proj)
    return _with_optimizer(made["model"], made["batches"])


def control_bfloat16() -> dict[str, Any]:
    made = language("llama")
    return _with_optimizer(made["model"].to(torch.bfloat16), made["batches"])


def control_autocast() -> dict[str, Any]:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return own_loss(model, batch)

    return language("llama") | {"loss": loss}


def control_gradient_checkpointing() -> dict[str, Any]:
    made = language("llama", use_cache=False)
    made["model"].gradient_checkpointing_enable()
    return made


def control_accumulation() -> dict[str, Any]:
    made = language("gpt2")

    def step(model: nn.Module, optimizer: Any, batch: dict[str, Tensor], k: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for i in range(3):
            value = own_loss(model, {key: tensor.chunk(3)[i] for key, tensor in batch.items()}) / 3
            value.backward()
            total = total + value.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    return made | {"step": step}


def control_accumulation_over_calls() -> dict[str, Any]:
    """The optimizer steps at every second call only."""
    made = language("gpt2")

    def step(model: nn.Module, optimizer: Any, batch: dict[str, Tensor], k: int) -> Tensor:
        value = own_loss(model, batch)
        (value / 2).backward()
        if k % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
        return value

    return made | {"step": step}


def control_warm_up_from_zero() -> dict[str, Any]:
    from transformers import get_cosine_schedule_with_warmup

    made = language("gpt2")
    parameters = made["model"].named_parameters()
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for _, parameter in parameters:
        groups[parameter.dim() > 1].append(parameter)
    decays = [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False], "weight_decay": 0.0}]
    made["optimizer"] = torch.optim.AdamW(decays, lr=6e-4, betas=(0.9, 0.95))
    scheduler = get_cosine_schedule_with_warmup(made["optimizer"], 200, 2000)

    def step(model: nn.Module, optimizer: Any, batch: dict[str, Tensor], k: int) -> Tensor:
        optimizer.zero_grad()
        value = own_loss(model, batch)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return value

    return made | {"step": step, "also": [scheduler]}


TRAINED = (
    control_mixtral,
    control_qwen3,
    control_gemma2,
    control_gemma3,
    control_t5,
    control_vit,
    control_bfloat16,
)


def more() -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """The Hugging Face networks of the development list, and some families after 60 steps."""
    for network in HUGGING_FACE:
        for seed in (0, 1):
            fresh = lambda n=network, s=seed: setup(n, s)  # noqa: E731
            yield f"{network.name}, fresh, seed {seed}", "control", fresh
            yield f"{network.name}, trained, seed {seed}", "control", lambda f=fresh: trained(f())
    for make in TRAINED:
        yield f"{make.__name__}, trained", "control", lambda m=make: trained(m())
