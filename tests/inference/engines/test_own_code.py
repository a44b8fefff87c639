"""The digest of hierfl's own files: one for each version, however it was installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import installed
from support.paths import ROOT

from hierfl.inference.engines.remote.own_code import code_digest, own_files
from hierfl.inference.engines.remote.wire import Handshake

#: as another Python would find it, without the installation of this one
PRINT_DIGEST = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
sys.path.insert(0, sys.argv[1])
spec = spec_from_file_location("code_of_ours", sys.argv[1] + "/hierfl/inference/engines/remote/own_code.py")
module = module_from_spec(spec)
spec.loader.exec_module(module)
print(module.code_digest())
"""


def digest_in(folder: Path) -> str:
    command = [sys.executable, "-I", "-S", "-c", PRINT_DIGEST, str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_plain_and_an_editable_installation_have_one_digest(tmp_path: Path) -> None:
    """Whatever ends a line, and whatever lies beside the packages; another byte of code is another digest."""
    left_out = shutil.ignore_patterns("results", "__pycache__")
    for folder, target in installed.FOLDERS.items():
        shutil.copytree(ROOT / folder, tmp_path / "hierfl" / target, dirs_exist_ok=True, ignore=left_out)
    assert digest_in(tmp_path) == code_digest()
    path = tmp_path / "hierfl" / "rng.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (tmp_path / "hierfl" / "notes").mkdir()
    (tmp_path / "hierfl" / "notes" / "more.py").write_text("x = 1\n")
    assert digest_in(tmp_path) == code_digest()
    path = tmp_path / "hierfl" / "models" / "pfedvem.py"
    path.write_text(path.read_text() + "# changed\n")
    assert digest_in(tmp_path) != code_digest()


def test_all_four_floors_are_in_it() -> None:
    floors = {"rng", "inference", "models", "experiments"}
    assert {name.split(".")[1] for name in own_files()} >= floors
    assert len({*own_files().values()}) == len(own_files()) > 400


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"format": 1}, "requests are of format 2 here: install the same version of hierfl at both ends"),
        ({"study": "b"}, "the study is another one: compare study.toml at both ends"),
        ({"method": "b"}, "the method's code differs: install the same version of it at both ends"),
        ({"torch": "1.0"}, "torch is .* here: install the same version at both ends"),
        ({"code": "b"}, "hierfl's own files differ: install the same version of hierfl at both ends, unchanged"),
        ({"roster": "b"}, "the roster or its keys differ: send study.toml to every site again, and approve it there"),
    ],
)
def test_each_difference_between_two_ends_has_a_line(entry: dict[str, object], line: str) -> None:
    local = Handshake("a study", "a method", "a roster")
    assert local.differs(local.table()) == ""
    assert re.fullmatch(line, local.differs({**local.table(), **entry}))
    before = {name: value for name, value in local.table().items() if name not in ("roster", "code")}
    assert local.differs({**before, "format": 1}).startswith("requests are of format 2 here")
