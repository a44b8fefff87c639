"""An error that none expects is one line too, with its traceback in a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hierfl.experiments import cli


def test_its_traceback_is_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    def broken(**_: object) -> None:
        raise KeyError("lost\nfor ever")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr("sys.argv", ["hierfl", "methods"])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == cli.DEFECT
    (line,) = capsys.readouterr().err.splitlines()
    match = re.fullmatch(r"error: KeyError: 'lost\\nfor ever'; this is a defect, see (\S+)", line)
    assert match
    assert "in broken" in Path(match[1]).read_text()
    assert Path(match[1]).stat().st_mode & 0o77 == 0
