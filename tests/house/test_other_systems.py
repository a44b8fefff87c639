"""What POSIX alone has is not needed: neither handles of folders nor permissions, nor modules that Windows lacks."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hierfl.experiments

#: modules that Windows has not
POSIX_ALONE = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
ROOT = Path(hierfl.experiments.__file__).parents[1]
#: a program for whom the system is as Windows is, where it asks
WITHOUT = """
    import os, shutil, sys, tempfile, subprocess, torch, pyro, pandas, filelock
    from pathlib import Path
    for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fork", "getuid", "mkfifo"):
        delattr(os, name)
    os.supports_dir_fd, shutil._use_fd_functions = set(), False
    filelock.FileLock = filelock.SoftFileLock  # (its own for POSIX asks for what POSIX has)
    opened = os.open

    def open_file(path, flags, mode=0o777, **more):
        if more or os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, mode)

    os.open = open_file
"""


def test_no_module_needs_what_windows_lacks() -> None:
    """At its head; what a benchmark needs is imported where it is used."""
    needing = []
    for package in ("hierfl", "inference", "models", "experiments"):
        paths = [path for path in (ROOT / package).rglob("*.py") if "results" not in path.relative_to(ROOT).parts]
        for path in sorted(paths):
            text = path.read_text(encoding="utf-8")
            if not any(name in text for name in POSIX_ALONE):
                continue
            for node in ast.parse(text).body:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                needing += [f"{path.name}: {name}" for name in names if name.partition(".")[0] in POSIX_ALONE]
    assert needing == []


@pytest.mark.cpu(12, "a process of its own, with torch")
def test_a_run_its_report_and_shared_folders_need_no_handles_of_folders(tmp_path: Path) -> None:
    program = """
        from hierfl.experiments.cli import main
        from hierfl.files import write_whole
        from hierfl.plain_folder import Linked, PlainFolder

        write_whole(Path("a.bin"), b"1\\r\\n2\\n", mode=0o600)
        assert Path("a.bin").read_bytes() == b"1\\r\\n2\\n"
        folder = PlainFolder(Path("."), "round", "one")
        folder.write("a", b"x\\n")
        folder.write("a", b"y\\n")
        assert folder.names() == ["a"] and folder.read("a", 9) == b"y\\n" and folder.read("a", 1) == b""
        assert folder.read("b", 9) == b"" and folder.entry_status("b") is None and folder.entry_status("a").st_size == 2
        os.symlink("a", "round/one/link")
        os.symlink("round", "elsewhere")
        for call in (lambda: folder.read("link", 9), PlainFolder(Path("."), "elsewhere", "one").names):
            try:
                call()
            except Linked:
                continue
            raise SystemExit("a link was followed")
        folder.remove("a")
        assert folder.names() == ["link"]
        words = "run fedavg --clients 4 --rounds 1 --network linear --quiet --out o".split()
        sys.argv = ["hierfl", *words]
        main()
    """
    code = textwrap.dedent(WITHOUT) + textwrap.dedent(program)
    environment = {**os.environ, "USERNAME": "somebody"}  # as Windows says it
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o" / "summary.json").is_file()
