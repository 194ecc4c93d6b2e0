"""The contract can fail: each method with one typical fault is caught by the check meant for it."""

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import METHODS, method
from fedloom.core.method import Method, Update, Uploads
from fedloom.core.payload import Payload
from fedloom.core.tree import Mean
from fedloom.methods.fedavg import FedAvg
from fedloom.testing.checks import applicable, run_checks

MEMORY: dict[int, int] = {}


@pytest.fixture(autouse=True)
def registry():
    METHODS.load_all()  # a module registers its method only once, when it is first imported
    before = METHODS.loaded()
    yield
    METHODS._entries = before


def failures(faulty: Method, *names: str) -> set[str]:
    """Those of the named checks that fail, or of all.

    A class made inside a test cannot travel to worker processes, so `pool` says nothing.
    """
    found = set()
    for each in applicable(faulty):
        if each.name != "pool" and (not names or each.name in names):
            try:
                each(faulty)
            except Exception:  # whatever a fault leads to
                found.add(each.name)
    return found


def test_a_good_method_passes() -> None:
    results = list(run_checks("fedavg"))
    assert not [r for r in results if r.error]
    assert {r.name for r in results if not r.applies} == {"neutral"}


def test_hidden_memory_between_rounds_is_caught() -> None:
    @method("faulty")
    class Remembers(FedAvg):
        def train(self, down: Payload, state: Payload, local: ClientContext):
            MEMORY[local.id] = MEMORY.get(local.id, 0) + 1  # lives outside the state
            return local.fit(lr=0.05 / MEMORY[local.id])

    both = {"deterministic", "resume"}
    assert failures(Remembers(), *both) == both


def test_randomness_without_a_key_is_caught() -> None:
    generator = torch.Generator()

    @method("faulty")
    class Random(FedAvg):
        def train(self, down: Payload, state: Payload, local: ClientContext):
            return local.fit(
                gradient=lambda s: s.g.map(
                    lambda t: t + 0.01 * torch.randn(t.shape, generator=generator)
                )
            )

    both = {"deterministic", "order"}
    assert failures(Random(), *both) == both


def test_changing_the_download_is_caught() -> None:
    @method("faulty")
    class Changes(FedAvg):
        def train(self, down: Payload, state: Payload, local: ClientContext):
            down.tree("model")["head.bias"].add_(1)
            return local.fit()

    assert failures(Changes(), "inputs")


def test_holding_on_to_an_upload_is_caught() -> None:
    @method("faulty")
    class Aliases(FedAvg):
        def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
            last = server.tree("model")
            for _, up in uploads:
                last = up.tree("model")
            return server.replace(model=last)

    assert failures(Aliases(), "copies")


def test_changing_the_server_in_place_is_caught() -> None:
    @method("faulty")
    class InPlace(FedAvg):
        def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
            mean = Mean()
            for _, up in uploads:
                mean.add(up.tree("model"))
            for name, tensor in server.tree("model").items():
                tensor.copy_(mean.value(server.tree("model"))[name])
            return server

    assert failures(InPlace(), "copies")


def test_a_wrong_neutral_value_is_caught() -> None:
    @method("faulty")
    class NotNeutral(FedAvg):
        traits = FedAvg.traits.but(neutral=({"mu": 0.0}, "fedavg"))
        mu: float = 0.1

        def train(self, down: Payload, state: Payload, local: ClientContext):
            return local.fit(gradient=lambda s: s.g + 0.5 * s.w)

    assert failures(NotNeutral()) == {"neutral", "alone"}


def test_sending_private_tensors_is_caught() -> None:
    from fedloom.methods.fedper import FedPer

    @method("faulty")
    class Leaks(FedPer):
        def client(self, down: Payload, state: Payload, local: ClientContext) -> Update:
            update = super().client(down, state, local)
            everything = Payload(model=local.tree("shared") | local.tree("private"))
            return Update(everything, update.state, update.trained)

        def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
            names = list(server.tree("model"))
            return super().aggregate(
                server, ((k, Payload(model=up.tree("model").only(names))) for k, up in uploads)
            )

    assert failures(Leaks()) == {"roles"}


def test_claiming_a_common_model_that_clients_do_not_use_is_caught() -> None:
    @method("faulty")
    class NotCommon(FedAvg):
        def personal(self, down: Payload, state: Payload, local: ClientContext):
            predict = super().personal(down, state, local)
            return lambda x: -predict(x)

    assert failures(NotCommon(), "common")


def test_not_learning_is_caught() -> None:
    @method("faulty")
    class Unlearns(FedAvg):
        def train(self, down: Payload, state: Payload, local: ClientContext):
            return local.fit(gradient=lambda s: -s.g)

    assert failures(Unlearns(), "learns")


def test_assuming_every_class_is_caught() -> None:
    @method("faulty")
    class AllClasses(FedAvg):
        def train(self, down: Payload, state: Payload, local: ClientContext):
            weight = 1 / local.counts.float()  # infinite where a client lacks a class
            return local.fit(
                lambda b: (b.logits.logsumexp(1) * weight.mean()).mean() * 0 + b.logits.mean()
            )

    assert failures(AllClasses(), "hard_clients")


def test_evaluation_that_trains_is_caught() -> None:
    count = {"n": 0}

    @method("faulty")
    class Counts(FedAvg):
        def personal(self, down: Payload, state: Payload, local: ClientContext):
            count["n"] += 1
            return super().personal(down, state, local)

        def init(self, worker: ClientWorker) -> Payload:
            count["n"] = 0
            return super().init(worker)

        def train(self, down: Payload, state: Payload, local: ClientContext):
            return local.fit(lr=0.05 / (1 + count["n"]))

    assert failures(Counts(), "evaluation")
