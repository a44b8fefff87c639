"""Names that others have chosen hide no line: on the screen, on standard error, in logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.commands import Call
from support.studies import formula_study, patients, write_tables

from hierfl.experiments.cli.screen import console, text_table
from hierfl.experiments.messages import EscapedFormatter, to_stderr

HIDING = "pilot\x1b[8m\rstudy"
SHOWN = r"pilot\x1b[8m\rstudy"


def test_logs_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("hierfl", logging.WARNING, "", 0, "of %s\nERROR: forged", (HIDING,), None)
    assert EscapedFormatter("%(levelname)s: %(message)s").format(record) == rf"WARNING: of {SHOWN}\nERROR: forged"
    to_stderr()(HIDING)
    assert capsys.readouterr().err == f"{SHOWN}\n"


def test_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    table = text_table(HIDING)
    table.add_row(HIDING)
    screen = console()
    screen.print(f"{HIDING}\nnext")
    screen.print(table)
    text = capsys.readouterr().out
    assert text.startswith(f"{SHOWN}\nnext\n")
    assert text.count(SHOWN) == 3
    assert "\x1b" not in text


def test_a_studys_name_is_shown_by_check(tmp_path: Path, hierfl: Call) -> None:
    own = write_tables(patients(3), tmp_path / "data")
    study = formula_study(tmp_path, own)
    study.write_text(study.read_text().replace('name = "patients"', 'name = "pilot\\u001b[8m\\rstudy"'))
    code, text, _ = hierfl("federate", "check", study, "--data", own["h01"])
    assert code == 0
    assert SHOWN in text
    assert "\x1b[8m" not in text
