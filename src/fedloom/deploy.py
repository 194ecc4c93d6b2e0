"""After training: models for clients that come later, and models as files without a run folder."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from .client.context import ClientContext
from .client.worker import ClientWorker, Headed, Network
from .core.errors import FedloomError, unknown
from .core.files import write_atomic
from .core.local import Predictor
from .core.lookup import make
from .core.method import Method
from .core.payload import Payload
from .data.catalogue import Progress
from .data.catalogue import load as load_data
from .data.federation import Client, Dataset, Federation
from .engine.config import Config
from .engine.folder import Run
from .engine.setup import Setup, Trained, last_checkpoint
from .models import Task, build
from .parts.heads import AdapterHead, CacheHead, PromptHead, TextHead

FORMAT = 1  # of exported folders
HEADS = {"text": TextHead, "cache": CacheHead, "adapter": AdapterHead}
TOLERANCE = 1e-4  # of ONNX against torch, relative to the largest logit


@dataclass(frozen=True)
class Personal:
    """What came of a client that joined after training."""

    predict: Predictor
    worker: ClientWorker
    run: Run
    train: int
    test: int
    before: (
        float | None
    )  # accuracy on its test samples with what the server sent it; None without test samples
    after: float | None  # and after its own training
    seconds: float

    def described(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            name: getattr(self, name) for name in ("train", "test", "before", "after", "seconds")
        }


def personalise(folder: str | Path, data: str, *, progress: Progress | None = None) -> Personal:
    """A personal model for a new client, from a finished run and a data set of its own.

    The newcomer says hello, gets what the server would send it and does one round of its own work;
    the server stays as it is. Classes are matched by name; a few of them are enough.
    """
    run = Run.load(folder)
    config, method = run.config, make(run.config.method, run.config.hyper)
    _refuse(run, method)
    clock = time.monotonic()
    shape = run.federation.get("shape", [])
    size = (
        {"size": shape[-1]} if len(shape) == 3 and not config.encoder else {}
    )  # as the run's own images
    source = config.source.model_copy(update={**_PLAIN, **size})
    new = _matched(load_data(data, source, root=config.execution.data_root), run)
    split = [np.flatnonzero(new.test.numpy() == part) for part in (False, True)]
    if not len(split[0]):
        raise FedloomError(f"{data} has no training samples: a personal model needs a few.")
    none, k = np.arange(0), len(run.federation["clients"])
    clients = (*[Client(none, none, none)] * k, Client(split[0], none, split[1]))
    setup = Setup.from_config(
        config, images=Federation(new, clients), method=method, progress=progress
    )
    federation, worker = setup.federation, setup.worker
    if shape and list(federation.data.x.shape[1:]) != shape:
        raise FedloomError(
            f"{data} has samples of shape {tuple(federation.data.x.shape[1:])}, "
            f"this run was trained on {tuple(shape)}."
        )
    checkpoint, _ = last_checkpoint(run)
    assert checkpoint.server is not None
    number = checkpoint.round + 1
    server = widened(checkpoint.server, method, k).replace(round=number)
    server = method.join(server, {k: method.hello(ClientContext(worker, k, number))})
    down = method.download(server, k)
    x, y = federation.samples(k, "test")
    before = _accuracy(method.personal(down, Payload(), ClientContext(worker, k, number)), x, y)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        update = method.client(down, Payload(), ClientContext(worker, k, number))
    predict = method.personal(update.trained, update.state, ClientContext(worker, k, number))
    after, seconds = _accuracy(predict, x, y), round(time.monotonic() - clock, 3)
    return Personal(predict, worker, run, len(split[0]), len(y), before, after, seconds)


_PLAIN = {
    "only_classes": None,
    "only_domains": None,
    "label_noise": 0.0,
    "image_noise": None,
    "nonsense": None,
}


def _refuse(run: Run, method: Method) -> None:
    """An error for runs and methods that have nothing for a newcomer."""
    if run.config.partition == "given" or run.config.model == "given":
        raise FedloomError(
            f"{run.folder} was made from Python with its own data or model; personalise it there."
        )
    if not method.traits.personalised:
        raise FedloomError(
            f"{method.name} gives everybody the common model, there is nothing to personalise; "
            f"`fedloom export "
            f"{run.folder}` writes it."
        )
    if method.traits.by_client is None:
        raise FedloomError(
            f"{method.name} makes a client's model of what it sent before; "
            "a newcomer has sent nothing."
        )


def widened(server: Payload, method: Method, clients: int) -> Payload:
    """The server with room for one client more."""
    wider = {}
    for name in ("known", *(method.traits.by_client or ())):
        if name not in server:
            continue
        rows = server.tensor(name)
        if len(rows) != clients:
            raise FedloomError(
                f"{method.name}: the server's {name!r} has {len(rows)} entries "
                f"for {clients} clients."
            )
        wider[name] = torch.cat([rows, torch.zeros_like(rows[:1])])
    return server.replace(**wider)


def _matched(new: Dataset, run: Run) -> Dataset:
    """The data set with the run's classes, by name."""
    classes = tuple(run.federation["classes"])
    for name in new.classes:
        if name not in classes:
            raise unknown(
                f"class of {new.name}, for a run with {len(classes)} classes,", name, classes
            )
    number = torch.tensor([classes.index(name) for name in new.classes])
    return replace(new, y=number[new.y], classes=classes)


def _accuracy(predict: Predictor, x: Tensor, y: Tensor) -> float | None:
    return float((predict(x).argmax(1) == y).double().mean()) if len(y) else None


# -- files -------------------------------------------------------------------------------------
def trained(folder: str | Path, client: int | None = None) -> tuple[Predictor, ClientWorker, Run]:
    """The common model of a run or, with a number, a client's own."""
    trained = Trained.from_folder(folder)
    method, worker = trained.setup.method, trained.setup.worker
    if client is None:
        predict = method.common(trained.server, worker)
        if predict is None:
            raise FedloomError(
                f"{method.name} has no common model: name a client, whose own model is exported, "
                "with --client."
            )
        return predict, worker, trained.run
    if not 0 <= client < worker.clients:
        raise FedloomError(
            f"there is no client {client}; they are numbered from 0 to {worker.clients - 1}."
        )
    local = ClientContext(worker, client, trained.round)
    down = method.download(trained.server, client)
    return method.personal(down, trained.store.get(client), local), worker, trained.run


def export(
    predict: Predictor, worker: ClientWorker, config: Config, out: str | Path, *, onnx: bool = False
) -> Path:
    """Write a model to a folder: `model.safetensors`, `config.json` and perhaps `model.onnx`."""
    if not isinstance(predict, Network) or predict.inputs is not None:
        raise FedloomError(
            f"{config.method} predicts with more than a network (prototypes, other clients' data, "
            "the test set's own order ...), and that cannot be exported; "
            "its run folder has all of it."
        )
    out, data = Path(out), worker.federation.data
    head = predict.head
    if isinstance(head, PromptHead):  # what it reads no longer changes
        head = TextHead(head.text().detach(), head.scale)
    kind = next((n for n, h in HEADS.items() if type(head) is h), None)
    if head is not None and kind is None:
        raise FedloomError(f"a {type(head).__name__} cannot be exported.")
    module = worker.model if head is None else Headed(worker.model.body, head)
    told = {
        "format": FORMAT,
        "method": config.method,
        "hyper": config.hyper,
        "classes": list(data.classes),
        "input": {
            "shape": list(data.x.shape[1:]),
            "vocabulary": data.vocabulary,
            "encoder": data.encoder,  # the module takes this encoder's features
            "mean": list(data.mean),
            "std": list(data.std),
            "bytes": data.x.dtype == torch.uint8,  # then the module takes (x / 255 - mean) / std
        },
        "model": config.model,
        "network": config.network,
        "head": None if head is None else {"kind": kind, **_settings(head)},
    }
    tensors = {n: t.detach().clone().contiguous() for n, t in module.state_dict().items()}
    write_atomic(out / "model.safetensors", save(tensors))
    write_atomic(out / "config.json", json.dumps(told, indent=1).encode())
    (out / "model.onnx").unlink(
        missing_ok=True
    )  # of an earlier export, it would be another model's
    if onnx:
        _onnx(module.eval(), data, out / "model.onnx")
    return out


def load(folder: str | Path) -> nn.Module:
    """The network in an exported folder, in evaluation mode: samples as it wants them -> logits."""
    folder = Path(folder)
    try:
        told = json.loads((folder / "config.json").read_bytes())
        tensors = load_file(folder / "model.safetensors")
    except FileNotFoundError as error:
        raise FedloomError(
            f"{folder} is no exported model: it has no {Path(error.filename).name}."
        ) from None
    if told.get("format") != FORMAT:
        raise FedloomError(
            f"{folder} has format {told.get('format')}, this version reads format {FORMAT}."
        )
    given = told["input"]
    task = Task(tuple(given["shape"]), len(told["classes"]), given["vocabulary"])
    with torch.random.fork_rng(devices=[]):
        made: Any = make(told["method"], told["hyper"]).extend(
            build(told["model"], task, **told["network"]), told["classes"]
        )
    module: nn.Module = made
    if told["head"] is not None:
        module = Headed(made.body, _head(told["head"], tensors))
    module.load_state_dict(tensors)
    return module.eval()


def _settings(head: nn.Module) -> dict[str, float | bool]:
    """What a head's tensors do not say."""
    return {n: getattr(head, n) for n in ("scale", "alpha", "beta", "unit") if hasattr(head, n)}


def _head(told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """A head of the kind and shapes that the files tell; its numbers are loaded afterwards."""
    given = {k: v for k, v in told.items() if k != "kind"}
    text = tensors["head.text"]
    if told["kind"] != "cache":
        return HEADS[told["kind"]](text, **given)
    values = tensors.get("head.values")
    owners = None if values is None else values.argmax(1)
    return CacheHead(
        tensors["head.keys"], text, start=tensors.get("head.start"), owners=owners, **given
    )


def _onnx(module: nn.Module, data: Dataset, file: Path) -> None:
    """The module as ONNX, any number of samples at once, checked against torch with onnxruntime."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter wants it
    except ImportError:
        raise FedloomError(
            "onnxruntime is not installed; `pip install 'fedloom[onnx]'` brings it."
        ) from None
    rows = torch.arange(min(len(data.y), 5))
    x = data.prepare(data.take(rows))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about operators of packages that are not there
        try:
            torch.onnx.export(
                module,
                (x,),
                file,
                input_names=["x"],
                output_names=["logits"],
                dynamo=True,
                verbose=False,
                dynamic_shapes=({0: torch.export.Dim("samples")},),
                external_data=False,
            )
        except Exception as error:  # whatever the exporter cannot do
            raise FedloomError(
                f"this model does not go into ONNX: {str(error).strip().splitlines()[0]}"
            ) from error
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        for part in (x, x[:1]):
            ours, theirs = module(part), torch.from_numpy(session.run(None, {"x": part.numpy()})[0])
            if (ours - theirs).abs().max() > TOLERANCE * max(1.0, float(ours.abs().max())):
                file.unlink()
                raise FedloomError(
                    "onnxruntime and torch disagree about this model; no ONNX file was written."
                )
