"""Models, each split into a body (input -> feature vector) and a head (feature vector -> logits)."""

from . import cnn, fasttext, mlp, projection, resnet, unet, vpt  # noqa: F401 - importing them fills the registry
from .base import Split, Task, build, doc, names, options, register, split

__all__ = ["Split", "Task", "build", "doc", "names", "options", "register", "split"]
