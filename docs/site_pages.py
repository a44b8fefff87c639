"""Pages that Sphinx is given at build time: a page of each module, forwarding pages of old names, inventories.

``reference.md`` lists the modules. Each ``automodule`` entry becomes ``api/NAME.rst``, with the entry's options.
``moved.toml`` has old and new names of pages. ``inventories.toml`` names the objects of other projects that our
signatures and texts mention, with their addresses. So a build needs no network.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
API = DOCS / "api"
BLOCK = re.compile(r"^```\{eval-rst\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ENTRY = re.compile(r"^\.\. automodule:: (\S+)\n((?:   :.*\n)*)", re.MULTILINE)
FORWARD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>This page has moved</title>
<link rel="canonical" href="{target}"><meta http-equiv="refresh" content="0; url={target}"></head>
<body><p>This page has moved: <a href="{target}">{target}</a>.</p></body></html>
"""


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Modules of the list, each with the options of its entry."""
    for block in BLOCK.findall(text):
        yield from ENTRY.findall(block)


def first_line(module: str) -> str:
    """What the module's docstring says first, without importing the module itself."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def escaped(text: str) -> str:
    """A docstring's line as Markdown: double backquotes are code, all else is plain."""
    parts = text.split("``")
    parts[::2] = [re.sub(r"([*_<>|$\[\]{}`])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def write_api_pages() -> None:
    """Writes ``api/*.rst``; what has not changed is left alone, pages of lost modules are deleted."""
    API.mkdir(exist_ok=True)
    wanted = {}
    for module, options in entries((DOCS / "reference.md").read_text(encoding="utf-8")):
        page = f":orphan:\n\n{module}\n{'=' * len(module)}\n\n:doc:`All modules </reference>`\n\n"
        shown = options if ":members:" in options else options + "   :no-members:\n"
        wanted[f"{module}.rst"] = f"{page}.. automodule:: {module}\n{shown}"
    for path in API.glob("*.rst"):
        if path.name not in wanted:
            path.unlink()
    for name, page in wanted.items():
        path = API / name
        if not path.exists() or path.read_text(encoding="utf-8") != page:
            path.write_text(page, encoding="utf-8")


def linked(text: str) -> str:
    """The reference with a link and a line for each module instead of its entry."""

    def lines(block: re.Match[str]) -> str:
        rows = [
            f"- [`{module}`](api/{module}.rst): {escaped(first_line(module))}"
            for module, _ in ENTRY.findall(block.group(1))
        ]
        return "\n".join(rows)

    return BLOCK.sub(lines, text)


def write_inventories() -> dict[str, tuple[str, str]]:
    """Inventories as Sphinx reads them, and the mapping for ``intersphinx_mapping``."""
    folder = API / "inventories"
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for project, entry in tomllib.loads((DOCS / "inventories.toml").read_text(encoding="utf-8")).items():
        objects = "".join(
            f"{name} {role} 1 {address.replace('$', name)} -\n"
            for role, names in entry["objects"].items()
            for name, address in names.items()
        )
        head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
        head += "# The remainder of this file is compressed using zlib.\n"
        path = folder / f"{project}.inv"
        path.write_bytes(head.encode() + zlib.compress(objects.encode()))
        mapping[project] = (entry["url"], path.relative_to(DOCS).as_posix())
    return mapping


def write_forwarding_pages(out: Path) -> None:
    """One small page at each old address of a page."""
    for old, new in tomllib.loads((DOCS / "moved.toml").read_text(encoding="utf-8")).items():
        (out / f"{old}.html").write_text(FORWARD.format(target=f"{new}.html"), encoding="utf-8")
