"""Other kernels than softmax as drop-ins for torch's attention: Gaussian, plain and normalized, and linear.

    o_a = sum_b G_ab v_b ,    G_ab = exp(-s |q_a - k_b|^2 / 2) ,    s = scale (1/sqrt(d) unless given)      [Song 2024]

Gaussian has the memory of fused softmax attention. The rows of G are not normalized; s is one over the squared
bandwidth. The null key: one more key whose logit is s |q|^2 / 2 for every query and whose value is zero turns G into a
softmax, because every other logit lies below it:

    softmax(q' k'^T s) = G_ab / (1 + sum_c G_ac) for the real keys and 1 / (1 + sum_c G_ac) for the null key.

A column of ones on the null key reads that last number, and the ratio is G v exactly.

Normalized, with rows that sum to one, it is softmax with a key-norm bias, since |q_a|^2 cancels in the ratio: beside
the plain one it separates the effect of the distance from that of the missing normalizer.

Linear attention replaces the softmax by a product of features, at a cost linear in the number of tokens:

    o_a = phi(q_a) . sum_b phi(k_b) v_b^T / (phi(q_a) . sum_b phi(k_b)) ,    phi(x) = elu(sqrt(s) x) + 1

[Katharopoulos 2020]. Shapes as torch has them: query (..., L, d), key (..., S, d), value (..., S, d_v), mask broadcast
to (..., L, S).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention

from edgewise.errors import BadInput

FUSED_MULTIPLE = 8  # head sizes that fused kernels take, except those of a CPU in full precision
CHUNK = 128  # tokens whose causal weights are formed at a time: memory stays linear in length


def gaussian_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """sum_b exp(-scale |q - k_b|^2 / 2) v_b; arguments as in `torch.nn.functional.scaled_dot_product_attention`.

    A query whose keys are all masked gives zero. Dropout falls on the weights G. For second derivatives choose the
    MATH backend of `torch.nn.attention.sdpa_kernel`: the fused kernels have none.
    """
    key, value = checked(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    s = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    query, key = centred(query, key)
    columns = fused_columns(max(query.shape[-1] + 2 * squares(query.dtype), value.shape[-1] + 1), query)
    q, k, v = _queries(query, columns), _keys(key, columns), _values(value, columns)
    mask = attn_mask
    if mask is not None:  # the null key is visible in every row
        mask = F.pad(mask, (1, 0), value=True if mask.dtype == torch.bool else 0.0)
    if is_causal:  # a query in front of all others sees the null key alone, and moves the diagonal by one
        q = F.pad(q, (0, 0, 1, 0))

    def attend(v: Tensor, drop: float) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, drop, is_causal, scale=s)

    mixed = attend(v, dropout_p)
    if dropout_p > 0:  # it may have fallen on the null key: its share is read without dropout
        share = attend(_values(torch.zeros_like(value), columns), 0.0)[..., value.shape[-1], None]
    else:
        share = mixed[..., value.shape[-1], None]
    result = mixed[..., : value.shape[-1]] / share
    return result[..., 1:, :] if is_causal else result


def centred(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Both moved by the mean key: distances stay, and a large common mean no longer eats the digits."""
    mean = key.detach().mean(-2, keepdim=True)
    return query - mean, key - mean


def squares(dtype: torch.dtype) -> int:
    """Columns that hold a squared norm: one of bfloat16 would lose it, so it becomes a coarse part and the rest."""
    return 1 if torch.promote_types(dtype, torch.float32) == dtype else 2


def half_square(x: Tensor) -> Tensor:
    """|x|^2/2 in as many columns as its precision needs."""
    wide = torch.promote_types(x.dtype, torch.float32)
    half = x.to(wide).square().sum(-1, keepdim=True) / 2
    if wide == x.dtype:
        return half
    coarse = half.to(x.dtype)
    return torch.cat([coarse, (half - coarse.to(wide)).to(x.dtype)], -1)


# Each of the three is padded once and then written into: copies would cost more than attention on short sequences.


def _queries(query: Tensor, columns: int) -> Tensor:
    """(q, 1, |q|^2/2, 0): the squares meet the null key only."""
    d, m = query.shape[-1], squares(query.dtype)
    padded = F.pad(query, (0, columns - d))
    padded[..., d : d + m] = 1.0
    padded[..., d + m : d + 2 * m] = half_square(query)
    return padded


def _keys(key: Tensor, columns: int) -> Tensor:
    """Return the null key (0, 0, 1, 0) first, then (k, -|k|^2/2, 0, 0)."""
    d, m = key.shape[-1], squares(key.dtype)
    padded = F.pad(key, (0, columns - d, 1, 0))
    padded[..., 1:, d : d + m] = -half_square(key)
    padded[..., 0, d + m : d + 2 * m] = 1.0
    return padded


def _values(value: Tensor, columns: int) -> Tensor:
    """Return the null key's value (0, 1, 0) first, then (v, 0, 0): the second part reads the null key's share."""
    padded = F.pad(value, (0, columns - value.shape[-1], 1, 0))
    padded[..., 0, value.shape[-1]] = 1.0
    return padded


def normalized_gaussian_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """sum_b w_ab v_b, w_ab = exp(-scale |q_a - k_b|^2 / 2) over its sum; arguments as in torch's softmax attention."""
    key, value = checked(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    s = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    query, key = centred(query, key)
    ones = torch.ones_like(query[..., :1]).expand(*query.shape[:-1], squares(query.dtype))
    # q.k is -|q - k|^2/2 + |q|^2/2
    q, k = torch.cat([query, ones], -1), torch.cat([key, -half_square(key)], -1)
    columns = fused_columns(max(q.shape[-1], value.shape[-1]), query)
    q, k, v = (pad_to(x, columns) for x in (q, k, value))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=s)
    return mixed[..., : value.shape[-1]]


def checked(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, gqa: bool
) -> tuple[Tensor, Tensor]:
    """Return keys and values, repeated for the query heads that share them; raise on shapes that would broadcast."""
    if query.shape[-1] != key.shape[-1]:
        raise BadInput(f"query has head size {query.shape[-1]} and key {key.shape[-1]}; they must be equal.")
    if key.shape[:-1] != value.shape[:-1]:
        raise BadInput(
            f"key {tuple(key.shape)} and value {tuple(value.shape)} differ before the last dimension."
        )
    if not gqa and query.shape[:-2] != key.shape[:-2]:
        raise BadInput(
            f"query {tuple(query.shape)} and key {tuple(key.shape)} differ in batch or heads; grouped heads need "
            "enable_gqa=True."
        )
    if mask is not None and is_causal:
        raise BadInput("attn_mask and is_causal=True were both given. Put the causal part into the mask.")
    if not 0.0 <= dropout < 1.0:
        raise BadInput(f"dropout_p must be at least 0 and below 1, got {dropout!r}.")
    if not gqa:
        return key, value
    heads, groups = query.shape[-3], key.shape[-3]
    if heads % groups:
        raise BadInput(f"{heads} query heads are not a multiple of {groups} key heads.")
    return key.repeat_interleave(heads // groups, -3), value.repeat_interleave(heads // groups, -3)


def fused_columns(size: int, like: Tensor) -> int:
    """Return the smallest head size from this one on for which torch has a fused kernel."""
    if like.device.type == "cpu" and like.element_size() >= 4:
        return size
    return FUSED_MULTIPLE * math.ceil(size / FUSED_MULTIPLE)


def pad_to(x: Tensor, columns: int) -> Tensor:
    """Zeros to the right, up to this many columns."""
    return F.pad(x, (0, columns - x.shape[-1]))


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Arguments as in torch's softmax attention; a mask must hide keys for all queries alike, dropout must be 0."""
    key, value = checked(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if dropout_p:
        raise BadInput(
            "linear attention never forms its weights, so dropout_p must be 0. Drop out its output instead."
        )
    s = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    features, keys = (F.elu(math.sqrt(s) * x) + 1 for x in (query, key))
    if attn_mask is not None:
        keys = keys * _visible(attn_mask, keys)
    values = torch.cat([value, torch.ones_like(value[..., :1])], -1)  # the last column sums the weights
    mixed = _causal(features, keys, values) if is_causal else features @ (keys.mT @ values)
    return mixed[..., :-1] / mixed[..., -1:]


def _visible(mask: Tensor, keys: Tensor) -> Tensor:
    """(..., S, 1) of ones and zeros; a mask that differs between queries cannot be kept at linear cost."""
    if mask.dtype != torch.bool or (mask.shape[-2] != 1 and not bool((mask == mask[..., :1, :]).all())):
        raise BadInput(
            "linear attention takes a boolean mask that hides keys for all queries alike (padding), or "
            "is_causal=True; got a mask that differs between queries or is not boolean."
        )
    return mask[..., :1, :].mT.to(keys.dtype)


def _causal(features: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Chunk by chunk: what came before through the running sum phi(k) v^T, the chunk itself through its weights."""
    state = torch.zeros_like(keys[..., :1, :].mT @ values[..., :1, :])
    parts = []
    length = max(features.shape[-2], keys.shape[-2])
    for low in range(0, length, CHUNK):
        q, k, v = (x[..., low : low + CHUNK, :] for x in (features, keys, values))
        weights = (q @ k.mT).tril()
        parts.append(q @ state + weights @ v)
        state = state + k.mT @ v
    return torch.cat(parts, -2)


KERNELS: dict[str, Callable[..., Tensor]] = {
    "softmax": scaled_dot_product_attention,
    "gaussian": gaussian_attention,
    "normalized_gaussian": normalized_gaussian_attention,
    "linear": linear_attention,
}
PREFIX = "edgewise_"  # of the names under which the kernels are registered
CHANGES_LOGITS = ("softcap", "s_aux")  # what some models ask of attention and these kernels do not support

# of attention weights, in configs
DROPOUTS = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop")


def use_kernel(model: nn.Module, kernel: str) -> nn.Module:
    """Let every attention layer of a transformers model use another kernel, in place.

    model   an unmodified Hugging Face model
    kernel  "softmax" (torch's own), "gaussian", "normalized_gaussian" or "linear"

    The weights and the config on disk do not change: a saved model is loaded as it was before and swapped again.

    >>> import transformers
    >>> config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=64)
    >>> model = use_kernel(transformers.GPT2LMHeadModel(config), "gaussian")
    >>> type(model).__name__
    'GPT2LMHeadModel'
    """
    if kernel not in KERNELS:
        raise BadInput(f"kernel must be one of {', '.join(KERNELS)}, got {kernel!r}.")
    _refuse(model, kernel)
    name = register(kernel)
    model.set_attn_implementation(name)  # type: ignore[operator]
    # Submodules whose config still names another implementation.
    left = []
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        if config is not None and getattr(config, "_attn_implementation", name) != name:
            left.append(path or type(module).__name__)
    if left:
        raise BadInput(
            f"the kernel did not reach {', '.join(left)}: these layers do not use transformers' attention interface."
        )
    return model


def register(kernel: str) -> str:
    """Make the kernel known to transformers, also for `from_pretrained(..., attn_implementation=name)`; its name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    name = PREFIX + kernel
    AttentionInterface.register(name, partial(attend, kernel))
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


def attend(
    kernel: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **asked: Any,
) -> tuple[Tensor, None]:
    """Return the call transformers makes: query (B, H, L, d), keys of fewer heads; the answer is (B, L, H, d)."""
    unmet = [name for name in CHANGES_LOGITS if asked.get(name) is not None]
    if unmet:
        raise BadInput(
            f"{type(module).__name__} uses {', '.join(unmet)}, which these kernels do not support."
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[-2] > 1
    if position_bias is not None:
        attention_mask, causal = _with_bias(position_bias, attention_mask, causal)
    grouped = query.shape[-3] != key.shape[-3]
    shape = {"scale": scaling, "enable_gqa": grouped}
    mixed = KERNELS[kernel](query, key, value, attention_mask, dropout, causal, **shape)
    return mixed.transpose(1, 2).contiguous(), None


def _with_bias(bias: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, bool]:
    """Return the mask with a learned position bias, which is added to the logits."""
    if causal:
        hidden = bias.new_ones(bias.shape[-2:]).triu(1).bool()
        return bias.masked_fill(hidden, float("-inf")), False
    if mask is None:
        return bias, False
    return (
        bias.masked_fill(~mask, float("-inf")) if mask.dtype.is_floating_point is False else bias + mask
    ), False


def _refuse(model: nn.Module, kernel: str) -> None:
    """Raise for what would be swapped in part, or computed without something it needs."""
    if not hasattr(model, "set_attn_implementation"):
        if hasattr(model, "config") and type(model).__module__.startswith("transformers."):
            raise BadInput(
                f"the installed transformers cannot change the attention of {type(model).__name__}. Update to "
                "transformers>=4.53, which has set_attn_implementation."
            )
        raise BadInput(
            f"{type(model).__name__} is not a transformers model. In a module of your own, call "
            "edgewise.nets.kernel_attention in place of F.scaled_dot_product_attention."
        )
    if not model._can_set_attn_implementation():  # type: ignore[operator]
        raise BadInput(f"{type(model).__name__} does not use the attention interface of transformers.")
    capped = [k for k in ("attn_logit_softcapping", "attention_logit_cap") if getattr(model.config, k, None)]
    sinks = [name for name, _ in model.named_parameters() if name.endswith("sinks")]
    if capped or sinks:
        raise BadInput(
            f"{type(model).__name__} has {', '.join(capped + sinks[:1])}: it changes the softmax itself."
        )
    dropped = [name for name in DROPOUTS if getattr(model.config, name, 0)]
    if kernel == "linear" and dropped:
        raise BadInput(f"linear attention never forms the weights that {dropped[0]} would drop. Set it to 0.")
