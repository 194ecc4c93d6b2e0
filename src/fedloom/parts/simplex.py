"""Problems on the simplex: weights that are not negative and sum to 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def project(v: Tensor) -> Tensor:
    """The point of the simplex nearest to the vector `v`."""
    u = v.double().sort(descending=True).values
    shifts = (1 - u.cumsum(0)) / torch.arange(1, len(u) + 1)
    last = int((u + shifts > 0).nonzero()[-1])  # how many entries stay above 0, counted from 0
    return (v.double() + shifts[last]).clamp(min=0).to(v.dtype)


def least_norm(gram: Tensor) -> Tensor:
    """Weights l on the simplex that minimise |sum_k l_k u_k|^2, given the Gram matrix of the u.

    Non-negative least squares for |U l|^2 + (sum l - 1)^2 has the same solution up to scale. For
    l = s m with m on the simplex, the best s leaves |U m|^2 / (1 + |U m|^2), which grows with
    |U m|^2.
    """
    from scipy.optimize import nnls  # imported here because SciPy takes a while

    values, vectors = np.linalg.eigh(gram.double().numpy())
    values = np.clip(values, 0, None)  # rounding may have made them negative
    root = np.sqrt(values)[:, None] * vectors.T  # root.T @ root = gram
    n = len(gram)
    solution, _ = nnls(np.vstack([root, np.ones(n)]), np.append(np.zeros(n), 1.0), maxiter=30 * n)
    return torch.from_numpy(solution / solution.sum())


def consensus(deltas: Sequence[Tensor]) -> Tensor:
    """The step along the shortest convex combination of directions, as long as the mean update.

    An update of 0 has no direction: it shortens the step, and has no say in where it goes.
    """
    norms = torch.stack([delta.norm() for delta in deltas])
    if not norms.any():
        return torch.zeros_like(deltas[0])
    directions = []
    for delta, norm in zip(deltas, norms, strict=True):
        if norm > 0:
            directions.append(delta.flatten() / norm)
    rows = torch.stack(directions)
    weights = least_norm(rows @ rows.T).to(rows)
    return (norms.mean() * (weights @ rows)).view_as(deltas[0])
