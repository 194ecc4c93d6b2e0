"""CLIP's way of cutting texts into tokens: byte-pair encoding in lower case.

The list of merges comes from OpenAI's `bpe_simple_vocab_16e6.txt.gz`, from `merges.txt` or from
`tokenizer.json`, whichever lies beside the weights.
"""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import FedloomError

PACKED = "bpe_simple_vocab_16e6.txt.gz"
BESIDE = (PACKED, "merges.txt", "tokenizer.json")
PACKAGES = ("open_clip", "clip")  # both bring the list; neither is imported
LARGEST = 32_000_000  # bytes; OpenAI's list has three million
WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d|[^\W\d_]+|\d|(?:[^\s\w]|_)+")
END = "</w>"  # marks the last piece of a word


def merges_file(folder: Path) -> Path:
    """Where the list of merges for the weights in a folder is."""
    places = [folder / name for name in BESIDE]
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            places.append(Path(next(iter(spec.submodule_search_locations))) / PACKED)
    for place in places:
        if place.is_file():
            return place
    raise FedloomError(
        f"{folder} holds no list of CLIP's words: put {PACKED} (from the repository openai/CLIP, "
        "folder clip) or a tokenizer.json beside the weights."
    )


class Tokeniser:
    """Texts as rows of tokens, for a network that knows `size` of them.

    Its tokens are 256 bytes, the same at the end of a word, one for each merge, start and end.
    """

    def __init__(self, file: Path, size: int) -> None:
        merges = _merges(file)
        alphabet = list(_letters().values())
        wanted = size - 2 * len(alphabet) - 2
        if not 0 <= wanted <= len(merges):
            raise FedloomError(
                f"{file} lists {len(merges)} merges, which do not fit a network of {size} tokens."
            )
        merges = merges[:wanted]
        tokens = [*alphabet, *(letter + END for letter in alphabet)]
        tokens += ["".join(pair) for pair in merges]
        self._ids = {token: i for i, token in enumerate(tokens)}
        self._ranks = {pair: i for i, pair in enumerate(merges)}
        self.start, self.end = size - 2, size - 1

    def __call__(self, texts: Sequence[str], longest: int) -> Tensor:
        """One row per text: start, its tokens, end, zeros; cut to `longest`."""
        rows = [[self.start, *self.ids(text)[: longest - 2], self.end] for text in texts]
        length = max(len(row) for row in rows)
        return torch.tensor([row + [0] * (length - len(row)) for row in rows])

    def ids(self, text: str) -> list[int]:
        """The tokens of a text without start and end."""
        plain = " ".join(html.unescape(html.unescape(text)).split()).lower()
        letters = _letters()
        ids = []
        for word in WORD.findall(plain):
            pieces = self._pieces("".join(letters[byte] for byte in word.encode()))
            ids += [self._ids[piece] for piece in pieces]
        return ids

    def _pieces(self, word: str) -> list[str]:
        """A word cut into tokens: of all possible merges, the first in the list is always next."""
        pieces = [*word[:-1], word[-1] + END]
        while len(pieces) > 1:
            pairs = list(pairwise(pieces))
            first = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if first not in self._ranks:
                break
            pieces = _merged(pieces, first)
        return pieces


def _merged(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """The pieces with each occurrence of a pair made one."""
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


@lru_cache(maxsize=1)
def _letters() -> dict[int, str]:
    """A visible letter for each byte; those that can be seen stand for themselves."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    seen += range(ord("®"), ord("ÿ") + 1)
    letters = {byte: chr(byte) for byte in seen}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(seen))
    return letters


def _merges(file: Path) -> list[tuple[str, str]]:
    """The pairs of a list, in its order."""
    try:
        if file.suffix == ".json":
            listed = json.loads(_text(file))["model"]["merges"]
        else:
            listed = _text(file).strip().split("\n")[1:]  # the first line names the version
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        raise FedloomError(f"{file} cannot be read as a list of merges.") from None
    merges = []
    for pair in listed:
        halves = pair.split() if isinstance(pair, str) else pair
        if not isinstance(halves, list) or len(halves) != 2:
            raise FedloomError(f"{file}: {str(pair)[:40]!r} is no pair of tokens.")
        merges.append((str(halves[0]), str(halves[1])))
    return merges


def _text(file: Path) -> str:
    """What is written in a file, which may be packed; no more than a list can be long."""
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rb") as stream:
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise FedloomError(f"{file} is too long for a list of merges.")
    return content.decode()
