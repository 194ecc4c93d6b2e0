"""CLIP and SigLIP as dual encoders: `clip:PATH`, from the files in which they are published."""

from __future__ import annotations

from pathlib import Path

from .clip_file import FileClip, is_file
from .clip_folder import FolderClip
from .duals import DUAL, Context, Dual, dual
from .encoder import IMAGE, Encoder
from .texts import TEXT, TextEncoder


@DUAL.register("clip:")
def clip(path: str) -> Dual:
    """CLIP by OpenAI or open_clip (a file), or CLIP or SigLIP in a Hugging Face folder."""
    model: FileClip | FolderClip = FileClip(path) if is_file(path) else FolderClip(Path(path))
    name = f"clip:{path}"
    context = None
    if model.context is not None:
        context = Context(model.context, model.prompted)
    settings = model.settings
    return Dual(
        name=name,
        image=Encoder(name, model.dim, model.preprocess, model.image_tower, model.files, settings),
        text=TextEncoder(
            name,
            model.dim,
            model.embed,
            files=model.text_files,
            settings=settings,
            tower=model.tower,
        ),
        scale_of=model.scale,
        context=context,
    )


@IMAGE.register("clip:")
def clip_image(path: str) -> Encoder:
    """The image side of CLIP or SigLIP, in the joint space: `clip:PATH`."""
    return dual(f"clip:{path}").image


@TEXT.register("clip:")
def clip_text(path: str) -> TextEncoder:
    """The text side of CLIP or SigLIP, in the joint space: `clip:PATH`."""
    return dual(f"clip:{path}").text
