"""The commands of docs/flower.md, typed as they are printed: a real federation with TLS and keys.

What differs from the page are names of machines, places and ports, and the size of the work. The
simulation is typed too, where Ray is installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import stand_ins
from tests.documented import ROOT, blocks, commands

PAGE = ROOT / "docs" / "flower.md"
PROGRAMS = ("fedloom", "flwr", "flower-superlink", "flower-supernode", "for")
SIMULATION = ("num-supernodes", "init app")
SITES = ("hospital-a", "hospital-b", "hospital-c")


def printed(*programs: str, simulation: bool = False) -> list[str]:
    """The lines of the page's blocks that begin with one of these programs, in their order."""
    lines = []
    for block in blocks(PAGE, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            wanted = line.startswith(tuple(f"{program} " for program in programs))
            if wanted and any(word in line for word in SIMULATION) == simulation:
                lines.append(line)
    return lines


def only(*starts: str) -> str:
    """The one line of the page that begins like this."""
    (line,) = [line for line in printed(*PROGRAMS) if line.startswith(starts)]
    return line


def test_the_page_has_a_federation_from_certificates_to_predictions() -> None:
    starts = [" ".join(line.split()[:2]) for line in printed(*PROGRAMS)]
    assert starts == [
        "fedloom flower",  # certs
        "flower-superlink --host",
        "for k",  # registers the keys
        "flower-supernode --superlink",
        "fedloom flower",  # init
        "flwr run",
        "fedloom report",
        "fedloom export",
        "fedloom predict",
    ]
    assert "--port 9095" in PAGE.read_text(), "several nodes on one machine need a port each"
    assert len(commands(PAGE, "fedloom")) > 5


@pytest.mark.federation
def test_the_page_works_as_printed(deployment, tmp_path: Path) -> None:
    here = deployment(certificates=False)
    root = here.root
    replaced = {
        "fed.example.org:8000": f"localhost:{here.port}",
        "/path/to/certs": str(root / "certs"),
        "--host 0.0.0.0": f"--host 127.0.0.1 --port {here.port}",
        "/data/": f"{root}/data/",
        "/var/lib/fedloom": str(root / "state"),
        "/srv/runs/first": str(root / "run"),
        "size=64": "size=16 --rounds 1 --set width=4 --set features=8",
    }

    def typed(line: str, folder: Path = root) -> list[str]:
        for before, after in replaced.items():
            line = line.replace(before, after)
        return ["sh", "-c", f"cd '{folder}' && exec {line}"]

    def done(line: str) -> str:
        if line.startswith("for "):
            command = ["sh", "-c", f"cd '{root}' && {line}"]
        else:
            command = typed(line)
        ended = subprocess.run(command, env=here.env, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    done(only("fedloom flower certs"))
    (config,) = blocks(PAGE, "toml")
    for before, after in replaced.items():
        config = config.replace(before, after)
    (root / "flwr" / "config.toml").write_text(config)
    here.start("superlink", *typed(only("flower-superlink")))
    here.until(here.listens, 60, "the SuperLink")
    done(only("for k"))
    for k, name in enumerate(SITES):
        site = root / name
        site.mkdir()
        for file in ("ca.crt", f"site-{k}"):
            shutil.copy(root / "certs" / file, site)
        stand_ins.photographs(root / "data" / name, ("cat", "dog"), 6, 3)
        line = only("flower-supernode").replace("site-0", f"site-{k}")
        line = line.replace("partition-id=0", f"partition-id={k}").replace(SITES[0], name)
        here.start(f"site-{k}", *typed(f"{line} --port {here.free_port()}", site))
        here.until(lambda k=k: "SuperNode ID" in here.said(f"site-{k}"), 120, name)
    done(only("fedloom flower init"))
    run = here.start("run", *typed(only("flwr run")))
    here.until(lambda: run.poll() is not None, 600, "the run")
    assert (root / "run" / "summary.json").exists(), here.said("run")
    told = json.loads((root / "run" / "federation.json").read_text())
    assert [client["domain"] for client in told["clients"]] == list(SITES)
    for file in (root / "run").rglob("*"):
        assert not file.is_file() or str(root / "data").encode() not in file.read_bytes(), file
    done(only("fedloom report"))
    done(only("fedloom export"))
    answers = done(only("fedloom predict")).splitlines()
    assert len(answers) == 18 and all("cat" in line and "dog" in line for line in answers)


@pytest.mark.federation
def test_the_simulation_runs_as_printed(deployment, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="simulations need Ray: pip install 'fedloom[simulation]'")
    init, run = printed(*PROGRAMS, simulation=True)
    here = deployment(simulation=True)
    # Flower's simulation would start a Ray that stays: it joins this one instead.
    here.env["RAY_ADDRESS"] = f"127.0.0.1:{here.ray()}"
    here.env["FEDLOOM_STATE"] = str(here.root / "state")
    here.link()
    init = init.replace("--rounds 5", "--rounds 1 --set limit_train=8 --set steps=1")
    typed = ["sh", "-c", f"cd '{here.root}' && {init}"]
    done = subprocess.run(typed, env=here.env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = here.start("run", "sh", "-c", f"cd '{here.root}' && exec {run}")
    here.until(lambda: ended.poll() is not None, 900, "the simulation")
    assert ended.returncode == 0, here.said("run")
    summary = json.loads((here.root / "runs" / "app" / "summary.json").read_text())
    assert (summary["method"], summary["clients"], summary["rounds"]) == ("fedpcl", 20, 1)
