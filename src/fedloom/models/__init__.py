"""Models, each split into a body (input -> features) and a head (features -> logits)."""

from .base import MODELS, Split, Task, build, doc, options, register, spelling, split

__all__ = ["MODELS", "Split", "Task", "build", "doc", "options", "register", "spelling", "split"]
