"""Models that cannot be watched, refused with the reason; wrappers taken off the others."""

from __future__ import annotations

import inspect

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from edgewise.errors import BadInput


def bare(model: nn.Module) -> nn.Module:
    """The model inside torch.compile, DataParallel and DistributedDataParallel."""
    if not isinstance(model, nn.Module):
        raise BadInput(f"a {type(model).__name__} is not a model: expected an nn.Module.")
    while True:
        if "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model


def words(error: BaseException, limit: int = 300) -> str:
    """What an exception says, on one line; some cannot even say it."""
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001 - a model's own class of exceptions
        text = f"(its text cannot be made: {type(second).__name__})"
    return " ".join(f"{type(error).__name__}: {text}".split())[:limit]


def did_not_run(model: nn.Module, tried: str, error: BaseException) -> BadInput:
    """The refusal of a model that raised: what it was run on, what it said, what it takes."""
    takes = str(inspect.signature(model.forward)).split(" -> ")[0]
    takes = takes if len(takes) < 200 else takes[:200] + " ..."
    return BadInput(
        f"{type(model).__name__} did not run on {tried}: {words(error)}. Give a batch as a dict of keyword arguments, "
        f"a tuple or a tensor, such that model(**batch) or model(*batch) runs; its forward takes {takes}."
    )


def refuse_unreadable(model: nn.Module) -> None:
    scripted = [
        name or "the model" for name, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule)
    ]
    if scripted:
        raise BadInput(
            f"{scripted[0]} is TorchScript, whose operations cannot be watched. Give the model it was made from."
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise BadInput(f"{name} has no shape yet (a lazy module). Run the model once, then give it.")
        if tensor.is_meta:
            raise BadInput(
                f"{name} is on the meta device and has no numbers. Describe the model's config instead."
            )
        if tensor.is_inference():
            raise BadInput(
                f"{name} was made in torch.inference_mode, which forbids gradients. Make it outside."
            )
