"""Sharpness-aware minimisation: the gradient is taken a little uphill."""

from __future__ import annotations

from ..core.tree import Tree


def uphill(g: Tree, rho: float) -> Tree:
    """The step of length `rho` along the gradient `g`; its norm is over all tensors together."""
    return g * (rho / g.norm().clamp(min=1e-12))


def uphill_adaptive(g: Tree, w: Tree, rho: float, eta: float) -> Tree:
    """The same, scaled by T = |w| + eta (weights) or 1 (all else): rho T^2 g / |T g|."""
    factors = {}
    for name, tensor in w.only(g).items():
        if name.split(".")[-1] == "weight":  # what a module calls its parameter
            factors[name] = tensor.abs() + eta
        else:
            factors[name] = tensor * 0 + 1  # a bias of 0 would never move with T = |w|
    scale = Tree(factors)
    return scale * uphill(scale * g, rho)
