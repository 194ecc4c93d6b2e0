"""The round loop: what it refuses, what it counts, how it evaluates."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import METHODS, make, method
from fedloom.core.method import Update, Uploads
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.engine.engine import Engine
from fedloom.engine.run import run
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.methods.fedavg import FedAvg
from fedloom.testing.small_world import federation, network, same, trace


@pytest.fixture
def registry():
    """Methods made in a test are forgotten after it."""
    METHODS.load_all()
    before = METHODS.loaded()
    yield
    METHODS._entries = before


def poisoned(change):
    @method("poisoned")
    class Poisoned(FedAvg):
        def client(self, down: Payload, state: Payload, local: ClientContext) -> Update:
            update = super().client(down, state, local)
            return Update(
                change(update.upload) if local.id == 2 else update.upload,
                update.state,
                update.trained,
            )

    return Poisoned()


def test_nan_in_an_upload_names_client_and_tensor(registry) -> None:
    def change(upload: Payload) -> Payload:
        tree = upload.tree("model")
        bad = tree["head.bias"].clone()
        bad[1] = float("nan")
        return Payload(model=tree | Tree({"head.bias": bad}))

    with pytest.raises(
        FedloomError, match=r"round 1: client 2 uploaded a NaN or infinity in 'model/head.bias'"
    ):
        trace(poisoned(change))


def test_infinite_scalar_is_refused(registry) -> None:
    with pytest.raises(FedloomError, match="client 2 uploaded loss = inf"):
        trace(poisoned(lambda upload: upload.replace(loss=float("inf"))))


def test_another_shape_is_refused(registry) -> None:
    def change(upload: Payload) -> Payload:
        return Payload(model=upload.tree("model") | Tree({"head.bias": torch.zeros(5)}))

    with pytest.raises(
        FedloomError, match=r"client 2 uploaded 'model/head.bias' as \(5,\).*the server has \(4,\)"
    ):
        trace(poisoned(change))


def test_another_dtype_is_refused(registry) -> None:
    def change(upload: Payload) -> Payload:
        tree = upload.tree("model")
        return Payload(model=tree | Tree({"head.bias": tree["head.bias"].double()}))

    with pytest.raises(FedloomError, match="float64"):
        trace(poisoned(change))


def test_a_missing_tensor_is_refused(registry) -> None:
    with pytest.raises(FedloomError, match=r"head\.bias"):
        trace(poisoned(lambda upload: Payload(model=upload.tree("model").without(["head.bias"]))))


def test_a_failure_names_round_client_and_step(registry) -> None:
    @method("broken")
    class Broken(FedAvg):
        def train(self, down: Payload, state: Payload, local: ClientContext):
            calls = []

            def loss(batch):
                calls.append(1)
                if local.id == 1 and local.round == 2 and len(calls) == 3:
                    raise ValueError("too hot")
                return batch.logits.mean()

            return local.fit(loss)

    with pytest.raises(FedloomError, match="round 2, client 1, step 3: ValueError: too hot"):
        trace(Broken())


def test_aggregate_must_see_every_upload(registry) -> None:
    @method("lazy")
    class Lazy(FedAvg):
        def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
            next(iter(uploads))
            return server

    with pytest.raises(FedloomError, match="every upload"):
        trace(Lazy())


def test_uploads_are_streamed(registry) -> None:
    """The next client is not executed before the server has taken the upload of the one before."""
    events = []

    @method("streaming")
    class Streaming(FedAvg):
        def train(self, down: Payload, state: Payload, local: ClientContext):
            events.append(("train", local.id))
            return local.fit()

        def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
            def noted():
                for k, up in uploads:
                    events.append(("sum", k))
                    yield k, up

            return super().aggregate(server, noted())

    trace(Streaming(), rounds=1)
    order = [1, 3, 0, 2]  # most data first
    assert events == [(what, k) for k in order for what in ("train", "sum")]


def test_bytes_are_down_for_the_lost_and_up_only_for_those_who_answered() -> None:
    full, half = (
        trace(make("fedavg"), rounds=2),
        trace(make("fedavg"), rounds=2, dropouts={2: [0, 1]}),
    )
    assert full.metrics[1]["bytes"]["down"] == half.metrics[1]["bytes"]["down"]
    assert full.metrics[1]["bytes"]["up"] == 2 * half.metrics[1]["bytes"]["up"]
    assert half.metrics[1]["lost"] == [0, 1]
    assert (
        full.metrics[0]["bytes"]["up"] > full.metrics[1]["bytes"]["up"]
    )  # the first round has the hellos


def test_before_and_after_are_different_models() -> None:
    seen = trace(make("fedavg"), rounds=2)
    for record in seen.metrics:
        assert record["personal"] == record["before"] == record["common"]
    assert any(r["before"]["accuracy_mean"] != r["after"]["accuracy_mean"] for r in seen.metrics)


def test_after_training_of_an_absent_client_is_before() -> None:
    seen = trace(make("fedper"), rounds=2, dropouts={2: [0, 1, 2, 3]})
    assert seen.metrics[1]["clients"]["after"] == seen.metrics[1]["clients"]["before"]


@pytest.mark.parametrize(
    ("name", "again"), [("fedpcl", False), ("ditto", True), ("fedper", True), ("fedavg-ft", True)]
)
def test_a_client_is_scored_again_only_if_its_download_matters(name: str, again: bool) -> None:
    def watched(settle: bool) -> tuple[list, int]:
        worker = ClientWorker(
            make(name), federation(), network(), Training(lr=0.1, batch=8), seed=0
        )
        here, kinds, records = Inplace(worker), [], []

        class Watched:
            remote, eager, processes = False, False, ()

            def run(self, tasks):
                for task in tasks:
                    kinds.append(task.kind)
                    yield from (replace(r, settled=r.settled and settle) for r in here.run([task]))

        class Seen:
            def after_round(self, engine, record) -> None:
                records.append(record)

        Engine(worker, Watched(), Schedule(rounds=2), [Seen()]).run()
        here.close()
        return records, kinds.count("before")

    found, scored = watched(settle=True)
    every, twice = watched(settle=False)
    assert found == every and twice == 2 * len(federation().clients)
    assert scored == (twice if again else 0)


class Noting(Inplace):
    """Notes on whose test samples the common model is scored, task by task."""

    def __init__(self, worker: ClientWorker, scored: list) -> None:
        super().__init__(worker)
        self.scored = scored

    def run(self, tasks):
        for task in tasks:
            if task.kind == "common" and task.splits == ("test",):
                self.scored.append(task.clients)
            yield from super().run([task])


def test_common_model_scores_equal_samples_once() -> None:
    """Clients with the same test samples get the same score from one pass."""
    world = federation()
    shared = world.clients[0].test
    clients = tuple(type(c)(c.train, c.validation, shared, c.domain) for c in world.clients)
    world = type(world)(world.data, clients)
    scored: list = []
    seen = trace(make("fedavg"), world, wrap=lambda worker: Noting(worker, scored), rounds=1)
    assert scored == [(0,)]
    assert len(set(seen.metrics[0]["clients"]["common"])) == 1


def test_the_common_model_is_scored_in_pieces(monkeypatch) -> None:
    """Several workers can share the pieces; each client is scored once, with the same figures."""
    world, whole = federation(), trace(make("fedavg"), rounds=1)
    sizes = [len(c.test) for c in world.clients]
    monkeypatch.setattr("fedloom.engine.evaluate.BLOCK", sizes[0] + 1)
    scored: list = []
    found = trace(make("fedavg"), world, wrap=lambda worker: Noting(worker, scored), rounds=1)
    assert scored[0] == (0, 1) and sum(scored, ()) == tuple(range(len(sizes))) and len(scored) > 1
    assert found.metrics == whole.metrics


def test_early_stop_by_validation() -> None:
    """The run ends `patience` evaluations after the first best one, long before its last round."""
    done = run("fedavg", federation(), model=network(), rounds=50, lr=1e-9, patience=3)
    held = [m["validation"]["personal"] for m in done.metrics]
    assert len(held) - 1 - held.index(max(held)) == 3
    assert done.summary["finished"] and done.summary["rounds"] == len(held) < 50


class Eager(Inplace):
    """Executes all it is given before it hands on the first result."""

    eager = True

    def __init__(self, worker: ClientWorker, order: list) -> None:
        super().__init__(worker)
        self.order = order

    def run(self, tasks):
        results = []
        for task in tasks:
            self.order.append((task.round, task.kind))
            results += super().run([task])
        yield from results


@pytest.mark.parametrize(
    "schedule", [{}, {"ratio": 0.5}, {"dropouts": {2: [0, 1]}}, {"eval_every": 2}]
)
@pytest.mark.parametrize("name", ["fedavg", "fedper", "scaffold", "fedpcl"])
def test_a_round_that_begins_during_evaluation_changes_nothing(name: str, schedule: dict) -> None:
    order: list = []
    found = trace(make(name), wrap=lambda worker: Eager(worker, order), rounds=5, **schedule)
    same(trace(make(name), rounds=5, **schedule), found, "begun ahead")
    evaluated = [i for i, at in enumerate(order) if at[0] == 2 and at[1] in ("common", "before")]
    # Evaluation goes first, so that no record waits for clients of the next round.
    assert all(round <= 2 for round, _ in order[: max(evaluated, default=0)])


def test_a_round_begins_while_the_one_before_is_evaluated_unless_somebody_is_new() -> None:
    def begun(**schedule: object) -> list[int]:
        """The rounds whose clients had begun before the round before was recorded."""
        order: list = []
        worker = ClientWorker(make("fedavg"), federation(), network(), Training(batch=8), seed=0)

        class Seen:
            def after_round(self, engine, record) -> None:
                order.append((engine.round, "recorded"))

        engine = Engine(worker, Eager(worker, order), Schedule(rounds=4, **schedule), [Seen()])
        engine.run()
        return [
            r for r in (2, 3, 4) if order.index((r, "client")) < order.index((r - 1, "recorded"))
        ]

    assert begun() == [2, 3, 4]
    assert begun(eval_every=2) == [3]  # nothing is evaluated after rounds 1 and 3
    order: list = []
    trace(make("fedavg"), wrap=lambda worker: Eager(worker, order), rounds=4, ratio=0.5)
    new = [r for r, kind in order if kind == "hello"]
    assert max(new) > 1 and all(order.index((r, "hello")) < order.index((r, "client")) for r in new)


def test_callbacks_can_stop_a_run() -> None:
    class Stop:
        def after_round(self, engine, record) -> bool:
            return engine.round == 2

    done = run("fedavg", federation(), model=network(), rounds=9, callbacks=[Stop()])
    assert [m["round"] for m in done.metrics] == [1, 2]


def test_evaluation_every_third_round_and_at_the_end() -> None:
    done = run("fedavg", federation(), model=network(), rounds=7, eval_every=3)
    assert [m["round"] for m in done.metrics] == [3, 6, 7]
    assert [t["round"] for t in done.timing] == list(range(1, 8))


def test_ratio_drawn_from_a_range() -> None:
    seen = trace(make("fedavg"), rounds=30, ratio=0.25, ratio_max=1.0)
    assert {m["participants"] for m in seen.metrics} == {1, 2, 3, 4}


def test_newcomers_say_hello_once(registry) -> None:
    said = []

    @method("polite")
    class Polite(FedAvg):
        def hello(self, local: ClientContext) -> Payload:
            said.append((local.round, local.id))
            return super().hello(local)

    seen = trace(Polite(), rounds=6, ratio=0.5)
    assert len(said) == len({k for _, k in said})
    sizes = seen.server.tensor("sizes")
    expected = [
        len(c.train) if k in {k for _, k in said} else 0 for k, c in enumerate(federation().clients)
    ]
    assert sizes.tolist() == expected


def test_server_knows_round_and_seed() -> None:
    server = trace(make("fedavg"), rounds=2).server
    assert server["round"] == 2 and server["seed"] == 7


def test_dropout_layers_follow_the_key_not_the_callers_generator() -> None:
    torch.manual_seed(1)
    first = trace(make("fedavg"), rounds=1)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    assert trace(make("fedavg"), rounds=1).server.equal(first.server)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_threads_are_given_back() -> None:
    torch.set_num_threads(2)
    try:
        trace(make("fedavg"), rounds=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_debug_executor_stops_at_the_first_bad_loss(registry) -> None:
    @method("exploding")
    class Exploding(FedAvg):
        def train(self, down: Payload, state: Payload, local: ClientContext):
            return local.fit(lambda batch: {"log": torch.log(batch.logits.mean() - 1e9)})

    done = federation()
    with pytest.raises(FedloomError, match=r"round 1, client 1, step 1: .*loss is nan \(log\)"):
        run(Exploding(), done, model=network(), rounds=1, executor="debug")


def test_a_model_without_body_and_head_is_refused() -> None:
    with pytest.raises(FedloomError, match="body and a head"):
        ClientWorker(make("fedavg"), federation(), torch.nn.Linear(2, 2), Training(), seed=0)


def test_a_client_without_test_samples_is_left_out_of_the_mean() -> None:
    world = federation()
    first = world.clients[0]
    clients = (
        type(first)(first.train, first.validation, np.arange(0), first.domain),
        *world.clients[1:],
    )
    seen = trace(make("fedavg"), type(world)(world.data, clients), rounds=1)
    own = seen.metrics[0]["clients"]["before"]
    assert own[0] is None
    assert seen.metrics[0]["personal"]["accuracy_mean"] == pytest.approx(np.mean(own[1:]))


def test_engine_can_be_driven_by_hand() -> None:
    """The engine is usable without a folder or a config."""
    worker = ClientWorker(make("fedavg"), federation(), network(), Training(batch=8), seed=0)
    engine = Engine(worker, Inplace(worker), Schedule(rounds=1))
    engine.run()
    assert engine.round == 1 and engine.bytes["up"] > 0
