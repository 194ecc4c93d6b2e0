"""What a frozen ViT costs in memory, with 2 clients and with 50 that have the same samples.

    python -m benchmarks.frozen

Each count of clients runs in a process of its own: two rounds of Ditto, whose clients remember a
model of their own, with the ViT frozen under a head.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedloom
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.metrics.cost import peak_memory_mb

SAMPLES, CLASSES = 400, 10
ROOT = Path(__file__).resolve().parents[1]


def vit(folder: Path) -> None:
    """A ViT of the size of ViT-S, with random weights."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=384, num_attention_heads=6, intermediate_size=1536, image_size=32, patch_size=8
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    seen = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(seen))


def federation(clients: int) -> Federation:
    """The same images, dealt out to so many clients."""
    rng = np.random.default_rng(0)
    rows = np.arange(SAMPLES)
    data = Dataset(
        name="noise",
        x=torch.from_numpy(rng.integers(0, 256, (SAMPLES, 3, 32, 32)).astype(np.uint8)),
        y=torch.from_numpy(rows % CLASSES),
        domain=torch.zeros(SAMPLES, dtype=torch.int64),
        test=torch.zeros(SAMPLES, dtype=torch.bool),
        classes=tuple(str(c) for c in range(CLASSES)),
        domains=("all",),
    )
    members = []
    for part in np.array_split(rows, clients):
        members.append(Client(part[2:], part[:1], part[1:2], "all"))
    return Federation(data, tuple(members))


def measure(folder: str, clients: int) -> dict[str, Any]:
    """The peak memory of a run, in this process."""
    run = fedloom.run(
        "ditto", federation(clients), model=f"hf:{folder}", frozen=True, rounds=2, batch=8
    )
    up = run.summary["bytes"]["up"]["per_round"] / clients
    return {"clients": clients, "peak_mb": round(peak_memory_mb()), "sent_kb": round(up / 1000, 1)}


def compare(counts: Sequence[int] = (2, 50)) -> list[dict[str, Any]]:
    """The peak memory of a run for each count of clients, in processes of their own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        vit(Path(folder))
        for clients in counts:
            command = [sys.executable, "-m", "benchmarks.frozen", "--measure", folder, str(clients)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
    return rows


def main() -> None:
    """Print a line for each count of clients, and the ratio of their peaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "CLIENTS"))
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure[0], int(given.measure[1]))))
        return
    few, many = compare()
    print(few, many, sep="\n")
    print(f"50 clients need {many['peak_mb'] / few['peak_mb']:.2f} times the memory of 2")


if __name__ == "__main__":
    main()
