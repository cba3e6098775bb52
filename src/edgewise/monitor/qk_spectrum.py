"""How many directions one step of the optimizer changes the logits of a head in.

    dA = W_Q'^T W_K' - W_Q^T W_K = dW_Q^T W_K' + W_Q^T dW_K = X^T Y,  X = [dW_Q / a; W_Q],  Y = [a W_K'; dW_K]
    entropy = -sum p log p,  p = sigma^2 / sum sigma^2,  sigma^2 the eigenvalues of L^T Y Y^T L, 2 d_h x 2 d_h,
    with X X^T = L L^T; a, the larger of |dW| / |W|, makes the rows of X, and those of Y, alike in size

Shapes: matrices (heads, d_h, d).
"""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-13  # of the trace: keeps a change of low rank positive, below what an entropy notices


def spectral_entropy(query: Tensor, key: Tensor, query_after: Tensor, key_after: Tensor) -> Tensor:
    """In nats, per head; 0 is a change of rank one; nan where nothing changed, or something is not finite.

    The largest singular values carry the entropy, so their squares in double precision suffice.
    """
    q, k, q1, k1 = (t.double() for t in (query, key, query_after, key_after))
    dq, dk = q1 - q, k1 - k
    a = torch.maximum(_size(dq) / _size(q), _size(dk) / _size(k))
    XY = torch.stack([torch.cat([dq / a, q], 1), torch.cat([a * k1, dk], 1)])
    gram, other = XY @ XY.mT
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).sum(-1, keepdim=True)
    L = torch.linalg.cholesky_ex(gram + torch.diag_embed(ridge.expand(-1, gram.shape[1]))).L
    product = L.mT @ other @ L
    usable = product.isfinite().all(-1).all(-1)[:, None, None]  # eigvalsh refuses the others
    square = torch.linalg.eigvalsh(torch.where(usable, product, 0.0)).clamp_min(0)
    p = square / square.sum(-1, keepdim=True)
    return -torch.special.xlogy(p, p).sum(-1)


def _size(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
