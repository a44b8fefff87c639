"""The threat model promises what tests show: each row of its tables names one that is there."""

from __future__ import annotations

import re

import pytest
from support.commands import Call
from support.paths import ROOT

from hierfl.experiments.federate.guard.policy import SCHEMA

PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in ("docs/threats.md", "docs/study-documents.md", "SECURITY.md")
}
TEST, ATTACK = re.compile(r"`(tests/(?!support)[\w/.]+\.py)`"), re.compile(r"`(test_\w+\.py)`")
#: who is on the page, each under a heading
WHO = ("honest, and curious", "malicious", "carrier", "Other sites", "malicious site", "stolen disk", "published model")


def promises() -> list[tuple[str, str, str]]:
    """Rows of the tables of what is protected: what, by which option, tests."""
    rows = [line.strip().strip("|").split(" | ") for line in PAGES["docs/threats.md"].splitlines() if line[:2] == "| "]
    return [(what.strip(), how.strip(), test.strip()) for what, how, test in (r for r in rows if len(r) == 3)]


def test_everybody_is_on_the_page() -> None:
    headings = "\n".join(line for line in PAGES["docs/threats.md"].splitlines() if line.startswith("## "))
    assert not [who for who in WHO if who not in headings]


def test_every_promise_names_a_test_that_is_there() -> None:
    rows = [row for row in promises() if row[0] != "protected"]
    assert len(rows) > 20
    assert not [row for row in rows if not TEST.findall(row[2]) or not row[1]]
    named = {path for text in PAGES.values() for path in TEST.findall(text)}
    named |= {f"tests/attacks/{name}" for name in ATTACK.findall(PAGES["docs/threats.md"])}
    assert not [path for path in named if not (ROOT / path).is_file()]
    assert not [path for path in named if "def test_" not in (ROOT / path).read_text(encoding="utf-8")]


def test_every_option_that_is_named_is_one(hierfl: Call) -> None:
    text = PAGES["docs/threats.md"]
    known = {name.removesuffix("?") for name in SCHEMA}
    for words in re.findall(r"`policy\.toml`: ([^|]+)", text):
        for name in re.findall(r"`(\w+)(?: = [^`]+)?`", words):
            assert name in known, name
    commands = set(re.findall(r"hierfl federate (\w+)", " ".join(PAGES.values())))
    assert {"approve", "check", "record", "withdraw", "forget", "audit"} <= commands
    for command in commands:
        assert hierfl("federate", command, "--help")[0] == 0, command


@pytest.mark.parametrize("path", PAGES)
def test_links_lead_somewhere(path: str) -> None:
    for target in re.findall(r"\]\(([\w/.-]+\.md)", PAGES[path]):
        assert ((ROOT / path).parent / target).is_file(), target
