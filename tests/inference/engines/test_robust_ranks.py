"""Robust rules by ranks: every rank has all messages, and the same shared values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.engine_cases import CASES, how_of, keep, kept, named, spoiled_messages
from support.paths import ROOT
from support.ranks import processes

from hierfl.inference import fit


@pytest.mark.slow
@pytest.mark.cpu(12, "two processes that import torch")
def test_two_ranks_have_the_bits_of_the_plate(tmp_path: Path) -> None:
    """With messages that are rejected, and absent clients."""
    names = ["fedavg", "pfedvem-hierarchical", "mixed-gaussian"]
    script = str(ROOT / "tests" / "support" / "rank_fits.py")
    started = processes(2, script, str(tmp_path), "robust=median", *names)
    errors = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], errors[0][-2000:]
    for name in names:
        method, federation = CASES[name]()
        with spoiled_messages():
            run = fit(method, named(federation), robust="median", **how_of(method))
        keep(run, tmp_path / "plate")
        (values, about), (other, said_of) = kept(tmp_path / "plate"), kept(tmp_path / name)
        assert about["status"] == said_of["status"]
        assert all(torch.equal(v, other[k]) for k, v in values.items())
