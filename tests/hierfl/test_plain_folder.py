"""Folders that others write to: no link is followed, and only plain files are read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hierfl.plain_folder import Linked, PlainFolder, read_plain


@pytest.fixture
def folder(tmp_path: Path) -> PlainFolder:
    """Below a root that is a link, as a user may name it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    made = PlainFolder(tmp_path / "root", "north", "requests")
    made.make()
    return made


def test_files_are_written_whole_and_read(folder: PlainFolder) -> None:
    folder.write("a", b"one")
    folder.write("a", b"two")
    assert (folder.names(), folder.read("a", 3), folder.read("a", 2), folder.read("b", 9)) == (["a"], b"two", b"", b"")
    folder.remove("a")
    folder.remove("a")
    assert folder.names() == []
    assert PlainFolder(folder.root, "south").names() == []


@pytest.mark.parametrize("part", ["north", "north/requests"])
def test_a_folder_that_is_a_link(part: str, folder: PlainFolder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder.root / part).rename(tmp_path / "moved")
    (folder.root / part).symlink_to(tmp_path / "elsewhere")
    for call in (folder.names, folder.make, lambda: folder.write("a", b"x"), lambda: folder.read("a", 9)):
        with pytest.raises(Linked, match="it is not followed"):
            call()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_file_that_is_none(folder: PlainFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is refused, and replaced by a write; what it leads to stays. A pipe, a socket, a folder hold nothing."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (folder.path / "link").symlink_to(secret)
    (folder.path / ".new.part").symlink_to(secret)
    with pytest.raises(Linked, match="link is a symbolic link"):
        folder.read("link", 99)
    with pytest.raises(Linked, match="it is not followed"):
        read_plain(folder.path / "link", 99)
    folder.write("link", b"mine")
    folder.write("new", b"mine")
    assert (secret.read_bytes(), folder.read("link", 9), folder.read("new", 9)) == (b"secret", b"mine", b"mine")
    os.mkfifo(folder.path / "pipe")
    (folder.path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(folder.path)  # a socket's path is short
        listener.bind("socket")
    assert [folder.read(name, 99) for name in ("pipe", "folder", "socket")] == [b""] * 3


def test_a_root_that_is_away_is_an_error(tmp_path: Path) -> None:
    """It is no empty folder, and is not made."""
    folder = PlainFolder(tmp_path / "mount", "north")
    for call in (folder.names, lambda: folder.write("a", b"x")):
        with pytest.raises(FileNotFoundError):
            call()
    assert not (tmp_path / "mount").exists()
