"""All that reading or measuring a model must not change, and what of it differs afterwards."""

from __future__ import annotations

import copy
import random
import signal
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
    "_global_backward_hooks",
)


def prepared(model: nn.Module) -> nn.Module:
    """In train mode but for one part, with gradients, a frozen parameter and a hook of the user's own."""
    model.train()
    parts = list(model.modules())
    parts[len(parts) // 2].eval()
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 0.5) if i % 2 else None
        parameter.requires_grad_(i != 0)
    parts[-1].register_forward_hook(_own_hook)
    return model


def _own_hook(module: nn.Module, args: Any, output: Any) -> None: ...


def everything(model: nn.Module) -> dict[str, Any]:
    """As values or as identities."""
    state: dict[str, Any] = {f"value {k}": v.detach().clone() for k, v in model.named_parameters()}
    state |= {f"buffer {k}": v.clone() for k, v in model.named_buffers()}
    for name, parameter in model.named_parameters():
        state |= {
            f"gradient {name}": (id(parameter.grad), copy.deepcopy(parameter.grad)),
            f"id {name}": id(parameter),
        }
        state[f"flag {name}"] = parameter.requires_grad
    for name, module in model.named_modules(remove_duplicate=False):
        state[f"mode {name}"] = module.training
        plain = {
            k: v for k, v in module.__dict__.items() if isinstance(v, (bool, int, float, str, type(None)))
        }
        state |= {f"attributes {name}": (sorted(module.__dict__), plain)}
        held = {k: v for k, v in module.__dict__.items() if k not in plain}
        state |= {f"object {name}.{key}": id(value) for key, value in held.items()}
        for (
            key,
            value,
        ) in held.items():  # parameters, buffers, children and hooks under all their names, and lists
            if isinstance(value, (dict, list)):
                items = list(value.items() if isinstance(value, dict) else enumerate(value))
                state[f"contents {name}.{key}"] = [(k, id(item)) for k, item in items]
                state |= {f"tensor {name}.{key}.{k}": _tensor(t) for k, t in items if isinstance(t, Tensor)}
    config = getattr(model, "config", None)
    if hasattr(config, "_attn_implementation"):  # others' configs are attributes like any other
        state |= {"config": config.to_dict(), "attention implementation": config._attn_implementation}
    return state | process()


def _tensor(tensor: Tensor) -> tuple[Any, ...]:
    """Its class, its storage, how often it was written in place, and how gradients see it."""
    plain = type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta
    version = None if tensor.is_inference() else tensor._version
    return type(tensor), tensor.data_ptr() if plain else 0, version, tensor.requires_grad, tensor.is_leaf


def process() -> dict[str, Any]:
    """Of the process, outside any model."""
    handlers = {s: signal.getsignal(s) for s in signal.valid_signals()}
    return {
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),  # noqa: NPY002
        "torch": torch.get_rng_state(),
        "gradients": torch.is_grad_enabled(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "inference": torch.is_inference_mode_enabled(),
        "global hooks": [list(getattr(module_hooks, name)) for name in GLOBAL_HOOKS],
        "handlers": handlers,
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is not as before, by name."""
    lost = before.keys() ^ after.keys()
    return [*lost, *(name for name in before.keys() & after.keys() if not same(before[name], after[name]))]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(_bits(one), _bits(other))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _bits(value: Tensor) -> Tensor:
    """The tensor as bytes: NaN is then equal to itself, and 0 not to -0."""
    plain = (
        type(value) in (Tensor, nn.Parameter)
        and value.dim() > 0
        and not (value.is_meta or value.is_complex())
    )
    return value.detach().contiguous().view(torch.uint8) if plain else value
