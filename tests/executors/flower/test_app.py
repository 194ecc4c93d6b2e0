"""The app as users have it: run config and node config in, a run folder out."""

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fedloom
from fedloom.cli.main import app as cli
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import names
from fedloom.data.catalogue import load as load_data
from fedloom.data.federation import federate
from fedloom.deploy import export, personalise, predict, trained
from fedloom.engine.checkpoint import Store
from fedloom.engine.config import build
from fedloom.engine.setup import Setup, Trained
from fedloom.executors.flower import client, server
from fedloom.executors.flower.app import write_app
from fedloom.executors.flower.grid import InProcessGrid
from fedloom.executors.flower.settings import Settings, flat, parse
from fedloom.report.callback import Report

SMALL = {"width": 4, "features": 16, "limit_train": 4, "limit_test": 4, "rounds": 2}


@pytest.mark.parametrize("name", names())
def test_a_config_survives_flowers_flat_keys(name: str) -> None:
    config = build(
        {"method": name, "data": "digits4", "model": "mlp"},
        {"hidden": [32, 16], "augment": ["flip"]},
    )
    config = config.model_copy(
        update={"schedule": config.schedule.model_copy(update={"dropouts": {2: [0, 1]}})}
    )
    settings = Settings(timeout=7.5, classes="a,b")
    keys = flat(config, settings)
    assert all(isinstance(v, bool | int | float | str) for v in keys.values())
    again, also = parse(json.loads(json.dumps(keys)))
    assert again.what() == config.what() and also == settings


def test_every_key_is_in_the_app(tmp_path: Path) -> None:
    config = build({"method": "fedprox"}, {"mu": 0.5})
    path = write_app(tmp_path / "My App!", config, Settings(out="here"))
    body = tomllib.loads(path.read_text())
    assert body["project"]["name"] == "my-app"
    components = body["tool"]["flwr"]["app"]["components"]
    assert components["clientapp"] == "fedloom.executors.flower.client:app" and isinstance(
        client.app, object
    )
    assert components["serverapp"] == "fedloom.cli.serverapp:app" and server.app is not None
    given = body["tool"]["flwr"]["app"]["config"]
    found = {f"{s}.{k}" if isinstance(v, dict) else s: x for s, v in given.items()
             for k, x in (v.items() if isinstance(v, dict) else [("", v)])}  # fmt: skip
    assert found == flat(config, Settings(out="here")) and found["hyper.mu"] == 0.5
    with pytest.raises(FedloomError, match="is there already"):
        write_app(tmp_path / "My App!", config, Settings())


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match="federation: timeout = -1"):
        parse({"federation.timeout": -1})
    with pytest.raises(FedloomError, match="did you mean 'rounds'"):
        parse({"schedule.round": 1})
    with pytest.raises(FedloomError, match="checkpoint_every must be 1"):
        parse({"schedule.checkpoint_every": 2})


def test_an_unknown_setting_of_the_federation_is_answered_with_the_nearest(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli, ["flower", "init", str(tmp_path / "a"), "fedavg", "--federation", "timout=9"]
    )
    assert done.exit_code != 0 and "did you mean 'timeout'" in str(done.exception) + done.output
    assert not (tmp_path / "a").exists()


def test_commands(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    what = ["app", "fedpcl", "--clients", "5", "--set", "tau=0.1", "--federation", "timeout=9"]
    done = CliRunner().invoke(cli, ["flower", "init", *what])
    assert done.exit_code == 0, done.output
    config, settings = parse(_keys(tmp_path / "app" / "pyproject.toml"))
    assert (config.method, config.clients, config.hyper["tau"], settings.timeout) == (
        "fedpcl",
        5,
        0.1,
        9,
    )
    assert settings.out == str(tmp_path / "runs" / "app")
    hosts = ["--host", "10.0.0.1", "--host", "fed.org"]
    done = CliRunner().invoke(cli, ["flower", "certs", "certs", "--sites", "2", *hosts])
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in (tmp_path / "certs").iterdir()) == [
        "ca.crt",
        "ca.key",
        "server.crt",
        "server.key",
        "site-0",
        "site-0.pub",
        "site-1",
        "site-1.pub",
    ]
    private = [p for p in (tmp_path / "certs").iterdir() if p.suffix in ("", ".key")]
    assert len(private) == 4 and all(p.stat().st_mode & 0o077 == 0 for p in private)
    with pytest.raises(FedloomError, match="not empty"):
        cli(["flower", "certs", "certs"], standalone_mode=False)


def _keys(path: Path) -> dict:
    given = tomllib.loads(path.read_text())["tool"]["flwr"]["app"]["config"]
    return {f"{s}.{k}" if isinstance(v, dict) else s: x for s, v in given.items()
            for k, x in (v.items() if isinstance(v, dict) else [("", v)])}  # fmt: skip


def test_a_servers_own_machine_can_always_call_it(tmp_path: Path) -> None:
    """Flower's processes at the server reach the SuperLink by the loopback."""
    from cryptography import x509

    command = ["flower", "certs", str(tmp_path / "certs"), "--host", "fed.example.org"]
    assert CliRunner().invoke(cli, command).exit_code == 0
    read = x509.load_pem_x509_certificate((tmp_path / "certs" / "server.crt").read_bytes())
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]


def test_a_certificate_holds_for_its_hosts_only(tmp_path: Path) -> None:
    import socket
    import ssl
    import threading

    from fedloom.executors.flower.certificates import write_certificates

    write_certificates(tmp_path, 1, ["127.0.0.1", "fed.example"])
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")

    def connect(name: str) -> str:
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=_quietly, args=(serving, theirs))
        thread.start()
        try:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
            with context.wrap_socket(ours, server_hostname=name) as secure:
                return str(secure.version())
        finally:
            ours.close()
            thread.join(timeout=10)

    assert connect("fed.example").startswith("TLS") and connect("127.0.0.1").startswith("TLS")
    with pytest.raises(ssl.SSLCertVerificationError):
        connect("elsewhere.example")


def _quietly(context, sock) -> None:
    import contextlib
    import ssl

    with contextlib.suppress(ssl.SSLError, OSError):
        context.wrap_socket(sock, server_side=True).close()


def federation(tmp_path: Path, config, nodes, **settings) -> tuple[InProcessGrid, Settings]:
    chosen = Settings(
        **{
            "out": str(tmp_path / "run"),
            "wait": 0,
            "timeout": 5,
            **settings,
        }
    )
    nodes = {n: {"state": str(tmp_path / "state"), **node} for n, node in nodes.items()}
    return InProcessGrid(client.app, nodes, flat(config, chosen)), chosen


def test_a_dealt_data_set_as_in_one_process(tmp_path: Path) -> None:
    config = build({"method": "fedpcl", "clients": 4, "partition": "domains"}, SMALL)
    grid, settings = federation(tmp_path, config, {k: {"partition-id": k} for k in range(4)})
    made = server.serve(grid, config, settings, callbacks=[Report()])
    alone = fedloom.run("fedpcl", partition="domains", clients=4, **SMALL)
    assert [m["personal"] for m in made.metrics] == [m["personal"] for m in alone.metrics]
    assert made.finished and fedloom.Run.load(tmp_path / "run").finished
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert {
        "summary.json",
        "report.html",
        "answers.jsonl",
        "federation-log.json",
        "federation.json",
    } <= names
    assert "counts" not in json.dumps(made.federation), "class counts stay with the sites"
    again = server.serve(grid, config, settings)  # the folder holds the run already
    assert again.metrics == made.metrics and len(grid._replies) == 0


def write_site(path: Path, classes: list[str], seed: int, size: int = 8) -> str:
    """A site's own data: three domains' worth of small pictures in one file per part."""
    rng = np.random.default_rng(seed)
    for part, n in (("train", 12), ("test", 6)):
        for c, name in enumerate(classes):
            folder = path / "ward" / part / name
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(n):
                from PIL import Image

                image = np.clip(60 + 60 * c + 20 * rng.normal(size=(size, size, 3)), 0, 255).astype(
                    np.uint8
                )
                Image.fromarray(image).save(folder / f"{i}.png")
    return str(path)


def test_each_site_with_its_own_folder(tmp_path: Path) -> None:
    config = build(
        {"method": "fedavg", "clients": 3, "model": "mlp", "data": "own"},
        {"rounds": 2, "hidden": [8]},
    )
    nodes = {
        k: {
            "partition-id": k,
            "data": write_site(tmp_path / f"hospital-{k}", ["cat", "dog"], k),
            "domain": f"h{k}",
        }
        for k in range(3)
    }
    grid, settings = federation(tmp_path, config, nodes)
    made = server.serve(grid, config, settings)
    assert [c["domain"] for c in made.federation["clients"]] == ["h0", "h1", "h2"]
    assert sorted(made.metrics[-1]["personal"]["domains"]) == ["h0", "h1", "h2"]
    assert made.metrics[-1]["loss"]["ce"] > 0


def pictures_of(path: Path, seed: int) -> str:
    """A site's own data without a domain: a file at a place that is nobody else's business."""
    path.parent.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    y = np.arange(24) % 2
    x = (60 + 90 * y[:, None, None, None] + rng.integers(0, 40, (24, 8, 8, 3))).astype(np.uint8)
    parts = {"x_train": x, "y_train": y, "x_test": x[:6], "y_test": y[:6]}
    np.savez(path, **parts, classes=np.array(["cat", "dog"]))
    return str(path)


def hospitals(tmp_path: Path, method: str, changes: dict, **given: str) -> Path:
    """The run folder of a federation of two sites with their own files."""
    config = build({"method": method, "clients": 2, "data": "own", **given}, changes)
    nodes = {}
    for k in range(2):
        data = pictures_of(tmp_path / f"secret-{k}" / f"ward-{k}.npz", k)
        nodes[k] = {"partition-id": k, "data": data}
    grid, settings = federation(tmp_path, config, nodes)
    server.serve(grid, config, settings, callbacks=[Report()])
    return tmp_path / "run"


def test_a_federations_common_model_is_exported_and_used(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    out = hospitals(tmp_path, "fedavg", {"rounds": 1, "hidden": [8]}, model="mlp")
    model = export(trained(out), tmp_path / "model", onnx=True)
    pixels = np.load(tmp_path / "secret-1" / "ward-1.npz")["x_test"]
    (tmp_path / "photos").mkdir()
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "photos" / f"{i}.png")
    answers = predict(model, tmp_path / "photos")
    # What the site itself computes with the model that the server has.
    site = Setup.from_config(
        fedloom.Run.load(out).config,
        images=federate(load_data(str(tmp_path / "secret-1" / "ward-1.npz")), "iid", clients=1),
    )
    site.worker.load(Store(out / "checkpoint").load().server.tree("model"))
    x = site.images.data.x[site.images.data.test]
    expected = torch.softmax(site.worker.predictor()(x), 1)
    assert len(answers) == 6
    for answer, row in zip(answers, expected, strict=True):
        assert answer.classes["dog"] == pytest.approx(float(row[1]), abs=1e-5)
    for answer, other in zip(
        predict(model / "model.onnx", tmp_path / "photos"), answers, strict=True
    ):
        assert answer.classes == pytest.approx(other.classes, abs=1e-4)
    assert predict(out, tmp_path / "photos", client="ward-1.npz") == answers


def test_statistics_that_only_sites_have_are_not_made_up(tmp_path: Path) -> None:
    """The server's common model is served with its own statistics, and whoever does it is told."""
    changes = {"rounds": 1, "width": 4, "features": 8, "norm": True, "size": 16}
    out = hospitals(tmp_path, "fedavg", changes | {"eval_stats": "own"}, model="cnn")
    server = Store(out / "checkpoint").load().server.tree("model")
    with pytest.warns(UserWarning, match="the run's scores are of models with each site's own"):
        served = trained(out)
    for name, tensor in server.items():
        assert torch.equal(served.worker.tensors[name], tensor)
    with pytest.raises(FedloomError, match="statistics of BatchNorm for client 1 come from its"):
        trained(out, client="ward-1.npz")


def test_an_exported_federation_brings_its_encoder(tmp_path: Path) -> None:
    out = hospitals(tmp_path, "fedavg", {"rounds": 1}, model="linear", encoder="vit-mini")
    export(trained(out), tmp_path / "model")
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "black.png")
    (answer,) = predict(tmp_path / "model", tmp_path / "black.png")
    assert set(answer.classes) == {"cat", "dog"}


def test_what_only_a_site_has_is_not_made_up_at_the_server(tmp_path: Path) -> None:
    out = hospitals(tmp_path, "fedper", {"rounds": 1, "hidden": [8]}, model="mlp")
    with pytest.raises(FedloomError, match="client 1's own model needs what only its site has"):
        trained(out, client="ward-1.npz")
    with pytest.raises(FedloomError, match=r"fedper has no common model; `fedloom personalise"):
        trained(out)
    mine = personalise(out, str(tmp_path / "secret-0" / "ward-0.npz"))
    assert mine.train > 0 and mine.after is not None
    with pytest.raises(FedloomError, match="samples and what clients remember are at the sites"):
        Trained.from_folder(out)
    (out / "summary.json").unlink()  # as if it had been interrupted
    with pytest.raises(FedloomError, match="`flwr run` of its app continues it"):
        fedloom.resume(out)


def test_the_server_never_hears_where_a_sites_data_lie(tmp_path: Path) -> None:
    out = hospitals(tmp_path, "fedavg", {"rounds": 1, "hidden": [8]}, model="mlp")
    told = json.loads((out / "federation.json").read_text())
    assert [c["domain"] for c in told["clients"]] == ["ward-0.npz", "ward-1.npz"]
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        assert b"secret-" not in path.read_bytes(), path.name


def test_sites_that_differ_are_named(tmp_path: Path) -> None:
    config = build(
        {"method": "fedavg", "clients": 3, "model": "mlp", "data": "own"},
        {"rounds": 1, "hidden": [8]},
    )
    kinds = {0: ["cat", "dog"], 1: ["cat", "dog"], 2: ["cat", "fish"]}
    nodes = {
        k: {"partition-id": k, "data": write_site(tmp_path / f"s{k}", c, k)}
        for k, c in kinds.items()
    }
    grid, settings = federation(tmp_path, config, nodes)
    with pytest.raises(
        FedloomError,
        match=r"site 2 does not fit the others: as classes it has cat, fish, 2 of 3 .* cat, dog",
    ):
        server.serve(grid, config, settings)
    nodes[2]["data"] = write_site(tmp_path / "s3", ["cat", "dog"], 3, size=10)
    grid, settings = federation(tmp_path, config, nodes)
    with pytest.raises(FedloomError, match=r"site 2 .* shape of a sample it has 3, 10, 10"):
        server.serve(grid, config, settings)


def test_agreed_classes_may_be_more_than_a_site_has(tmp_path: Path) -> None:
    config = build(
        {"method": "fedavg", "clients": 2, "model": "mlp", "data": "own"},
        {"rounds": 1, "hidden": [8]},
    )
    nodes = {k: {"partition-id": k, "data": write_site(tmp_path / f"s{k}", c, k)}
             for k, c in {0: ["cat", "dog"], 1: ["dog", "fish"]}.items()}  # fmt: skip
    grid, settings = federation(tmp_path, config, nodes, classes="cat, dog, fish")
    made = server.serve(grid, config, settings)
    assert made.federation["classes"] == ["cat", "dog", "fish"]
    home = client.from_config(SimpleNamespace(node_config=nodes[1], run_config=grid.run_config))
    assert (
        home.worker.federation.counts(1).tolist()[0] == 0
        and len(home.worker.federation.clients[0].train) == 0
    )
    grid, settings = federation(
        tmp_path, config, nodes, classes="cat, dog", out=str(tmp_path / "other")
    )
    with pytest.raises(
        FedloomError, match=r"1 of 2 sites came.* unknown class among those agreed 'fish'"
    ):
        server.serve(grid, config, settings)


def test_a_round_with_too_few_uploads_is_done_again(tmp_path: Path) -> None:
    config = build({"method": "scaffold", "clients": 3, "partition": "iid"}, SMALL)
    grid, settings = federation(
        tmp_path,
        config,
        {k: {"partition-id": k} for k in range(3)},
        replies=3,
        timeout=0.05,
        tries=2,
    )
    lost = []

    def fault(message):
        first = (
            message.metadata.message_type == "train"
            and message.metadata.group_id == "2"
            and not lost
        )
        lost.extend([message] if first else [])
        return "silent" if first else None

    grid.fault = fault
    settings = settings.model_copy(update={"timeout": 5.0})
    short = settings.model_copy(update={"timeout": 0.5})
    made = server.serve(grid, config, short)
    alone = fedloom.run("scaffold", partition="iid", clients=3, **SMALL)
    assert [m["personal"] for m in made.metrics] == [m["personal"] for m in alone.metrics]
    assert json.loads((tmp_path / "run" / "federation-log.json").read_text())["attempt"] == 2
    grid.fault = lambda m: "lost" if m.metadata.message_type == "train" else None
    never = short.model_copy(update={"out": str(tmp_path / "never"), "timeout": 0.05})
    with pytest.raises(
        FedloomError, match=r"round 1 had 0 of the 3 uploads it needs. It was tried 2 times"
    ):
        server.serve(grid, config, never)


def test_a_site_says_what_it_lacks(tmp_path: Path) -> None:
    config = build({"method": "fedavg", "clients": 2, "partition": "iid"}, SMALL)
    keys = flat(config, Settings())
    with pytest.raises(FedloomError, match="partition-id=0"):
        client.from_config(SimpleNamespace(node_config={}, run_config=keys))
    with pytest.raises(FedloomError, match="there is no client 7: the federation has 2"):
        client.from_config(SimpleNamespace(node_config={"partition-id": 7}, run_config=keys))
    own = {"partition-id": 0, "data": write_site(tmp_path / "s", ["a", "b"], 0)}
    alone = flat(
        build({"method": "fedavg", "model": "mlp", "data": "own"}, {"rounds": 1}), Settings()
    )
    with pytest.raises(FedloomError, match="set clients"):
        client.from_config(SimpleNamespace(node_config=own, run_config=alone))


def test_flowers_local_differential_privacy_works_where_the_docs_say_so(tmp_path: Path) -> None:
    from flwr.clientapp.mod import LocalDpMod

    config = build(
        {"method": "fedavg", "clients": 2, "model": "mlp", "partition": "iid"},
        {"hidden": [8], "rounds": 1},
    )
    grid, settings = federation(tmp_path, config, {k: {"partition-id": k} for k in range(2)})
    plain = server.serve(grid, config, settings)
    noisy = LocalDpMod(clipping_norm=1.0, sensitivity=0.01, epsilon=10.0, delta=1e-5)
    grid.app = client.client_app(mods=[noisy])
    made = server.serve(grid, config, settings.model_copy(update={"out": str(tmp_path / "noisy")}))
    (entry,) = [
        e
        for e in map(json.loads, (tmp_path / "noisy" / "answers.jsonl").read_text().splitlines())
        if e["kind"] == "client"
    ]
    assert entry["answered"] == [0, 1] and not entry["refused"]
    assert made.metrics[-1]["clients"] != plain.metrics[-1]["clients"]
