"""A network that writes the weights of others: one vector in, the tensors of a model out."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..core.tree import Tree


def first_writer(
    like: Tree, clients: int, width: int, hidden: int, depth: int, rng: torch.Generator
) -> Tree:
    """Its first weights: a vector per client, `depth` + 1 hidden layers, a layer for each tensor.

    Layers are drawn as torch draws them, vectors from a normal distribution.
    """
    tensors = {"vectors": torch.randn(clients, width, generator=rng)}
    sizes = {f"hidden{i}": (hidden, hidden if i else width) for i in range(depth + 1)}
    sizes |= {f"to:{name}": (tensor.numel(), hidden) for name, tensor in like.items()}
    for name, (rows, columns) in sizes.items():
        bound = columns**-0.5
        for part, shape in (("weight", (rows, columns)), ("bias", (rows,))):
            drawn = torch.empty(shape).uniform_(-bound, bound, generator=rng)
            tensors[f"{name}.{part}"] = drawn
    return Tree(tensors)


def writable(writer: Tree, model: Tree) -> Tree:
    """Those of a model's tensors that it writes."""
    return model.only([name for name in model if f"to:{name}.weight" in writer])


def written(writer: Tree, like: Tree, k: int) -> Tree:
    """The tensors that it writes for client k, of the shapes of `like`."""
    h, i = writer["vectors"][k], 0
    while f"hidden{i}.weight" in writer:
        if i:
            h = F.relu(h)
        h = F.linear(h, writer[f"hidden{i}.weight"], writer[f"hidden{i}.bias"])
        i += 1
    made = {}
    for name, tensor in like.items():
        flat = F.linear(h, writer[f"to:{name}.weight"], writer[f"to:{name}.bias"])
        made[name] = flat.view_as(tensor)
    return Tree(made)


def blame(writer: Tree, like: Tree, k: int, change: Tree) -> Tree:
    """The gradient of <what is written for client k, change> with respect to the writer."""
    with torch.enable_grad():
        w = writer.map(lambda t: t.detach().clone().requires_grad_())
        made = written(w, like, k)
        slopes = torch.autograd.grad(
            list(made.values()),
            list(w.values()),
            [change[name] for name in made],
            materialize_grads=True,
        )
    return Tree(zip(w, slopes, strict=True))
