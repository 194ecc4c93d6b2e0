"""Every `fedloom` command that a page prints is typed here, at its smallest size.

A page's commands run in their order, in an empty folder in which lies what the page takes for
granted. `make test` runs those that take a second or so, `make test-all` (FEDLOOM_ALL=1) the rest.
What cannot be run is listed in `NOT_HERE` with the reason. The programs of Flower are typed in
tests/executors/flower/test_documented.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import typer.main

from fedloom.cli.main import app
from fedloom.experiments.needs import at_hand
from fedloom.experiments.recipe import recipe
from fedloom.experiments.table import Recipe
from fedloom.report.callback import Picture
from fedloom.report.dash import Dash
from fedloom.testing import weights
from fedloom.testing.pretend import pretend
from tests import stand_ins
from tests.dist import COMMANDS
from tests.documented import PAGES, Command, commands, demo, name_of
from tests.models import libraries

TREE: Any = typer.main.get_command(app)
PRINTED = {name_of(page): commands(page, "fedloom") for page in PAGES}

PEERS = "it installs other libraries from the package index; tests/benchmarks/test_peers.py"
MEASURES = "it measures for minutes, and there is nothing smaller of it"
SHOWN_FILE = "it needs the file that the page shows; tests/test_contributing.py runs it"
NOT_HERE = {
    "fedloom bench speed --peers --out runs/speed": PEERS,
    "fedloom bench speed --peers --quick --jobs c": PEERS,
    "fedloom bench speed --peers": PEERS,
    "fedloom bench growth": MEASURES,
    "fedloom bench scale": MEASURES,
    "fedloom bench devices": MEASURES,
    "fedloom bench encoders --what prompts": MEASURES,
    "fedloom bench encoders --what standard": "tests/benchmarks/test_standard.py has a small one",
    "fedloom bench encoders --what lite-clip": MEASURES,
    "fedloom bench encoders --what zero-shot": MEASURES,
    "fedloom bench encoders --what cache --encoder efficientnet-lite0,vit-mini,lite-clip": MEASURES,
    "fedloom bench encoders --what probe --encoder efficientnet-lite0,vit-mini,lite-clip": MEASURES,
    "fedloom run fedavg --device cuda:1": "there is one pretended card, not two",
    "fedloom run fedavg --device cuda:0,1 --workers 4": "there is one pretended card, not two",
    "fedloom data get cifar10": "it needs a network",
    "fedloom verify fedper --against ../PFLlib --rounds 3": "tests/experiments/test_verify.py",
    "fedloom data get pacs": "it needs a network",
    "fedloom reproduce f2dc-3 --scale full --device cuda": "tests/experiments/test_full_scale.py",
    "fedloom check fedmine": "it is for a checkout, whose files a test must not change",
    "fedloom run fedavg --metric error": SHOWN_FILE,
    "fedloom run fedavg --executor backwards": SHOWN_FILE,
    "fedloom run fedavg --data mine.points --partition iid --clients 4 --model linear": SHOWN_FILE,
}

# Pages of which something takes longer than a second or so: they wait for FEDLOOM_ALL.
SLOW_PAGES = {"docs/adapters", "docs/encoders", "docs/vision-language", "docs/speed"}
SLOW_COMMANDS = ("advise", "check", "bench", "reproduce")
SLOW_WORDS = ("--views", "--encoder", "pdf")
QUICK_ALL_THE_SAME = ("fedloom reproduce --list",)

# What makes a command small, given to each that has the option.
OPTIONS = {"--rounds": "1", "--seeds": "0", "--executor": "inplace", "--port": "0"}
OPTIONS["--methods"] = "fedprox"  # to be tried beside those that always are
FLAGS = ("--no-report", "--quick")
SETTINGS = {"limit_train": "4", "limit_test": "2", "steps": "1"}
# The same for what only some commands set.
SMALLER = {"limit_train": "16", "limit_test": "2", "width": "4", "features": "8", "dif": "5"}
LESS_UNEVEN = {"dif": {"dif": 3}, "dirichlet": {"least": 1}}
CLIENTS = 5  # at most: with fewer, ten classes cannot be dealt out by two
# Networks of libraries that need not be installed: what stands in for them is called otherwise.
NETWORKS = {"timm:resnet50": "timm:tiny", "torchvision:resnet18": "torchvision:resnet_like"}


def is_slow(command: Command) -> bool:
    """Whether a command waits for FEDLOOM_ALL."""
    if command.text in QUICK_ALL_THE_SAME:
        return False
    if command.page in SLOW_PAGES or command.words[1] in SLOW_COMMANDS:
        return True
    if command.page.startswith("papers/"):  # their commands are much alike
        return True
    return any(word in command.text for word in SLOW_WORDS)


def found(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and its arguments."""
    command, rest = TREE, words[1:]
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def smaller(words: list[str]) -> list[str]:
    """The same command with as little work as possible."""
    command, _ = found(words)
    if "--help" in words or "--list" in words or not command.params:
        return words
    known = {name for parameter in command.params for name in parameter.opts}
    if "--workers" in words and "--executor" not in words:  # one process is enough
        place = words.index("--workers")
        words = words[:place] + words[place + 2 :]
    changed = [words[0]]
    for before, word in pairwise(words):
        changed.append(_smaller_value(before, word))
    for option, value in OPTIONS.items():
        if option in known and option not in words:
            changed += [option, value]
    for flag in FLAGS:
        if flag in known and flag not in words:
            changed.append(flag)
    if "--set" in known and words[1] in ("advise", "run", "compare", "sweep"):
        given = {word.partition("=")[0] for word in words if "=" in word}
        settings = dict(SETTINGS)
        if "dif" in words:  # so few samples cannot be dealt out more unevenly
            settings["dif"] = "3"
        for key, value in settings.items():
            if key not in given:
                changed += ["--set", f"{key}={value}"]
    return changed


def _smaller_value(before: str, word: str) -> str:
    """A word of a command, made smaller if it is the number of something."""
    if before in OPTIONS:
        return OPTIONS[before]
    if before == "--clients":
        return str(min(int(word), CLIENTS))
    if before == "--device":
        return word.replace("cuda", "pretend")
    if before == "--model":
        return NETWORKS.get(word, word)
    key, _, value = word.partition("=")
    if before == "--set" and key in SMALLER:
        return f"{key}={SMALLER[key]}"
    if before in ("--grid", "--tune"):
        return f"{key}={','.join(value.split(',')[:2])}"
    return word.removeprefix("/")  # what lies in the root of a disk lies in the test's folder


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_ins.data_root(tmp_path_factory.mktemp("data"))


@pytest.fixture
def typed(
    fedloom: Callable[..., tuple[int, str, str]],
    data_root: Path,
    tiny_vit: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Command], None]:
    """Type a command in its smallest form, in an empty folder; it has to succeed."""
    monkeypatch.setenv("FEDLOOM_DATA", str(data_root))
    monkeypatch.setattr(Dash, "serve_forever", interrupted)
    monkeypatch.setattr(Recipe, "config", _small_config(Recipe.config))
    # A sweep has no `--no-report`, and the pictures of its runs are most of its work.
    monkeypatch.setattr(Picture, "before_run", lambda *given: None)

    def call(words: list[str]) -> None:
        code, out, err = fedloom(*words[1:])
        assert code == 0, f"{' '.join(words)}\n{out[-2000:]}\n{err[-2000:]}"
        assert "not run:" not in out or "reproduce" in words, out

    def type_(command: Command) -> None:
        words = smaller(command.words)
        if words[1] == "reproduce" and "--list" not in words:
            words = _part_of_table(words, str(data_root))
        for before, word in pairwise(words[1:]):
            if before == "--out":  # the command makes it
                continue
            name = word.rpartition(":")[2].rpartition("=")[2]
            if before == "--model" and ".py:" in word:
                name = word.partition(":")[0]
            if name in TAKEN_FOR_GRANTED and not Path(name).exists():
                TAKEN_FOR_GRANTED[name](Path(name), call)
            elif name == "vit-b16" and not Path(name).exists():
                Path(name).symlink_to(tiny_vit())
        with pretend() if "--device" in words else nullcontext(), pytest.MonkeyPatch.context() as m:
            if set(words) & set(NETWORKS.values()):
                libraries.inject(m, {**libraries.timm(), **libraries.torchvision()})
            call(words)

    return type_


def interrupted(server: Dash) -> None:
    """The reader looks at the page and ends it with Ctrl-C."""
    raise KeyboardInterrupt


def _small_config(real: Callable[..., Any]) -> Callable[..., Any]:
    """A table's runs with one round of one step."""

    def config(*given: Any) -> Any:
        made = real(*given)
        # The stand-ins have too few samples for more uneven partitions.
        partitioning = made.partitioning | LESS_UNEVEN.get(made.partition, {})
        schedule = made.schedule.model_copy(update={"rounds": 1, "eval_every": 1})
        training = made.training.model_copy(update={"steps": 1, "epochs": 1})
        changes = {"schedule": schedule, "training": training, "partitioning": partitioning}
        return made.model_copy(update=changes)

    return config


def _part_of_table(words: list[str], root: str) -> list[str]:
    """One setting and, unless the command names some, one method of a table."""
    table = recipe(words[2])
    (setting, *_) = at_hand(table, "mini", root)
    words = [*words, "--settings", setting, "--executor", "inplace", "--out", "table"]
    if "--only" in words:
        return words
    (row, *_) = next(s.rows for s in table.settings if s.name == setting)
    return [*words, "--only", table.method(row)]


Call = Callable[[list[str]], None]


def compared(folder: Path, call: Call) -> None:
    """Runs of three methods."""
    words = f"fedloom compare local fedavg fedbn --clients 5 --out {folder} --set norm=true"
    call(smaller(words.split()))


def one_run(folder: Path, call: Call) -> None:
    call(smaller(f"fedloom run fedavg --clients 5 --out {folder}".split()))


def pets_run(folder: Path, call: Call) -> None:
    """A run of a personalised method with four clients, on photographs."""
    stand_ins.photographs(Path("photographs"), stand_ins.PETS)
    words = f"fedloom run fedper --data photographs --partition iid --clients 4 --out {folder}"
    call(smaller(words.split()))


def photographs(folder: Path, call: Call) -> None:
    stand_ins.photographs(folder, stand_ins.PETS)


def sites(folder: Path, call: Call) -> None:
    stand_ins.domains(folder, ("north", "south", "west"), stand_ins.PETS[:2], 10)


def manifest(file: Path, call: Call) -> None:
    stand_ins.manifest(file)


def from_pfllib(folder: Path, call: Call) -> None:
    stand_ins.from_pfllib(folder)


def config_file(file: Path, call: Call) -> None:
    one_run(file.parent / "earlier", call)
    file.write_bytes((file.parent / "earlier" / "config.toml").read_bytes())


def method_file(file: Path, call: Call) -> None:
    call(["fedloom", "new", file.stem])


def federated(folder: Path, call: Call) -> None:
    """The run of a federation of two hospitals, at the server."""
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedloom[flower]'")
    from fedloom.engine.config import build
    from fedloom.executors.flower import client, server
    from fedloom.executors.flower.grid import InProcessGrid
    from fedloom.executors.flower.settings import Settings, flat

    config = build({"method": "fedavg", "clients": 2, "data": "own"}, {"rounds": 1, "steps": 1})
    settings = Settings(out=str(folder.resolve()), wait=0, timeout=60)
    nodes = {}
    for k in range(2):
        data = stand_ins.photographs(folder.parent / f"hospital-{k}", stand_ins.PETS)
        state = str(folder.parent / "state")
        nodes[k] = {"partition-id": k, "data": str(data), "state": state}
    server.serve(InProcessGrid(client.app, nodes, flat(config, settings)), config, settings)


def clip_weights(file: Path, call: Call) -> None:
    weights.WRITERS["clip-rn50"](file.parent)


def resnet_weights(file: Path, call: Call) -> None:
    weights.WRITERS["resnet18"](file.parent)


def network_weights(file: Path, call: Call) -> None:
    torch.save(libraries.ResNetLike().state_dict(), file)


def network_file(file: Path, call: Call) -> None:
    """A function that makes a network for the task."""
    file.write_text(
        """from torch import nn

class Net(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3)
        self.fc = nn.Linear(4, classes)

    def forward(self, x):
        return self.fc(self.conv(x).mean((2, 3)))


def make(task):
    return Net(task.shape[0], task.classes)
"""
    )


TAKEN_FOR_GRANTED: dict[str, Callable[[Path, Call], None]] = {
    "runs/pets": pets_run,
    "runs/demo": compared,
    "runs/compare": compared,
    "runs/reproduce/f2dc-1-mini": compared,
    "runs/a": one_run,
    "runs/b": one_run,
    "runs/x": one_run,
    "config.toml": config_file,
    "mymethod.py": method_file,
    "fedmine.py": method_file,
    "my_pets": photographs,
    "photos": photographs,
    "hospitals": sites,
    "plants": sites,
    "path/to/my/images": photographs,
    "data/hospital-a": photographs,
    "skin/list.csv": manifest,
    "dataset/MNIST": from_pfllib,
    "srv/runs/first": federated,
    "RN50.pt": clip_weights,
    "resnet18-f37072fd.pth": resnet_weights,
    "resnet18.pth": network_weights,
    "net.py": network_file,
}


def test_pages_are_read() -> None:
    """The tests below would pass on no commands at all."""
    assert len(PAGES) > 50
    assert len(PRINTED["README"]) > 12 and len(PRINTED["docs/flower"]) > 4
    texts = {command.text for page in PRINTED.values() for command in page}
    assert len(texts) > 90
    assert not set(NOT_HERE) - texts, "these are printed nowhere any more"


@pytest.mark.parametrize("page", PRINTED)
def test_every_command_is_understood(page: str) -> None:
    """Commands and options exist, whether or not the command can be run here."""
    for command in PRINTED[page]:
        chosen, rest = found(command.words)
        assert not isinstance(chosen, click.Group) or chosen.invoke_without_command, command.text
        if "--help" not in rest:
            chosen.make_context(command.words[1], list(rest))


def test_what_make_dist_types_is_understood() -> None:
    assert len(COMMANDS) == 8
    for text in COMMANDS:
        words = ("fedloom", *text.split())
        chosen, rest = found(words)
        chosen.make_context(words[1], list(rest))


def chosen(slow: bool) -> list[str]:
    """The pages that have commands of one kind; each command runs for the first that prints it."""
    return [page for page in PRINTED if mine(page, slow)]


def mine(page: str, slow: bool) -> list[Command]:
    """The commands that are run for a page."""
    earlier = set()
    for other in list(PRINTED)[: list(PRINTED).index(page)]:
        earlier |= {command.text for command in PRINTED[other]}
    wanted = []
    for command in PRINTED[page]:
        here = command.text not in NOT_HERE and is_slow(command) == slow
        if here and command.text not in earlier:
            wanted.append(command)
    return wanted


@pytest.mark.parametrize("page", chosen(slow=False))
def test_commands_run(page: str, typed: Callable[[Command], None]) -> None:
    for command in mine(page, slow=False):
        typed(command)


def test_the_demo_runs(typed: Callable[[Command], None]) -> None:
    typed(demo())
    assert len(list(Path("runs/demo").glob("*/summary.json"))) == 6


@pytest.mark.slow
@pytest.mark.parametrize("page", chosen(slow=True))
def test_slow_commands_run(page: str, typed: Callable[[Command], None]) -> None:
    for command in mine(page, slow=True):
        typed(command)
