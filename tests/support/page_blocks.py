"""Code of the pages: fenced blocks with their reasons not to be run, and the commands that a page names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from support.paths import ROOT

DOCS = ROOT / "docs"
FENCE = re.compile(r"(?:^<!-- not run: (.+?) -->\n)?^```([\w{}-]*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: languages of blocks that are programs
PROGRAMS = ("python", "pycon", "sh", "bash")
#: words between the commands of a line
SEPARATORS = (";", "&&", "|", ">", "&", "do", "done", "(", ")")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        language: after the fence.
        text: between the fences.
        reason: why it is not run; empty where it is.
    """

    language: str
    text: str
    reason: str


def pages() -> dict[str, str]:
    """Texts of all pages, by name below ``docs``; the README, too. The reference is a list of modules."""
    paths = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return {name_of(path): path.read_text(encoding="utf-8") for path in paths if path.name != "reference.md"}


def name_of(path: Path) -> str:
    """``README``, or the path below ``docs`` without its end."""
    return path.stem if path.parent == ROOT else path.relative_to(DOCS).with_suffix("").as_posix()


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(language, text, reason) for reason, language, text in FENCE.findall(page)]


def commands(page: str) -> Iterator[list[str]]:
    """Arguments of each ``hierfl`` command in a block of the page, or in a line that is indented as code."""
    whole = re.sub(r" *\\\n\s*", " ", page)
    fenced = "".join(block.text for block in blocks(whole) if block.language in ("sh", "bash"))
    plain = re.sub(r"^```.*?^```$", "", whole, flags=re.DOTALL | re.MULTILINE)
    for line in [*fenced.splitlines(), *re.findall(r"^ {4}(hierfl .*)$", plain, re.MULTILINE)]:
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        for ends, part in groupby(words, SEPARATORS.__contains__):
            if not ends and (arguments := list(part))[0] == "hierfl":
                yield arguments[1:]
