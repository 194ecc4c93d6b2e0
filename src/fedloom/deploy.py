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
from .core.lookup import make, refuse_untrusted
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
    """The model of a client that joined after training, and how good it is."""

    predict: Predictor
    worker: ClientWorker
    run: Run
    train: int
    test: int
    # Accuracy on its test samples with what the server sent, and after its own training; None if it
    # has no test samples.
    before: float | None
    after: float | None
    seconds: float

    def described(self) -> dict[str, Any]:
        """The figures as plain values."""
        names = ("train", "test", "before", "after", "seconds")
        return {name: getattr(self, name) for name in names}


def personalise(
    folder: str | Path, data: str, *, progress: Progress | None = None, trust: bool = False
) -> Personal:
    """A personal model for a new client, from a finished run and a data set of its own.

    The newcomer says hello, gets what the server would send it and does one round of its own work;
    the server stays as it is. Classes are matched by name; a few of them are enough. `trust` allows
    a method file that the run names to be executed.
    """
    run = Run.load(folder, trust)
    config = run.config
    refuse_untrusted(config.method, folder)
    method = make(config.method, config.hyper)
    _refuse(run, method)
    clock = time.monotonic()
    k = len(run.federation["clients"])  # the newcomer's number
    images = _newcomer(run, data)
    setup = Setup.from_config(config, images=images, method=method, progress=progress)
    federation = setup.federation
    worker = setup.worker
    shape = run.federation.get("shape", [])
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
    after = _accuracy(predict, x, y)
    seconds = round(time.monotonic() - clock, 3)
    train = len(images.clients[k].train)
    return Personal(predict, worker, run, train, len(y), before, after, seconds)


def _newcomer(run: Run, data: str) -> Federation:
    """The newcomer's samples as one client more, behind the run's own, who have none here."""
    config = run.config
    changes = dict(_PLAIN)
    shape = run.federation.get("shape", [])
    if len(shape) == 3 and not config.encoder:
        changes["size"] = shape[-1]  # as large as the run's own images
    source = config.source.model_copy(update=changes)
    new = _matched(load_data(data, source, root=config.execution.data_root), run)
    is_test = new.test.numpy()
    train = np.flatnonzero(~is_test)
    if not len(train):
        raise FedloomError(f"{data} has no training samples: a personal model needs a few.")
    none = np.arange(0)
    others = [Client(none, none, none)] * len(run.federation["clients"])
    return Federation(new, (*others, Client(train, none, np.flatnonzero(is_test))))


# What was done to the run's samples on purpose is not done to the newcomer's.
_PLAIN: dict[str, Any] = {
    "only_classes": None,
    "only_domains": None,
    "label_noise": 0.0,
    "image_noise": None,
    "nonsense": None,
}


def _refuse(run: Run, method: Method) -> None:
    """Raise an error if the run or its method has nothing for a newcomer."""
    if run.config.partition == "given" or run.config.model == "given":
        raise FedloomError(
            f"{run.folder} was made from Python with its own data or model; personalise it there."
        )
    if not method.traits.personalised:
        raise FedloomError(
            f"{method.name} gives everybody the common model, there is nothing to personalise; "
            f"`fedloom export {run.folder}` writes it."
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
def trained(
    folder: str | Path, client: int | None = None, *, trust: bool = False
) -> tuple[Predictor, ClientWorker, Run]:
    """The common model of a run or, with a number, a client's own; `trust` as in `personalise`."""
    trained = Trained.from_folder(folder, trust=trust)
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
    if not isinstance(predict, Network) or predict.inputs or predict.rule:
        raise FedloomError(
            f"{config.method} predicts with more than a network (prototypes, other clients' data, "
            "the test set's own order ...), and that cannot be exported; "
            "its run folder has all of it."
        )
    out = Path(out)
    data = worker.federation.data
    head = predict.head
    if isinstance(head, PromptHead):  # its prompts are final: text features suffice
        head = TextHead(head.text().detach(), head.scale)
    module: nn.Module = worker.model
    if head is not None:
        module = Headed(worker.model.body, head)
    description = {
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
        "head": _head_description(head),
    }
    tensors = {n: t.detach().clone().contiguous() for n, t in module.state_dict().items()}
    write_atomic(out / "model.safetensors", save(tensors))
    write_atomic(out / "config.json", json.dumps(description, indent=1).encode())
    (out / "model.onnx").unlink(missing_ok=True)  # an earlier export's is of another model
    if onnx:
        _onnx(module.eval(), data, out / "model.onnx")
    return out


def load(folder: str | Path, *, trust: bool = False) -> nn.Module:
    """The network in an exported folder, in evaluation mode: prepared samples to logits.

    `trust` allows a method file that the folder names to be executed.
    """
    folder = Path(folder)
    try:
        description = json.loads((folder / "config.json").read_bytes())
        tensors = load_file(folder / "model.safetensors")
    except FileNotFoundError as error:
        raise FedloomError(
            f"{folder} is no exported model: it has no {Path(error.filename).name}."
        ) from None
    if description.get("format") != FORMAT:
        raise FedloomError(
            f"{folder} has format {description.get('format')}, this version reads format {FORMAT}."
        )
    inputs = description["input"]
    task = Task(tuple(inputs["shape"]), len(description["classes"]), inputs["vocabulary"])
    if not trust:
        refuse_untrusted(description["method"], folder)
    method = make(description["method"], description["hyper"])
    with torch.random.fork_rng(devices=[]):
        network = build(description["model"], task, **description["network"])
        extended: Any = method.extend(network, description["classes"])
    module: nn.Module = extended
    if description["head"] is not None:
        module = Headed(extended.body, _head(description["head"], tensors))
    module.load_state_dict(tensors)
    return module.eval()


def _head_description(head: nn.Module | None) -> dict[str, Any] | None:
    """The kind of a head, and those of its settings that its tensors do not show."""
    if head is None:
        return None
    for kind, cls in HEADS.items():
        if type(head) is cls:
            names = ("scale", "alpha", "beta", "unit")
            return {"kind": kind, **{n: getattr(head, n) for n in names if hasattr(head, n)}}
    raise FedloomError(f"a {type(head).__name__} cannot be exported.")


def _head(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """A head of the kind and the shapes in the files; its numbers are loaded afterwards."""
    settings = {name: value for name, value in description.items() if name != "kind"}
    text = tensors["head.text"]
    if description["kind"] != "cache":
        return HEADS[description["kind"]](text, **settings)
    values = tensors.get("head.values")
    owners = None if values is None else values.argmax(1)
    return CacheHead(
        tensors["head.keys"], text, start=tensors.get("head.start"), owners=owners, **settings
    )


def _onnx(module: nn.Module, data: Dataset, file: Path) -> None:
    """Write the module as ONNX for any number of samples, and check it against torch."""
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
        warnings.simplefilter("ignore")  # the exporter warns of packages that we do not need
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
        except Exception as error:  # the exporter raises many kinds
            raise FedloomError(
                f"this model does not go into ONNX: {str(error).strip().splitlines()[0]}"
            ) from error
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        for part in (x, x[:1]):
            ours = module(part)
            theirs = torch.from_numpy(session.run(None, {"x": part.numpy()})[0])
            if (ours - theirs).abs().max() > TOLERANCE * max(1.0, float(ours.abs().max())):
                file.unlink()
                raise FedloomError(
                    "onnxruntime and torch disagree about this model; no ONNX file was written."
                )
