"""The one keeper of state: modules, buffers, gradients, random streams, modes and hooks are as before afterwards.

`preserved` puts back what reading changes, `undone` also what training steps do: weights, optimizers, schedulers.

Interrupts wait for a safe moment meanwhile (`edgewise.interrupts`): none falls into entering or leaving a mode, and
none into the restoring.
"""

from __future__ import annotations

import copy
import gc
import random
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from edgewise.errors import BadInput
from edgewise.interrupts import deferred

GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
)


_one_at_a_time = (
    threading.RLock()
)  # random streams and switches of torch are the process's: threads take turns


@contextmanager
def preserved(model: nn.Module, *, gradients: bool | None = None) -> Iterator[ExitStack]:
    """Whatever is changed inside, model and process are as they were afterwards; interrupts wait for a `check()`.

    gradients  False: evaluation mode without gradients or autocast; True: evaluation mode with every floating parameter
               differentiable; None: modes stay as they are. Compiled code runs eagerly in the first two: hooks inside
               it would be compiled in.

    What is pushed on the stack is closed first. Two things are left to who changes them: the numbers of the parameters,
    which are not copied, and a `.grad` that is written into in place.
    """
    if gradients and any(parameter.is_inference() for parameter in model.parameters()):
        raise BadInput(
            "the model was built in torch.inference_mode, which forbids gradients permanently. Build it outside."
        )
    with _one_at_a_time if gradients else nullcontext(), deferred() as interrupts:
        state = State(model)
        try:
            with ExitStack() as stack:
                if gradients is not None:
                    state.prepare(gradients)
                if gradients:
                    stack.enter_context(torch.inference_mode(False))
                    stack.enter_context(torch.enable_grad())
                    _make_differentiable(model)
                yield stack
        finally:
            with interrupts.closed():
                state.restore()
        if gradients is not None and (name := state.written()):
            raise RuntimeError(
                f"{name} was written while the model was read, which must leave every parameter alone. The forward "
                "pass of the model, or a hook on it, wrote it; if neither does, report this as a defect of edgewise."
            )


def _memory(parameter: Tensor) -> tuple[int, ...]:
    """Where a parameter's numbers are, and how often they were written; shards are gathered and let go meanwhile."""
    plain = type(parameter) in (Tensor, nn.Parameter) and not (parameter.is_meta or parameter.is_inference())
    return (parameter.data_ptr(), parameter._version) if plain else ()


def _make_differentiable(model: nn.Module) -> None:
    """Only leaves that are floating can require a gradient."""
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.is_leaf:
            parameter.requires_grad_(True)


@contextmanager
def random_streams() -> Iterator[None]:
    """Keep the global random streams of torch (all devices), numpy and Python unaffected by draws inside."""
    with _one_at_a_time:
        streams = RandomStreams(all_devices=torch.cuda.is_available())
        try:
            yield
        finally:
            streams.restore()


class RandomStreams:
    """The global random streams of Python, numpy (if it is loaded) and torch."""

    def __init__(self, all_devices: bool) -> None:
        self._python, self._cpu = random.getstate(), torch.get_rng_state()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else (numpy.random, numpy.random.get_state())
        self._cuda = torch.cuda.get_rng_state_all() if all_devices else None

    def moved(self) -> bool:
        """Tell if anything has been drawn from them since."""
        now = RandomStreams(all_devices=self._cuda is not None)
        arrays = [(self._cpu, now._cpu), *zip(self._cuda or (), now._cuda or (), strict=True)]
        legacy = [
            None if s._numpy is None else (s._numpy[1][1].tobytes(), s._numpy[1][2]) for s in (self, now)
        ]
        drawn = now._python != self._python or legacy[0] != legacy[1]
        return drawn or not all(torch.equal(before, after) for before, after in arrays)

    def restore(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy[0].set_state(self._numpy[1])
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)


class State:
    """What a forward pass or a reading can change, taken without changing anything."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(module, _contents(module)) for module in model.modules()]
        self._configs = [(config, dict(vars(config))) for config in _configs(model)]
        self._gathered: list[Any] = [
            m for m in model.modules() if is_sharded(m)
        ]  # weights gathered while it runs
        self._buffers = [(b, b.detach().clone()) for b in model.buffers() if not b.is_inference()]
        # A pending backward() that holds a buffer finds it with its numbers, and may continue.
        self._versions = [
            torch.autograd._unsafe_preserve_version_counter(buffer) for buffer, _ in self._buffers
        ]
        self._gradients = [(p, p.grad, p.requires_grad) for p in model.parameters()]
        # Of a sharded model what is gathered now is let go, and is not the same memory afterwards.
        listed = () if self._gathered else model.named_parameters()
        self._written = [(name, p, _memory(p)) for name, p in listed]
        self._process = Process(model)

    def prepare(self, gradients: bool) -> None:
        """Evaluation mode, no compiled code; without gradients no autocast, with them no fused encoder layer."""
        for module, _ in self._modules:
            if module.training:
                module.training = False
        self._process.prepare(gradients)

    def written(self) -> str:
        """The first parameter whose memory or version is another one than before; empty if all are the same."""
        return next((name for name, p, before in self._written if _memory(p) != before), "")

    def restore(self) -> None:
        for module in self._gathered:
            module.reshard()
        for module, contents in self._modules:
            _put_back(module, contents)
        for config, attributes in self._configs:
            if not _same_items(vars(config), attributes):
                vars(config).clear()
                vars(config).update(attributes)
        with torch.no_grad():
            for buffer, value in self._buffers:  # not by its version: batch norm writes without counting
                if not _equal(buffer, value):
                    buffer.copy_(value)
        for versions in self._versions:
            versions.__exit__(None, None, None)
        for parameter, gradient, flag in self._gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)
        self._process.restore()


def is_sharded(module: nn.Module) -> bool:
    """Tell if `fully_shard` was applied to this module and its weights lie in shards now."""
    sharding = sys.modules.get("torch.distributed.fsdp")
    wrapped = sharding is not None and isinstance(module, sharding.FSDPModule)
    return wrapped and any(hasattr(parameter, "to_local") for parameter in module.parameters())


def back_in_shards(model: nn.Module) -> None:
    """Let go of weights that a forward pass without a backward one left gathered; the next pass gathers them again.

    While they are gathered, `parameters()` are copies beside shards: what is written into a copy is lost.
    """
    sharding = sys.modules.get("torch.distributed.fsdp")
    if sharding is None:
        return
    for module in model.modules():
        if isinstance(module, sharding.FSDPModule):
            module.reshard()


def _configs(model: nn.Module) -> list[Any]:
    """The configs of a model and those inside them: a forward pass with labels may write into one."""
    todo = [config for module in model.modules() if (config := getattr(module, "config", None)) is not None]
    configs: dict[int, Any] = {}
    while todo:
        config = todo.pop()
        if hasattr(config, "to_dict") and hasattr(config, "__dict__") and id(config) not in configs:
            configs[id(config)] = config
            todo += vars(config).values()
    return list(configs.values())


def _contents(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of a module, and what its dicts (parameters, buffers, hooks, children) hold."""
    return dict(module.__dict__), {k: v.copy() for k, v in module.__dict__.items() if isinstance(v, dict)}


def _put_back(module: nn.Module, contents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, inner = contents
    own = module.__dict__
    for name in [name for name in own if name not in attributes]:
        del own[name]
    for name, value in attributes.items():
        if own.get(name, own) is not value:
            own[name] = value
    for name, items in inner.items():
        if not _same_items(own[name], items):
            own[name].clear()
            own[name].update(items)


def _same_items(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    return list(one) == list(other) and all(one[key] is other[key] for key in one)


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.is_meta:  # no numbers
        return True
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


class Process:
    """The state of the process outside the model: random streams, modes of torch, hooks for all modules."""

    def __init__(self, model: nn.Module) -> None:
        self._random = RandomStreams(all_devices=torch.cuda.is_initialized())
        self._gradients, self._fast = torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled()
        self._modes = _function_modes()
        self._hooks = {name: getattr(module_hooks, name).copy() for name in GLOBAL_HOOKS}
        devices = {"cpu"} | {tensor.device.type for tensor in model.parameters()} - {"meta"}
        self._autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in devices
        ]
        self._dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")  # loaded once anything was compiled
        self._stance = None if self._dynamo is None else self._dynamo._stance

    def prepare(self, gradients: bool) -> None:
        if gradients:
            torch.backends.mha.set_fastpath_enabled(False)  # the fused encoder layer hides its inside
        else:
            torch.set_grad_enabled(False)
            for kind, _, _ in self._autocast:
                torch.set_autocast_enabled(kind, False)
        if self._dynamo is not None:
            torch.compiler.set_stance("force_eager")

    def restore(self) -> None:
        self._random.restore()
        _set_function_modes(self._modes)
        for name, hooks in self._hooks.items():
            _remove_added(getattr(module_hooks, name), hooks)
        torch.set_grad_enabled(self._gradients)
        if torch.backends.mha.get_fastpath_enabled() != self._fast:
            torch.backends.mha.set_fastpath_enabled(self._fast)
        for kind, enabled, dtype in self._autocast:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        if self._dynamo is not None and self._dynamo._stance is not self._stance:
            self._dynamo._set_stance(self._stance)


def _remove_added(hooks: dict[int, Any], before: Mapping[int, Any]) -> None:
    for key in [key for key in hooks if key not in before]:
        del hooks[key]


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def _set_function_modes(modes: list[Any]) -> None:
    """An interrupt can fall between the push of a mode and its `with`; the stack is then rebuilt."""
    if any(a is not b for a, b in zip(_function_modes(), modes, strict=False)) or len(
        _function_modes()
    ) != len(modes):
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()
        for mode in modes:
            torch._C._push_on_torch_function_stack(mode)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection during one pass: it would check every node so far again and again (a fifth of the time
    of 200 blocks), and a pass leaves no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def undone(
    model: nn.Module, optimizer: Any = None, also: Iterable[Any] = (), batches: Any = None
) -> Iterator[None]:
    """Whatever a training does inside, everything is as it was afterwards, also if it raises or is interrupted."""
    others = [*also, *schedulers_of(optimizer)]
    optimizers = [optimizer, *(o for o in others if isinstance(o, torch.optim.Optimizer))]
    modules = [o for o in others if isinstance(o, nn.Module)]
    with deferred() as interrupts, preserved(model):
        states = [State(module) for module in modules]
        records: list[Any] = [
            _Values(_parameters(model, modules, optimizers)),
            *(_OptimizerState(o) for o in optimizers if o is not None),
            *(_ObjectState(o) for o in others if not isinstance(o, (nn.Module, torch.optim.Optimizer))),
            *(_Generator(g) for g in _generators(batches)),
        ]
        try:
            torch.backends.mha.set_fastpath_enabled(False)  # the fused encoder layer hides its inside
            yield
        finally:
            with interrupts.closed():
                for record in reversed(records):
                    record.restore()
                for state in states:
                    state.restore()


def _parameters(model: nn.Module, modules: list[nn.Module], optimizers: list[Any]) -> list[Tensor]:
    held = [p for o in optimizers if o is not None for g in o.param_groups for p in g["params"]]
    every = [*model.parameters(), *(p for m in modules for p in m.parameters()), *held]
    return list({id(p): p for p in every}.values())


def schedulers_of(optimizer: Any) -> list[Any]:
    """Learning-rate schedulers that hold this optimizer: the step may call them even if they were not passed."""
    step = getattr(optimizer, "step", None)
    if not getattr(step, "_wrapped_by_lr_sched", False):  # as every scheduler marks its optimizer
        return []
    found: dict[int, Any] = {}
    for referrer in gc.get_referrers(optimizer):
        owners = gc.get_referrers(referrer) if isinstance(referrer, dict) else [referrer]
        for owner in owners:
            if isinstance(owner, torch.optim.lr_scheduler.LRScheduler):
                found[id(owner)] = owner
    return list(found.values())


def _generators(batches: Any) -> list[torch.Generator]:
    owners = (batches, getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None))
    every = (getattr(owner, "generator", None) for owner in owners)
    return list({id(g): g for g in every if isinstance(g, torch.Generator)}.values())


class _Values:
    """Numbers, gradients and flags of parameters."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self._saved = [
            (p, _copy(p), p.grad, None if p.grad is None else _copy(p.grad), p.requires_grad)
            for p in parameters
        ]

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, value, gradient, numbers, flag in self._saved:
            if value is not None:
                parameter.data.copy_(value)
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)
            parameter.grad = gradient
            if gradient is not None and numbers is not None:
                gradient.copy_(numbers)


def _copy(tensor: Tensor) -> Tensor | None:
    return None if tensor.is_meta else tensor.detach().clone()


class _OptimizerState:
    """State and groups of an optimizer, with the identity of its tensors and dictionaries."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._attributes = dict(vars(optimizer))
        self._state = [
            (key, state, dict(state), _tensor_values(state))
            if isinstance(state, dict)
            else (key, state, None, [])
            for key, state in optimizer.state.items()
        ]
        self._groups = [
            (group, dict(group), list(group["params"]), _tensor_values(group))
            for group in optimizer.param_groups
        ]

    @torch.no_grad()
    def restore(self) -> None:
        optimizer = self._optimizer
        vars(optimizer).clear()
        vars(optimizer).update(self._attributes)
        optimizer.state.clear()
        for key, state, items, values in self._state:
            optimizer.state[key] = state
            if items is not None:
                state.clear()
                state.update(items)
            _write(values)
        optimizer.param_groups[:] = [group for group, *_ in self._groups]
        for group, items, parameters, values in self._groups:
            group.clear()
            group.update(items)
            group["params"][:] = parameters
            _write(values)


def _tensor_values(values: dict[Any, Any]) -> list[tuple[Tensor, Tensor]]:
    return [
        (v, v.detach().clone())
        for k, v in values.items()
        if torch.is_tensor(v) and k != "params" and not v.is_meta
    ]


def _write(values: list[tuple[Tensor, Tensor]]) -> None:
    for tensor, value in values:
        tensor.copy_(value)


class _ObjectState:
    """Anything with a state: its `state_dict`, its attributes, and what its containers hold."""

    def __init__(self, target: Any) -> None:
        self._target = target
        loads = hasattr(target, "state_dict") and hasattr(target, "load_state_dict")
        scheduler = isinstance(target, torch.optim.lr_scheduler.LRScheduler)
        self._state = copy.deepcopy(target.state_dict()) if loads and not scheduler else None
        self._attributes = dict(vars(target)) if hasattr(target, "__dict__") else None
        self._inner = {
            name: copy.copy(value)
            for name, value in (self._attributes or {}).items()
            if isinstance(value, (list, dict, set, deque))
        }
        self._tensors = _tensor_values(self._attributes or {})

    @torch.no_grad()
    def restore(self) -> None:
        if self._state is not None:
            self._target.load_state_dict(self._state)
        if self._attributes is None:
            return
        vars(self._target).clear()
        vars(self._target).update(self._attributes)
        for name, value in self._inner.items():
            container = self._attributes[name]
            container.clear()
            (container.extend if isinstance(value, (list, deque)) else container.update)(value)
        _write(self._tensors)


class _Generator:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator, self._state = generator, generator.get_state()

    def restore(self) -> None:
        self._generator.set_state(self._state)
