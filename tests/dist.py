"""Try the wheel and the source package, each in an empty folder: `make dist` ends with this.

A new environment gets the wheel, and what a reader types first has to work. Then it gets the source
package instead, whose own tests have to pass. `python tests/dist.py WHEEL SDIST [CONSTRAINTS]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

# What is typed in the folder with the wheel, in this order; each uses what those before have made.
SMALL = "--clients 4 --set steps=2 --set width=4 --set features=8 --set limit_train=40"
QUICK = f"{SMALL} --set limit_test=20 --rounds 1"
COMMANDS = [
    f"compare local fedavg fedbn --seeds 0 {QUICK} --out compared",
    f"advise digits4 --methods fedprox --points 60 --rounds 2 {SMALL} --out advised",
    f"run fedper --data digits4 --partition domains {QUICK} --out run",
    "report run compared --out page.html",
    "new fedmine",
    "check fedmine.py",
    "export run --client 0 --out model",
    "predict model digit.png",
]
START = f"""
import fedloom
settings = dict(partition="domains", clients=4, rounds=1, steps=2, width=4, limit_train=40)
run = fedloom.run("fedbn", "digits4", **settings)
print(run.summary["personal"]["accuracy_mean"]["last"])
assert {str(Path(__file__).parents[1])!r} not in fedloom.__file__, "this is the checkout's"

from PIL import Image
Image.new("RGB", (32, 32), "white").save("digit.png")
"""
TESTS = "tests/core tests/client tests/data/partitions tests/test_house.py tests/test_site.py"


def main(wheel: Path, source: Path, *constraints: str) -> None:
    """Try both; the first thing that fails ends it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FEDLOOM_", "PYTHON"))}
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        environment = home / "venv"
        call = _caller(home, kept)
        call(sys.executable, "-m", "venv", environment)
        programs = environment / ("Scripts" if os.name == "nt" else "bin")
        python = programs / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += [word for file in constraints for word in ("-c", Path(file).resolve())]
        call(*pip, "torch")
        call(*pip, f"{wheel.resolve()}[plots]")

        empty = home / "empty"
        empty.mkdir()
        call = _caller(empty, kept)
        call(python, "-c", START)
        for words in COMMANDS:
            call(programs / "fedloom", *words.split())

        call(*pip, f"{wheel.resolve()}[dev]")  # what tests need beside it
        call(*pip, "--force-reinstall", "--no-deps", source.resolve())
        with tarfile.open(source) as packed:
            packed.extractall(empty, filter="data")
        call = _caller(empty / source.name.removesuffix(".tar.gz"), kept)
        call(python, "-m", "pytest", "-p", "no:cacheprovider", *TESTS.split())
    print(f"{wheel.name} and {source.name} work")


def _caller(folder: Path, environment: dict[str, str]):
    """Runs programs in a folder; one that fails ends everything."""

    def call(*words: object) -> None:
        print("$", *(Path(str(words[0])).name, *words[1:]), flush=True)
        done = subprocess.run([str(word) for word in words], cwd=folder, env=environment)
        if done.returncode:
            raise SystemExit(f"this failed with {done.returncode}")

    return call


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
