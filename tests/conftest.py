"""Fixtures of all tests: small federations, and the certainty that it left no global state behind (invariant 9)."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# tensors are small here: a second thread gains nothing, and fights over the cores with whatever else runs;
# set before torch is imported, and inherited by the processes that tests start
os.environ["OMP_NUM_THREADS"] = "1"
# what is remembered of a user is not remembered of whoever runs the tests; inherited, too
os.environ["HIERFL_STATE"] = tempfile.mkdtemp(prefix="hierfl-state-")
# the processes that tests start find the installed package too, not ./hierfl without its upper floors
os.environ["PYTHONSAFEPATH"] = "1"

from support.installed import import_installed, stale

import_installed()

import numpy as np
import pyro
import pytest
import torch
import typer.main
from support.commands import Answer, Call
from support.drawing import one_figure, unrendered
from support.federations import blobs, slopes
from support.once import Once

from hierfl import Federation
from hierfl.experiments import cli
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

pytest_plugins = ["support.budget"]
#: the commands as click sees them, made of the functions' signatures at each call of a program
typer.main.get_command = functools.cache(typer.main.get_command)
#: files that are asked for by name below which no worker processes are started: each imports torch anew
FEW_FILES = 3


def pytest_configure(config: pytest.Config) -> None:
    """What is tested is this checkout.

    Collection makes millions of objects that all stay: a third of its time was the search for garbage among them.
    """
    gc.disable()
    if different := stale():
        raise pytest.UsageError(
            f"the hierfl that is installed is not this checkout: {different[0]}"
            f"{f' and {len(different) - 1} more files' if different[1:] else ''}; pip install it again, or -e"
        )


def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on garbage is looked for, but not among what collection has made."""
    gc.freeze()
    gc.enable()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One process where a few files are asked for by name; else one for each core, as ever."""
    named = [argument for argument in config.args if ".py" in argument]
    return 0 if len(named) == len(config.args) and len(named) <= FEW_FILES else None


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Once:
    """Work that several tests ask about, done once in a session, whichever worker comes first."""
    base = tmp_path_factory.getbasetemp()
    workers = hasattr(request.config, "workerinput")
    return Once(base.parent if workers else base, request.config.pluginmanager.get_plugin("budget").budget)


@pytest.fixture(scope="session", autouse=True)
def state_folder() -> Iterator[None]:
    """What was remembered is forgotten at the end."""
    yield
    shutil.rmtree(os.environ["HIERFL_STATE"])


@pytest.fixture(autouse=True)
def leaves_no_global_state() -> Iterator[None]:
    """No run leaks into another: param store, generators, default dtype and validation are as they were."""
    pyro.clear_param_store()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), torch.get_default_dtype()  # noqa: NPY002
    validation = torch.distributions.Distribution._validate_args
    threads = torch.get_num_threads()
    yield
    assert not list(pyro.get_param_store())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert torch.get_default_dtype() == before[2]
    assert torch.distributions.Distribution._validate_args == validation
    assert torch.get_num_threads() == threads


@pytest.fixture(autouse=True)
def few_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of commands draws one figure of each folder; ``figures("blank")`` draws all, and renders none."""
    marker = request.node.get_closest_marker("figures")
    if "hierfl" not in request.fixturenames or (marker and marker.args != ("blank",)):
        yield
    else:
        with unrendered() if marker else one_figure():
            yield


@pytest.fixture
def small() -> Federation:
    """Seven clients of very different sizes."""
    return blobs([23, 7, 2, 14, 14, 5, 9])


@pytest.fixture
def lines() -> Federation:
    """Linear regressions whose slopes differ by client, noise 0.5."""
    return slopes([40, 11, 23, 8])


@pytest.fixture
def net(small: Federation) -> Architecture:
    """One hidden layer of five."""
    return architecture("mlp:5", small)


@pytest.fixture
def hierfl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> Call:
    """Calls the command line in an empty folder; returns exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["hierfl", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return call
