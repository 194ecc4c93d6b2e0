"""Classifiers of the package transformers: `hf:PATH`, a folder, or `hf:NAME`, one on the hub."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError
from ..encoders.base import Preprocess, first_names
from ..encoders.huggingface import (
    HEADS,
    import_transformers,
    load_tokenizer,
    preprocess,
    quiet,
    read_config,
    weight_files,
)
from .base import Split, Task, apart, image, positive, register, tokens
from .minilm import joined, pieces_of
from .seen import Images, Projection, freeze, headed, side

# Parts of a classifier that weights of another task, or of none, lack.
NEW = {*HEADS, "score", "pre_classifier", "logits_proj"}
# Files of a model on the hub that are wanted here.
FILES = ("*.json", "*.txt", "*.model", "model*.safetensors")


class Pictures(nn.Module):
    """An image classifier of transformers without its head: pixels -> features."""

    def __init__(self, model: nn.Module, interpolates: bool) -> None:
        super().__init__()
        self.model, self.interpolates = model, interpolates

    def forward(self, pixels: Tensor) -> Tensor:
        more = {"interpolate_pos_encoding": True} if self.interpolates else {}
        features: Tensor = self.model(pixel_values=pixels, **more).logits
        return features


class Words(nn.Module):
    """A text classifier of transformers without its head: rows of word numbers -> features.

    `pieces` has a row for each number: the word as the model's tokeniser cuts it, and zeros behind.
    """

    pieces: Tensor

    def __init__(self, model: nn.Module, text: Mapping[str, Any], longest: int) -> None:
        super().__init__()
        self.model, self.longest = model, longest
        self.ends, self.padding = tuple(text["ends"]), text["padding"]
        pieces = torch.tensor(text["pieces"], dtype=torch.int32)
        self.register_buffer("pieces", pieces, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, there = joined(self.pieces[x].flatten(1).long(), self.ends, self.longest)
        rows = rows.masked_fill(~there, self.padding)
        features: Tensor = self.model(input_ids=rows, attention_mask=there.long()).logits
        return features


@register("hf:")
def from_transformers(
    task: Task,
    name: str,
    *,
    pretrained: Annotated[bool, "Whether it starts from the weights in the folder."] = True,
    frozen: Annotated[bool, "Whether only what is new, such as the head, is trained."] = False,
    size: Annotated[int | None, "Side of the images it sees; by default its own."] = None,
    longest: Annotated[int, "Number of pieces of words to which a text is cut."] = 128,
    projection: Projection = None,
    config: Annotated[
        dict[str, Any] | None, "Its config and its preprocessor's, in place of those in a folder."
    ] = None,
) -> Split:
    """A classifier of transformers, of images or texts, under a new head: a folder or a name.

    It sees images as its own preprocessor makes them. Texts it sees as the run reads them: the run
    makes words of a text, without capitals and punctuation, and the network's own tokeniser cuts
    each of the run's words into pieces; other words are the unknown token.
    """
    text = task.vocabulary is not None
    if text:
        tokens(f"hf:{name}", task)
        positive("hf:", longest=longest)
    else:
        image(f"hf:{name}", task)
    folder = None
    if config is None:
        folder = folder_of(name)
        config = _described(name, folder, task)
    model, new = _loaded(folder if pretrained else None, config["model"], task.classes, text)
    parts = apart(model)
    if frozen:
        freeze(parts.body, new)
    again = {"pretrained": False, "config": config}
    if text:
        body: nn.Module = Words(parts.body, config["text"], longest)
    else:
        seen = _seen(Preprocess(**config["image"]), size)
        body = Images(Pictures(parts.body, _interpolates(name, model, seen.size)), seen, task)
    return headed(body, parts.width, task, projection, **again)


def folder_of(name: str) -> Path:
    """The folder itself, or where the files of the hub's model of that name are on this machine."""
    if Path(name).is_dir() or name.startswith(("/", ".", "~")):
        return Path(name).expanduser()
    import_transformers()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except Exception as error:  # no such model, or no way there
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise FedloomError(
            f"hf:{name} is no folder here, and the hub gives no model of that name ({reason})."
        ) from error


def _described(name: str, folder: Path, task: Task) -> dict[str, Any]:
    """What the folder says of the network, and of the images or texts that it sees."""
    about: dict[str, Any] = {"model": read_config(folder)}
    if task.vocabulary is None:
        about["image"] = asdict(preprocess(folder))
    else:
        about["text"] = _read(name, folder, about["model"], task)
    return about


def _read(name: str, folder: Path, model: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """What becomes of numbers of words: their pieces, and what stands around and behind a text."""
    if task.words is None:
        raise FedloomError(
            f"model 'hf:{name}' reads words, and these texts come as numbers without the list of "
            "their words (hashed=true leaves none)."
        )
    tokenizer = load_tokenizer(folder)
    ends = [tokenizer.cls_token_id, tokenizer.sep_token_id]
    padding = model.get("pad_token_id", tokenizer.pad_token_id)
    if None in (*ends, padding, tokenizer.unk_token_id):
        raise FedloomError(
            f"the tokeniser of hf:{name} needs tokens for the two ends of a text, for padding and "
            "for what it does not know."
        )
    return {"pieces": pieces_of(task.words, tokenizer).tolist(), "ends": ends, "padding": padding}


def _loaded(
    folder: Path | None, config: Mapping[str, Any], classes: int, text: bool
) -> tuple[nn.Module, set[str]]:
    """The classifier, with weights if there is a folder, and the names of tensors that are new."""
    transformers = import_transformers()
    kind = transformers.AutoModelForImageClassification
    if text:
        kind = transformers.AutoModelForSequenceClassification
    told = {key: value for key, value in config.items() if key not in ("id2label", "label2id")}
    with quiet(transformers):
        try:
            whole = transformers.AutoConfig.for_model(**told, num_labels=classes)
            if folder is None:
                return kind.from_config(whole, dtype=torch.float32), set()
            weight_files(folder)
            model, report = kind.from_pretrained(
                folder,
                config=whole,
                output_loading_info=True,
                dtype=torch.float32,
                weights_only=True,
                ignore_mismatched_sizes=True,  # the head of other classes
                local_files_only=True,
                trust_remote_code=False,
            )
        except FedloomError:
            raise
        except Exception as error:  # many kinds; whatever it is, the model is what is wrong
            what = "image" if not text else "text"
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise FedloomError(
                f"{folder or 'the config'} gives no classifier of {what}s: {reason}."
            ) from error
    new = {*report["missing_keys"], *(str(entry[0]) for entry in report["mismatched_keys"])}
    lacking = [name for name in new if not NEW.intersection(name.split("."))]
    if lacking:
        raise FedloomError(f"the weights in {folder} lack tensors: {first_names(lacking)}.")
    return model, new


def _seen(usual: Preprocess, size: int | None) -> Preprocess:
    """How images become the network's input; with an own `size` they are scaled as a whole."""
    if size is None:
        return usual
    return replace(usual, size=side("hf:", size, usual.size), edge=None)


def _interpolates(name: str, model: Any, size: int) -> bool:
    """Whether the network has to be asked to take images of this size."""
    usual = getattr(model.config, "image_size", size)
    if size in (usual, *(usual if isinstance(usual, list | tuple) else ())):
        return False
    if "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        return True
    if hasattr(model.config, "patch_size"):
        raise FedloomError(f"hf:{name} takes images of {usual}x{usual} pixels only.")
    return False  # convolutions take any
