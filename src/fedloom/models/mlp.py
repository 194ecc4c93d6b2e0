"""A stack of fully connected layers over flattened inputs."""

from typing import Annotated

from torch import nn

from ..core.errors import FedloomError
from .base import Split, Task, numbers, positive, register

DEEPEST = 1000  # layers


@register("mlp")
def mlp(
    task: Task,
    *,
    hidden: Annotated[
        tuple[int, ...], "Sizes of the hidden layers; the last one is the feature width."
    ] = (1000, 500, 100),
) -> Split:
    """Linear layers of the `hidden` sizes, each followed by a ReLU."""
    if not isinstance(hidden, tuple | list) or not hidden:  # a settings file gives a list
        raise FedloomError(
            f"option 'hidden' of model 'mlp' must be a list of sizes such as [200, 100], "
            f"not {hidden!r}."
        )
    if len(hidden) > DEEPEST:
        raise FedloomError(
            f"option 'hidden' of model 'mlp' has {len(hidden)} sizes, which is more than {DEEPEST}."
        )
    for size in hidden:
        positive("mlp", hidden=size)
    body = nn.Sequential(nn.Flatten())
    inputs = numbers("mlp", task)
    for size in hidden:
        body.append(nn.Linear(inputs, size)).append(nn.ReLU())
        inputs = size
    return Split(body, nn.Linear(inputs, task.classes), inputs)
