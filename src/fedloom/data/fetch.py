"""Published data sets from the net: plain files with resume and checksums, or the Hugging Face hub.

Proxies are those of the usual environment variables (`https_proxy`, `no_proxy` ...).
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import importlib
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..core.errors import FedloomError
from .published import Download, Published

CHUNK = 1 << 20
TIMEOUT = 60  # seconds without a byte
TRIES = 3
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
HUB = "https://huggingface.co"
Fetching = Callable[[str, int, int], None]  # the file, bytes so far, bytes in all (0: unknown)


def fetch(entry: Published, folder: Path, tell: Fetching, hub: bool = False) -> Path:
    """Bring a set into a folder, as it is published; files that are there already stay.

    `hub` asks for the copy on the Hugging Face hub where there are plain files too.
    """
    if hub and not entry.hub:
        raise FedloomError(f"no copy of {entry.name} on the Hugging Face hub is known.")
    if hub or not entry.downloads:
        return _from_hub(entry, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedloomError(f"cannot write to {folder}: {error.strerror or error}.") from error
    by_hand = [download for download in entry.downloads if not download.url]
    missing = [download for download in by_hand if not (folder / download.file).is_file()]
    if missing:  # said before hours of fetching, not after them
        raise _only_by_hand(entry, missing, folder)
    for download in entry.downloads:
        if download.url:
            _fetch_file(entry, download, folder / download.file, tell)
    return folder


def _only_by_hand(entry: Published, missing: list[Download], folder: Path) -> FedloomError:
    """What the user has to do where only a browser gets on."""
    files = "; ".join(f"{download.file} from {download.page}" for download in missing)
    return FedloomError(
        f"{entry.name} needs files that only a browser can fetch: {files}. Put them into {folder} "
        f"and say `fedloom data get {entry.name}` again, or `fedloom data import {entry.name} RAW` "
        "if you have the set elsewhere."
    )


# -------------------------------------------------------------------------------- plain files


def _fetch_file(entry: Published, download: Download, file: Path, tell: Fetching) -> None:
    """One file, from where an earlier attempt has stopped."""
    if file.is_file():
        _check(download, file)  # somebody may have put it there
        return
    part = file.with_name(f"{file.name}.part")
    for attempt in range(TRIES):
        try:
            _continue(download.url, part, lambda done, total: tell(file.name, done, total))
            break
        except urllib.error.HTTPError as error:
            raise _refused(entry, download, f"{error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "errno", None) in NO_ROOM:
                raise FedloomError(
                    f"{part} cannot be written: {error.strerror}; what has come so far is kept, "  # type: ignore[union-attr]
                    "and the next attempt goes on from there."
                ) from error
            if attempt == TRIES - 1:
                raise _unreachable(entry, download, part, error) from error
    _check(download, part)
    os.replace(part, file)


def _continue(url: str, part: Path, tell: Callable[[int, int], None]) -> None:
    """Append to a file what it lacks."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "fedloom"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        # A new opener looks for proxies anew.
        response = urllib.request.build_opener().open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is lacking, or the file has changed
            if _whole_length(error) == have:
                return
            part.unlink()
        raise
    with response:
        if have and response.status != 206:
            have = 0  # a server that cannot continue sends everything
        total = have + int(response.headers.get("Content-Length") or 0)
        with open(part, "ab" if have else "wb") as stream:
            while chunk := response.read(CHUNK):
                stream.write(chunk)
                have += len(chunk)
                tell(have, total)
    if have < total:
        raise http.client.IncompleteRead(b"", total - have)


def _whole_length(error: urllib.error.HTTPError) -> int:
    """The length of a file that has no more to give, from `Content-Range: bytes */123`."""
    match = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range") or "")
    return int(match[1]) if match else -1


def _check(download: Download, part: Path) -> None:
    """Refuse, and remove, a file that is not the published one."""
    for kind in ("md5", "sha256"):
        wanted = getattr(download, kind)
        if not wanted:
            continue
        with open(part, "rb") as stream:
            digest = hashlib.file_digest(stream, kind).hexdigest()
        if digest != wanted:
            part.unlink()
            raise FedloomError(
                f"{download.url}: its {kind} is {digest}, not {wanted}; what came is not the "
                "published file, and was removed."
            )


def _refused(entry: Published, download: Download, why: str) -> FedloomError:
    return FedloomError(
        f"{download.url}: the server says {why}; {entry.title} is published at {entry.home}, and "
        f"`fedloom data import {entry.name} RAW` takes a copy from elsewhere."
    )


def _unreachable(
    entry: Published, download: Download, part: Path, error: Exception
) -> FedloomError:
    host = urlsplit(download.url).hostname
    reason = getattr(error, "reason", None) or error
    kept = ""
    if part.exists() and part.stat().st_size:
        kept = f" {part} has what has come so far, and the next attempt goes on from there."
    return FedloomError(
        f"{host} cannot be reached or broke off ({reason}); if this machine is offline, fetch "
        f"{download.url} elsewhere and say `fedloom data import {entry.name} RAW`.{kept}"
    )


# ------------------------------------------------------------------------------------ the hub


def _from_hub(entry: Published, folder: Path) -> Path:
    """The parquet files of a set on the hub; its library shows progress and resumes by itself."""
    try:
        library: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        raise FedloomError(
            f"{entry.name} is on the Hugging Face hub, which needs the extra: "
            "pip install 'fedloom[hf]'"
        ) from None
    try:
        library.snapshot_download(
            entry.hub,
            repo_type="dataset",
            allow_patterns=["*.parquet"],
            local_dir=str(folder),
            endpoint=os.environ.get("HF_ENDPOINT", HUB),
        )
    except Exception as error:  # the library's errors are of many types
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FedloomError(
            f"the Hugging Face hub does not give {entry.hub} ({cause.rstrip('.')}); if this "
            f"machine is offline, fetch it elsewhere and say `fedloom data import {entry.name} "
            "RAW`."
        ) from error
    if not any(folder.rglob("*.parquet")):
        raise FedloomError(f"{entry.hub} has no parquet files on the Hugging Face hub.")
    return folder
