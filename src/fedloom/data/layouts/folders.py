"""Image files whose places say what they are."""

from __future__ import annotations

from pathlib import Path

from ..published import Published
from .base import LAYOUTS, LayoutReader, Options, as_glob, in_order, is_image, matching
from .found import Found, ImageItem, Images


@LAYOUTS.register("folders")
class Folders(LayoutReader):
    """Option `pattern`, such as `{domain}/images/{class}/*`.

    `domains` and `parts` map the names of folders to ours; folders that they leave out are not
    read. Without a `{part}` the set has no official parts.
    """

    def needs(self, options: Options) -> list[str]:
        needed = []
        for domain in options.get("domains", {"": ""}):
            for part in options.get("parts", {"": ""}):
                pattern = options["pattern"].replace("{domain}", domain).replace("{part}", part)
                needed.append(as_glob(pattern).rpartition("/")[0])
        return list(dict.fromkeys(needed))

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        domains = options.get("domains", {"": entry.name})
        parts = options.get("parts", {"": ""})
        items = []
        for file, names in matching(base, options["pattern"]):
            domain = domains.get(names.get("domain", ""))
            part = parts.get(names.get("part", ""))
            if is_image(file) and domain is not None and part is not None:
                items.append(ImageItem(file, domain, names["class"], part))
        items.sort(key=lambda item: (item.domain, item.cls, item.file.name))
        classes = in_order((item.cls for item in items), entry)
        return Images(base, classes, tuple(domains.values()), items)
