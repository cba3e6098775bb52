"""Which architectures have guaranteed convergence? Theorem 1's promise for the last of one, two and three layers.

The poster asks it and answers for one layer. Theorem 1 lives on the features B of a layer: with values at zero and W^O
large, beta = min |W^O_h|^2 sigma_min(B)^2 bounds |grad f|^2 / 2f from below, whatever else is trained. So layers may
stand below, if they do not take the rank of B away. Here attention layers x + sum_h S_h x W^V_h W^O_h, or one with an
MLP, below the last one; all of W^Q, W^K, W^V (and the MLP) of all layers are trained with the step 1/lambda_max of the
tangent kernel at the start. Fixed before the run: a run keeps the guarantee if sigma_min(B) stays above half of its
start at every look and f_t <= (1 - eta beta_0 / 4)^t f_0 at every step (a quarter, because beta goes with the square).
Held if all runs of all stacks with W^O a hundred times its usual size keep it, as the theorem takes it as large as one
likes; sizes of 1 and 10 beside it. The bound's rate is compared until 1e-20 of the first loss, where digits end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import jacrev, vmap
from torch.nn import functional as F

from edgewise.laboratory.kernel_theorems import TRAINED, KernelLayer, random_layer
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select
from edgewise.study.train import Stack, descend_stack

from .descent import unchecked
from .theorem1 import KERNELS

TOLERANCE = 0.01  # of the largest number in an entry
STACKS = {
    "one layer": ("last",),
    "two layers": ("attention", "last"),
    "three layers": ("attention",) * 2 + ("last",),
}
STACKS |= {"attention, MLP, attention": ("attention", "mlp", "last")}
SIZES = (1.0, 10.0, 100.0)  # of the last W^O, over its usual one; the last decides
LONG, DIGITS, LEFT = 3000, 1e-20, 0.5
POINTS = 40


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    how = dict(samples=4, tokens=6, width=12, heads=3, head_width=4, seeds=12, steps=LONG)
    if not full:
        how |= dict(samples=2, tokens=2, width=4, heads=2, head_width=2, seeds=1, steps=10)
    return [how | {"stack": stack, "kernel": kernel} for stack in STACKS for kernel in KERNELS]


def start(case: dict[str, Any], size: float, seed: int) -> tuple[Stack, Stack]:
    """Trained and fixed tensors of one network: values of the last layer are zero, its W^O `size` times the usual."""
    sizes = tuple(case[name] for name in ("samples", "tokens", "width", "heads", "head_width"))
    last = random_layer(*sizes, case["kernel"], value_scale=0.0, output_scale=size, seed=seed)
    trained = {name: getattr(last, name) for name in TRAINED}
    fixed = {name: getattr(last, name) for name in ("inputs", "targets", "output")}
    generator = torch.Generator().manual_seed(seed + 500)
    _, _, D, H, d = sizes

    def normal(*shape: int, fan: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / fan**0.5

    for place, kind in enumerate(STACKS[case["stack"]][:-1]):
        if kind == "attention":
            trained |= {f"{name}{place}": normal(H, D, d, fan=D) for name in TRAINED}
            fixed[f"output{place}"] = normal(H, d, D, fan=H * d)
        else:
            trained |= {f"up{place}": normal(D, 2 * D, fan=D), f"down{place}": normal(2 * D, D, fan=2 * D)}
    return trained, fixed


def last_layer(case: dict[str, Any], w: Stack, fixed: Stack) -> KernelLayer:
    """The last layer on the stream that comes to it."""
    x = fixed["inputs"]
    for place, kind in enumerate(STACKS[case["stack"]][:-1]):
        if kind == "attention":
            own = {name: w[f"{name}{place}"] for name in TRAINED}
            S = unchecked(case["kernel"], inputs=x, **own).weights()
            x = x + torch.einsum("ihkj,ijD,hDd,hdE->ikE", S, x, own["value"], fixed[f"output{place}"])
        else:
            x = x + F.gelu(x @ w[f"up{place}"]) @ w[f"down{place}"]
    rest = {name: fixed[name] for name in ("targets", "output")}
    return unchecked(case["kernel"], inputs=x, **rest, **{name: w[name] for name in TRAINED})


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """By size of W^O, then by seed: the least sigma_min(B) of a run over its first, and steps above the bound."""
    runs = [(size, seed) for size in SIZES for seed in range(200, 200 + case["seeds"])]
    made = [start(case, *run) for run in runs]
    weights, fixed = ({name: torch.stack([m[k][name] for m in made]) for name in made[0][k]} for k in (0, 1))
    names = list(fixed)

    def outputs(w: Stack, *data: Tensor) -> Tensor:
        return last_layer(case, w, dict(zip(names, data, strict=True))).outputs().flatten()

    def loss(w: Stack, *data: Tensor) -> Tensor:
        return 0.5 * last_layer(case, w, dict(zip(names, data, strict=True))).residual().square().sum()

    def smallest(w: Stack) -> Tensor:
        features = vmap(lambda w, *data: last_layer(case, w, dict(zip(names, data, strict=True))).features())
        B = (
            features(w, *fixed.values()).detach().nan_to_num(0.0, 0.0, 0.0)
        )  # a run out of range has lost its rank
        return torch.linalg.svdvals(B)[:, -1]

    largest = torch.stack(
        [
            _largest(jacrev(outputs)(_member(weights, k), *_member(fixed, k).values()))
            for k in range(len(runs))
        ]
    )
    sigma: list[Tensor] = []

    def look(step: int, now: Stack) -> None:
        if step % max(1, case["steps"] // 60) == 0:
            sigma.append(smallest(now))

    data = list(fixed.values())
    losses, _ = descend_stack(
        loss, weights, lambda _: data, optimizer="sgd", rates=1 / largest, steps=case["steps"], look=look
    )
    first, along = sigma[0], torch.stack(sigma)
    beta = fixed["output"].square().sum(-1).amin(1) * first.square()
    shares = losses / losses[0]
    bound = torch.log1p(-beta / largest / 4) * torch.arange(len(losses), dtype=torch.float64)[:, None]
    above = (shares > bound.exp().clamp_min(DIGITS) * (1 + 1e-9)) | ~shares.isfinite()
    kept = np.unique(np.geomspace(1, len(losses), POINTS).astype(int)) - 1
    found: dict[str, Any] = {"at": kept.tolist()}
    for place, size in enumerate(SIZES):
        chosen = slice(place * case["seeds"], (place + 1) * case["seeds"])
        found[f"{size:g}"] = {
            "rank": rounded((along / first).amin(0)[chosen].tolist(), 5),
            "above": above.sum(0)[chosen].tolist(),
            "fell_to": rounded(shares[-1, chosen].tolist(), 4),
            "step_beta": rounded((beta / largest)[chosen].tolist(), 4),
            "loss": rounded(shares[kept][:, chosen].T.clamp_min(1e-30).tolist(), 3),
        }
    return found


def _member(stack: Stack, k: int) -> Stack:
    return {name: tensor[k] for name, tensor in stack.items()}


def _largest(parts: Stack) -> Tensor:
    """The largest eigenvalue of the tangent kernel, from the Jacobian by weights."""
    return torch.linalg.matrix_norm(torch.cat([part.flatten(1) for part in parts.values()], -1), 2).square()


def keeps(results: Sequence[Result], stack: str, size: float) -> tuple[int, int, float]:
    """Runs that keep the guarantee, of how many, and the least share of sigma_min(B)."""
    runs = [
        pair
        for r in select(results, stack=stack)
        for pair in zip(r.value[f"{size:g}"]["rank"], r.value[f"{size:g}"]["above"], strict=True)
    ]
    return sum(rank > LEFT and not above for rank, above in runs), len(runs), min(rank for rank, _ in runs)


def claim(results: Sequence[Result]) -> Claim:
    table = {stack: {f"{size:g}": keeps(results, stack, size) for size in SIZES} for stack in STACKS}
    own = f"{SIZES[-1]:g}"
    said = "; ".join(
        f"{stack}: " + ", ".join(f"{kept} of {count} ({rank:.2f})" for kept, count, rank in row.values())
        for stack, row in table.items()
    )
    held = all(row[own][0] == row[own][1] for row in table.values())
    fell = [float(np.median([v for r in results for v in r.value[f"{size:g}"]["fell_to"]])) for size in SIZES]
    case = results[0].case
    rows, columns = case["samples"] * case["tokens"], case["heads"] * case["width"]
    return Claim(
        "Which architectures have guaranteed convergence? [poster, main question]; read as: theorem 1's promise for "
        "the last layer is kept with layers below it.",
        f"Runs that keep it with W^O 1, 10 and 100 times its size, in brackets the least sigma_min(B) over its first: "
        f"{said}. The loss fell to {fell[0]:.1g}, {fell[1]:.1g} and {fell[2]:.1g} of its start (medians): a larger W^O "
        f"keeps the rank and is slower. Held: all with {own}.",
        f"N n = {rows}, H D = {columns}, both kernels, {case['steps']} steps, {case['seeds']} seeds",
        held if case["steps"] >= LONG else None,
        table,
        rows=("B4", "B5"),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = []
    for size in (SIZES[0], SIZES[-1]):
        for kernel in KERNELS:
            curves = []
            for group, stack in enumerate(STACKS):
                r = select(results, stack=stack, kernel=kernel)[0]
                x = np.array(r.value["at"]) + 1.0
                for k, y in enumerate(r.value[f"{size:g}"]["loss"]):
                    curves.append(Curve(stack if k == 0 else "_", x, np.array(y, float), group, "thin"))
            title = f"{kernel.replace('gauss', 'Gauss')}, W^O x {size:g}"
            panels.append(
                Panel(
                    title,
                    "step + 1",
                    "loss over the first loss",
                    tuple(curves),
                    log_x=True,
                    log_y=True,
                    y_range=(1e-25, 30.0),
                    legend=not panels,
                    legend_at="lower left",
                )
            )
    curves = []
    for group, stack in enumerate(STACKS):
        for place, size in enumerate(SIZES):
            y = np.array(
                [v for r in select(results, stack=stack) for v in r.value[f"{size:g}"]["rank"]], float
            )
            x = np.full(len(y), place + 0.15 * group - 0.22)
            curves.append(Curve(stack if not place else "_", x, y, group, "points"))
    panels.append(
        Panel(
            "rank along the run",
            "size of W^O",
            "least sigma_min(B) over its first",
            tuple(curves),
            x_names=tuple(f"x {s:g}" for s in SIZES),
            levels=(LEFT,),
            legend=False,
        )
    )
    return Sheet("Theorem 1 with layers below", tuple(panels), claim(results).scale, columns=3).draw()
