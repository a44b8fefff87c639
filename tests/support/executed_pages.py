"""Pages whose code runs: blocks of Python one after the other, each followed by what it prints."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from decimal import Decimal

#: a block of a page: its language and its text
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]\d+)?")


def executed(page: str) -> str:
    """The page with what its blocks print: a block of text after one of Python is replaced."""
    names: dict[str, object] = {"__name__": "page"}
    printed: str | None = None

    def replaced(block: re.Match[str]) -> str:
        nonlocal printed
        language, text = block.groups()
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, "the page", "exec"), names)
            printed = out.getvalue()
            return block.group()
        assert printed is not None, f"nothing printed this:\n{text}"
        lines = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
        printed = None
        return f"```text\n{lines}\n```"

    return BLOCK.sub(replaced, page)


def differences(page: str, again: str, units: int = 1) -> Iterator[str]:
    """Lines that differ by more than so many units of a number's last printed digit, or in words.

    Args:
        page: as it is.
        again: as it is made now.
        units: of the last digit.
    """
    before, now = page.splitlines(), again.splitlines()
    if len(before) != len(now):
        yield f"{len(before)} lines, now {len(now)}"
    for old, new in zip(before, now, strict=False):
        if old == new:
            continue
        mine, others = NUMBER.findall(old), NUMBER.findall(new)
        words = [re.sub(r"[\s:|-]+", " ", NUMBER.sub("#", line)) for line in (old, new)]
        if words[0] != words[1] or any(apart(a, b) > units for a, b in zip(mine, others, strict=True)):
            yield f"{old}\n  now: {new}"


def apart(first: str, second: str) -> float:
    """How far two printed numbers are from each other, in units of the coarser one's last digit."""
    numbers = [Decimal(text.replace(",", "")) for text in (first, second)]
    unit = max(Decimal(1).scaleb(int(number.as_tuple().exponent)) for number in numbers)
    return float(abs(numbers[0] - numbers[1]) / unit)
