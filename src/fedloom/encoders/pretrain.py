"""A small ViT of one's own, trained to give what a frozen encoder gives.

The teacher sees every image once, as it is, through the feature cache. The student is trained on
augmented images so that a linear map of its class token meets the teacher's standardised features:
2 (1 - cos) + 0.5 mean squared error, and 0.5 times the cross-entropy of a linear classifier where
images come in folders by class. Both maps are dropped. What is left is a Hugging Face folder, for
`--encoder hf:DIR` and `--set vit=hf:DIR`.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ..core.device import CPU, Device
from ..core.errors import FedloomError, explain
from ..core.files import write_atomic
from ..core.rng import key, torch_rng
from ..core.settings import Count, NotNegative, Positive, Share, setting
from ..data.cache import content
from ..data.catalogue import Progress, Source, load
from ..data.dataset import Dataset
from ..data.readers.decoding import SUFFIXES
from ..data.readers.pixels import decoded_image
from ..data.readers.splits import mod10
from ..data.transforms import augment
from .base import Preprocess
from .cache import Cache
from .encoder import Encoder, features
from .huggingface import import_transformers


class Student(BaseModel):
    """What is trained, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Count = setting(64, "Side of the images in pixels.")
    patch: Count = setting(8, "Side of a patch in pixels.")
    width: Count = setting(192, "How many numbers a token has.")
    layers: Count = setting(6, "How many layers the network has.")
    heads: Count = setting(3, "How many heads of attention a layer has.")
    epochs: Count = setting(8, "How many passes over the images are made.")
    batch: Count = setting(128, "How many images a step takes.")
    lr: Positive = setting(
        1e-3, "The largest step size; it rises at first and then falls to 0 as a cosine."
    )
    warmup: Share = setting(0.05, "Share of all steps in which the step size rises.")
    weight_decay: NotNegative = setting(0.05, "Weight decay of the optimiser AdamW.")
    label_weight: NotNegative = setting(0.5, "Weight of the labels' cross-entropy in the loss.")
    seed: int = setting(0, "Seed of everything that is random.")
    save_every: Count = setting(200, "How many steps lie between two saves.", affects="nothing")


def settings(changes: Mapping[str, Any]) -> Student:
    """Settings that are checked; anything wrong is named."""
    try:
        student = Student.model_validate(dict(changes))
    except ValidationError as error:
        raise FedloomError(f"pretrain: {explain(error)}") from None
    if student.size % student.patch or student.width % student.heads:
        raise FedloomError("pretrain: size must be a multiple of patch, and width one of heads.")
    return student


def pretrain(
    images: str,
    teacher: Encoder,
    out: Path,
    student: Student | None = None,
    *,
    root: str | None = None,
    cache: Cache | None = None,
    reading: Progress | None = None,
    training: Progress | None = None,
    device: Device = CPU,
) -> dict[str, Any]:
    """Train a ViT and leave it in `out`.

    An interrupted training continues; a finished one is only reported.

    `images` is a data set's name, or a folder: of folders by class, or of images without labels.
    Gives the figures on held-out images: the mean cosine with the teacher's features and, with
    labels, the accuracy.
    """
    student = student or Student()
    # Twice the student's size: the teacher sees more detail, as it would in the original images.
    data = read(images, 2 * student.size, root, reading)
    assert isinstance(data.x, Tensor)
    wanted = {
        "teacher": teacher.hash,
        "images": content(data.x),
        **student.model_dump(mode="json", exclude={"save_every"}),
    }
    if (out / "pretraining.json").exists():
        finished = json.loads((out / "pretraining.json").read_bytes())
        if finished["settings"] == wanted:
            return {**finished["figures"], "steps": finished["steps"], "reused": True}
        raise FedloomError(f"{out} holds another network; choose another folder.")
    taught = features(data.x, teacher, cache=cache, data=data.name, progress=reading, device=device)
    work = Work(data, taught, student, device)
    work.resume(out / "training", wanted)
    while work.step < work.steps:
        work.advance()
        if training:
            training(work.step, work.steps)
        if work.step % student.save_every == 0:
            work.save(out / "training", wanted)
    figures = work.figures()
    work.export(
        out, {"settings": wanted, "figures": figures, "steps": work.step, "teacher": teacher.name}
    )
    shutil.rmtree(out / "training", ignore_errors=True)
    return {**figures, "steps": work.step, "reused": False}


def read(images: str, size: int, root: str | None, progress: Progress | None) -> Dataset:
    """A data set by name or path, or the images that lie in a folder as one class."""
    folder = Path(images)
    files = _image_files(folder)
    if not files:
        data = load(images, Source(size=size), root=root, progress=progress)
        if data.kind != "image" or not isinstance(data.x, Tensor):
            raise FedloomError(f"pretrain needs images; {data.name} has none.")
        return data
    x = np.empty((len(files), 3, size, size), dtype=np.uint8)
    for i, file in enumerate(files):
        try:
            small = decoded_image(file).resize((size, size), Image.Resampling.BILINEAR)
        except (OSError, FedloomError) as error:
            raise FedloomError(f"{file} cannot be read as an image: {error}.") from None
        x[i] = np.asarray(small).transpose(2, 0, 1)
        if progress:
            progress(i + 1, len(files))
    zeros = torch.zeros(len(files), dtype=torch.int64)
    return Dataset(
        torch.from_numpy(x), zeros, zeros, mod10(len(files)), ("any",), (folder.name,), folder.name
    )


def _image_files(folder: Path) -> list[Path]:
    """The images that lie in a folder itself, not in folders below it."""
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)


class Work:
    """A training in progress: student, its two maps, optimiser, and how many steps were taken."""

    def __init__(
        self, data: Dataset, taught: Tensor, student: Student, device: Device = CPU
    ) -> None:
        transformers = import_transformers()
        self._device = device.torch
        self.data, self.student, self.step = data, student, 0
        self.rows = (~data.test).nonzero().flatten()
        self.held = data.test.nonzero().flatten()
        if not len(self.rows):
            raise FedloomError(f"pretrain needs training images; {data.name} has none.")
        mean, std = taught[self.rows].mean(0), taught[self.rows].std(0, correction=0)
        self.taught = (taught - mean) / std.clamp(min=1e-6)
        self.per_epoch = math.ceil(len(self.rows) / student.batch)
        self.steps = student.epochs * self.per_epoch
        device.set_precision()
        with CPU.seeded(key(student.seed, "pretrain", "init")):
            shape = {
                "image_size": student.size,
                "patch_size": student.patch,
                "hidden_size": student.width,
            }
            depth = {"num_hidden_layers": student.layers, "num_attention_heads": student.heads}
            config = transformers.ViTConfig(**shape, **depth, intermediate_size=4 * student.width)
            parts = {
                "vit": transformers.ViTModel(config, add_pooling_layer=False),
                "project": nn.Linear(student.width, taught.shape[1]),
            }
            if len(data.classes) > 1:
                parts["classify"] = nn.Linear(student.width, len(data.classes))
        self.parts = nn.ModuleDict(parts).to(self._device)
        self.preprocess = Preprocess(student.size)
        self.optimizer = torch.optim.AdamW(
            self.parts.parameters(), student.lr, weight_decay=student.weight_decay, foreach=True
        )

    def token(self, images: Tensor) -> Tensor:
        """The student's class token."""
        last: Tensor = self.parts["vit"](self.preprocess(images)).last_hidden_state
        return last[:, 0]

    def advance(self) -> None:
        """Take one step; what it draws depends on its number alone, so one may stop anywhere."""
        s = self.student
        epoch, place = divmod(self.step, self.per_epoch)
        shuffling = torch_rng(s.seed, "pretrain", "order", epoch)
        order = torch.randperm(len(self.rows), generator=shuffling)
        rows = self.rows[order[place * s.batch : (place + 1) * s.batch]]
        shaken = augment(
            self.data.take(rows).to(self._device),
            ("crop", "flip"),
            torch_rng(s.seed, "pretrain", "augment", self.step),
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.parts.train()
        token = self.token(shaken)
        guess, target = self.parts["project"](token), self.taught[rows].to(self._device)
        loss = 2 * (1 - F.cosine_similarity(guess, target)).mean() + 0.5 * F.mse_loss(guess, target)
        if "classify" in self.parts:
            classes = self.parts["classify"](token)
            loss = loss + s.label_weight * F.cross_entropy(
                classes, self.data.y[rows].to(self._device), label_smoothing=0.1
            )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1

    def rate(self) -> float:
        """The step size of the next step."""
        rising = math.ceil(self.student.warmup * self.steps)
        if self.step < rising:
            return self.student.lr * (self.step + 1) / rising
        done = (self.step - rising) / max(1, self.steps - rising)
        return self.student.lr * 0.5 * (1 + math.cos(math.pi * done))

    @torch.no_grad()
    def figures(self) -> dict[str, float | None]:
        """How near the student comes on held-out images.

        None where nothing is held out or there are no labels.
        """
        figures: dict[str, float | None] = {"cosine": None, "accuracy": None}
        held = len(self.held)
        if not held:
            return figures
        self.parts.eval()
        near, right = 0.0, 0
        for rows in self.held.split(self.student.batch):
            token = self.token(self.data.take(rows).to(self._device))
            guess = self.parts["project"](token).cpu()
            near += float(F.cosine_similarity(guess, self.taught[rows]).sum())
            if "classify" in self.parts:
                classes = self.parts["classify"](token).argmax(1).cpu()
                right += int((classes == self.data.y[rows]).sum())
        figures["cosine"] = near / held
        if "classify" in self.parts:
            figures["accuracy"] = right / held
        return figures

    def save(self, folder: Path, wanted: Mapping[str, Any]) -> None:
        """Note everything that the next step needs."""
        tensors = {}
        for name, tensor in self.parts.state_dict().items():
            tensors[f"parts/{name}"] = tensor.cpu().contiguous()
        for i, moments in self.optimizer.state_dict()["state"].items():
            for name, tensor in moments.items():
                tensors[f"optimizer/{i}/{name}"] = tensor.cpu().contiguous()
        about = {"step": str(self.step), "settings": json.dumps(wanted)}
        write_atomic(folder / "state.safetensors", save(tensors, about))

    def resume(self, folder: Path, wanted: Mapping[str, Any]) -> None:
        """Continue from what was noted, if anything was."""
        file = folder / "state.safetensors"
        if not file.exists():
            return
        weights: dict[str, Tensor] = {}
        moments: dict[int, dict[str, Tensor]] = {}
        with safe_open(file, "pt") as saved:
            about = saved.metadata()
            if json.loads(about["settings"]) != dict(wanted):
                raise FedloomError(
                    f"{folder.parent} holds a training with other settings; choose another folder."
                )
            for name in saved.keys():  # noqa: SIM118 - no mapping
                owner, _, rest = name.partition("/")
                if owner == "parts":
                    weights[rest] = saved.get_tensor(name)
                else:
                    i, _, what = rest.partition("/")
                    moments.setdefault(int(i), {})[what] = saved.get_tensor(name)
        self.step = int(about["step"])
        self.parts.load_state_dict(weights)
        self.optimizer.load_state_dict(
            {"state": moments, "param_groups": self.optimizer.state_dict()["param_groups"]}
        )

    def export(self, out: Path, about: Mapping[str, Any]) -> None:
        """The student as a Hugging Face folder; the note that says it is finished comes last."""
        out.mkdir(parents=True, exist_ok=True)
        vit: Any = self.parts["vit"]
        vit.cpu().eval().save_pretrained(out)
        side = {"height": self.student.size, "width": self.student.size}
        recipe = {"size": side, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2}
        write_atomic(out / "preprocessor_config.json", json.dumps(recipe, indent=1).encode())
        write_atomic(out / "pretraining.json", json.dumps(about, indent=1).encode())
