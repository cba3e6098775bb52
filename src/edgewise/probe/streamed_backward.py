"""Backward by recomputation: a block is drawn again, run with a graph, differentiated and dropped, from the last on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from edgewise.probe.gradients import (
    Matrix,
    WeightLogs,
    WeightSquares,
    add_squares,
    log_norms,
    matrices,
    no_squares,
    output_gradient,
    parameters_of,
    weight_logs,
)
from edgewise.probe.reading import NO_LOSS, Reading, Wanted, generator_for, weight_arrays
from edgewise.probe.streamed import StreamedForward


class StreamedBackward:
    """log |g|^2 at every site per readout; gradients are kept near unit size, the powers of two taken out apart."""

    def __init__(self, forward: StreamedForward, wanted: Wanted, kept: Tensor | None) -> None:
        self.forward, self.wanted, self.kept = forward, wanted, kept
        self.model, self.phantom, self.places = forward.model, forward.phantom, forward.places
        self.logs: dict[str, dict[int, float]] = {}  # readout, site
        self.taken_out: dict[str, float] = {}  # readout: log of what |g|^2 was divided by
        self.weights: WeightLogs = {}
        self.weighed: str | None = None

    def run(self, loss: Tensor | None, reading: Reading) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """(log |g|^2 over that at the last site by readout, gradients of the matrices)."""
        gradients = self._starts(loss, reading)
        last = len(self.places) - 1
        self.weighed = self.wanted.weighed(tuple(gradients))
        self.logs = {readout: {last: self._log(g, last)} for readout, g in gradients.items()}
        self.taken_out = dict.fromkeys(gradients, 0.0)
        for name in self.forward.outside:
            self.phantom.sleep(name, recurse=False)
        for i in reversed(range(len(self.forward.blocks))):
            self.phantom.wake(self.forward.blocks[i], recurse=True)
            with torch.enable_grad():
                gradients = self._pull(i, gradients)
            self.phantom.sleep(self.forward.blocks[i], recurse=True)
        found = {r: [logs[n] - logs[last] for n in range(last + 1)] for r, logs in self.logs.items()}
        if self.weighed is None:
            return found, {}
        sequences = self.forward.caught[0].shape[0]
        return found, weight_arrays(self.places, self.weights, self.logs[self.weighed][last] + math.log(sequences))

    def _starts(self, loss: Tensor | None, reading: Reading) -> dict[str, Tensor]:
        """dLoss/dx at the last site for every readout."""
        stream, starts = self.forward.last, {}
        assert stream is not None
        generator = generator_for(self.wanted.seeds[0], "readout")
        for readout in self.wanted.readouts:
            if readout != "own":
                starts[readout] = output_gradient(stream, readout, generator, self.kept)
            elif loss is None:
                reading.note(NO_LOSS)
            else:
                starts[readout] = torch.autograd.grad(loss, stream)[0]
        return starts

    def _pull(self, i: int, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """The gradients at the block's input, from those at its output; middles and matrices on the way."""
        catch, call = self.forward.catch, self.forward.calls[i]
        catch.streams = {}
        entry = call.stream.detach().requires_grad_()
        output = self.forward.again(call, entry)
        inside = [n for n, place in enumerate(self.places) if place.block == i and place.end == "input"]
        before = min(n for n, place in enumerate(self.places) if place.block == i) - 1
        streams = {before: entry} | {n: catch.streams[n] for n in inside}
        pulled = {}
        for left, readout in zip(reversed(range(len(gradients))), list(gradients), strict=True):
            self._backward(i, readout, output, gradients[readout], streams, retain=left > 0)
            assert entry.grad is not None
            pulled[readout] = self._near_one(readout, entry.grad)
            for stream in streams.values():
                stream.grad = None
        catch.streams = {}  # their graph holds the block's weights, which are about to be dropped
        return pulled

    def _backward(
        self, i: int, readout: str, output: Tensor, gradient: Tensor, streams: dict[int, Tensor], retain: bool
    ) -> None:
        listed = [matrix for matrix in matrices(self.forward.found.blocks) if matrix.block == i]
        weighing = [(name, self.model.get_parameter(name)) for name in parameters_of(listed)]
        weighing = weighing if readout == self.weighed else []
        squares = counted(listed, weighing)
        inputs = [*streams.values(), *(parameter for _, parameter in weighing)]
        torch.autograd.backward(output, gradient, retain_graph=retain, inputs=inputs)
        scale = self.taken_out[readout]
        for n, stream in streams.items():
            self.logs[readout][n] = self._log(stream.grad, n) + scale
        if weighing:
            self.weights |= {place: log + scale for place, log in weight_logs(squares).items()}

    def _log(self, gradient: Tensor | None, n: int) -> float:
        shaped = None if gradient is None else self.forward.shaped(gradient)
        return log_norms([shaped], [self.places[n].site], self.kept)[0]

    def _near_one(self, readout: str, gradient: Tensor) -> Tensor:
        """Divided by a power of two, which rounds nothing: the result is that of a network in memory, bit for bit."""
        _, exponent = math.frexp(float(gradient.abs().max()))
        self.taken_out[readout] += 2 * exponent * math.log(2)
        return gradient * 2.0**-exponent


def counted(listed: Sequence[Matrix], parameters: Sequence[tuple[str, Tensor]]) -> WeightSquares:
    """Squared gradients by matrix, filled while the backward pass runs: each is dropped as soon as it is counted."""
    squares = no_squares(listed)

    def hook_of(name: str) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            assert parameter.grad is not None
            add_squares(squares, listed, name, parameter.grad)
            parameter.grad = None

        return hook

    for name, parameter in parameters:
        parameter.requires_grad_().register_post_accumulate_grad_hook(hook_of(name))
    return squares
