"""After training: models for clients that come later, and models as files without a run folder."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from .adapters import adapt, merge
from .adapters.prompt import Prompted
from .client.large import eval_batch
from .client.networks import Named
from .client.worker import Network
from .core.device import find as find_devices
from .core.device import on_device
from .core.errors import FedloomError
from .core.files import write_atomic
from .core.lookup import make
from .core.user_files import allow, refuse_untrusted
from .data.readers.unlabelled import read_samples
from .engine.newcomer import Personal as Personal
from .engine.newcomer import Served
from .engine.newcomer import personalise as personalise
from .engine.setup import Trained, cut_of
from .executors.flower.opened import is_federation, opened
from .models import Task, build, exported
from .models import options as model_options
from .models.prepare import prepared
from .models.stages import Piece, Stages, Whole, piece
from .parts.heads import PromptHead

SHOWN = 200  # samples for which ONNX is compared with torch


# -- files -------------------------------------------------------------------------------------
def trained(
    folder: str | Path,
    client: int | str | None = None,
    *,
    trust: bool = False,
    device: str = "cpu",
) -> Served:
    """The common model of a run or a client's own, by its number or by a domain that is its alone.

    `trust` and `device` are as in `personalise`.
    """
    if is_federation(Path(folder)):
        return _of_federation(Path(folder), client, trust, device)
    trained = Trained.from_folder(folder, trust=trust, device=device)
    worker = trained.setup.worker
    if client is None:
        predict = trained.common()
        if predict is None:
            raise FedloomError(
                f"{worker.method_name} has no common model: name a client, whose own model is "
                "meant, with --client."
            )
        if worker.training.eval_stats == "own":
            raise FedloomError(
                f"{trained.run.folder} has eval_stats=own: its common model has other statistics "
                "of BatchNorm for each client, so name the client who is to use it with --client."
            )
    else:
        number = worker.federation.number(client)
        predict, worker = trained.personal(number), worker.of(number)
    return Served(predict, worker, trained.run, trained.setup.images.data)


def _of_federation(folder: Path, client: int | str | None, trust: bool, device: str) -> Served:
    """The common model of a run whose samples and clients' states are at its sites."""
    federation, made_up = opened(folder)
    trained = Trained.from_folder(folder, federation=federation, trust=trust, device=device)
    method, worker = trained.setup.method, trained.setup.worker
    predict = trained.common()
    own = worker.training.eval_stats == "own"
    if client is not None:
        k = federation.number(client)
        if method.traits.personalised:
            raise FedloomError(
                f"client {k}'s own model needs what only its site has, its samples and its memory; "
                f"`fedloom personalise {folder} --data PATH`, at the site, makes a model of them."
            )
        if own:
            raise FedloomError(
                f"with eval_stats=own, statistics of BatchNorm for client {k} come from its "
                "samples, which only its site has; without a client there is the common model with "
                "the server's."
            )
    elif predict is None:
        raise FedloomError(
            f"{method.name} has no common model; `fedloom personalise {folder} --data PATH`, "
            "at a site, makes one of its own for it."
        )
    elif own:
        warnings.warn(
            "this model has the server's statistics of BatchNorm; the run's scores are of models "
            "with each site's own (eval_stats=own), which only sites can compute.",
            stacklevel=3,
        )
    assert predict is not None  # a method that is not personalised has one
    return Served(predict, worker, trained.run, made_up)


def whole(served: Served) -> tuple[Whole, dict[str, Any]]:
    """Everything between a sample as it is read and its scores, as a module, and its description.

    The module is a copy on the CPU.
    """
    predict, config = served.predict, served.run.config
    if served.worker.method.traits.transductive:
        raise FedloomError(
            f"what {config.method} predicts for a sample depends on the other samples that are "
            "asked about with it, so its model cannot be exported."
        )
    if not isinstance(predict, Network):
        raise FedloomError(
            f"{config.method} predicts with a function, which cannot be exported; "
            "`local.predictor(rule=...)` makes a network of it."
        )
    stages = predict.module
    if isinstance(stages.head, PromptHead):
        stages.head = stages.head.final()
    data = served.worker.federation.data
    named = served.worker.named or Named(config.model, config.network)
    brought = {"head": predict.head and stages.head, "inputs": stages.inputs, "rule": stages.rule}
    description: dict[str, Any] = {
        "format": exported.FORMAT,
        "method": config.method,
        "hyper": config.hyper,
        "classes": list(data.classes),
        "input": _input_description(served),
        "model": named.model,
        "network": {**named.options, **getattr(served.worker.model, "again", {})},
        "pieces": {name: _described(part) for name, part in brought.items()},
    }
    prepare = prepared(description["input"], served.worker.standard)
    plain = copy.deepcopy(stages).cpu()
    merge(plain)
    module = Whole(prepare, plain)
    if any(isinstance(part, Prompted) for part in module.modules()):
        description |= {"adapter": config.adapter, "adapting": config.adapting}
    return module.eval(), description


def _input_description(served: Served) -> dict[str, Any]:
    """What the model takes, and what the network behind the preparation takes."""
    raw, data, config = served.raw, served.worker.federation.data, served.run.config
    encoder = None
    if raw.encoder is None:
        encoder = data.encoder
    return {
        "kind": raw.kind,
        "shape": list(raw.x.shape[1:]),
        "dtype": str(raw.x.dtype).removeprefix("torch."),
        "mean": list(raw.mean),  # images become (x / 255 - mean) / std, within the model
        "std": list(raw.std),
        "vocabulary": raw.vocabulary,
        "words": raw.words,  # the list that texts are read with, unless words are hashed
        "hashed": config.source.hashed,
        "encoder": encoder,  # within the model too, with its own way of preparing images
        "pixels": config.pixels,
        "standardised": served.worker.standard is not None,
        "features": list(data.x.shape[1:]),
        "features_of": data.encoder,
        "cut": cut_of(config, tuple(raw.x.shape)),
    }


def _described(part: nn.Module | None) -> dict[str, Any] | None:
    if part is None:
        return None
    if not isinstance(part, Piece):
        raise FedloomError(
            f"a {type(part).__name__} cannot be exported: it is not a fedloom.models.stages.Piece."
        )
    return part.describe()


def export(served: Served, out: str | Path, *, onnx: bool = False) -> Path:
    """Write a model to a folder: `model.safetensors`, `config.json` and perhaps `model.onnx`."""
    module, description = whole(served)
    out = Path(out)
    tensors = {n: t.detach().clone().contiguous() for n, t in module.state_dict().items()}
    write_atomic(out / "model.safetensors", save(tensors))
    write_atomic(out / "config.json", json.dumps(description, indent=1).encode())
    (out / "model.onnx").unlink(missing_ok=True)  # an earlier export's is of another model
    if onnx:
        from .models.onnx import write_onnx

        some = torch.arange(min(len(served.raw.y), SHOWN))
        write_onnx(module, served.raw.take(some), out / "model.onnx", description)
    return out


def load(
    folder: str | Path, *, trust: bool = False, network: nn.Module | None = None
) -> tuple[Whole, dict[str, Any]]:
    """The model in an exported folder, in evaluation mode, and its description.

    It takes samples as `description["input"]` says, and gives scores. `trust` allows a method file
    that the folder names to be executed. A `network` that was not made by its name has to be given.
    What a stranger describes is measured before it is built; what you trust or give is not.
    """
    folder = Path(folder)
    description, tensors = exported.read(folder)
    if trust:
        allow(description)
    else:
        refuse_untrusted(description, folder)
    method = make(description["method"], description["hyper"])
    own = trust or network is not None

    def extended() -> nn.Module:
        given = merge(copy.deepcopy(network)) if network else _network(description, folder)
        if description.get("adapter"):
            adapt(given, description["adapter"], **description["adapting"])
        return method.extend(given, description["classes"])

    try:
        with torch.random.fork_rng(devices=[]):
            exported.refuse_oversized(folder, description, tensors, extended, own=own)
            model = _assembled(folder, description, tensors, extended())
            exported.refuse_misfit(folder, description, model, own=own)
    except FedloomError:
        raise
    except Exception as error:  # a description can be wrong in too many ways to foresee
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise FedloomError(f"the model in {folder} cannot be built ({reason}).") from error
    return model, description


def _assembled(
    folder: Path, description: Mapping[str, Any], tensors: Mapping[str, Tensor], model: Any
) -> Whole:
    """The model with the stages that its description names, and its tensors."""
    pieces = {}
    for name, about in description["pieces"].items():
        if about is not None:
            start = f"stages.{name}."
            weights = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
            pieces[name] = piece(about, weights, model)
    stages = Stages(model.body, **{"head": model.head, **pieces})
    module = Whole(prepared(description["input"]), stages)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        first = str(error).splitlines()[1:2] or [str(error)]
        raise FedloomError(
            f"the tensors in {folder} are not those of its config.json ({first[0].strip()}); "
            "export the run anew."
        ) from None
    return module.eval()


def _network(description: Mapping[str, Any], folder: Path) -> nn.Module:
    """The network that the description names."""
    if description["model"] == "given":
        raise FedloomError(f"{folder}: its network was made in Python; give it as `network`.")
    about = description["input"]
    task = Task(
        tuple(about["features"]),
        len(description["classes"]),
        about["vocabulary"],
        about["features_of"],
        tuple(about["mean"]),
        tuple(about["std"]),
        tuple(about["words"]) if about["words"] is not None else None,
    )
    options = dict(description["network"])
    if "pretrained" in model_options(description["model"]):
        options["pretrained"] = False  # all weights are in the folder
    return build(description["model"], task, **options)


# -- predictions -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Prediction:
    """What a model says about one sample: classes with probabilities, the likeliest first."""

    sample: str
    classes: dict[str, float]


def predict(
    model: str | Path,
    samples: str | Path | Sequence[str | Path],
    *,
    client: int | str | None = None,
    trust: bool = False,
    device: str = "cpu",
) -> list[Prediction]:
    """Classes with probabilities for images, or for the rows of a CSV file.

    `samples` is a path or several. `model` is an exported folder, a `.onnx` file, or the folder of
    a run; a run has a model for each `client`, and perhaps a common one. The class of a map's
    sample is that of most pixels: its probabilities are means over pixels.
    """
    place = find_devices(device)[0].torch
    if place.type != "cpu" and Path(model).suffix == ".onnx":
        raise FedloomError("onnxruntime computes on the CPU; --device is for other models.")
    scores, description = _opened(Path(model), client, trust, device)
    if isinstance(scores, nn.Module):
        scores = on_device(scores, place)
    names, x = _several(samples, description["input"])
    probabilities = []
    with torch.no_grad():
        for part in x.split(eval_batch(x.shape)):
            shares = torch.softmax(scores(part.to(place)), dim=1)
            if shares.ndim > 2:
                shares = shares.flatten(2).mean(2)
            probabilities.append(shares.cpu())
    answers = []
    for name, row in zip(names, torch.cat(probabilities), strict=True):
        order = row.argsort(descending=True).tolist()
        classes = description["classes"]
        answers.append(Prediction(name, {classes[c]: float(row[c]) for c in order}))
    return answers


def _several(
    samples: str | Path | Sequence[str | Path], wanted: Mapping[str, Any]
) -> tuple[list[str], Tensor]:
    """The samples at a path, or at several, whose names then begin with theirs."""
    if isinstance(samples, str | Path):
        return read_samples(Path(samples), wanted)
    names: list[str] = []
    parts = []
    for path in map(Path, samples):
        found, x = read_samples(path, wanted)
        parts.append(x)
        if len(samples) == 1:
            names += found
        elif path.is_dir():
            names += [str(path / name) for name in found]
        elif found == [path.name]:
            names.append(str(path))
        else:
            names += [f"{path}: {name}" for name in found]
    return names, torch.cat(parts)


def _opened(
    model: Path, client: int | str | None, trust: bool, device: str
) -> tuple[Callable[[Tensor], Tensor], dict[str, Any]]:
    """What gives scores, on the CPU, and its description."""
    if (model / "config.toml").is_file():
        return whole(trained(model, client, trust=trust, device=device))
    if client is not None:
        raise FedloomError(f"{model} holds one model; --client chooses among those of a run.")
    if model.suffix == ".onnx":
        from .models.onnx import Session

        session = Session(model)
        return session, session.about
    return load(model, trust=trust)
