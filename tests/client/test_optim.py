"""What the optimisers do not load."""

import subprocess
import sys


def test_a_round_does_not_import_a_compiler() -> None:
    """torch's optimiser classes would: seconds in every process."""
    code = "import sys; from fedloom.testing.small_world import trace\n"
    code += "from fedloom.core.lookup import make\n"
    code += "for n in ('fedavg', 'fedpcl', 'scaffold'): trace(make(n), rounds=1)\n"
    code += "assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
