"""A single linear layer over flattened inputs."""

from torch import nn

from .base import Split, Task, numbers, register


@register("linear")
def linear(task: Task) -> Split:
    """Multinomial logistic regression: the features are the flattened inputs."""
    inputs = numbers("linear", task)
    return Split(nn.Flatten(), nn.Linear(inputs, task.classes), inputs)
