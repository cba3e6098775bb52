"""A loop or script that was not edited: find model, batch, loss and optimizer by what is called, and check them.

The check is made once, when an optimizer steps for the first time: the outermost module that holds its parameters is
the model, the arguments of its last call are the batch, and the loss function that was seen is called again on its
outputs.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from edgewise.errors import BadInput, register_user_code
from edgewise.preflight.check_report import CheckReport
from edgewise.preflight.entry import check
from edgewise.preflight.fingerprint import tensors_in
from edgewise.preflight.observer import LOSSES

SEVERE = {"error": ("error",), "warning": ("error", "warning"), "never": ()}
Show = Callable[[CheckReport], None]


class Checking:
    """Check the loop inside once, at its first optimizer step: `with Checking(stop_on="error"): train()`.

    Remember outermost module calls and loss calls until the first optimizer step, then check.

    model    count steps of optimizers that hold parameters of this model only; default: any
    stop_on  raise `SystemExit` at findings of this severity; "never": only show them
    show     called with the report
    raises   False: `stops` says that the loop should end
    """

    def __init__(
        self,
        stop_on: str = "never",
        show: Show = print,
        *,
        model: nn.Module | None = None,
        raises: bool = True,
    ) -> None:
        if stop_on not in SEVERE:
            raise BadInput(f"stop_on must be one of {', '.join(SEVERE)}, got {stop_on!r}.")
        self._stop_on, self._show, self._raises, self._depth, self._busy = stop_on, show, raises, 0, False
        self._own = None if model is None else {id(p) for p in model.parameters()}
        self._calls: list[Call] = []
        self._losses: list[tuple[Any, Tensor, Tensor, tuple[Any, ...], dict[str, Any]]] = []
        self._handles: list[Any] = []
        self._functions: dict[str, Any] = {}
        self.report: CheckReport | None = None

    def __enter__(self) -> Checking:
        """Listen to every module, loss function and optimizer of the process."""

        def enter(*_: object) -> None:
            self._depth += 1

        def leave(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
            self._depth = max(0, self._depth - 1)
            kwargs, output = rest if len(rest) == 2 else ({}, None)  # torch leaves them out if forward raised
            if self._depth == 0 and not self._busy and output is not None and torch.is_grad_enabled():
                outputs = [t.detach() for t in tensors_in(output) if t.is_floating_point()]
                self._calls = [*self._calls[-8:], Call(module, args, kwargs, outputs)]

        self._handles = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, with_kwargs=True, always_call=True),
        ]
        self._at_step = register_optimizer_step_pre_hook(self._step)
        for name in LOSSES:
            self._functions[name] = getattr(F, name)
            setattr(F, name, self._hearing(self._functions[name]))
        return self

    def _hearing(self, function: Any) -> Any:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            outputs = args[0] if args else kwargs.get("input")
            labels = args[1] if len(args) > 1 else kwargs.get("target")
            wanted = not self._busy and self.report is None and not torch.compiler.is_compiling()
            if wanted and torch.is_tensor(outputs) and torch.is_tensor(labels):
                options = {k: v for k, v in kwargs.items() if k not in ("input", "target")}
                item = (function, outputs.detach(), labels.detach(), args[2:], options)
                self._losses = [*self._losses[-8:], item]
            return function(*args, **kwargs)

        return call

    def __exit__(self, *_: object) -> None:
        """Listen no longer."""
        self._quiet()
        self._at_step.remove()

    def _quiet(self) -> None:
        """Forget modules and losses; the optimizer's hooks are running and stay."""
        for handle in self._handles:
            handle.remove()
        for name, function in self._functions.items():
            setattr(F, name, function)
        self._handles, self._functions, self._calls, self._losses = [], {}, [], []

    def _step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        held = {id(p) for g in optimizer.param_groups for p in g["params"]}
        call = self._model_of(held)
        strange = self._own is not None and not held & self._own
        if self._busy or self.report is not None or call is None or strange:
            return
        self._busy = True
        try:
            batch = {"args": call.arguments, "kwargs": call.options}
            self.report = check(call.module, [batch], self._loss(call), optimizer)
        finally:
            self._busy = False
        self._quiet()
        self._show(self.report)
        if self.stops and self._raises:
            raise SystemExit(self.report.exit_code)

    @property
    def stops(self) -> bool:
        """True if the report has findings at which to stop."""
        findings = [] if self.report is None else self.report.findings
        return any(f.severity in SEVERE[self._stop_on] for f in findings)

    def _model_of(self, held: set[int]) -> Call | None:
        """The last outermost call of the module that holds most of the optimizer's parameters."""
        best, most = None, -1
        for call in self._calls:
            own = [p for p in call.module.parameters() if p.requires_grad]
            count = sum(id(p) in held for p in own)
            if own and count >= most:
                best, most = call, count
        return best

    def _loss(self, call: Call) -> Callable[[nn.Module, Any], Tensor]:
        """The model's own loss, or the loss function that was called with a part of its outputs."""
        found = next(
            (
                (func, labels, rest, options, which, part)
                for func, seen, labels, rest, options in reversed(self._losses)
                for which, output in enumerate(call.outputs)
                for part in PARTS
                if _fits(part(output), seen)
            ),
            None,
        )
        shapes = {id(labels): seen.shape for _, seen, labels, *_ in self._losses}

        def loss(model: nn.Module, batch: Any) -> Tensor:
            output = model(*batch["args"], **batch["kwargs"])
            own = getattr(output, "loss", None)
            if torch.is_tensor(own):
                return own
            outputs = [t for t in tensors_in(output) if t.is_floating_point()]
            if found is None:
                return torch.stack([t.float().pow(2).mean() for t in outputs]).sum()
            func, labels, rest, options, which, part = found
            value: Tensor = func(part(outputs[which]).reshape(shapes[id(labels)]), labels, *rest, **options)
            return value

        return loss


class Call(NamedTuple):
    """One outermost call of a module."""

    module: nn.Module
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    outputs: list[Tensor]


PARTS: tuple[Callable[[Tensor], Tensor], ...] = (  # of an output, that a loss is called with
    lambda t: t,
    lambda t: t[:, :-1] if t.dim() >= 3 else t,
    lambda t: t[:, 1:] if t.dim() >= 3 else t,
    lambda t: t.transpose(1, 2) if t.dim() >= 3 else t,
    lambda t: t[:, :-1].transpose(1, 2) if t.dim() >= 3 else t,
)


def _fits(part: Tensor, seen: Tensor) -> bool:
    return part.numel() == seen.numel() and torch.equal(part.reshape(seen.shape), seen)


def run_script(command: list[str], *, stop_on: str, show: Show) -> int:
    """Run `python file.py ...` or `python -m module ...` in this process and check it at its first optimizer step.

    Return the exit code of the check if the script is stopped or ends well, else the script's own.
    """
    rest = command[1:] if Path(command[0]).name.startswith("python") else command
    if not rest or (rest[0] != "-m" and not rest[0].endswith(".py")):
        raise BadInput(
            f"{' '.join(command)!r} is not a Python script. Write: edgewise check -- python train.py ..."
        )
    module = rest[0] == "-m"
    target, arguments = (rest[1], rest[2:]) if module else (rest[0], rest[1:])
    if not module and not Path(target).is_file():
        raise BadInput(f"{target} does not exist. Write: edgewise check -- python train.py ...")
    listener = Checking(stop_on, show)
    old_arguments, old_path = sys.argv, list(sys.path)
    sys.argv = [target, *arguments]
    sys.path.insert(0, os.getcwd() if module else str(Path(target).resolve().parent))
    code = 0
    try:
        with listener:
            if module:
                runpy.run_module(target, run_name="__main__", alter_sys=True)
            else:
                register_user_code(target)
                runpy.run_path(target, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv, sys.path[:] = old_arguments, old_path
    if listener.report is None:
        raise BadInput("the script ended before any optimizer stepped: nothing was checked.")
    return code or listener.report.exit_code
