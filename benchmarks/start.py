"""How long it takes until anything can be done."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

COMMANDS = {
    "torch": ["-c", "import torch"],
    "fedloom": ["-c", "import fedloom"],
    "all": ["-c", "import fedloom; fedloom.run"],  # what is imported on first use
    "help": ["-m", "fedloom", "--help"],
}


def measure(repeats: int = 7, say: Callable[[str], object] | None = None) -> dict[str, float]:
    """Seconds of each, the quickest of several, taken in turns; and what `import fedloom` is of `import torch`."""
    best = dict.fromkeys(COMMANDS, float("inf"))
    for _ in range(repeats):
        for name, args in COMMANDS.items():
            clock = time.perf_counter()
            subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)
            best[name] = min(best[name], time.perf_counter() - clock)
    figures = {
        **best,
        "fedloom_over_torch": best["fedloom"] / best["torch"],
        "all_over_torch": best["all"] / best["torch"],
    }
    if say:
        ratio, whole = figures["fedloom_over_torch"], figures["all_over_torch"]
        goal = "" if max(ratio, whole) <= 1.5 else "; MISSED"
        say(
            f"import torch {best['torch']:.2f} s, import fedloom {best['fedloom']:.2f} s, "
            f"with `fedloom.run` {best['all']:.2f} s"
        )
        say(f"  over torch: {ratio:.2f}, with `fedloom.run` {whole:.2f} (goal: at most 1.5{goal})")
        say(
            f"fedloom --help {best['help']:.2f} s (goal: at most 0.5{'' if best['help'] <= 0.5 else '; MISSED'})"
        )
    return figures
