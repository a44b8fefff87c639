"""Checkpoints that cannot be used are told in one line, and nothing is touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from support.commands import Call
from support.run_folders import SHORT, Finished


def test_checkpoints_that_cannot_be_used(hierfl: Call, tmp_path: Path, finished: Finished) -> None:
    finished("fedavg", "o", options=SHORT)

    def refused(words: str, spoil: Callable[[Path], object]) -> None:
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        shutil.copytree(tmp_path / "o", tmp_path / "c")
        spoil(tmp_path / "c")
        before = (tmp_path / "c/summary.json").read_bytes()
        code, _, err = hierfl("run", "--resume", "c")
        assert (code, err.count("\n")) == (2, 1), err
        assert words in err
        assert (tmp_path / "c/summary.json").read_bytes() == before

    def state(folder: Path) -> Path:
        return next((folder / "checkpoint").glob("*.safetensors"))

    def change(folder: Path, old: str, new: str) -> None:
        config = folder / "config.toml"
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new))

    refused("is truncated or has been changed", lambda f: state(f).write_bytes(state(f).read_bytes()[:-100]))
    refused("lacks state-", lambda f: state(f).unlink())
    refused("is damaged", lambda f: (f / "checkpoint/checkpoint.json").write_text("{"))
    refused("is no hierfl checkpoint", lambda f: (f / "checkpoint/checkpoint.json").write_text("{}"))
    refused("no checkpoint in", lambda f: shutil.rmtree(f / "checkpoint"))
    refused("config.toml is damaged", lambda f: (f / "config.toml").write_text("= ="))
    refused("config.toml is damaged: run is missing", lambda f: (f / "config.toml").write_text("a = 1"))
    refused("has changed since", lambda f: change(f, 'method_digest = "', 'method_digest = "0'))
    refused(
        "its method is fedper, and its method_digest that of", lambda f: change(f, 'method = "', 'method = "fedper" #')
    )
    refused("rounds is 'ten'", lambda f: change(f, "rounds = 2", 'rounds = "ten"'))
    refused("seed is missing", lambda f: change(f, "seed = 0", ""))
    refused("belongs to another method, network or federation", lambda f: change(f, "mlp:64", "mlp:32"))
    refused("holds other data than c was run on, or splits them otherwise", lambda f: change(f, "seed = 0", "seed = 1"))
