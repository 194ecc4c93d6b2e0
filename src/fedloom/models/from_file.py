"""A user's own network from a file: `net.py:function`."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

from torch import nn

from ..core.errors import FedloomError
from ..core.user_files import NAMED, function_of
from .base import Split, Task, in_two, register
from .seen import freeze


@register("py:")
def from_file(
    task: Task,
    name: str,
    *,
    head: Annotated[
        str | None, "The layer that makes the logits, as a dotted path; by default the last linear."
    ] = None,
    frozen: Annotated[bool, "Whether only the head is trained."] = False,
) -> Split:
    """The network that a function in a file of yours makes: `net.py:function`.

    The function gets the task (its `shape` and `classes`) if it takes an argument. What it returns
    needs no body and head: they are found by `split`, and a head of another size is replaced.
    """
    named = NAMED.fullmatch(name)
    assert named is not None  # or this would not have been found
    function: Any = function_of(named["file"], named["function"])
    network = function(task) if inspect.signature(function).parameters else function()
    if not isinstance(network, nn.Module):
        raise FedloomError(f"{name} gives a {type(network).__name__}, not a network.")
    model: Any = in_two(network, head)
    if isinstance(model.head, nn.Linear) and model.head.out_features != task.classes:
        model.head = nn.Linear(model.head.in_features, task.classes)
    if frozen:
        freeze(model.body)
    made: Split = model
    return made
