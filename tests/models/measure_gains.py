"""Measures how transformers draws the weights of each family; writes measured_gains.json. Not a test.

    python tests/models/measure_gains.py        needs transformers; a minute on one core

Every family is built small from its config class, without weights from anywhere. Gains are root mean squares
of the matrices times sqrt(fan_in), averaged over the layers. `norm` and `overlap` are the mean square per
coordinate and the mean cosine between tokens of the residual stream at the embedding and after every block,
for 64 random tokens (or an image of independent pixels), averaged over seeds.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel

TOKENS, SEEDS = 64, 4
TEXT = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 2000}
GATED = TEXT | {"intermediate_size": 512, "num_key_value_heads": 2, "max_position_embeddings": 512}
WIDE = {"initializer_range": 0.06}  # large enough to see every matrix in the stream at this small width
FAMILIES = {
    "gpt2": {"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 2000, "n_positions": 512} | WIDE,
    "opt": TEXT
    | {"ffn_dim": 512, "max_position_embeddings": 512, "init_std": 0.06, "word_embed_proj_dim": 256},
    "gpt_neox": TEXT | {"intermediate_size": 512, "max_position_embeddings": 512} | WIDE,
    "phi": GATED | WIDE,
    "falcon": TEXT | {"max_position_embeddings": 512} | WIDE,
    "llama": GATED | WIDE,
    "mistral": GATED | {"sliding_window": 16} | WIDE,
    "qwen2": GATED | WIDE,
    "qwen3": GATED | {"head_dim": 96} | WIDE,
    "phi3": GATED | {"pad_token_id": 0} | WIDE,
    "olmo2": GATED | WIDE,
    "granite": GATED
    | {"attention_multiplier": 0.2, "residual_multiplier": 0.3, "embedding_multiplier": 12.0}
    | WIDE,
    "gemma2": GATED | {"head_dim": 96, "query_pre_attn_scalar": 64, "sliding_window": 16} | WIDE,
    "gemma3_text": GATED | {"head_dim": 96, "query_pre_attn_scalar": 64, "sliding_window": 16} | WIDE,
    "mixtral": GATED | {"num_local_experts": 8, "num_experts_per_tok": 2} | WIDE,
    "qwen3_moe": GATED
    | {
        "moe_intermediate_size": 256,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "head_dim": 64,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    }
    | WIDE,
    "deepseek_v3": GATED
    | {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 256,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 64,
        "q_lora_rank": 96,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 64,
        "v_head_dim": 48,
        "first_k_dense_replace": 1,
    }
    | WIDE,
    "gpt_oss": GATED
    | {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 64, "sliding_window": 16}
    | WIDE,
    "bert": TEXT | {"intermediate_size": 512} | WIDE,
    "roberta": TEXT | {"intermediate_size": 512} | WIDE,
    "modernbert": TEXT
    | {"intermediate_size": 512, "local_attention": 16, "max_position_embeddings": 512, "pad_token_id": 0}
    | WIDE,
    "t5": {"d_model": 256, "num_layers": 4, "num_heads": 4, "d_kv": 48, "d_ff": 512, "vocab_size": 2000},
    "vit": TEXT | {"intermediate_size": 512, "image_size": 64, "patch_size": 8} | WIDE,
    "deit": TEXT | {"intermediate_size": 512, "image_size": 64, "patch_size": 8} | WIDE,
    "dinov2": TEXT | {"image_size": 56, "patch_size": 7, "layerscale_value": 0.5} | WIDE,
}
DULL = (
    "token_id",
    "drop",
    "label",
    "dtype",
    "cache",
    "tie_word",
    "output_",
    "_eps",
    "return_dict",
    "summary",
    "problem_type",
    "chunk_size",
    "architectures",
    "transformers_version",
    "aux_loss",
    "vocab",
)


def small_config(config) -> dict:
    """The config as saved, without what no description needs."""
    said = {key: value for key, value in config.to_dict().items() if value is not None}
    kept = {key: value for key, value in said.items() if not any(dull in key for dull in DULL)}
    return json.loads(json.dumps(kept, default=str))


def build(family: str, seed: int):
    torch.manual_seed(seed)
    sizes = dict(FAMILIES[family])
    if "image_size" in sizes:
        del sizes["vocab_size"]
    config = AutoConfig.for_model(family, **sizes)
    config._attn_implementation = "eager"
    model = AutoModel.from_config(config)
    return (model.encoder if family == "t5" else model).eval(), config


def rms(weight: torch.Tensor) -> float:
    return weight.detach().double().pow(2).mean().sqrt().item()


def gain(weight: torch.Tensor, fan_in: int) -> float:
    return rms(weight) * math.sqrt(fan_in)


def blocks(model) -> nn.ModuleList:
    """The list of blocks: the largest ModuleList of the model."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == 4]
    return max(lists, key=lambda found: sum(p.numel() for p in found.parameters()))


# The end of a matrix' name, and the gains it counts for; fused matrices count for several (all rows alike).
ROLES = {
    "q": ("q_proj", "c_attn", "query_key_value", "query", "Wqkv", "qkv_proj", "SelfAttention.q"),
    "k": ("k_proj", "c_attn", "query_key_value", "key", "Wqkv", "qkv_proj", "SelfAttention.k"),
    "v": ("v_proj", "c_attn", "query_key_value", "value", "Wqkv", "qkv_proj", "SelfAttention.v"),
    "o": (
        "o_proj",
        "attn.c_proj",
        "attention.dense",
        "self_attn.dense",
        "attention.output.dense",
        "attn.Wo",
        "self_attention.dense",
        "out_proj",
        "SelfAttention.o",
    ),
    "in": (
        "gate_proj",
        "c_fc",
        "dense_h_to_4h",
        "intermediate.dense",
        "fc1",
        "mlp.Wi",
        "gate_up_proj",
        "DenseReluDense.wi",
    ),
    "linear": ("up_proj", "gate_up_proj", "mlp.Wi"),
    "out": (
        "down_proj",
        "mlp.c_proj",
        "dense_4h_to_h",
        "layer.output.dense",
        "fc2",
        "mlp.Wo",
        "DenseReluDense.wo",
    ),
}


def matrices(model, family: str) -> dict[str, float]:
    """The gain of every role, averaged over the matrices that play it."""
    found: dict[str, list[float]] = {}
    for path, weight in blocks(model).named_parameters():
        path = path.removesuffix(".weight")
        name = "layer." + path.partition(".")[2] if family in ("bert", "roberta") else path
        if weight.ndim < 2 or "shared_experts" in name:
            continue
        fan_in = fan_in_of(weight, family)
        for role, ends in ROLES.items():
            if name.endswith(ends) and not (role == "out" and name.endswith("attention.output.dense")):
                found.setdefault(role, []).append(gain(weight, fan_in))
    return {role: sum(values) / len(values) for role, values in found.items()}


def fan_in_of(weight: torch.Tensor, family: str) -> int:
    if family == "gpt2" or (family == "gpt_oss" and weight.ndim == 3):
        return weight.shape[-2]  # Conv1D and these experts multiply from the right
    return weight.shape[-1]


def latent_gains(model) -> dict[str, float]:
    """DeepSeek's attention has no single matrix for q, k, v: feed it a normalised stream and look."""
    torch.manual_seed(0)
    found: dict[str, list[float]] = {}
    for block in blocks(model):
        a, x = block.self_attn, torch.randn(1, 512, 256)
        q = a.q_b_proj(a.q_a_layernorm(a.q_a_proj(x)))
        low, rotated = a.kv_a_proj_with_mqa(x).split([a.kv_lora_rank, a.qk_rope_head_dim], -1)
        both = a.kv_b_proj(a.kv_a_layernorm(low)).view(512, a.num_heads, -1)
        k, v = both.split([a.qk_nope_head_dim, a.v_head_dim], -1)
        k = torch.cat([k, rotated.view(512, 1, -1).expand(-1, a.num_heads, -1)], -1)
        for role, value in (("q", q), ("k", k), ("v", v)):
            found.setdefault(role, []).append(rms(value))
    return {role: sum(values) / len(values) for role, values in found.items()}


def scaling(model, family: str) -> float:
    """What the logits are multiplied by, over 1/sqrt(head width)."""
    for module in blocks(model).modules():
        names = ("qk_head_dim", "head_dim", "attention_head_size", "head_size")
        width = next((getattr(module, name) for name in names if getattr(module, name, None)), None)
        if hasattr(module, "scaling") and width:
            return module.scaling * math.sqrt(width)
    return math.sqrt(48) if family == "t5" else 1.0


@torch.no_grad()
def stream(model, seed: int) -> tuple[list[float], list[float]]:
    """Mean square and mean cosine of the stream at the embedding and after every block."""
    seen: list[torch.Tensor] = []

    def before(_, args, kwargs) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])

    def after(_, __, out) -> None:
        seen.append(out[0] if isinstance(out, tuple) else out)

    hooks = [blocks(model)[0].register_forward_pre_hook(before, with_kwargs=True)]
    hooks += [block.register_forward_hook(after) for block in blocks(model)]
    torch.manual_seed(1000 + seed)
    if hasattr(model.config, "image_size"):
        side = model.config.image_size
        model(pixel_values=torch.randn(1, 3, side, side))
    else:
        model(input_ids=torch.randperm(1990)[None, :TOKENS] + 5)
    for hook in hooks:
        hook.remove()
    xs = [x.reshape(-1, x.shape[-1]).double() for x in seen]
    return [x.pow(2).mean().item() for x in xs], [mean_cosine(x) for x in xs]


def mean_cosine(x: torch.Tensor) -> float:
    x = x[x.norm(dim=-1) > 0]  # the class tokens of DeiT start at zero
    x = x / x.norm(dim=-1, keepdim=True)
    n = len(x)
    return ((x @ x.T).sum().item() - n) / (n * (n - 1))


def average(rows: list) -> list[float]:
    return [round(float(v), 6) for v in torch.tensor(rows, dtype=torch.float64).mean(0)]


def measure(family: str) -> dict:
    model, config = build(family, 0)
    roles = matrices(model, family) | (latent_gains(model) if family == "deepseek_v3" else {})
    streams = [stream(build(family, seed)[0], seed) for seed in range(SEEDS)]
    return {
        "config": small_config(config),
        "gains": {role: round(value, 5) for role, value in roles.items()},
        "logit_scaling": round(scaling(model, family), 6),
        "norm": average([s[0] for s in streams]),
        "overlap": average([s[1] for s in streams]),
    }


def torch_encoder() -> dict:
    """nn.TransformerEncoderLayer as it comes, at its documented width."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048)
    q, k, v = layer.self_attn.in_proj_weight.chunk(3)
    gains = {
        "q": gain(q, 512),
        "k": gain(k, 512),
        "v": gain(v, 512),
        "o": gain(layer.self_attn.out_proj.weight, 512),
        "in": gain(layer.linear1.weight, 512),
        "out": gain(layer.linear2.weight, 2048),
    }
    sizes = {"num_layers": 6, "d_model": 512, "nhead": 8, "dim_feedforward": 2048}
    return {
        "config": {"model_type": "torch_encoder", **sizes},
        "gains": {role: round(value, 5) for role, value in gains.items()},
        "logit_scaling": 1.0,
        "bias": rms(layer.linear1.bias),
    }


def main() -> None:
    found = {family: measure(family) for family in FAMILIES} | {"torch_encoder": torch_encoder()}
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
        "tokens": TOKENS,
        "seeds": SEEDS,
    }
    path = Path(__file__).with_name("measured_gains.json")
    path.write_text(json.dumps({"made_with": versions, "families": found}, indent=1) + "\n")
    print("wrote", path.name, "with", len(found), "families")


if __name__ == "__main__":
    main()
