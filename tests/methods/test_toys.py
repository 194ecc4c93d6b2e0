"""The worked numbers of the specifications, on parabolas."""

import ast
import io
import tokenize
from pathlib import Path
from statistics import median

import pytest
import torch

import fedloom.methods
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.methods.fedprox import FedProx
from fedloom.methods.scaffold import Scaffold
from fedloom.models import Task, build

W = "body.value"


def test_local_is_gradient_descent(parabolas) -> None:
    """K steps on (w - a)^2 / 2 end at a + (1 - lr)^K (w0 - a), and nothing travels."""
    server, states = parabolas([0, 4], [1, 3]).run(make("local"), 1.0, lr=0.1, steps=5, rounds=2)
    for a, state in zip([0, 4], states, strict=True):
        assert state.tree("model")[W].item() == pytest.approx(a + 0.9**10 * (1 - a), abs=1e-6)
    assert not server.tree("model")


def test_fedavg(parabolas) -> None:
    server, states = parabolas([0, 4], [1, 3]).run(make("fedavg"), 1.0, lr=0.1, steps=5)
    assert server.tree("model")[W].item() == pytest.approx(1.81902, abs=1e-5)
    assert all(not s for s in states)


def test_fedavg_normalises_over_those_who_answered(parabolas) -> None:
    server, _ = parabolas([0, 4], [1, 3]).run(
        make("fedavg"), 1.0, lr=0.1, steps=5, dropouts={1: [0]}
    )
    assert server.tree("model")[W].item() == pytest.approx(2.22853, abs=1e-5)


def test_fedprox_settles_between_data_and_anchor(parabolas) -> None:
    server, _ = parabolas([4], [1]).run(FedProx(mu=1.0), 1.0, lr=0.05, steps=500)
    assert server.tree("model")[W].item() == pytest.approx(2.5, abs=1e-4)  # (a + mu w0) / (1 + mu)


def test_fedprox_step_has_the_factor_one_half(parabolas) -> None:
    """The second step from w1 = 1.3 feels mu (w1 - w0), not 2 mu (w1 - w0) nor mu."""
    server, _ = parabolas([4], [1]).run(FedProx(mu=0.5), 1.0, lr=0.1, steps=2)
    w1 = 1.0 - 0.1 * (1.0 - 4.0)
    assert server.tree("model")[W].item() == pytest.approx(
        w1 - 0.1 * ((w1 - 4) + 0.5 * (w1 - 1)), abs=1e-6
    )


def test_fedper_averages_the_body_and_keeps_heads(parabolas) -> None:
    """Both numbers feel the same gradient, so each client ends at w_k and b_k = w_k - w0 + b0."""
    server, states = parabolas([0, 4], [1, 3]).run(make("fedper"), 1.0, lr=0.1, steps=1, b=0.5)
    trained = [1.0 - 0.1 * (1.5 - a) for a in (0, 4)]
    assert server.tree("model")[W].item() == pytest.approx(
        (trained[0] + 3 * trained[1]) / 4, abs=1e-6
    )
    assert "head.value" not in server.tree("model")
    for state, body in zip(states, trained, strict=True):
        assert state.tree("model")["head.value"].item() == pytest.approx(body - 0.5, abs=1e-6)


def test_scaffold_finds_the_true_optimum(parabolas) -> None:
    world = parabolas([0, 4], [1, 1], curvature=[1.0, 3.0])
    server, states = world.run(Scaffold(), 1.0, lr=0.05, steps=10, rounds=120)
    assert server.tree("model")[W].item() == pytest.approx(3.0, abs=1e-3)
    assert [s.tree("c")[W].item() for s in states] == pytest.approx([3.0, -3.0], abs=5e-3)
    assert server.tree("c")[W].item() == pytest.approx(0.0, abs=5e-3)
    drifted, _ = world.run(make("fedavg"), 1.0, lr=0.05, steps=10, rounds=120)
    assert drifted.tree("model")[W].item() == pytest.approx(2.667, abs=2e-3)


def test_scaffold_moves_c_by_all_clients_not_by_participants(parabolas) -> None:
    """c_k+ = (w - y) / (K lr); one of two clients answered, so c moves by half of it."""
    world = parabolas([0, 4], [1, 1])
    server, states = world.run(Scaffold(), 1.0, lr=0.1, steps=1, dropouts={1: [0]})
    assert states[1].tree("c")[W].item() == pytest.approx(-3.0, abs=1e-5)
    assert server.tree("c")[W].item() == pytest.approx(-1.5, abs=1e-5)
    assert not states[0]


def test_scaffold_counts_executed_steps(parabolas) -> None:
    """A straggler that took 2 of 10 steps divides by 2."""
    world = parabolas([4], [1])
    server, states = world.run(
        Scaffold(), 1.0, lr=0.1, steps=10, stragglers={1: [0]}, straggler_work=0.2
    )
    w = server.tree("model")[W].item()
    assert w == pytest.approx(4 - 3 * 0.9**2, abs=1e-5)
    assert states[0].tree("c")[W].item() == pytest.approx((1 - w) / (2 * 0.1), abs=1e-4)


def test_scaffold_alone_has_no_correction(parabolas) -> None:
    server, states = parabolas([4], [1]).run(Scaffold(), 1.0, lr=0.1, steps=5, rounds=3)
    assert server.tree("c")[W].item() == pytest.approx(states[0].tree("c")[W].item(), abs=1e-5)
    assert server.tree("model")[W].item() == pytest.approx(4 - 3 * 0.9**15, abs=1e-5)


def test_scaffold_server_step(parabolas) -> None:
    whole, _ = parabolas([0, 4], [1, 1]).run(Scaffold(), 1.0, lr=0.1, steps=3)
    half, _ = parabolas([0, 4], [1, 1]).run(Scaffold(server_lr=0.5), 1.0, lr=0.1, steps=3)
    moved = whole.tree("model")[W] - 1, half.tree("model")[W] - 1
    assert moved[1].item() == pytest.approx(moved[0].item() / 2, abs=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"clip": 1.0}, {"optimizer": "adam"}]
)
def test_scaffold_refuses_what_breaks_its_estimate(parabolas, wrong) -> None:
    world = parabolas([4], [1])
    model = build("linear", Task((2,), 5))
    worker = ClientWorker(Scaffold(), world.federation, model, Training(**wrong), seed=0)
    with pytest.raises(FedloomError, match="plain SGD"):
        Scaffold().init(worker)


def _images(n: int) -> Federation:
    generator = torch.Generator().manual_seed(0)
    data = Dataset(
        name="noise",
        x=torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator),
        y=torch.randint(0, 4, (n,), generator=generator),
        domain=torch.zeros(n, dtype=torch.int64),
        test=torch.zeros(n, dtype=torch.bool),
        classes=tuple("abcd"),
        domains=("one",),
    )
    rows = torch.arange(n).numpy()
    half = n // 2
    return Federation(
        data, (Client(rows[:half], rows[:0], rows[:0]), Client(rows[half:], rows[:0], rows[:0]))
    )


def test_fedbn_keeps_all_twenty_layers_of_a_resnet18() -> None:
    """By type: the three layers in shortcuts count too, affine weights and statistics alike."""
    model = build("resnet18", Task((3, 32, 32), 4), width=8)
    worker = ClientWorker(make("fedbn"), _images(8), model, Training(), seed=0)
    local = worker.roles.names("private")
    assert len(local) == 20 * 5  # weight, bias, mean, variance, counter
    layers = {n.rsplit(".", 1)[0] for n in local}
    kinds = {type(model.get_submodule(n)).__name__ for n in layers}
    assert len(layers) == 20 and kinds == {"BatchNorm2d"}
    assert not [n for n in worker.tree("shared") if n in local]


def test_fedbn_statistics_stay_bitwise_with_the_client() -> None:
    """After a round the shared part is one, the BatchNorm parts are each client's own."""
    from fedloom.engine.engine import Engine
    from fedloom.engine.schedule import Schedule
    from fedloom.executors.inplace import Inplace

    model = build("cnn", Task((3, 32, 32), 4), width=2, features=4, norm=True)
    worker = ClientWorker(make("fedbn"), _images(16), model, Training(batch=4), seed=0)
    engine = Engine(worker, Inplace(worker), Schedule(rounds=2))
    engine.run()
    first, second = (engine.store.get(k).tree("model") for k in (0, 1))
    assert first.keys() == second.keys() == set(worker.roles.names("private"))
    for name in first:
        if not name.endswith("num_batches_tracked"):
            assert not torch.equal(first[name], second[name]), name
    assert not set(first) & set(engine.server.tree("model"))


def test_fedbn_without_batchnorm_says_that_it_is_fedavg() -> None:
    with pytest.warns(UserWarning, match="no BatchNorm"):
        make("fedbn").roles(build("linear", Task((4,), 2)))


# FedPACT is two methods in one: the paper's, and that of the public code of its successor. Beside
# the clients' training it has a second one, at the server, with an optimiser of its own.
LIMITS = {"fedprox.py": 10, "scaffold.py": 35, "fedpact.py": 82}
DECLARED = ("traits", "symbols")


def lines_of_code(source: str) -> int:
    """The lines of a method file that do something, as CONTRIBUTING.md counts them.

    Blank lines, comments, docstrings and imports do not count, nor do the declarations of settings,
    other fields and traits: `fedloom methods NAME` shows these as a table.
    """
    held: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        left_out: list[ast.stmt] = []
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            left_out.append(node.body[0])
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out.append(node)
        if isinstance(node, ast.ClassDef):
            left_out += [part for part in node.body if _declares(part)]
        for part in left_out:
            held |= set(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.string.strip() and token.type != tokenize.COMMENT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - held)


def _declares(part: ast.stmt) -> bool:
    """Whether a statement of a class is a field or its traits."""
    if isinstance(part, ast.Assign):
        return isinstance(part.targets[0], ast.Name) and part.targets[0].id in DECLARED
    return isinstance(part, ast.AnnAssign)


def test_what_counts_as_a_line_of_code() -> None:
    source = '''"""A file.

With two paragraphs.
"""

from x import (
    y,
)


class A:  # one
    """A class."""

    traits = Traits(
        helps=(),
    )
    mu: float = setting(
        0.1, "A sentence."
    )
    claims = Claims(
        {}
    )

    # a remark
    def f(self):
        """A method."""
        text = """two
        lines"""
        return text
'''
    assert lines_of_code(source) == 1 + 3 + 4


def test_method_files_are_short() -> None:
    """At most 60 lines of code, half of the files at most 40; no method holds a batch loop."""
    folder = Path(fedloom.methods.__path__[0])
    files = sorted([*folder.glob("[a-z]*.py"), *folder.glob("plugins/[a-z]*.py")])
    assert len(files) >= 80
    lengths = {}
    for file in files:
        text = file.read_text(encoding="utf-8")
        lengths[file.name] = lines_of_code(text)
        assert lengths[file.name] <= LIMITS.get(file.name, 60), (file.name, lengths[file.name])
        for word in (".backward(", "DataLoader", "deepcopy", ".to(device", "print(", "open("):
            assert word not in text, (file.name, word)
    assert len(lengths) == len(files)
    assert median(lengths.values()) <= 40
