"""Networks over flattened inputs: a stack of fully connected layers, and a single linear one."""

from torch import nn

from ..core.errors import FedloomError
from .base import Split, Task, numbers, positive, register


@register("mlp")
def mlp(task: Task, *, hidden: tuple[int, ...] = (1000, 500, 100)) -> Split:
    """Linear layers of the `hidden` sizes, each followed by a ReLU; the last size is the feature width."""
    if not isinstance(hidden, tuple | list) or not hidden:  # a list: what a settings file gives
        raise FedloomError(
            f"option 'hidden' of model 'mlp' must be a list of sizes such as [200, 100], not {hidden!r}."
        )
    for size in hidden:
        positive("mlp", hidden=size)
    body = nn.Sequential(nn.Flatten())
    inputs = numbers("mlp", task)
    for size in hidden:
        body.append(nn.Linear(inputs, size)).append(nn.ReLU())
        inputs = size
    return Split(body, nn.Linear(inputs, task.classes), inputs)


@register("linear")
def linear(task: Task) -> Split:
    """Multinomial logistic regression: the features are the flattened inputs."""
    inputs = numbers("linear", task)
    return Split(nn.Flatten(), nn.Linear(inputs, task.classes), inputs)
