"""A real browser for the page's tests: a headless chromium, driven through a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedloom.report import RunData

# Screenshots are kept here, below the ignored folder of runs, for whoever wants to look at them.
SHOTS = Path(
    os.environ.get("FEDLOOM_SHOTS", Path(__file__).resolve().parents[2] / "runs" / "screenshots")
)


class Browser:
    """One tab. What the page logs and what it asks the network for is kept."""

    def __init__(self, program: str, profile: Path) -> None:
        to_it, from_it = os.pipe(), os.pipe()

        def connect() -> None:  # the browser listens on 3 and answers on 4
            here, there = os.dup(to_it[0]), os.dup(from_it[1])
            os.dup2(here, 3, inheritable=True)
            os.dup2(there, 4, inheritable=True)

        self.process = subprocess.Popen(
            [
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_it[0])
        os.close(from_it[1])
        self._write, self._read = to_it[1], from_it[0]
        self._count, self._rest, self._session = 0, b"", None
        self.logged: list[str] = []
        self.asked: list[str] = []
        self._loaded = False
        tab = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._next(60)
            assert got is not None, f"{method}: the browser does not answer"
            if got.get("id") == self._count:
                assert "error" not in got, got["error"]
                return got["result"]

    def _next(self, seconds: float) -> dict[str, Any] | None:
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            part = os.read(self._read, 1 << 20)
            assert part, "the browser is gone"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        got: dict[str, Any] = json.loads(line)
        self._note(got.get("method", ""), got.get("params", {}))
        return got

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Runtime.consoleAPICalled":
            self.logged.append(
                f"{told['type']}: {[a.get('value', a.get('description')) for a in told['args']]}"
            )
        elif event == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.logged.append(
                f"exception: {details.get('exception', {}).get('description', details['text'])}"
            )
        elif event == "Log.entryAdded":
            self.logged.append(f"{told['entry']['level']}: {told['entry']['text']}")
        elif event == "Network.requestWillBeSent" and not told["request"]["url"].startswith(
            ("data:", "blob:")
        ):
            self.asked.append(told["request"]["url"])
        elif event == "Page.loadEventFired":
            self._loaded = True

    def open(
        self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        """Open a page and wait until it is loaded and at rest."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.logged, self.asked, self._loaded = [], [], False
        self.call("Page.navigate", url=address)
        self.until(lambda: self._loaded)
        self.rest()

    def rest(self, seconds: float = 0.3) -> None:
        """Let the page do what it has to do."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._next(left)

    def until(self, true: Any, seconds: float = 30) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"waited in vain; logged: {self.logged}"
            self.rest(0.05)

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        got = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def shot(self, name: str, whole: bool = False) -> Path:
        """Keep a picture of the window, or of the whole page."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        got = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path = SHOTS / f"{name}.png"
        path.write_bytes(base64.b64decode(got["data"]))
        return path

    def close(self) -> None:
        """End the browser."""
        self.process.terminate()
        self.process.wait(20)
        os.close(self._write)
        os.close(self._read)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser, or a skip that says why not."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (on Debian: apt install chromium)")
    made = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()


def made(
    method: str,
    accuracies: list[float | None],
    seed: int = 0,
    *,
    rounds: int = 2,
    up: int = 2_000_000,
    domains: list[str] | None = None,
    finished: bool = True,
    hyper: dict[str, Any] | None = None,
    **changes: Any,
) -> RunData:
    """A made-up run whose clients reach the given accuracies in its last round."""
    domains = ["photo", "sketch"] if domains is None else domains
    known = [a for a in accuracies if a is not None] or [0.0]
    mean, after = sum(known) / len(known), [a if a is None else a / 2 for a in accuracies]
    spread = (sum((a - mean) ** 2 for a in known) / len(known)) ** 0.5
    metrics, timing = [], []
    for turn in range(1, rounds + 1):
        level = mean * turn / rounds
        stats = {"accuracy_mean": level, "accuracy_std": spread, "worst_client": min(known)}
        stats |= {
            "domains": dict.fromkeys(domains, level),
            "domain_std": mean / 10,
            "sigma_client": mean / 20,
        }
        metrics.append(
            {
                "round": turn,
                "bytes_total": {"up": up * turn, "down": up * turn},
                "personal": stats,
                "before": stats,
                "after": {**stats, "accuracy_mean": level / 2},
                "common": None,
                "validation": {"personal": level, "common": None},
                "clients": {"before": accuracies, "after": after, "common": None},
            }
        )
        timing.append({"round": turn, "seconds": 1.5, "peak_rss_mb": 512.0})
    three = {"last": mean, "best": mean + 0.01, "best_by_validation": mean - 0.01}
    summary: dict[str, Any] = {
        "method": method,
        "stage": "before",
        "personal": {"accuracy_mean": three, "accuracy_std": {"last": spread}},
        "common": None,
        "domains": {d: three for d in domains},
        "domain_std": {"last": mean / 10},
        "worst_client": {"last": min(known)},
        "bytes": {way: {"per_round": up, "total": up * rounds} for way in ("up", "down")},
        "seconds": 12.3 + seed,
        "peak_rss_mb": 512.0,
        "finished": True,
        "versions": {"fedloom": "0.1.0", "torch": "2.13"},
        **changes,
    }
    owned = [domains[j % len(domains)] if domains else None for j in range(len(accuracies))]
    clients = [
        {"domain": d, "train": 30, "counts": [j + 1, 1234 + seed]} for j, d in enumerate(owned)
    ]
    federation = {
        "data": "toy",
        "partition": "dirichlet",
        "classes": ["cat", "dog"],
        "domains": domains,
    }
    federation["clients"] = clients
    config = {
        "method": method,
        "data": "toy",
        "seed": seed,
        "schedule": {"rounds": rounds},
        "hyper": hyper or {},
    }
    return RunData(method, config, metrics, summary if finished else {}, federation, timing=timing)


@pytest.fixture
def make() -> Callable[..., RunData]:
    """Makes up runs."""
    return made


@pytest.fixture
def comparison() -> list[RunData]:
    """Three methods, three seeds each; fedbn is best in every one."""
    runs = []
    for seed in range(3):
        shift = 0.04 * seed
        runs += [
            made("local", [0.5 + shift, 0.6, 0.7, None], seed, up=0),
            made("fedavg", [0.62, 0.58 + shift, 0.7, 0.9], seed),
            made("fedbn", [0.8, 0.8, 0.8 - shift, 0.8], seed, up=1_000_000),
        ]
    return runs
