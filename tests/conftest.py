"""What every test gets: small federations, and the certainty that it left no global state behind (invariant 9)."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

# tensors are small here: a second thread gains nothing, and fights over the cores with whatever else runs;
# set before torch is imported, and inherited by the processes that tests start
os.environ["OMP_NUM_THREADS"] = "1"
# what is remembered of a user is not remembered of whoever runs the tests; inherited, too
os.environ["HIERFL_STATE"] = tempfile.mkdtemp(prefix="hierfl-state-")

import numpy as np
import pyro
import pytest
import torch

from hierfl import Federation
from hierfl.data.arrays import make_pool
from hierfl.experiments import cli
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

Answer = tuple[int, str, str]
Call = Callable[..., Answer]


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


def command(*arguments: object) -> None:
    """Calls the command line in this process; what goes wrong is raised."""
    cli.app([*map(str, arguments)], standalone_mode=False)


def blobs(sizes: list[int], classes: int = 3, features: int = 4, seed: int = 0, test: int = 12) -> Federation:
    """Clients of given sizes with Gaussian classes whose centres differ a little between clients; float64."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(classes, features))

    def draw(counts: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y = np.concatenate([rng.permutation(np.arange(n) % classes) for n in counts])
        who = np.repeat(np.arange(len(counts)), counts)
        shift = rng.normal(size=(len(counts), classes, features))
        return centres[y] + shift[who, y] + rng.normal(size=(len(y), features)), y, who

    x, y, who = draw(sizes)
    x_test, y_test, who_test = draw([test] * len(sizes))
    names = np.array([f"place-{j:02d}" for j in range(len(sizes))])
    return Federation.from_arrays(
        x, y, names[who], x_test=x_test, y_test=y_test, client_test=names[who_test], validation=0.0
    ).to(dtype=torch.float64)


def slopes(sizes: list[int], features: int = 2, noise: float = 0.5, seed: int = 0) -> Federation:
    """A linear-Gaussian federation: y = w_j . x + noise, w_j ~ N(w, 1); float64."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(who), features))
    w = rng.normal(size=features) + rng.normal(size=(len(sizes), features))
    y = (x * w[who]).sum(1) + 0.3 + noise * rng.normal(size=len(who))
    return Federation.from_arrays(x, y, who, test=0.0, task="regression").to(dtype=torch.float64)


def pictures() -> Federation:
    """Twenty small pictures at two clients; float64."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(20, 1, 16, 16, generator=rng, dtype=torch.float64).numpy()
    y = (torch.arange(20) % 3).numpy()
    return Federation.from_arrays(x, y, (torch.arange(20) % 2).numpy(), test=0.0, validation=0.0).to(
        dtype=torch.float64
    )


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


def image_pool(n: int = 600, classes: int = 10, seed: int = 0, fine: int = 0) -> object:
    """A pool of tiny float inputs with balanced labels (and ``fine`` subclasses of each), for partitions."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    sub = (np.arange(n) // classes) % fine if fine else None
    fine_ids = None if sub is None else y * fine + sub
    x = rng.normal(size=(n, 3))
    cut = int(0.8 * n)
    return make_pool(
        "toy", x[:cut], y[:cut], x[cut:], y[cut:],
        fine_train=None if fine_ids is None else fine_ids[:cut],
        fine_test=None if fine_ids is None else fine_ids[cut:],
    )  # fmt: skip


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
