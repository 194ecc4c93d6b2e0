"""What rules for low-rank factors reach and send, beside the head and all of the network.

    python -m benchmarks.adapters --out runs/adapters
    python -m benchmarks.adapters --data ag_news --seeds 0 --out runs/adapters-texts

The first is a small ViT on PACS by domain, the second MiniLM on AG News. Each run is a folder below
`--out`; one that is finished is not computed again. Step sizes were chosen by accuracy on held-out
samples of a seed that is in no table.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import fedloom
from fedloom.data.federation import Federation
from fedloom.engine.config import build
from fedloom.engine.setup import deal

# A row: method, adapter, and what else it needs.
ROWS: dict[str, dict[str, Any]] = {
    "FedIT": {"method": "fedit", "rank": 4},
    "FFA-LoRA": {"method": "ffa-lora", "rank": 4},
    "FedSA-LoRA": {"method": "fedsa-lora", "rank": 4},
    "head only": {"method": "fedavg", "adapter": "head"},
    "full": {"method": "fedavg"},
}
PACS: dict[str, Any] = {
    "partition": "domains",
    "clients": 4,
    "size": 64,
    "limit_train": 8,
    "limit_test": 6,
    "validation": 0.25,
}
TEXTS: dict[str, Any] = {
    "partition": "dirichlet",
    "beta": 0.5,
    "clients": 4,
    "length": 48,
    "limit_train": 32,
    "limit_test": 25,
}
TRAINING: dict[str, Any] = {"optimizer": "adamw", "batch": 16}


class Setting(NamedTuple):
    """Data dealt to clients, the network that learns them, and the step sizes that suit it."""

    dealt: dict[str, Any]
    model: str
    rounds: int
    factors: float
    head: float
    full: float

    def lr(self, row: str) -> float:
        """The step size of a row of the table."""
        return {"head only": self.head, "full": self.full}.get(row, self.factors)


SETTINGS = {
    "pacs": Setting(PACS, "pretrained", 4, factors=3e-3, head=3e-2, full=3e-4),
    "ag_news": Setting(TEXTS, "minilm", 3, factors=3e-3, head=3e-2, full=3e-4),
}


@lru_cache(maxsize=1)
def world(data: str, seed: int) -> Federation:
    """The data among four clients."""
    return deal(build({"data": data, "seed": seed}, SETTINGS[data].dealt))


def run(data: str, row: str, seed: int, out: Path, **others: Any) -> dict[str, Any]:
    """Accuracy on test and validation samples, floats up and CPU seconds of one run."""
    setting = SETTINGS[data]
    folder = out / f"{row.lower().replace(' ', '-')}-{seed}-{setting.rounds}"
    told = folder / "figures.json"
    if told.exists():
        return dict(json.loads(told.read_text()))
    options = {**TRAINING, "lr": setting.lr(row), **ROWS[row], **others}
    method, federation = options.pop("method"), world(data, seed)
    clock = time.process_time()
    done = fedloom.run(
        method, federation, model=setting.model, seed=seed, rounds=setting.rounds,
        eval_every=setting.rounds, out=folder, report=False, **options,
    )  # fmt: skip
    last = done.metrics[-1]
    figures = {
        "personal": last["personal"]["accuracy_weighted"],
        "validation": last["validation"]["personal"],
        "floats": last["floats"]["up"],
        "seconds": time.process_time() - clock,
        "error": last.get("figures", {}).get("averaging_error"),
    }
    told.write_text(json.dumps(figures))
    return figures


def table(data: str, seeds: list[int], out: Path) -> list[str]:
    """A line of Markdown for each row."""
    lines = ["| | accuracy | floats each way | CPU seconds | averaging error |"]
    lines.append("|---|---:|---:|---:|---:|")
    runs = {(row, seed): run(data, row, seed, out) for seed in seeds for row in ROWS}
    for row in ROWS:
        found = [runs[row, seed] for seed in seeds]
        scores = [100 * one["personal"] for one in found]
        spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
        errors = [one["error"] for one in found if one["error"] is not None]
        error = f"{mean(errors):.3f}" if errors else "-"
        seconds = mean(one["seconds"] for one in found)
        floats = f"{found[0]['floats']:,.0f}".replace(",", " ")
        lines.append(f"| {row} | {mean(scores):.1f}{spread} | {floats} | {seconds:.0f} | {error} |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/adapters"))
    parser.add_argument("--data", choices=SETTINGS, default="pacs")
    parser.add_argument("--seeds", default="0,1,2")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    print("\n".join(table(given.data, seeds, given.out)))


if __name__ == "__main__":
    main()
