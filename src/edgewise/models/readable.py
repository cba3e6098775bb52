"""Whether a model can be read: without its wrappers, in floating point, finite; and what is said of one that cannot."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from edgewise.errors import BadInput
from edgewise.models.inputs import tensors
from edgewise.models.unwrap import unwrap

if TYPE_CHECKING:
    from torch import nn


def refuse_lazy(model: nn.Module) -> None:
    """Parameters of lazy modules, which have no shape before the model has run."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise BadInput(f"{name} has no shape yet (a lazy module). Run the model once, then give it.")


def refuse_infinite(model: nn.Module, batch: Any = None) -> None:
    """NaN or infinity among the weights, or NaN or +infinity in the batch (masks may hold -infinity)."""
    refuse_lazy(model)
    whole = ((name, p) for name, p in model.named_parameters() if not (p.is_meta or hasattr(p, "to_local")))
    names = [
        name for name, p in whole if p.is_floating_point() and not (_is_finite(p.detach()) or is_mask(p))
    ]
    if names:
        more = f" and {len(names) - 1} more parameters" if len(names) > 1 else ""
        kind = type(model).__name__
        raise BadInput(
            f"{names[0]}{more} of this {kind} hold NaN or infinity. Load or draw the weights again."
        )
    for values in tensors(batch):
        if (
            values.is_floating_point()
            and not values.is_meta
            and bool((values.isnan() | values.isposinf()).any())
        ):
            shape = "x".join(map(str, values.shape))
            raise BadInput(
                f"the batch holds NaN or infinity, in a tensor of {shape} values. Expected finite inputs."
            )


def _is_finite(values: torch.Tensor) -> bool:
    """A sum is a number only where all of its terms are, and costs a third; if it overflows, one by one."""
    return math.isfinite(values.sum(dtype=torch.float32)) or bool(values.isfinite().all())


def is_mask(parameter: torch.Tensor) -> bool:
    """Tell if a parameter is a mask: frozen, and of zero and -infinity alone."""
    return not parameter.requires_grad and bool(((parameter == 0) | parameter.isneginf()).all())


def bare(model: nn.Module) -> nn.Module:
    """The model without its wrappers; raises if it is none."""
    if not isinstance(model, nn.Module):
        raise BadInput(f"a {type(model).__name__} is not a model: expected an nn.Module.")
    return unwrap(model)


def words(error: BaseException, limit: int = 300) -> str:
    """Write what an exception says on one line; some cannot even say it."""
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001 - a model's own class of exceptions
        text = f"(its text cannot be made: {type(second).__name__})"
    return " ".join(f"{type(error).__name__}: {text}".split())[:limit]


def did_not_run(model: nn.Module, tried: str, error: BaseException) -> BadInput:
    """The error for a model that raised: what it was run on, what it said, what it takes."""
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
    refuse_lazy(model)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise BadInput(
                f"{name} is on the meta device and has no numbers. Describe the model's config instead."
            )
        if tensor.is_inference():
            raise BadInput(
                f"{name} was made in torch.inference_mode, which forbids gradients. Make it outside."
            )
    refuse_infinite(model)
