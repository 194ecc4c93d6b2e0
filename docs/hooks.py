"""What mkdocs cannot do by itself: pages from other folders, their links, the command line."""

from __future__ import annotations

import json
import os
import posixpath
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gallery
import method_pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Files of the project that are pages of the site, and where they are in it.
SINGLE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "papers/README.md": "methods/index.md",
    "papers": "methods/index.md",
    "examples": "examples/index.md",
    "docs": "index.md",
    "src/fedloom/encoders/weights/vit-mini/README.md": "vit-mini.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def pages() -> dict[str, str]:
    """Files of the project outside docs/ that are pages, and the page that each becomes."""
    found = {file: page for file, page in SINGLE.items() if (ROOT / file).is_file()}
    for path in sorted((ROOT / "papers").glob("*.md")):
        found.setdefault(f"papers/{path.name}", f"methods/{path.name}")
    for path in example_files():
        found[f"examples/{path.name}"] = f"examples/{path.stem}.md"
    return found


def example_files() -> list[Path]:
    """Scripts and notebooks."""
    folder = ROOT / "examples"
    return sorted([*folder.glob("*.py"), *folder.glob("*.ipynb")])


def place(file: str) -> str | None:
    """Where a file or folder of the project is in the site; None: it is not there."""
    if file in SINGLE:
        return SINGLE[file]
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    return pages().get(file)


def relinked(markdown: str, file: str, here: str | None = None) -> str:
    """The text of a file with links that hold in the site, on its own page or on page `here`.

    Of a link to a file that the site does not have only the text is left.
    """
    here = here or place(file)
    assert here is not None

    def link(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups()
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
        if ":" in target or not (ROOT / wanted).exists():
            return match.group()  # mkdocs says if it leads nowhere
        there = place(wanted)
        if there is None:
            return text
        relative = posixpath.relpath(there, posixpath.dirname(here) or ".")
        return f"{picture}[{text}]({relative}{anchor or ''})"

    return _LINK.sub(link, markdown)


def code(path: Path) -> str:
    """The page of an example: its code, and the text of a notebook between."""
    if path.suffix == ".py":
        return f"# {path.name}\n\n{_fenced(path.read_text('utf-8'))}"
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(_fenced(source) if cell["cell_type"] == "code" else source)
    return "\n\n".join(parts)


def _fenced(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```\n"


def examples() -> str:
    """The page that names all examples."""
    lines = ["# Examples\n", "Each stands for itself; they lie in `examples/` of the project.\n"]
    for path in example_files():
        lines.append(f"- [{path.name}]({path.stem}.md)")
    return "\n".join(lines) + "\n"


def command_line() -> str:
    """All commands with their options, as `--help` has them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what click says to typer
        import typer
        from typer.cli import get_docs_for_click

        from fedloom.cli.main import app

        os.environ.setdefault("COLUMNS", "100")
        command: Any = typer.main.get_command(app)
        context = typer.Context(command, info_name="fedloom")
        text = get_docs_for_click(obj=command, ctx=context, name="fedloom", title="Command line")
    return re.sub(r"<(?=[a-zA-Z/])", "&lt;", text)


def results() -> str:
    """The gallery of all tables; links within a page lead to that page."""

    def linked(text: str, file: str) -> str:
        whole = re.sub(r"\]\((#[^)]+)\)", rf"]({Path(file).name}\1)", text)
        return relinked(whole, file, "results.md")

    return gallery.page(linked)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List every method's page in the menu."""
    methods = [page for page in pages().values() if page.startswith("methods/")]
    for entry in config.nav or []:
        if "Methods" in entry:
            entry["Methods"] = sorted(methods, key=lambda page: (page != "methods/index.md", page))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File

    def add(page: str, content: str) -> None:
        files.append(File.generated(config, page, content=content))

    for file, page in pages().items():
        path = ROOT / file
        if path.suffix == ".md":
            text = path.read_text("utf-8")
            if page.startswith("methods/"):
                text = method_pages.laid_out(path.stem, text)
            add(page, relinked(text, file))
        else:
            add(page, code(path))
    add("examples/index.md", examples())
    add("command-line.md", command_line())
    add("results.md", results())
    return files


def on_page_markdown(markdown: str, page: Page, **others: Any) -> str:
    """Mend the links of pages in docs/, which are written for the project's folders."""
    if page.file.generated_by is not None:
        return markdown
    return relinked(markdown, f"docs/{page.file.src_uri}")
