"""Models from Hugging Face folders on disk, through `transformers` and without torchvision."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError
from .base import Preprocess, first_names, missing
from .encoder import IMAGE, Encoder, image
from .texts import TEXT, TextEncoder
from .vision import Tokens, Vision

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


class FolderVision(Vision):
    """A vision model that `transformers` has loaded."""

    @property
    def size(self) -> int | None:
        """The side of the images it takes; None if it takes any."""
        if not self._has_class_token:
            return None
        size = getattr(self.model.config, "image_size", None)
        if isinstance(size, list | tuple):
            size = size[0]
        return size

    @property
    def width(self) -> int:
        """How many numbers a token has."""
        return int(self.model.config.hidden_size)  # type: ignore[union-attr, arg-type]

    @property
    def _has_class_token(self) -> bool:
        embeddings = getattr(self.model, "embeddings", None)
        return any(hasattr(embeddings, name) for name in ("cls_token", "class_embedding"))

    def forward(self, pixels: Tensor) -> Tensor:
        """Features of preprocessed images.

        A ViT's class token, else what is pooled, else a mean.
        """
        self.check(pixels)
        output = self.model(pixels)
        if self._has_class_token:
            return self._class_token(output)
        pooled = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        last: Tensor = output.last_hidden_state
        if last.ndim == 4:
            return last.mean((2, 3))
        return last.mean(1)

    def tokens(self, pixels: Tensor, extra: Tensor | None = None) -> Tokens:
        if not self._has_class_token:
            raise FedloomError(
                f"a {type(self.model).__name__} has no class token; prompts need a ViT that has "
                "one."
            )
        self.check(pixels)
        appended = self.expanded(pixels.shape[0], extra)  # `len` would fix the number in ONNX

        def append(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
            return torch.cat([embedded, appended.to(embedded.dtype)], dim=1)

        # A hook, not the model's inner loop, so that any ViT will do, whatever its layers are
        # called.
        embeddings: Any = self.model.embeddings
        handle = embeddings.register_forward_hook(append)
        try:
            output = self.model(pixels)
        finally:
            handle.remove()
        last: Tensor = output.last_hidden_state
        end = last.shape[1] - appended.shape[1]
        config: Any = self.model.config
        patch = int(config.patch_size)
        patches = (pixels.shape[2] // patch) * (pixels.shape[3] // patch)
        return Tokens(self._class_token(output), last[:, end - patches : end], last[:, end:])

    def _class_token(self, output: Any) -> Tensor:
        token: Tensor = output.last_hidden_state[:, 0]
        if hasattr(self.model, "post_layernorm"):
            token = output.pooler_output  # CLIP normalises the class token, and only there
        return token


@IMAGE.register("hf:")
def vision(path: str | Path, name: str | None = None) -> Encoder:
    """The vision model in a Hugging Face folder (the vision tower of a CLIP or SigLIP)."""
    folder = Path(path)
    config = read_config(folder)
    size = preprocess(folder)
    tower = config.get("vision_config", config)
    dim = tower.get("hidden_size") or (tower.get("hidden_sizes") or [None])[-1]
    if not isinstance(dim, int):
        raise FedloomError(
            f"{folder / 'config.json'} does not say how wide the model's features are."
        )
    side = tower.get("image_size")
    if config.get("model_type") not in _ANY_SIZE and isinstance(side, int) and side != size.size:
        raise FedloomError(
            f"{folder}: the model takes {side}x{side} images, its preprocessor makes "
            f"{size.size}x{size.size} ones."
        )

    def load() -> Vision:
        model = load_model(folder)
        return FolderVision(getattr(model, "vision_model", model))

    return Encoder(name or f"hf:{folder}", dim, size, load, weight_files(folder))


_ANY_SIZE = ("resnet", "convnext", "convnextv2", "regnet", "efficientnet", "mobilenet_v2", "dinov2")


def read_config(folder: Path) -> dict[str, Any]:
    """The model's `config.json`."""
    config = _json(folder, "config.json")
    if "model_type" not in config:
        raise FedloomError(
            f"{folder} is no Hugging Face model: its config.json names no model_type."
        )
    return config


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Everything that says what the model computes: its config and its weights."""
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise FedloomError(f"{folder} holds no weights (model.safetensors or pytorch_model.bin).")
    return (folder / "config.json", *files)


def preprocess(folder: Path) -> Preprocess:
    """What the model's preprocessor does, read from its settings."""
    whole = "processor_config.json"  # newer folders keep the image's and the text's in one file
    if (folder / whole).exists() and not (folder / "preprocessor_config.json").exists():
        settings = _json(folder, whole).get("image_processor", {})
    else:
        settings = _json(folder, "preprocessor_config.json")
    size, edge = _size_and_edge(settings)
    if not size:
        raise FedloomError(f"{folder}: its preprocessor does not say what size images should have.")
    resample = settings.get("resample", 2)
    if resample not in RESAMPLE:
        raise FedloomError(f"{folder}: resampling {resample} is not supported; known: {RESAMPLE}.")
    factor = settings.get("rescale_factor", 1 / 255)
    if abs(factor * 255 - 1) > 1e-6 or not settings.get("do_rescale", True):
        raise FedloomError(f"{folder}: pixels must be rescaled from 0..255 to 0..1.")
    mean, std = [0.0] * 3, [1.0] * 3
    if settings.get("do_normalize", True):
        mean, std = settings.get("image_mean"), settings.get("image_std")
    if not (isinstance(mean, list) and isinstance(std, list) and len(mean) == len(std) == 3):
        raise FedloomError(
            f"{folder}: its preprocessor names no mean and standard deviation of three channels."
        )
    return Preprocess(size, tuple(mean), tuple(std), RESAMPLE[resample], edge)  # type: ignore[arg-type]


def _size_and_edge(settings: dict[str, Any]) -> tuple[int | None, int | None]:
    """The side of the network's input, and of the image from whose centre it is cut out, if any."""
    size = _side(settings.get("size"))
    crop = _side(settings.get("crop_size"))
    if settings.get("crop_pct") and size and size < 384:
        return size, int(size / settings["crop_pct"])
    if settings.get("do_center_crop") and crop:
        if settings.get("do_resize", True):
            return crop, size
        return crop, crop
    return size, None


# Nothing is fetched, and code that a folder brings (`auto_map`) is not executed, nor asked about.
_SAFE = {"local_files_only": True, "trust_remote_code": False}


def load_model(folder: Path, **options: Any) -> Any:
    """The model in a folder.

    An error names the tensors that the weights lack, and those that they have in excess, apart from
    a head's.
    """
    transformers = import_transformers()
    weight_files(folder)
    with quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, **_SAFE)
            kind = transformers.AutoModel._model_mapping[type(config)]
            if "add_pooling_layer" in inspect.signature(kind.__init__).parameters:
                # A pooling layer is seldom in the weights, and never used here.
                options["add_pooling_layer"] = False
            # With ignore_mismatched_sizes such tensors are reported, and refused below by name.
            model, report = kind.from_pretrained(
                folder,
                config=config,
                **_SAFE,
                output_loading_info=True,
                dtype=torch.float32,
                weights_only=True,
                ignore_mismatched_sizes=True,
                **options,
            )
        except FedloomError:
            raise
        except Exception as error:  # many kinds; whatever it is, the folder is what is wrong
            raise FedloomError(
                f"{folder} cannot be loaded as a model: {str(error).strip().splitlines()[0]}"
            ) from error
    refuse(folder, report)
    return model.eval().requires_grad_(False)


def refuse(folder: Path, report: dict[str, Any]) -> None:
    """Stop if weights do not fit; a task's head in the weights of a bare model is no fault."""
    extra = []
    for name in report["unexpected_keys"]:
        if name.split(".")[0] not in HEADS and not name.endswith("position_ids"):
            extra.append(name)
    faults = {
        "lack": list(report["missing_keys"]),
        "bring unknown": extra,
        "have ill-shaped": [str(entry[0]) for entry in report["mismatched_keys"]],
    }
    for verb, names in faults.items():
        if names:
            raise FedloomError(f"the weights in {folder} {verb} tensors: {first_names(names)}.")


def load_tokenizer(folder: Path) -> Any:
    """The tokeniser in a folder."""
    transformers = import_transformers()
    with quiet(transformers):
        try:
            return transformers.AutoTokenizer.from_pretrained(folder, **_SAFE)
        except Exception as error:
            raise FedloomError(
                f"{folder} holds no tokeniser: {str(error).strip().splitlines()[0]}"
            ) from error


class ModelFolder:
    """A model that reads texts, in a Hugging Face folder; it is loaded when it is first used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def model(self) -> Any:
        """The whole network."""
        return load_model(self.folder)

    @cached_property
    def tokenizer(self) -> Any:
        """What turns texts into the network's tokens."""
        return load_tokenizer(self.folder)


class TextModel(ModelFolder):
    """A text model that gives one vector per text."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pooling = _pooling(folder)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        """One vector per text: the mean over its tokens, or the first token."""
        inputs = self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        last: Tensor = self.model(**inputs).last_hidden_state
        if self.pooling == "cls":
            return last[:, 0]
        mask = inputs["attention_mask"][..., None].to(last.dtype)
        return (last * mask).sum(1) / mask.sum(1)


@TEXT.register("hf:")
def text_from_folder(path: str | Path, name: str | None = None) -> TextEncoder:
    """Any text model in a Hugging Face folder: `hf:PATH`."""
    folder = Path(path)
    config = read_config(folder)
    if "hidden_size" not in config:
        raise FedloomError(f"{folder} is no text encoder: its config.json names no hidden_size.")
    model = TextModel(folder)
    return TextEncoder(
        name or f"hf:{folder}",
        int(config["hidden_size"]),
        model,
        files=weight_files(folder),
        settings=model.pooling,
    )


def _pooling(folder: Path) -> str:
    """How a sentence-transformers folder pools tokens; the mean where it does not say."""
    file = folder / "1_Pooling" / "config.json"
    if not file.exists():
        return "mean"
    settings = json.loads(file.read_bytes())
    if settings.get("pooling_mode_mean_tokens"):
        return "mean"
    if settings.get("pooling_mode_cls_token"):
        return "cls"
    raise FedloomError(
        f"{file} asks for a pooling other than the mean or the first token, which is not supported."
    )


def vit(name: str = "vit-mini") -> Vision:
    """A frozen ViT that gives tokens and takes extra ones: `vit-mini`, or `hf:PATH`."""
    module = image(name).module
    if not isinstance(module, Vision):
        raise FedloomError(
            f"encoder {name} is no ViT; prompts need vit-mini, hf:PATH or pth:vit_b_16:FILE."
        )
    return module


def import_transformers() -> Any:
    """The package, or the error that names the extra."""
    try:
        import transformers
    except ImportError:
        raise missing("transformers", "encoders") from None
    return transformers


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Without its progress bars and load reports: errors say what is wrong."""
    logging = transformers.utils.logging
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
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
        content = json.loads((folder / name).read_bytes())
    except FileNotFoundError:
        if not folder.exists():
            raise FedloomError(f"{folder}: no such folder.") from None
        raise FedloomError(
            f"{folder} is no Hugging Face model of this kind: it has no {name}."
        ) from None
    except (OSError, ValueError):
        raise FedloomError(f"{folder / name} cannot be read.") from None
    if not isinstance(content, dict):
        raise FedloomError(f"{folder / name} cannot be read.")
    return content


def _side(size: Any) -> int | None:
    """The side of a square, from the ways in which preprocessors write it."""
    if isinstance(size, dict):
        if "height" in size and size["height"] != size.get("width"):
            raise FedloomError(f"only square images are supported, this preprocessor wants {size}.")
        size = size.get("height", size.get("shortest_edge"))
    if isinstance(size, int) and size > 0:
        return size
    return None
