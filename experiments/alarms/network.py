"""The networks of the study: torch's encoder on a task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgewise.study.tasks import Task


class Network(nn.Module):
    """torch's encoder on a task: a table or a matrix in front, a matrix behind, causal where the task is text.

    first: a pooled task is read at the first token, which only attention can tell of the others.
    """

    def __init__(
        self,
        data: Task,
        depth: int,
        width: int,
        heads: int,
        pre: bool,
        *,
        dropout: float = 0.0,
        first: bool = False,
    ) -> None:
        super().__init__()
        self.data, self.first = data, first
        self.front: nn.Module = (
            nn.Linear(data.inputs, width) if data.vectors else nn.Embedding(data.inputs, width)
        )
        self.places = nn.Parameter(0.02 * torch.randn(data.tokens, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True, norm_first=pre)
        self.stack = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        for parameter in self.stack.parameters():  # torch copies one layer; here each is drawn
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        self.norm, self.back = nn.LayerNorm(width), nn.Linear(width, data.outputs)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        mask = None if self.data.pooled else nn.Transformer.generate_square_subsequent_mask(n)
        hidden = self.stack(self.front(x) + self.places[:n], mask=mask, is_causal=mask is not None)
        hidden = self.norm(hidden)
        if self.data.pooled:
            hidden = hidden[:, 0] if self.first else hidden.mean(1)
        return self.back(hidden)

    def attentions(self) -> list[nn.MultiheadAttention]:
        return [layer.self_attn for layer in self.stack.layers]
