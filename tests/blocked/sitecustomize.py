"""An interpreter as on a system that is not POSIX: on the path of a process, it takes things away.

`resource` and `fcntl` cannot be imported, and the C library has no `mallopt`. Processes that such a
process starts have it on their path too.
"""

import contextlib
import ctypes
import sys

with contextlib.suppress(ImportError):  # on POSIX systems it needs `resource` itself
    import psutil  # noqa: F401

for name in ("resource", "fcntl"):
    sys.modules[name] = None  # type: ignore[assignment]


def _without_mallopt(library: ctypes.CDLL, name: str) -> object:
    if name == "mallopt":
        raise AttributeError(name)
    return _look_up(library, name)


_look_up = ctypes.CDLL.__getattr__
ctypes.CDLL.__getattr__ = _without_mallopt
