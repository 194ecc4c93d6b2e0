"""Models from Hugging Face folders on disk, through `transformers` and without torchvision."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError
from .base import Encoder, Preprocess, missing

HEADS = (
    "classifier",
    "cls_classifier",
    "distillation_classifier",
    "pooler",
    "head",
    "decoder",
    "lm_head",
    "cls",
)
RESAMPLE = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers


@dataclass(frozen=True)
class Tokens:
    """What a ViT makes of a batch: one vector per image, one per patch, one per extra token."""

    cls: Tensor  # N x width
    patches: Tensor  # N x patches x width
    extra: Tensor  # N x extra x width


class Vision(nn.Module):
    """A frozen vision model: called, it gives features; `tokens` gives the tokens of a ViT and takes extra ones.

    It stays in evaluation mode whatever becomes of the model round it.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Vision:
        """Always evaluation mode."""
        return super().train(False)

    @property
    def size(self) -> int | None:
        """The side of the images it takes; None: any."""
        size = getattr(self.model.config, "image_size", None)
        size = size[0] if isinstance(size, list | tuple) else size
        return size if self._has_class_token else None

    @property
    def width(self) -> int:
        """How many numbers a token has."""
        return int(self.model.config.hidden_size)  # type: ignore[union-attr, arg-type]

    @property
    def _has_class_token(self) -> bool:
        embeddings = getattr(self.model, "embeddings", None)
        return any(hasattr(embeddings, name) for name in ("cls_token", "class_embedding"))

    def forward(self, pixels: Tensor) -> Tensor:
        """Features of preprocessed images: the class token of a ViT, else what the model pools, else a mean."""
        self._check(pixels)
        output = self.model(pixels)
        if self._has_class_token:
            return self._class_token(output)
        pooled = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        last: Tensor = output.last_hidden_state
        return last.mean((2, 3)) if last.ndim == 4 else last.mean(1)

    def tokens(self, pixels: Tensor, extra: Tensor | None = None) -> Tokens:
        """The tokens after the last layer, with `extra` ones put in behind the patches, without position embedding.

        `extra` is tokens x width for all images or N x tokens x width; gradients reach it. Without extra tokens, `cls`
        is what calling the module gives, so that pass can be taken from the feature cache.
        """
        if not self._has_class_token:
            raise FedloomError(
                f"a {type(self.model).__name__} has no class token; prompts need a ViT that has one."
            )
        self._check(pixels)
        n, width = len(pixels), self.width
        extra = torch.empty(0, width) if extra is None else extra
        extra = extra.expand(n, -1, -1) if extra.ndim == 2 else extra
        if extra.ndim != 3 or len(extra) != n or extra.shape[2] != width:
            raise FedloomError(
                f"extra tokens must be tokens x {width}, or {n} x tokens x {width} for these images; "
                f"got shape {tuple(extra.shape)}."
            )
        # A hook rather than the model's inner loop, so that any ViT will do, whatever its layers are called.
        append = self.model.embeddings.register_forward_hook(  # type: ignore[union-attr]
            lambda _module, _inputs, embedded: torch.cat(
                [embedded, extra.to(embedded.dtype)], dim=1
            )
        )
        try:
            output = self.model(pixels)
        finally:
            append.remove()
        last: Tensor = output.last_hidden_state
        own = last.shape[1] - extra.shape[1]
        patch = self.model.config.patch_size  # type: ignore[union-attr]
        patches = (pixels.shape[2] // int(patch)) * (pixels.shape[3] // int(patch))  # type: ignore[arg-type]
        return Tokens(self._class_token(output), last[:, own - patches : own], last[:, own:])

    def _class_token(self, output: Any) -> Tensor:
        # CLIP normalises the class token after the last layer, and only there.
        return (
            output.pooler_output
            if hasattr(self.model, "post_layernorm")
            else output.last_hidden_state[:, 0]
        )

    def _check(self, pixels: Tensor) -> None:
        if (
            pixels.ndim != 4
            or pixels.shape[1] != 3
            or (self.size and pixels.shape[2:] != (self.size, self.size))
        ):
            side = self.size or "height"
            raise FedloomError(
                f"this {type(self.model).__name__} takes images of shape (samples, 3, {side}, {self.size or 'width'}), "
                f"got {tuple(pixels.shape)}."
            )


def vision(path: str | Path, name: str | None = None) -> Encoder:
    """The vision model in a Hugging Face folder (of a CLIP or SigLIP: its vision tower) as an encoder."""
    folder = Path(path)
    config = read_config(folder)
    size = preprocess(folder)
    tower = config.get("vision_config", config)
    dim = tower.get("hidden_size") or (tower.get("hidden_sizes") or [None])[-1]
    if not isinstance(dim, int):
        raise FedloomError(
            f"{folder / 'config.json'} does not say how wide the model's features are."
        )
    wanted = tower.get("image_size")
    if (
        isinstance(wanted, int)
        and wanted != size.size
        and config.get("model_type") not in _ANY_SIZE
    ):
        raise FedloomError(
            f"{folder}: the model takes {wanted}x{wanted} images, its preprocessor makes {size.size}x{size.size} ones."
        )

    def load() -> Vision:
        model = load_model(folder)
        return Vision(getattr(model, "vision_model", model))

    return Encoder(name or f"hf:{folder}", dim, size, load, weight_files(folder))


_ANY_SIZE = ("resnet", "convnext", "convnextv2", "regnet", "efficientnet", "mobilenet_v2", "dinov2")


def read_config(folder: Path) -> dict[str, Any]:
    """The model's `config.json`."""
    found = _json(folder, "config.json")
    if "model_type" not in found:
        raise FedloomError(
            f"{folder} is no Hugging Face model: its config.json names no model_type."
        )
    return found


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Everything that says what the model computes: its config and its weights."""
    found = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not found:
        raise FedloomError(f"{folder} holds no weights (model.safetensors or pytorch_model.bin).")
    return (folder / "config.json", *found)


def preprocess(folder: Path) -> Preprocess:
    """What the model's preprocessor does, read from its settings."""
    whole = "processor_config.json"  # newer folders keep the image's and the text's in one file
    if (folder / whole).exists() and not (folder / "preprocessor_config.json").exists():
        told = _json(folder, whole).get("image_processor", {})
    else:
        told = _json(folder, "preprocessor_config.json")
    size, crop = _side(told.get("size")), _side(told.get("crop_size"))
    edge: int | None = None
    if told.get("crop_pct") and size and size < 384:
        size, edge = size, int(size / told["crop_pct"])
    elif told.get("do_center_crop") and crop:
        size, edge = crop, size if told.get("do_resize", True) else crop
    if not size:
        raise FedloomError(f"{folder}: its preprocessor does not say what size images should have.")
    if told.get("resample", 2) not in RESAMPLE:
        raise FedloomError(
            f"{folder}: resampling {told['resample']} is not supported; known: {RESAMPLE}."
        )
    if abs(told.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6 or not told.get(
        "do_rescale", True
    ):
        raise FedloomError(f"{folder}: pixels must be rescaled from 0..255 to 0..1.")
    plain = not told.get("do_normalize", True)
    mean, std = ([0.0] * 3, [1.0] * 3) if plain else (told.get("image_mean"), told.get("image_std"))
    if not (isinstance(mean, list) and isinstance(std, list) and len(mean) == len(std) == 3):
        raise FedloomError(
            f"{folder}: its preprocessor names no mean and standard deviation of three channels."
        )
    return Preprocess(size, tuple(mean), tuple(std), RESAMPLE[told.get("resample", 2)], edge)  # type: ignore[arg-type]


def load_model(folder: Path, **options: Any) -> Any:
    """The model in a folder. Tensors it lacks, and any it has too many but for a head's, are named in an error."""
    transformers = import_transformers()
    weight_files(folder)
    with _quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            kind = transformers.AutoModel._model_mapping[type(config)]
            if "add_pooling_layer" in inspect.signature(kind.__init__).parameters:
                options["add_pooling_layer"] = (
                    False  # a pooling layer is seldom in the weights, and never used here
                )
            # ignore_mismatched_sizes: so that such tensors are reported, and refused below, with their names.
            model, report = kind.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                output_loading_info=True,
                dtype=torch.float32,
                weights_only=True,
                ignore_mismatched_sizes=True,
                **options,
            )
        except FedloomError:
            raise
        except (
            Exception
        ) as error:  # transformers raises many kinds; whatever it is, the folder is what is wrong
            raise FedloomError(
                f"{folder} cannot be loaded as a model: {str(error).strip().splitlines()[0]}"
            ) from error
    refuse(folder, report)
    return model.eval().requires_grad_(False)


def refuse(folder: Path, report: dict[str, Any]) -> None:
    """An error if weights did not fit; a task's head in the weights of a bare model is no fault."""
    extra = [
        n
        for n in report["unexpected_keys"]
        if n.split(".")[0] not in HEADS and not n.endswith("position_ids")
    ]
    odd = [str(entry[0]) for entry in report["mismatched_keys"]]
    for verb, names in (
        ("lack", report["missing_keys"]),
        ("bring unknown", extra),
        ("have ill-shaped", odd),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise FedloomError(
                f"the weights in {folder} {verb} tensors: {', '.join(sorted(names)[:3])}{more}."
            )


def load_tokenizer(folder: Path) -> Any:
    """The tokeniser in a folder."""
    transformers = import_transformers()
    with _quiet(transformers):
        try:
            return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:
            raise FedloomError(
                f"{folder} holds no tokeniser: {str(error).strip().splitlines()[0]}"
            ) from error


@torch.no_grad()
def sentences(
    folder: Path, model: Any, tokenizer: Any, texts: Sequence[str], pooling: str = "mean"
) -> Tensor:
    """One vector per text: the mean over its tokens, or the first token."""
    inputs = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
    last: Tensor = model(**inputs).last_hidden_state
    if pooling == "cls":
        return last[:, 0]
    mask = inputs["attention_mask"][..., None].to(last.dtype)
    return (last * mask).sum(1) / mask.sum(1)


def import_transformers() -> Any:
    """The package, or the error that names the extra."""
    try:
        import transformers
    except ImportError:
        raise missing("transformers", "encoders") from None
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without its bars and load reports: what is wrong is said in an error instead."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / name).read_bytes())
    except FileNotFoundError:
        if not folder.exists():
            raise FedloomError(f"{folder}: no such folder.") from None
        raise FedloomError(
            f"{folder} is no Hugging Face model of this kind: it has no {name}."
        ) from None
    except (OSError, ValueError):
        raise FedloomError(f"{folder / name} cannot be read.") from None
    if not isinstance(found, dict):
        raise FedloomError(f"{folder / name} cannot be read.")
    return found


def _side(size: Any) -> int | None:
    """The side of a square, from the ways in which preprocessors write it."""
    if isinstance(size, dict):
        sides = (
            {size.get("height"), size.get("width")}
            if "height" in size
            else {size.get("shortest_edge")}
        )
        if len(sides) != 1:
            raise FedloomError(f"only square images are supported, this preprocessor wants {size}.")
        size = sides.pop()
    return size if isinstance(size, int) and size > 0 else None
