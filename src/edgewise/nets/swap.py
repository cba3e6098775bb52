"""Another attention kernel inside an unmodified Hugging Face model, through the library's own attention interface."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from edgewise.errors import BadInput
from edgewise.nets.kernel_attention import gaussian_attention, linear_attention, normalized_gaussian_attention

KERNELS: dict[str, Callable[..., Tensor]] = {
    "softmax": scaled_dot_product_attention,
    "gaussian": gaussian_attention,
    "normalized_gaussian": normalized_gaussian_attention,
    "linear": linear_attention,
}
PREFIX = "edgewise_"  # of the names under which the kernels are registered
CHANGES_LOGITS = ("softcap", "s_aux")  # what some models ask of attention and these kernels do not support

DROPOUTS = (
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
)  # of attention weights, in configs


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
    left = _configs_without(model, name)
    if left:
        raise BadInput(
            f"the kernel did not reach {', '.join(left)}: these layers do not ask the attention interface."
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
    """The call transformers makes: query (B, H, L, d), keys of fewer heads; the answer is (B, L, H, d)."""
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
    mixed = KERNELS[kernel](
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scaling,
        enable_gqa=grouped,
    )
    return mixed.transpose(1, 2).contiguous(), None


def _with_bias(bias: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, bool]:
    """A learned position bias is added to the logits, beside the mask."""
    if causal:
        hidden = bias.new_ones(bias.shape[-2:]).triu(1).bool()
        return bias.masked_fill(hidden, float("-inf")), False
    if mask is None:
        return bias, False
    return (
        bias.masked_fill(~mask, float("-inf")) if mask.dtype.is_floating_point is False else bias + mask
    ), False


def _refuse(model: nn.Module, kernel: str) -> None:
    """What would be swapped in part, or computed without something it needs, is refused by name."""
    if not hasattr(model, "set_attn_implementation"):
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


def _configs_without(model: nn.Module, name: str) -> list[str]:
    """Submodules whose config still names another implementation."""
    wrong = []
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        if config is not None and getattr(config, "_attn_implementation", name) != name:
            wrong.append(path or type(module).__name__)
    return wrong
