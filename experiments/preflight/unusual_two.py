"""Healthy trainings of further unusual kinds, each small: nothing but notes may be said of them."""

# ruff: noqa: ARG001, ARG002, ARG004  a step, an optimizer and a function have one signature

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import spectral_norm

from experiments.preflight.unusual import B, D, Made, Net, T, V, text, texts


def made(model: nn.Module, loss: Any, batches: list[Any], rate: float = 1e-3, **rest: Any) -> Made:
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = {"model": model, "batches": batches, "loss": loss}
    return found | {"optimizer": torch.optim.AdamW(parameters, rate)} | rest


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def learned(model: nn.Module, loss: Any, batches: list[Any], steps: int = 40) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for k in range(steps):
        optimizer.zero_grad()
        loss(model, batches[k % len(batches)]).backward()
        optimizer.step()
    optimizer.zero_grad()


class TwoTasks(Net):
    """Both heads are computed for every batch; each batch has labels of one task."""

    def __init__(self) -> None:
        super().__init__(4, causal=False)
        self.other = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, 7))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pooled = self.states(x).mean(1)
        return self.head(pooled), self.other(pooled)


def control_batches_of_one_task_each() -> Made:
    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return F.cross_entropy(model(batch["ids"])[batch["task"]], batch["labels"])

    batches = [{"ids": text(k), "task": int(k > 3), "labels": text(k)[:, 3] % 4} for k in range(6)]
    return made(TwoTasks(), loss, batches)


def control_a_head_that_is_only_watched() -> Made:
    """A probe is computed in the model and trained by nobody yet."""

    class Watched(Net):
        def __init__(self) -> None:
            super().__init__()
            self.probe = nn.Linear(D, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            states = self.states(x)
            return self.head(states), self.probe(states)

    return made(
        Watched(), lambda m, b: F.cross_entropy(m(b[:, :-1])[0].flatten(0, 1), b[:, 1:].flatten()), texts()
    )


def control_sparse_table_with_its_own_optimizer() -> Made:
    model = Net()
    model.embed = nn.Embedding(V, D, sparse=True)
    table = torch.optim.SparseAdam(list(model.embed.parameters()), 1e-3)
    rest = [p for n, p in model.named_parameters() if not n.startswith("embed")]

    def step(model: nn.Module, optimizer: Any, batch: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        table.zero_grad()
        value = next_token(model, batch)
        value.backward()
        optimizer.step()
        table.step()
        return value

    return made(model, next_token, texts(), optimizer=torch.optim.AdamW(rest, 1e-3), step=step, also=[table])


def control_two_optimizers_of_which_one_is_told() -> Made:
    """The step has a second optimizer of its own, for the table, that is not given."""
    model = Net()
    table = torch.optim.Adagrad(model.embed.parameters(), 1e-2)
    rest = [p for n, p in model.named_parameters() if not n.startswith("embed")]

    def step(model: nn.Module, optimizer: Any, batch: Tensor, k: int) -> Tensor:
        model.zero_grad()
        value = next_token(model, batch)
        value.backward()
        optimizer.step()
        table.step()
        return value

    return made(model, next_token, texts(), optimizer=torch.optim.AdamW(rest, 1e-3), step=step)


class Softplus(torch.autograd.Function):
    """Keeps its input only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.softplus(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slope * x.sigmoid()


def control_own_function_with_its_gradient() -> Made:
    class Own(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(Softplus.apply(self.states(x)))

    return made(Own(), next_token, texts())


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        step = x.abs().max() / 7
        return (x / step).round() * step

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope


def control_weights_in_four_bits() -> Made:
    """Quantization-aware: rounded weights, gradients straight through."""

    class Rounded(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return Straight.apply(weight)

    model = Net()
    for block in model.body:
        parametrize.register_parametrization(block.linear1, "weight", Rounded())
        parametrize.register_parametrization(block.linear2, "weight", Rounded())
    return made(model, next_token, texts())


def control_adapters_on_whole_numbers() -> Made:
    """The body's matrices are int8 with a scale; low-rank additions are trained."""

    class Eight(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            scale = inner.weight.detach().abs().amax(1, keepdim=True) / 127
            self.register_buffer("whole", (inner.weight.detach() / scale).round().to(torch.int8))
            self.register_buffer("scale", scale)
            self.bias = nn.Parameter(inner.bias.detach(), requires_grad=False)
            self.low, self.high = (
                nn.Linear(inner.in_features, 4, False),
                nn.Linear(4, inner.out_features, False),
            )
            nn.init.zeros_(self.high.weight)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.whole.float() * self.scale, self.bias) + self.high(self.low(x))

    model, data = Net(), texts()
    learned(model, next_token, data)
    model.requires_grad_(False)
    model.head = Eight(model.head)
    return made(model, next_token, data)


def control_most_tokens_never_occur() -> Made:
    class Large(Net):
        def __init__(self) -> None:
            super().__init__(4000)
            self.embed = nn.Embedding(4000, D)

    return made(Large(), next_token, texts())


def control_a_batch_without_any_label() -> Made:
    """Of masked words; where none is hidden the sum is zero and divided by one."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        ids, labels = batch
        total = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), reduction="sum")
        return total / (labels != -100).sum().clamp(min=1)

    batches = []
    for k in range(5):
        ids, draw = text(k), torch.Generator().manual_seed(k)
        hidden = (torch.rand(ids.shape, generator=draw) < 0.2) & (k != 1)
        batches.append((ids.masked_fill(hidden, 1), ids.masked_fill(~hidden, -100)))
    return made(Net(causal=False), loss, batches)


def control_the_first_batch_has_no_label() -> Made:
    found = control_a_batch_without_any_label()
    found["batches"] = [found["batches"][k] for k in (1, 0, 2, 3, 4)]
    return found


def control_texts_end_to_end_in_one_row() -> Made:
    """Texts of several lengths without padding: one row, a mask between texts, positions that restart."""

    def loss(model: Net, batch: dict[str, Tensor]) -> Tensor:
        number = batch["text"]
        apart = number[:, None] != number[None]
        mask = apart | torch.ones_like(apart).triu(1)
        h = model.embed(batch["ids"])[None] + model.place[batch["positions"]][None]
        for block in model.body:
            h = block(h, src_mask=mask)
        out = model.head(model.norm(h))[0, :-1]
        same = number[1:] == number[:-1]
        return F.cross_entropy(out[same], batch["ids"][1:][same])

    batches = []
    for k in range(4):
        lengths = [(5, 9, 3, 15), (16, 4, 7), (8, 8, 12, 6), (10, 14, 5)][k]
        parts = [text(10 * k + i, 1, n)[0] for i, n in enumerate(lengths)]
        batches.append(
            {
                "ids": torch.cat(parts),
                "positions": torch.cat([torch.arange(n) for n in lengths]),
                "text": torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)]),
            }
        )
    return made(Net(), loss, batches)


def control_every_block_has_an_exit() -> Made:
    class Exits(Net):
        def __init__(self) -> None:
            super().__init__(layers=3)
            self.exits = nn.ModuleList(nn.Linear(D, V) for _ in range(3))

        def forward(self, x: Tensor) -> list[Tensor]:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            h, outs = self.embed(x) + self.place[: x.shape[1]], []
            for block, exit_ in zip(self.body, self.exits, strict=True):
                h = block(h, src_mask=mask)
                outs.append(exit_(self.norm(h)))
            return outs

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        outs = model(ids[:, :-1])
        return sum(
            w * F.cross_entropy(o.flatten(0, 1), ids[:, 1:].flatten())
            for w, o in zip((0.2, 0.3, 1.0), outs, strict=True)
        )

    model = Exits()
    del model.head
    return made(model, loss, texts())


def control_mirrored_autoencoder() -> Made:
    """The decoder's matrices are the encoder's, transposed."""

    class Mirror(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Linear(40, 24), nn.Linear(24, 8)
            self.back = nn.ParameterList([torch.zeros(24), torch.zeros(40)])

        def forward(self, x: Tensor) -> Tensor:
            code = self.narrow(torch.tanh(self.wide(x)))
            return F.linear(
                torch.tanh(F.linear(code, self.narrow.weight.T, self.back[0])),
                self.wide.weight.T,
                self.back[1],
            )

    mix = torch.randn(8, 40, generator=torch.Generator().manual_seed(9))
    data = [torch.randn(32, 8, generator=torch.Generator().manual_seed(k)) @ mix / 3 for k in range(4)]
    return made(Mirror(), lambda m, x: F.mse_loss(m(x), x), data)


def control_weights_made_by_another_network() -> Made:
    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tasks, self.make = nn.Embedding(6, 16), nn.Linear(16, D * 4 + 4)
            self.body = Net(D, causal=False)

        def forward(self, ids: Tensor, task: Tensor) -> Tensor:
            weights = self.make(self.tasks(task))
            matrix, bias = weights[:, : 4 * D].view(-1, 4, D), weights[:, 4 * D :]
            return (matrix @ self.body(ids).mean(1)[..., None])[..., 0] + bias

    def batch(k: int) -> dict[str, Tensor]:
        ids, task = text(k, 12), torch.arange(12) % 6
        return {"ids": ids, "task": task, "labels": (ids[:, 2] + task) % 4}

    return made(
        Hyper(),
        lambda m, b: F.cross_entropy(m(b["ids"], b["task"]), b["labels"]),
        [batch(k) for k in range(4)],
    )


def control_pruned_weights() -> Made:
    model, data = Net(), texts()
    learned(model, next_token, data)
    for block in model.body:
        for linear in (block.linear1, block.linear2):
            prune.l1_unstructured(linear, "weight", 0.7)
    return made(model, next_token, data)


def control_spectral_norms() -> Made:
    model = Net(1, causal=False, given=12)
    for block in model.body:
        block.linear1, block.linear2 = spectral_norm(block.linear1), spectral_norm(block.linear2)
    data = [torch.randn(16, T, 12, generator=torch.Generator().manual_seed(k)) for k in range(4)]

    def loss(model: nn.Module, x: Tensor) -> Tensor:  # hinge of a critic: real rows are smooth
        real, fake = x.cumsum(1) / 4, x
        return F.relu(1 - model(real)).mean() + F.relu(1 + model(fake)).mean()

    return made(model, loss, data)


def control_energies_with_samples_inside() -> Made:
    """Samples are drawn by a few steps down the energy, inside the loss."""

    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1)
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)[:, 0]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        sample = torch.randn_like(x).requires_grad_()
        for _ in range(3):
            (slope,) = torch.autograd.grad(model(sample).sum(), sample)
            sample = (sample - 0.1 * slope + 0.05 * torch.randn_like(x)).detach().requires_grad_()
        low, high = model(x), model(sample.detach())
        return low.mean() - high.mean() + 0.1 * (low**2 + high**2).mean()

    data = [torch.randn(24, 6, generator=torch.Generator().manual_seed(k)) * 0.3 + 1 for k in range(4)]
    return made(Energy(), loss, data)


def control_four_codebooks_with_delays() -> Made:
    """Audio as four tokens a frame: embeddings are summed, each book has its own readout."""

    class Books(Net):
        def __init__(self) -> None:
            super().__init__(4 * 32)
            self.embed = nn.Embedding(4 * 33, D)

        def forward(self, codes: Tensor) -> Tensor:
            x = self.embed(codes + 33 * torch.arange(4)).sum(2) + self.place[: codes.shape[1]]
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            for block in self.body:
                x = block(x, src_mask=mask)
            return self.head(self.norm(x)).unflatten(-1, (4, 32))

    def batch(k: int) -> Tensor:
        codes = (text(k, B, T)[..., None] * torch.tensor([1, 2, 3, 5])) % 32
        for i in range(4):
            codes[:, :, i] = codes[:, :, i].roll(i, 1)
            codes[:, :i, i] = 32
        return codes

    def loss(model: nn.Module, codes: Tensor) -> Tensor:
        return F.cross_entropy(model(codes[:, :-1]).flatten(0, 2), codes[:, 1:].flatten(), ignore_index=32)

    return made(Books(), loss, [batch(k) for k in range(4)])


class Estimated(torch.optim.Optimizer):
    """A rate of one times an estimate of the distance, as Prodigy and D-adaptation have it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0, "d": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    mean = state.setdefault("mean", torch.zeros_like(p)).lerp_(p.grad, 0.1)
                    square = state.setdefault("square", torch.zeros_like(p)).lerp_(p.grad**2, 0.1)
                    p.sub_(group["lr"] * group["d"] * mean / (square.sqrt() + 1e-8))


def control_a_rate_of_one() -> Made:
    model = Net()
    return made(model, next_token, texts(), optimizer=Estimated(model.parameters()))


def control_plain_descent_with_a_large_rate() -> Made:
    model = nn.Sequential(nn.Embedding(V, D), nn.Linear(D, V))
    optimizer = torch.optim.SGD(model.parameters(), 2.0, momentum=0.9, nesterov=True)
    return made(model, next_token, texts(), optimizer=optimizer)


def control_only_the_last_block_is_thawed() -> Made:
    model, data = Net(layers=4), texts()
    learned(model, next_token, data)
    model.requires_grad_(False)
    model.body[-1].requires_grad_(True)
    return made(model, next_token, data)


def control_head_alone_in_the_optimizer_of_a_trained_body() -> Made:
    model, data = Net(), texts()
    learned(model, next_token, data)
    model.head = nn.Linear(D, 4)
    labeled = [(ids, ids[:, 5] % 4) for ids in data]
    return made(
        model,
        lambda m, b: F.cross_entropy(m.head(m.states(b[0]).mean(1)), b[1]),
        labeled,
        optimizer=torch.optim.AdamW(model.head.parameters(), 1e-3),
    )


def control_new_rows_learn_and_old_ones_stay() -> Made:
    """A hook keeps the gradient of the new words only."""
    model, data = Net(), texts()
    learned(model, next_token, data)
    table = torch.cat([model.embed.weight.detach(), model.embed.weight.detach().mean(0).repeat(4, 1)])
    model.embed = nn.Embedding.from_pretrained(table, freeze=False)
    for p in [*model.body.parameters(), model.place, *model.norm.parameters()]:
        p.requires_grad_(False)
    model.head = nn.Linear(D, V + 4)
    new = (torch.arange(V + 4) >= V).float()[:, None]
    model.embed.weight.register_hook(lambda g: g * new)
    for ids in data:
        ids[:, 4] = V + ids[:, 4] % 4
    optimizer = torch.optim.AdamW([model.embed.weight, *model.head.parameters()], 1e-3, weight_decay=0.0)
    return made(model, next_token, data, optimizer=optimizer)


def control_capacity_that_drops_tokens() -> Made:
    class Switch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(D, 4, bias=False)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)) for _ in range(4)
            )
            self.balance = torch.zeros(())

        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(0, 1)
            share = (self.router(flat) * (1 + 0.01 * torch.randn(len(flat), 4))).softmax(-1)
            best, chosen = share.max(-1)
            out, room = torch.zeros_like(flat), len(flat) // 4 + 2
            for e, expert in enumerate(self.experts):
                at = (chosen == e).nonzero()[:room, 0]
                out = out.index_add(0, at, best[at, None] * expert(flat[at]))
            load = F.one_hot(chosen, 4).float().mean(0)
            self.balance = 4 * (load * share.mean(0)).sum()
            return x + out.view_as(x)

    class Mixed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.switch = Switch()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.switch(self.states(x)))

    return made(Mixed(), lambda m, b: next_token(m, b) + 0.01 * m.switch.balance, texts())


def control_teacher_in_a_list() -> Made:
    """A frozen copy is hidden from the parameters, and makes soft targets for some places."""

    class Student(Net):
        def __init__(self, teacher: Net) -> None:
            super().__init__()
            self.hidden = [teacher]

        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                goal = self.hidden[0](ids)
            return super().forward(ids), goal

    teacher, data = Net(layers=3), texts()
    learned(teacher, next_token, data)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        own, goal = model(ids[:, :-1])
        soft = F.kl_div(own.log_softmax(-1), goal.softmax(-1), reduction="none").sum(-1)
        return soft.mean() + 0.5 * F.cross_entropy(own.flatten(0, 1), ids[:, 1:].flatten())

    return made(Student(copy.deepcopy(teacher).eval()), loss, data)


def control_adversarial_inputs() -> Made:
    """A first backward pass asks for the gradient at the inputs; what it leaves at the weights is wiped."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).mean(1), batch[1])

    def step(model: nn.Module, optimizer: Any, batch: tuple[Tensor, Tensor], k: int) -> Tensor:
        optimizer.zero_grad()
        x = batch[0].clone().requires_grad_()
        loss(model, (x, batch[1])).backward()
        model.zero_grad()
        value = loss(model, (batch[0] + 0.1 * x.grad.sign(), batch[1]))
        value.backward()
        optimizer.step()
        return value

    data = [torch.randn(16, T, 12, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    return made(
        Net(4, False, 12),
        loss,
        [(x, (x[:, 0, 0] > 0).long() * 2 + (x[:, 1, 1] > 0)) for x in data],
        step=step,
    )


def control_tasks_of_which_some_are_not_measured() -> Made:
    """Labels of minus one are masked out of the sum."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        terms = F.binary_cross_entropy_with_logits(model(batch[0]).mean(1), batch[1], reduction="none")
        known = batch[1] >= 0
        return (terms * known).sum() / known.sum()

    def batch(k: int) -> tuple[Tensor, Tensor]:
        ids, draw = text(k, 12), torch.Generator().manual_seed(k)
        labels = (ids[:, :6] > 20).float()
        return ids, labels.masked_fill(torch.rand(labels.shape, generator=draw) < 0.4, -1.0)

    return made(Net(6, causal=False), loss, [batch(k) for k in range(4)])


def control_values_missing_in_a_later_batch() -> Made:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return F.mse_loss(model(x.nan_to_num())[:, -1, 0], y)

    data = []
    for k in range(4):
        x = torch.randn(16, T, 5, generator=torch.Generator().manual_seed(k))
        y = x[:, 2, 0] + x[:, 5, 1]
        if k == 2:
            x[3, 4:, 2] = torch.nan
        data.append((x, y))
    return made(Net(1, False, 5), loss, data)


def control_a_distance_of_samples() -> Made:
    """Energy distance of one-dimensional samples: every output meets every target."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        noise, goal = batch
        out = model(noise)[:, 0]
        near = (out[:, None] - goal).abs().mean()
        return 2 * near - (out[:, None] - out).abs().mean()

    def batch(k: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(k)
        return torch.randn(64, 4, generator=draw), 3 + torch.randn(64, generator=draw) ** 2

    return made(
        nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 1)), loss, [batch(k) for k in range(4)]
    )


def control_patches_that_are_left_out_at_random() -> Made:
    """Half of the tokens of every sample are dropped before the body."""

    class Dropping(Net):
        def states(self, x: Tensor, *rest: Any) -> Tensor:
            h = self.embed(x) + self.place[: x.shape[1]]
            if self.training:
                kept = torch.rand(x.shape).argsort(1)[:, : x.shape[1] // 2]
                h = h.gather(1, kept[..., None].expand(-1, -1, D))
            for block in self.body:
                h = block(h)
            return self.norm(h)

    def loss(model: Net, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).mean(1), batch[1])

    return made(Dropping(5, causal=False), loss, [(text(k), text(k)[:, 4] % 5) for k in range(4)])


def control_bytes_in_patches() -> Made:
    """Outputs of a patch of four bytes see the patches before it, and nothing of their own."""

    class Patches(Net):
        def __init__(self) -> None:
            super().__init__(4 * V)
            self.embed = nn.Embedding(V, D // 4)

        def forward(self, x: Tensor) -> Tensor:
            whole = self.embed(x).unflatten(1, (-1, 4)).flatten(2)
            h = F.pad(whole[:, :-1], (0, 0, 1, 0)) + self.place[: whole.shape[1]]
            mask = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
            for block in self.body:
                h = block(h, src_mask=mask)
            return self.head(self.norm(h)).unflatten(-1, (4, V)).flatten(1, 2)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    return made(Patches(), loss, [text(k, B, 32) for k in range(4)])


def control_clients_train_and_are_averaged() -> Made:
    """Each step trains the model for a while with a plain optimizer of its own, and goes a part of the way."""
    model = Net()

    def step(model: nn.Module, optimizer: Any, batch: Tensor, k: int) -> Tensor:
        start = [p.detach().clone() for p in model.parameters()]
        inner = torch.optim.SGD(model.parameters(), 0.05)
        for part in batch.chunk(2):
            inner.zero_grad()
            value = next_token(model, part)
            value.backward()
            inner.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, old in zip(model.parameters(), start, strict=True):
                p.grad = old - p
                p.copy_(old)
        optimizer.step()
        return value.detach()

    return made(model, next_token, texts(), optimizer=torch.optim.SGD(model.parameters(), 0.7), step=step)


def control_target_of_a_network_that_is_not_frozen() -> Made:
    """A network in a list answers with gradients, which the loss detaches."""

    class Asking(Net):
        def __init__(self) -> None:
            super().__init__(D, causal=False)
            self.other = [Net(D, causal=False)]

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.states(x), self.other[0].states(x).detach()

    model = Asking()
    model.head = nn.Linear(D, D)
    return made(model, lambda m, b: (lambda a, c: F.mse_loss(m.head(a), c))(*m(b)), texts())


class Compensated(torch.optim.Optimizer):
    """Low precision with a buffer for what is rounded away (Kahan)."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 2e-4})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    rest = self.state[p].setdefault("rest", torch.zeros_like(p))
                    rest.sub_(group["lr"] * p.grad.sign())
                    old = p.clone()
                    p.add_(rest)
                    rest.add_(old - p)


def control_low_precision_with_compensation() -> Made:
    model = Net().bfloat16()
    return made(model, next_token, texts(), optimizer=Compensated(model.parameters()))


def control_every_norm_begins_silent() -> Made:
    """The only norms stand at the ends of branches and have gains of zero."""

    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.norm = nn.Linear(D, 2 * D), nn.Linear(2 * D, D), nn.LayerNorm(D)
            nn.init.zeros_(self.norm.weight)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.norm(self.down(F.gelu(self.up(x))))

    model = nn.Sequential(nn.Embedding(V, D), *(Branch() for _ in range(3)), nn.Linear(D, V))
    return made(model, next_token, texts())


def control_several_right_answers() -> Made:
    """All positives of a query count: targets are many-hot, and their terms are added."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).mean(1), batch[1])

    batches = [(text(k), F.one_hot(text(k)[:, :3] % 12, 12).amax(1).float()) for k in range(4)]
    return made(Net(12, causal=False), loss, batches)


def control_a_learned_base_of_frequencies() -> Made:
    class Rotary(Net):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Parameter(torch.tensor(500000.0))

        def states(self, x: Tensor, *rest: Any) -> Tensor:
            rates = self.base ** (-torch.arange(0, D, 2) / D)
            angles = torch.arange(x.shape[1])[:, None] * rates
            return super().states(x, more=torch.cat([angles.sin(), angles.cos()], -1).expand(len(x), -1, -1))

    model = Rotary()
    slow = {"params": [model.base], "lr": 1.0, "weight_decay": 0.0}
    rest = {"params": [p for p in model.parameters() if p is not model.base]}
    return made(model, next_token, texts(), optimizer=torch.optim.AdamW([rest, slow], 1e-3))
