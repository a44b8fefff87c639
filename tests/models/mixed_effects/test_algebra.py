"""The page of equations and the code that they stand in."""

from __future__ import annotations

import re

from support.paths import ROOT

ROOM = ROOT / "models" / "mixed_effects"


def test_each_equation_stands_in_a_file_that_its_section_names() -> None:
    page, numbers = (ROOT / "docs" / "algebra.md").read_text(encoding="utf-8"), []
    for section in page.split("\n## ")[1:]:
        names = re.findall(r"`([\w/]+\.py|[\w/]+/)`", section)
        folders = [ROOM, *(ROOM / name for name in names if name.endswith("/"))]
        files = [folder / name for name in names for folder in folders if (folder / name).is_file()]
        text = "\n".join(path.read_text(encoding="utf-8") for path in files)
        for number in re.findall(r"^    \((\d+)\)", section, re.MULTILINE):
            numbers.append(int(number))
            assert f"({number})" in text, f"equation ({number}) of section {section.splitlines()[0]!r}"
    assert numbers == list(range(1, 21))
