"""Archives unpacked into a folder, whoever made them: nothing leaves it, nothing swells it."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection
from pathlib import Path

from ..core.errors import FedloomError
from .readers.archives import most

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
DEEPEST = 2  # archives in archives, as ImageNet has them
Unpacking = Callable[[str, int, int], None]  # what, how much of it, how much there is


def is_archive(path: Path) -> bool:
    """Whether it is an archive, by its name."""
    return path.is_file() and path.name.lower().endswith(ENDINGS)


def with_archives(raw: Path, names: Collection[str], folder: Path, tell: Unpacking) -> Path | None:
    """A folder with what is in `raw` and in its archives; None if there are no archives.

    `raw` is an archive, or a folder in which archives of these names (in lower case) are unpacked.
    Its other files are linked.
    """
    if is_archive(raw):
        _unpack(raw, folder, tell, DEEPEST)
        return folder
    if not raw.is_dir():
        return None
    archives = [file for file in sorted(raw.iterdir()) if file.name.lower() in names]
    archives = [file for file in archives if is_archive(file)]
    if not archives:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    for other in raw.iterdir():
        if other not in archives:
            (folder / other.name).symlink_to(other.resolve())
    for archive in archives:
        _unpack(archive, folder, tell, DEEPEST)
    return folder


def _unpack(archive: Path, folder: Path, tell: Unpacking, depth: int) -> None:
    """Unpack into the folder; a number of loose files gets a folder named after the archive."""
    inside = folder / f".{archive.name}.unpacked"
    inside.mkdir(parents=True)
    try:
        if archive.name.lower().endswith(".zip"):
            _unzip(archive, inside, tell)
        else:
            _untar(archive, inside, tell)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise FedloomError(f"{archive}: damaged or cut short ({error}).") from error
    for nested in sorted(inside.rglob("*")):
        if depth > 0 and is_archive(nested):
            _unpack(nested, nested.parent, tell, depth - 1)
            nested.unlink()
    tops = [top for top in inside.iterdir() if top.name != "__MACOSX"]
    if len(tops) == 1 and tops[0].is_dir() and not (folder / tops[0].name).exists():
        tops[0].rename(folder / tops[0].name)
        return
    inside.rename(folder / _stem(archive))


def _stem(archive: Path) -> str:
    name = archive.name
    for ending in sorted(ENDINGS, key=len, reverse=True):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def _unzip(archive: Path, folder: Path, tell: Unpacking) -> None:
    with zipfile.ZipFile(archive) as packed:
        entries = packed.infolist()
        _refuse_bomb(archive, sum(entry.file_size for entry in entries))
        for i, entry in enumerate(entries):
            packed.extract(entry, folder)  # takes parts such as .. out of names
            tell(archive.name, i + 1, len(entries))


def _untar(archive: Path, folder: Path, tell: Unpacking) -> None:
    size = archive.stat().st_size
    unpacked = 0
    with open(archive, "rb") as stream, tarfile.open(fileobj=stream) as packed:
        for member in packed:
            unpacked += member.size
            _refuse_bomb(archive, unpacked)
            packed.extract(member, folder, filter="data")
            tell(archive.name, stream.tell(), size)


def _refuse_bomb(archive: Path, unpacked: int) -> None:
    if unpacked > most(archive.stat().st_size):
        raise FedloomError(
            f"{archive}: would unpack to more than {most(archive.stat().st_size) >> 20} MB; unpack "
            "it yourself if it is meant to be so large."
        )
