"""Run the contenders one after another, each alone on the machine, and compare their figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from fedloom.core.errors import FedloomError, unknown

from .environment import PEERS, PeerError, installed, last_words, version
from .work import JOBS, Job, write

Say = Callable[[str], object]
Step = Callable[[str, int, int], object]  # who is on, how many are done, of how many
Row = dict[str, Any]
LIMIT = 1800.0  # seconds after which a contender is ended
SAMPLED = 0.25  # seconds between two looks at the memory


@dataclass(frozen=True)
class Contender:
    """One way to do the work: the arguments for Python, and whose environment it runs in.

    In the arguments, `{work}` stands for the job's folder.
    """

    name: str
    arguments: tuple[str, ...]
    peer: str = ""  # empty: ours, in this environment
    before: tuple[str, ...] = ()  # run once, untimed, before it
    jobs: str = "abcd"  # those it takes part in


def _ours(name: str, executor: str, precision: str = "fp32") -> Contender:
    module = ("-m", "benchmarks.peers.ours", "{work}")
    settle = (*module, "settle", precision) if executor == "auto" else ()
    return Contender(name, (*module, executor, precision), before=settle)


def contenders(pfllib: Path | None = None) -> list[Contender]:
    """Everyone, the bare loop and ours first, two workers of one thread each if we can choose."""
    module = "benchmarks.peers."
    several = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    found = [
        Contender("bare loop", ("-m", module + "bare", "{work}")),
        _ours("inplace", "inplace"),
        _ours("pool of 2", "pool"),
        _ours("auto", "auto"),
        replace(
            _ours("vmap", "vmap"), jobs="c"
        ),  # elsewhere there is nothing to stack, and it is `inplace`
        _ours("inplace, bf16", "inplace", "bf16"),
        _ours("pool of 2, bf16", "pool", "bf16"),
        Contender("Flower, 2 actors", ("-m", module + "flower", "{work}", "2"), "flower"),
        Contender("pfl", ("-m", module + "pfl", "{work}"), "pfl"),
        Contender("pfl, 2 processes", (*several, "-m", module + "pfl", "{work}"), "pfl"),
        Contender("fluke", ("-m", module + "fluke", "{work}"), "fluke"),
    ]
    if pfllib:
        found.append(
            Contender(
                "PFLlib", ("-m", module + "pfllib", "{work}", str(pfllib.resolve())), "pfllib"
            )
        )
    return found


@dataclass(frozen=True)
class Goal:
    """What a ratio of seconds per round should be; of several names, the quickest counts."""

    job: str
    above: tuple[str, ...]
    below: tuple[str, ...]
    bound: float | None = None  # None: told, but nobody asked for it
    at_least: bool = True

    @property
    def title(self) -> str:
        """What is divided by what."""
        return " / ".join(
            "quickest of " * (len(n) > 1) + " and ".join(n) for n in (self.above, self.below)
        )

    def judged(self, rows: Iterable[Row]) -> Row:
        """The ratio and whether it is as it should be; None where somebody is missing."""
        seconds = {
            r["contender"]: r["round"] for r in rows if r["job"] == self.job and r.get("round")
        }
        # All must be there: without the quickest, the others would make the ratio look too good.
        above, below = (
            min(seconds[n] for n in names) if set(names) <= set(seconds) else None
            for names in (self.above, self.below)
        )
        ratio = above / below if above and below else None
        met = None
        if ratio is not None and self.bound is not None:
            met = ratio >= self.bound if self.at_least else ratio <= self.bound
        return {
            "job": self.job,
            "what": self.title,
            "ratio": ratio,
            "bound": self.bound,
            "at_least": self.at_least,
            "met": met,
        }


PFL, FLOWER, FLUKE = ("pfl", "pfl, 2 processes"), ("Flower, 2 actors",), ("fluke",)
AUTO = ("auto",)
OURS = {"c": ("auto", "vmap")}  # where there is a choice, the quicker of them
GOALS = [
    *(
        Goal(j, ("inplace",), ("bare loop",), 1.05 if j in "ad" else None, at_least=False)
        for j in "abcd"
    ),
    *(Goal(j, AUTO, ("inplace", "pool of 2"), 1.05, at_least=False) for j in "abcd"),
    Goal("a", ("PFLlib",), ("pool of 2",), 3.0),
    Goal("a", ("PFLlib",), ("pool of 2, bf16",), 4.0),
    *(Goal(j, FLOWER, OURS.get(j, AUTO), {"a": 1.3, "c": 5.0}.get(j)) for j in "abcd"),
    *(Goal(j, PFL, OURS.get(j, AUTO), {"b": 1.5, "c": 1.5}.get(j)) for j in "abcd"),
    *(Goal(j, FLUKE, OURS.get(j, AUTO), None if j == "d" else 2.0) for j in "abcd"),
]


def measure(
    jobs: Sequence[str] = tuple(JOBS),
    only: Sequence[str] = (),
    pfllib: Path | None = None,
    small: bool = False,
    repeats: int = 2,
    say: Say | None = None,
    step: Step | None = None,
) -> Row:
    """All jobs by all contenders (or those whose names begin as `only` says), as plain values.

    They take turns, `repeats` times; the quickest turn counts. Whoever could not be installed or
    fails has the reason in its row.
    """
    say = say or (lambda text: None)
    for name in jobs:
        if name not in JOBS:
            raise unknown("job", name, JOBS)
    if pfllib and not (pfllib / "system" / "flcore").is_dir():
        raise FedloomError(f"{pfllib} is no checkout of PFLlib: it has no folder system/flcore.")
    chosen = [c for c in contenders(pfllib) if not only or c.name.startswith(tuple(only))]
    if not chosen:
        raise unknown("contender", only[0], [c.name for c in contenders(pfllib)])
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > 0.5:
        say(
            f"this machine is busy (load {load:.1f}): "
            "no figure will be true; measure on a quiet one."
        )
    pythons, failed, versions = environments({c.peer for c in chosen if c.peer}, say)
    rows: list[Row] = []
    turns = 1 if small else repeats
    with tempfile.TemporaryDirectory() as place:
        for number, name in enumerate(jobs):

            def on(text: str, done: int, total: int, before: int = number) -> None:
                if step:
                    step(text, before * total + done, len(jobs) * total)

            job = JOBS[name].small() if small else JOBS[name]
            folder = Path(place) / name
            write(job, folder)
            rows += race(
                job, [c for c in chosen if name in c.jobs], folder, pythons, failed, turns, say, on
            )
    return {
        "jobs": [asdict(JOBS[name].small() if small else JOBS[name]) for name in jobs],
        "rows": rows,
        "ratios": [g.judged(rows) for g in GOALS if g.job in jobs],
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0], **versions},
        "cores": os.cpu_count(),
        "load": load,
    }


def environments(
    names: Iterable[str], say: Say
) -> tuple[dict[str, Path], dict[str, str], dict[str, str]]:
    """The interpreters of these peers, why some have none, and the versions found."""
    pythons: dict[str, Path] = {"": Path(sys.executable)}
    failed, versions = {}, {}
    for name in sorted(names):
        try:
            pythons[name] = installed(PEERS[name], say)
            if (found := version(PEERS[name], pythons[name])) is not None:
                versions[name] = found
        except (PeerError, OSError, subprocess.CalledProcessError) as error:
            failed[name] = str(error)
            say(str(error))
    return pythons, failed, versions


def race(
    job: Job,
    chosen: Sequence[Contender],
    folder: Path,
    pythons: Mapping[str, Path],
    failed: Mapping[str, str],
    repeats: int,
    say: Say,
    step: Step,
) -> list[Row]:
    """A row for each contender, with `error` where there is nothing to measure."""
    best: dict[str, Row] = {}
    reference: dict[str, np.ndarray] | None = None
    environment = surroundings(folder)
    for number, c in enumerate([*chosen] * repeats):
        step(f"({job.name}) {c.name}", number, len(chosen) * repeats)
        row: Row = {"job": job.name, "contender": c.name, "peer": c.peer}
        try:
            if c.peer in failed:
                raise PeerError(failed[c.peer])
            python = str(pythons[c.peer])
            if c.before and c.name not in best:
                run([python, *_filled(c.before, folder)], folder, environment)
            started, mb = run([python, *_filled(c.arguments, folder)], folder, environment)
            answer, weights = collect(folder, job)
            if reference is None and c.name == "bare loop":
                reference = weights
            row |= figures(answer, started) | {"mb": mb, "apart": apart(weights, reference)}
            say(
                f"({job.name}) {c.name}: {row['round']:.3f} s a round, "
                f"cold start {row['cold']:.1f} s"
            )
        except PeerError as error:
            row["error"] = str(error)
            say(f"({job.name}) {c.name}: FAILED: {error}")
        if c.name not in best or row.get("round", np.inf) < best[c.name].get("round", np.inf):
            best[c.name] = row
    return [best[c.name] for c in chosen]


def _filled(arguments: Sequence[str], folder: Path) -> list[str]:
    return [a.replace("{work}", str(folder)) for a in arguments]


def surroundings(folder: Path) -> dict[str, str]:
    """Environment variables for contenders: one thread, and nothing of ours but this package."""
    shelf = folder / "path"
    shelf.mkdir(exist_ok=True)
    root = Path(__file__).resolve().parents[2]
    for package in (root / "src" / "fedloom", root / "benchmarks"):
        if not (shelf / package.name).exists():
            (shelf / package.name).symlink_to(package, target_is_directory=True)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PFL_PYTORCH_DEVICE": "cpu",
    }
    # A cache folder of its own: `auto` chooses anew in every measurement.
    ours = {"PYTHONPATH": str(shelf), "FEDLOOM_CACHE": str(folder / "cache")}
    return {n: v for n, v in os.environ.items() if n != "RAY_ADDRESS"} | threads | quiet | ours


def run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> tuple[float, float | None]:
    """Run a command; return when it started and the peak memory of all its processes in MB.

    The memory is None where the system does not tell.
    """
    (folder / "answer.json").unlink(missing_ok=True)
    peak = 0.0
    with (folder / "said").open("w+", errors="replace") as said:
        started = time.monotonic()
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdout=said, stderr=said
        )
        try:
            while process.poll() is None:
                peak = max(peak, memory_mb(process.pid))
                if time.monotonic() - started > LIMIT:
                    raise PeerError(f"not finished after {LIMIT:g} s")
                try:
                    process.wait(SAMPLED)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:  # too slow, or interrupted: nothing of it stays
                for pid in tree(process.pid):
                    try:
                        os.kill(pid, 9)
                    except ProcessLookupError:
                        continue
                process.wait()
        if process.returncode:
            said.seek(0)
            raise PeerError(f"ended with code {process.returncode}: {last_words(said.read())}")
    return started, peak or None


def tree(pid: int) -> list[int]:
    """A process and all that it started, as far as the system tells (Linux)."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it ended meanwhile
            continue
        parents.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def memory_mb(pid: int) -> float:
    """Resident memory of a process and all that it started; what they may share is counted once."""
    own, shared = 0, 0
    for one in tree(pid):
        try:
            _, resident, common = (
                int(n) for n in Path(f"/proc/{one}/statm").read_text().split()[:3]
            )
        except (OSError, ValueError):
            continue
        own += resident - common
        shared = max(shared, common)
    return (own + shared) * os.sysconf("SC_PAGE_SIZE") / 1024**2 if own else 0.0


def collect(folder: Path, job: Job) -> tuple[Row, dict[str, np.ndarray]]:
    """A contender's answer, if it is one."""
    path = folder / "answer.json"
    if not path.exists():
        raise PeerError("ended without an answer")
    try:
        answer = json.loads(path.read_text())
        rounds = len(answer["ends"])
        with np.load(folder / "answer.npz") as held:
            weights = {n: held[n] for n in held.files}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise PeerError(f"its answer cannot be read: {error!r}") from None
    if rounds != job.rounds:
        raise PeerError(f"it did {rounds} rounds in place of {job.rounds}")
    return answer, weights


def figures(answer: Mapping[str, Any], started: float) -> Row:
    """Seconds of a round (the median of all but the first), and those before the first began."""
    ends = answer["ends"]
    later = [b - a for a, b in pairwise(ends)]
    usual = median(later)
    return {
        "round": usual,
        "cold": ends[0] - started - usual,
        "rounds": later,
        "accuracy": answer["accuracy"][-1],
    }


def apart(
    weights: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray] | None
) -> float | None:
    """The largest difference of any weight from the bare loop's; None without the latter.

    Statistics of BatchNorm are left out.
    """
    if reference is None:
        return None
    compared = [n for n in reference if "running_" not in n and "num_batches" not in n]
    if missing := [n for n in compared if n not in weights]:
        raise PeerError(f"its weights lack {missing[0]!r}")
    return max(float(np.abs(weights[n] - reference[n]).max()) for n in compared)
