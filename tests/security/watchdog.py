"""A clock that ends whatever hangs: code that waits for ever uses no processor time."""

from __future__ import annotations

import faulthandler
import signal
import sys
from typing import Any, Self

HARD = 60.0  # seconds after which even code that never returns to Python is ended


class Hung(BaseException):
    """No `Exception`: code that survives every error must not survive this one."""


class Watchdog:
    """Raises `Hung` if it is not fed for some seconds while it is open."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGALRM, self._bite)
        self.feed()
        return self

    def feed(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        faulthandler.dump_traceback_later(self.seconds + HARD, exit=True, file=sys.__stderr__)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, self._before)

    def _bite(self, *_: Any) -> None:
        raise Hung(f"nothing has happened for {self.seconds} seconds")
