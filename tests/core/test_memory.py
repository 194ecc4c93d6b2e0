"""The allocator's thresholds."""

import subprocess
import sys

import pytest

PROBE = """
import resource, torch
from fedloom.core.memory import keep_freed_memory
done = keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(15):  # until the heap has its shape
    torch.ones(20_000_000).sum()
before = faults()
for _ in range(20):
    torch.ones(20_000_000).sum()
print(done, faults() - before)
"""


def probe(setting: str) -> tuple[bool, int]:
    environment = {"FEDLOOM_MALLOC": setting, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    return kept == "True", int(faults)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_memory_is_used_again_unless_told_otherwise() -> None:
    pytest.importorskip("resource", reason="page faults are counted with it")
    kept, few = probe("1")
    left, many = probe("0")
    assert not left
    if not kept:
        pytest.skip("another C library than glibc")
    assert few < many / 2
