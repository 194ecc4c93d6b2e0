"""What Matplotlib writes as SVG, made fit for a page: tips, series, the page's colours and font."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from .palette import COLOURS

SPACE = "http://www.w3.org/2000/svg"
LINE_STYLE = "stroke-linejoin: round; stroke-linecap: butt"
SHAPES = ("path", "use", "text")
LARGEST = 1.25  # what is drawn for a column does not fill a page


class Tag(NamedTuple):
    """What is known of a part of a drawing: the method it belongs to, and texts that explain it."""

    series: int | None
    tips: tuple[str, ...]


def inline(text: str, tags: Mapping[str, Tag], label: str, *, fit: bool) -> str:
    """An SVG element for the page: colours are names of the style sheet, the font is the page's.

    With `fit` it takes the width that it gets, up to `LARGEST` times its own.
    """
    root = _clean(text, tags, label)
    for name in ("width", "height"):
        size = root.attrib.pop(name).removesuffix("pt")
        if not fit:
            root.set(name, size)
        elif name == "width":
            widest = LARGEST * float(size)
            root.set("style", f"{root.get('style')}; max-width: {widest:g}px")
    if fit:
        root.set("class", "fit")
    for element in root.iter():
        style = element.get("style")
        if style:
            element.set("style", _themed(style))
    return ElementTree.tostring(root, encoding="unicode")


def standalone(text: str, tags: Mapping[str, Tag], label: str) -> str:
    """An SVG file of its own, with the light colours."""
    root = _clean(text, tags, label)
    root.set("xmlns", SPACE)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _clean(text: str, tags: Mapping[str, Tag], label: str) -> Element:
    """Parse a drawing and leave out what a reader does not need; several drawings share a page."""
    root = ElementTree.fromstring(text)
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{SPACE}}}")
        _tidy(element)
    for child in list(root):
        if child.tag.endswith("metadata") or child.find("style") is not None:
            root.remove(child)
    for group in root.iter("g"):
        tag = tags.get(group.attrib.pop("id", ""))
        if tag is not None:
            _annotate(group, tag)
    root.set("style", LINE_STYLE)
    root.set("role", "img")
    root.set("aria-label", label)
    root.attrib.pop("version", None)
    return root


def _tidy(element: Element) -> None:
    """Shorter paths and links without a namespace."""
    element.text = (element.text or "").strip() or None
    element.tail = None
    link = element.attrib.pop("{http://www.w3.org/1999/xlink}href", None)
    if link:
        element.set("href", link)
    path = element.get("d")
    if path:
        element.set("d", re.sub(r"\d+\.\d{3,}", _rounded, path.replace("\n", "").strip()))
    for name in ("x", "y"):
        if name in element.attrib:
            element.set(name, re.sub(r"\d+\.\d{3,}", _rounded, element.attrib[name]))
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}"


def _annotate(group: Element, tag: Tag) -> None:
    """Mark the method that a part belongs to and give its points their tips."""
    if tag.series is not None:
        group.set("data-s", str(tag.series))
    if not any(tag.tips):
        return
    points = list(group.iter("use")) or [part for part in group if part.tag in SHAPES]
    if len(points) != len(tag.tips):
        points = [group]
    for point, tip in zip(points, tag.tips, strict=False):
        if tip:
            title = Element("title")
            title.text = tip
            point.insert(0, title)


def _themed(style: str) -> str:
    """A style with names of colours instead of values, and without a font of its own."""
    for name, (value, _) in COLOURS.items():
        style = style.replace(value, f"var(--{name})")
    return re.sub(r"font-family:[^;]*;?\s*", "", style)
