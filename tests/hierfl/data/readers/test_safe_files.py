"""Files from elsewhere: what is no regular file is refused, and never waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from support.foreign_files import one_line

from hierfl import UserError
from hierfl.data.readers.safe_files import open_regular, regular_file


def test_what_is_no_regular_file_is_refused_and_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("a").symlink_to("b")
    Path("b").symlink_to("a")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    cases = {
        "pipe": "a named pipe", "folder": "a directory", "socket": "a socket", "/dev/zero": "a device",
        "a": "[Ss]ymlink loop|circle|symbolic links", "absent": "no file absent; it should be a table",
        "pipe/x": "no file", "nul\0byte": "null", "lone\udc80": "lone\\\\udc80 is not valid UTF-8",
        "\ud800": "UTF-8", "": "empty", "x" * 300: "[Tt]oo long",
        "~nobody-of-this-name/x": "home",
    }  # fmt: skip
    for name, words in cases.items():
        with pytest.raises(UserError, match=words) as error:
            open_regular(name, "a table")
        one_line(error)


def test_a_home_directory_is_expanded_and_links_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.csv").write_text("hello")
    (tmp_path / "link.csv").symlink_to("x.csv")
    assert regular_file(Path("~/link.csv"), "a table") == tmp_path.resolve() / "x.csv"
    with open_regular("~/x.csv") as stream:
        assert stream.read() == b"hello"


def test_a_pipe_that_takes_a_files_name_meanwhile_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "x.csv")
    monkeypatch.setattr("hierfl.data.readers.safe_files.regular_file", lambda path, what: path)
    with pytest.raises(UserError, match="not a regular file"):
        open_regular(tmp_path / "x.csv")
