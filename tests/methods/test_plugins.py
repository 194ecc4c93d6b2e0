"""METHOD+PLUGIN: names, refusals, settings of both, pickling, hooks that every method honours."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedloom
from fedloom.client.context import ClientContext
from fedloom.core.errors import FedloomError
from fedloom.core.local import Batch
from fedloom.core.lookup import PLUGINS, find, make, names, parsed, plug, plugin, plugins
from fedloom.core.method import Method, Plugin
from fedloom.core.payload import Payload
from fedloom.engine.config import build
from fedloom.engine.folder import Run
from fedloom.engine.owners import owners
from fedloom.engine.settings import markdown, method_rows
from fedloom.experiments.plan import folder_of, name_of
from fedloom.testing.checks import check_pool, check_resume
from fedloom.testing.small_world import federation, trace


def test_both_settings_are_reachable() -> None:
    made = make("fpl+dfdc", {"sigma": 0.3, "lam": 2.0})
    assert (made.sigma, made.lam, made.tau) == (0.3, 2.0, 0.02)
    config = build({"method": "fpl+dfdc", "model": "resnet10"}, {"sigma": 0.3, "tau": 0.05})
    assert (config.hyper["sigma"], config.hyper["tau"]) == (0.3, 0.05)
    assert config.hash() != build({"method": "fpl+dfdc", "model": "resnet10"}).hash()
    assert {row[0] for row in method_rows("fpl+dfdc")} == set(made.params())
    assert "the plug-in dfdc" in owners("sigma")
    assert "| `+daa: by_gap` |" in markdown()


def test_one_class_per_combination() -> None:
    assert find("fedavg+dfdc") is find("fedavg+dfdc") is plug(find("fedavg"), "dfdc")
    assert find("fedavg+dfdc").__mro__.index(PLUGINS.find("dfdc")) < find(
        "fedavg+dfdc"
    ).__mro__.index(find("fedavg"))
    assert set(plugins()) >= {"daa", "dfdc"}
    assert not [n for n in names() if "+" in n]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("fedavg+dfd", "unknown plug-in 'dfd'; did you mean 'dfdc'"),
        ("fedavgg+dfdc", "unknown method 'fedavgg'; did you mean 'fedavg'"),
        ("fedavg+dfdc+dfdc", "fedavg+dfdc has dfdc already"),
        ("f2dc+daa", "f2dc has daa already"),
        ("fedheal+daa", "fedheal does not average models"),
        ("local+daa", "local does not average models"),
        ("fedamp+dfdc", "both have a setting 'sigma'"),
    ],
)
def test_refusals_are_sentences(spec: str, said: str) -> None:
    with pytest.raises(FedloomError, match=said.replace("+", r"\+")):
        make(spec)


@pytest.mark.parametrize("spec", ["local+dfdc", "fedproto+dfdc", "fedtgp+dfdc", "fedsa+dfdc"])
def test_clients_that_share_nothing_are_refused(spec: str) -> None:
    with pytest.raises(FedloomError, match="share no weights"):
        trace(make(spec), rounds=1)


def test_names_are_taken_apart() -> None:
    assert parsed("fpl+dfdc+daa") == ("fpl", ["dfdc", "daa"])
    assert parsed("a+b/mine.py") == ("a+b/mine.py", [])
    assert parsed("a+b/mine.py+daa") == ("a+b/mine.py", ["daa"])


OWN = '''"""Mine."""
from fedloom.core.lookup import method
from fedloom.methods.fedavg import FedAvg


@method("plugged-mine")
class Mine(FedAvg):
    """FedAvg under another name."""

    zeal: float = 1.0
'''


def test_a_file_of_ones_own_takes_plug_ins(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    made = make(f"{path}+daa", {"zeal": 2.0, "by_gap": 0.1})
    assert made.name == "plugged-mine+daa"
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is type(made) and again == made
    config = build({"method": f"{path}+daa"})
    assert name_of(config.method) == "mine+daa"
    before = folder_of(tmp_path, config)
    path.write_text(OWN + "# changed\n")
    assert folder_of(tmp_path, config) != before, "the folder's name changes with the code"


def test_pickled_by_parts() -> None:
    made = make("fedprox+daa", {"mu": 0.5})
    assert pickle.loads(pickle.dumps(made)) == made
    kind = type(made)
    base = kind.plugged[0]
    module = base.__module__
    # As if a notebook had defined the method: the class travels by reference, the plug-ins by name.
    try:
        base.__module__ = "__main__"
        rebuild, (cls, around, params) = made.__reduce__()
    finally:
        base.__module__ = module
    assert (cls, around) == (base, ["daa"])
    assert rebuild(cls, around, params) == made


def test_runs_resume_under_their_name(tmp_path: Path) -> None:
    options = {"clients": 4, "model": "mlp", "hidden": [16], "rounds": 1, "by_gap": 0.2}
    first = fedloom.run("fedprox+daa", out=tmp_path / "run", mu=0.1, report=False, **options)
    again = Run.load(tmp_path / "run")
    assert again.config.hash() == first.config.hash()
    assert again.config.hyper == {"mu": 0.1, **make("fedprox+daa", {"by_gap": 0.2}).params()} | {
        "mu": 0.1
    }
    longer = fedloom.resume(tmp_path / "run", rounds=2, report=False)
    straight = fedloom.run("fedprox+daa", mu=0.1, **(options | {"rounds": 2}))
    assert longer.metrics == straight.metrics


@pytest.mark.parametrize("check", [check_pool, check_resume], ids=str)
def test_a_combination_keeps_the_contract(check) -> None:
    check(make("fpl+dfdc+daa"))


@pytest.mark.parametrize("name", names())
def test_whoever_averages_asks_for_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`averages` is what plug-ins rely on: with it `weight` decides, without it nobody asks."""
    cls, asked = find(name), []
    true = cls.weight

    def noting(self: Method, server: Payload, k: int) -> float:
        asked.append(k)
        return true(self, server, k)

    monkeypatch.setattr(cls, "weight", noting)
    server = trace(make(name), rounds=1).server
    if name in ("flora", "pfedhn") or cls.traits.averages:  # what they weigh are no models
        assert sorted(set(asked)) == [0, 1, 2, 3]
    else:
        assert not asked or not server.tree("model"), "there is something to average"


@plugin("test-hooks")
class Hooks(Plugin):
    """Everything a plug-in may add: a module, a loss term, entries of messages and the server."""

    pull: float = 0.5

    def extend(self, model, classes):
        model = super().extend(model, classes)
        model.extra = nn.Linear(model.head.in_features, 1)
        return model

    def watched(self, model):
        return [model.head]

    def terms(self, batch: Batch, model) -> dict[str, Tensor]:
        assert torch.equal(batch.seen[0].output, batch.logits)
        return {"extra": self.pull * model.extra(batch.features).tanh().mean()}

    def init(self, worker):
        return super().init(worker).replace(heard=torch.zeros(worker.clients))

    def download(self, server, k):
        return super().download(server, k).replace(heard=server.tensor("heard"))

    def client(self, down: Payload, state: Payload, local: ClientContext):
        update = super().client(down, state, local)
        upload = update.upload.replace(mine=float(local.size))
        return fedloom.core.method.Update(
            upload, update.state.replace(seen=down.tensor("heard")), update.trained
        )

    def aggregate(self, server, uploads):
        heard = server.tensor("heard").clone()

        def noting():
            for k, up in uploads:
                heard[k] = up.number("mine")
                yield k, up

        return super().aggregate(server, noting()).replace(heard=heard)


del PLUGINS._entries[
    "test-hooks"
]  # known during its test only: the page of settings lists all plug-ins


@pytest.mark.parametrize(
    "name", ["fedavg", "moon", "fpl", "fedrcl", "fedheal", "ditto", "scaffold"]
)
def test_all_hooks_together(name: str, place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLUGINS._entries, "test-hooks", Hooks)
    seen = trace(make(f"{name}+test-hooks"), federation(), rounds=2)
    assert seen.server.tensor("heard").tolist() == [24, 40, 16, 32]
    assert Payload.decode(seen.states[1][0]).tensor("seen").tolist() == [24, 40, 16, 32]
    parts = [n for n in seen.metrics[0]["loss"] if n.split("/")[-1] == "extra"]
    assert len(parts) == (2 if name == "ditto" else 1), "in every fit"
    worker = place(make(f"{name}+test-hooks"))
    assert not torch.equal(
        seen.server.tensor("model/extra.weight"), worker.first["extra.weight"]
    ), "it is trained"
