"""How long it takes until fedloom can be used."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

COMMANDS = {
    "torch": ["-c", "import torch"],
    "fedloom": ["-c", "import fedloom"],
    "all": ["-c", "import fedloom; fedloom.run"],  # imported on first use
    "help": ["-m", "fedloom", "--help"],
}


def measure(repeats: int = 7, say: Callable[[str], object] | None = None) -> dict[str, float]:
    """Seconds of each command, and what `import fedloom` takes relative to `import torch`.

    The commands take turns; the quickest of several counts.
    """
    best = dict.fromkeys(COMMANDS, float("inf"))
    for _ in range(repeats):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            best[name] = min(best[name], time.perf_counter() - start)
    ratio = best["fedloom"] / best["torch"]
    whole = best["all"] / best["torch"]
    if say:
        say(
            f"import torch {best['torch']:.2f} s, import fedloom {best['fedloom']:.2f} s, "
            f"with `fedloom.run` {best['all']:.2f} s"
        )
        goal = _goal(1.5, max(ratio, whole))
        say(f"  over torch: {ratio:.2f}, with `fedloom.run` {whole:.2f} ({goal})")
        say(f"fedloom --help {best['help']:.2f} s ({_goal(0.5, best['help'])})")
    return {**best, "fedloom_over_torch": ratio, "all_over_torch": whole}


def _goal(most: float, value: float) -> str:
    missed = "" if value <= most else "; MISSED"
    return f"goal: at most {most:g}{missed}"
