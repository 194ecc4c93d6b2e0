"""Sharpness-aware minimisation: the gradient is taken a little uphill."""

from __future__ import annotations

from ..core.tree import Tree


def uphill(g: Tree, rho: float) -> Tree:
    """The step of length `rho` along the gradient `g`; its norm is over all tensors together."""
    return g * (rho / g.norm().clamp(min=1e-12))


def uphill_adaptive(g: Tree, w: Tree, rho: float, eta: float) -> Tree:
    """The same, scaled by T = |w| + eta (weights) or 1 (all else): rho T^2 g / |T g|."""
    # A parameter's own name in its module; T = 1 keeps biases from standing still at 0.
    scale = Tree(
        (n, t.abs() + eta if n.split(".")[-1] == "weight" else t * 0 + 1)
        for n, t in w.only(g).items()
    )
    return scale * uphill(scale * g, rho)
