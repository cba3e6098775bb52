"""What people call the matrices and norms of a block: the one table of names, lower case."""

from __future__ import annotations

import re


def _spellings(text: str) -> tuple[str, ...]:
    return tuple(text.split())


QUERY = _spellings(
    """
    q q_proj query wq w_q to_q q_lin q_linear query_proj linear_q q_proj_weight queries q_attn
    """
)
KEY = _spellings("k k_proj key wk w_k to_k k_lin k_linear key_proj linear_k k_proj_weight keys")
VALUE = _spellings("v v_proj value wv w_v to_v v_lin v_linear value_proj linear_v v_proj_weight values")
# Fused q, k, v: all queries, then all keys, then all values ...
FUSED = _spellings(
    """
    qkv c_attn wqkv qkv_proj in_proj in_proj_weight to_qkv w_qkv attn_qkv qkv_linear in_proj_qkv
    """
)
FUSED_KEY_VALUE = ("kv", "to_kv", "kv_proj", "wkv")
# ... except under this name, which came with Megatron: q, k, v of one key head after the other.
FUSED_BY_HEAD = ("query_key_value",)
LATENT_QUERY, LATENT_KEY_VALUE = ("q_a_proj", "q_b_proj"), ("kv_a_proj_with_mqa", "kv_b_proj")
OUTPUT = _spellings(
    """
    o o_proj out_proj c_proj dense wo w_o to_out proj out out_lin o_linear output proj_out linear_o
    projection
    """
)

GATE = ("gate_proj", "gate", "wi_0", "w_gate", "gate_linear", "linear_gate", "fc1_g", "w1")
LINEAR = ("up_proj", "wi_1", "w_up", "fc1_x", "w3", "linear_up", "up")
ROUTER = ("gate", "router", "wg", "switch")

CROSS = re.compile(r"encdecatt|cross_?att|multihead_attn|encoder_attn|attn2$")
SHARED = re.compile(r"shared_expert")
EXPERTS = re.compile(r"experts?$")
NORM = re.compile(r"norm|^ln(_|\d|$)|_ln$|layernorm|^ln")
QUERY_NORMS = re.compile(r"^(q|query)_?(norm|ln|layernorm|layer_norm)$|^(norm|ln)_?(q|query)$")
KEY_NORMS = re.compile(r"^(k|key)_?(norm|ln|layernorm|layer_norm)$|^(norm|ln)_?(k|key)$")
LATENT_NORMS = re.compile(r"^(q|kv)_a_(layer)?norm$")
SCALES = re.compile(r"layer_?scale|^ls_?\d|^gamma(_?\d)?$|^lambda_?\d$|skip_?scale|res(idual)?_?scale")
HEADS = _spellings("num_heads num_attention_heads n_head n_heads nhead heads num_head nheads h head")


def leaf(path: str) -> str:
    """The name that matters: the last word that is not a number, `weight`, or a trailing index."""
    words = [word for word in path.lower().split(".") if not word.isdigit()]
    return words[-1] if words else ""


def any_word(pattern: re.Pattern[str], path: str) -> bool:
    return any(pattern.search(word) for word in path.lower().split("."))
