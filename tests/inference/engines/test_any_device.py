"""Every method on a device that is not the host's: no tensor is left behind, and nothing differs from the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.accelerator import DEVICE, Held, SimulatedRecorder, Waits, simulated
from support.cases import FEW_STEPS, METHODS
from support.federations import blobs, slopes
from support.methods import TUTORIAL, case_name, network_for
from support.mixed import table
from support.pfedvmp import bumps
from torch import Tensor

from hierfl import Federation
from hierfl.data.formula.federate import from_formula
from hierfl.inference import Method, Run, fit
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.rules.gradient import Gradient
from hierfl.models import L2GD, QLSD, FedPAC, FedPop, MixedEffects, PFedGP, PFedV, PFedVEM, PFedVMP
from hierfl.nn.networks.build import architecture

HOW = {"rounds": 2, "participation": 0.6, "draws": 3, "dtype": torch.float64, "progress": False}
SHORT = FEW_STEPS[FedPop]
#: FedPop's kernels, populations and codecs
CHAINS: list[dict[str, Any]] = [
    {"kernel": "metropolis", "chains": 2}, {"start": "stateless"}, {"step_batch": 4},
    {"precondition": "curvature"}, {"mu_scale": 1.0}, {"population": "diagonal"},
    {"compress": "quantise:4"}, {"compress": "sparsify:0.5"},
]  # fmt: skip


def same(here: object, there: object, rtol: float = 0.0, what: str = "") -> None:
    """The same numbers, to the bit where rtol is 0; tensors are each on its own device."""
    if isinstance(here, Tensor):
        assert isinstance(there, Held), what
        torch.testing.assert_close(there.inner, here, rtol=rtol, atol=rtol, equal_nan=True, msg=what)
    elif isinstance(here, pd.DataFrame):
        pd.testing.assert_frame_equal(here, there, rtol=rtol, atol=rtol, obj=what)
    elif isinstance(here, dict):
        assert here.keys() == there.keys()
        for name in here.keys() - {"seconds"}:
            same(here[name], there[name], rtol, f"{what} {name}")
    elif isinstance(here, list):
        for number, (one, other) in enumerate(zip(here, there, strict=True)):
            same(one, other, rtol, f"{what} {number}")
    elif isinstance(here, np.ndarray | float):
        np.testing.assert_allclose(here, there, rtol=rtol, atol=rtol, err_msg=what)
    else:
        assert here == there, what


def everything(run: Run) -> dict[str, Any]:
    """What a user may ask of a run; a refusal is an answer, too."""
    data = run.posterior(draws=4)
    groups = {
        f"{group}.{name}": data[group][name].values
        for group in data.groups()
        for name in data[group].data_vars
        if group != "observed_data"
    }
    return {
        "shared": run.shared, "personal": run.personal, "evaluations": run.evaluations, "posterior": groups,
        "clients": run.clients,
    }  # fmt: skip


def both(make: Callable[[], tuple[Method, Federation]], **how: object) -> tuple[Run, Run]:
    """The same fit here and there, compared."""
    here = fit(*make(), **{**HOW, **how})
    expected = everything(here)
    with simulated():
        there = fit(*make(), device=DEVICE, **{**HOW, **how})
        same(expected, everything(there), rounding(there.fitted.method))
    return here, there


def rounding(method: Method) -> float:
    """To the bit, but where the server takes steps by Adam (elsewhere than on the host its step count is a tensor), of
    tables, where small matrices that are solved have other strides, and of Gaussian processes, of whose rows more are
    taken together elsewhere than on the host.
    """
    adam = any(isinstance(rule, Gradient) for rule in method.exchange().values())
    return 1e-9 if adam or method.tabular or isinstance(method, PFedGP) else 0.0


@pytest.mark.parametrize(("cls", "settings"), METHODS, ids=map(case_name, METHODS))
def test_every_method(cls: type[Method], settings: dict) -> None:
    federation = blobs([23, 7, 2, 14])
    more = FEW_STEPS.get(cls, {})
    here, there = both(lambda: (cls(network_for(cls, federation), **settings, **more), federation))
    x = federation.x[:3]
    expected = [here.predict(x, 0), here.predict(x, 1, draws=3)]
    with simulated():
        same(expected, [there.predict(x, 0), there.predict(x, 1, draws=3)], rounding(there.fitted.method))


def recorded_is_the_same(method: Method, federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CUDA graph would issue again gives the same numbers.

    Nothing is recorded of steps that predict a half of the data from the other, nor of a single step a round.
    """
    recorders: list[SimulatedRecorder] = []

    def recorder(device: torch.device) -> SimulatedRecorder:
        recorders.append(SimulatedRecorder())
        return recorders[-1]

    monkeypatch.setattr("hierfl.inference.engines.plate.recorder", recorder)
    here = fit(method, federation, **HOW)
    with simulated():
        there = fit(method, federation, **HOW, device=DEVICE, cuda_graphs=True)
        same(here.shared, there.shared, rounding(method))
        same(here.personal, there.personal, rounding(method))
        same(here.evaluations, there.evaluations, rounding(method))
    (used,) = recorders
    if method.conditions or isinstance(method, QLSD):
        assert used.recorded == 0
    else:
        assert 0 < used.recorded < used.replayed


@pytest.mark.parametrize(("cls", "settings"), METHODS, ids=map(case_name, METHODS))
def test_recorded_steps_are_the_same(cls: type[Method], settings: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = blobs([200, 190, 60, 23])
    more = SHORT if cls is FedPop else {"p": 0.1} if cls is L2GD else {}  # (so that it steps more than once)
    method = cls(network_for(cls, federation), **settings, **more)
    if cls is not TUTORIAL:
        recorded_is_the_same(method, federation, monkeypatch)
        return
    # (torch's StudentT makes tensors of numbers)
    with pytest.raises(RuntimeError, match="waits for the device, which is being recorded"):
        recorded_is_the_same(method, federation, monkeypatch)


@pytest.mark.parametrize("settings", CHAINS[:5], ids=str)
def test_recorded_chains_are_the_same(settings: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = blobs([23, 7, 2, 14])
    recorded_is_the_same(FedPop(architecture("mlp:5", federation), **SHORT, **settings), federation, monkeypatch)


@pytest.mark.parametrize(("cls", "settings"), METHODS, ids=map(case_name, METHODS))
def test_clients_values_may_stay_with_the_host(cls: type[Method], settings: dict, tmp_path: Path) -> None:
    """Then the device holds those of one plate alone; numbers are the same, also of a run that goes on."""
    federation = blobs([23, 7, 2, 14])
    more = FEW_STEPS.get(cls, {})
    method = cls(network_for(cls, federation), **settings, **more)
    here = fit(method, federation, **{**HOW, "rounds": 3})
    with simulated():
        how = {**HOW, "device": DEVICE, "client_state": "host", "chunk": 2, "folder": tmp_path}
        fit(method, federation, **how)
        there = fit(method, federation, **{**how, "rounds": 3}, resume=True)
        rtol = max(1e-6, rounding(method))  # (plates of two)
        for name, value in here.personal.items():
            kept = there.personal[name]
            assert kept.device.type == "cpu", name
            torch.testing.assert_close(kept, value, rtol=rtol, atol=rtol, msg=name)
        for name, value in here.fitted.copies.items():
            assert there.fitted.copies[name].device.type == "cpu"
            torch.testing.assert_close(there.fitted.copies[name], value, rtol=rtol, atol=rtol, msg=name)
        same(here.shared, there.shared, rtol)
        same(here.last(), there.last(), rtol)
        same([here.predict(federation.x[:3], 1, draws=3)], [there.predict(federation.x[:3], 1, draws=3)], rtol)
        there.posterior(draws=4)


@pytest.mark.parametrize("settings", CHAINS, ids=str)
def test_every_kernel_and_compressor(settings: dict) -> None:
    federation = blobs([23, 7, 2, 14])
    both(lambda: (FedPop(architecture("mlp:5", federation), **SHORT, **settings), federation))


@pytest.mark.parametrize("precision", ["full", "diagonal", "count", "equal"])
@pytest.mark.parametrize("prior", ["hierarchical", "fixed", "flat"])
def test_centroids(precision: str, prior: str) -> None:
    federation = bumps(test=0.3)
    if prior != "hierarchical" and precision != "full":
        pytest.skip("the precision is that of a message of centroids")
    both(lambda: (PFedVMP(architecture("mlp:6", federation), prior=prior, precision=precision), federation))


@pytest.mark.parametrize("cls", [PFedVEM, PFedV, FedPop])
def test_regressions(cls: type[Method]) -> None:
    federation = slopes([40, 11, 23, 8])
    more = FEW_STEPS.get(cls, {})
    both(lambda: (cls(architecture("mlp:5", federation, latent=cls.latent), **more), federation))


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("random", ["1", "1 + x"])
def test_tables(family: str, random: str) -> None:
    df = table(5)
    if family != "gaussian":
        df["y"] = (df["y"] > df["y"].median()).astype(int)

    def make() -> tuple[Method, Federation]:
        federation, design = from_formula(df, f"y ~ x + ({random} | site)", family=family, test=0.2)
        return MixedEffects(design, draws=20), federation

    here, there = both(make, participation=1.0, rounds=20)
    expected = [here.fitted.method.population_summary(here.fitted), here.fitted.method.shrinkage_table(here.fitted)]
    with simulated():
        found = [
            there.fitted.method.population_summary(there.fitted),
            there.fitted.method.shrinkage_table(there.fitted),
        ]
    pd.testing.assert_frame_equal(expected[0][0], found[0][0], rtol=1e-9)
    pd.testing.assert_frame_equal(expected[1], found[1], rtol=1e-9)


def in_rounds(method: Method, federation: Federation, monkeypatch: pytest.MonkeyPatch) -> Waits:
    """What waits between a round's begin and its end, evaluations left out."""
    with simulated() as waits:
        waits.on, step = False, Fit.step

        def watched(fit: Fit) -> None:
            waits.on = True
            step(fit)
            waits.on = False

        monkeypatch.setattr(Fit, "step", watched)
        fit(method, federation, device=DEVICE, **HOW)
    return waits


#: heads are combined by the host, see below
ON_DEVICE = [case for case in METHODS if case[0] is not FedPAC]


@pytest.mark.parametrize(("cls", "settings"), ON_DEVICE, ids=map(case_name, ON_DEVICE))
def test_rounds_do_not_wait(cls: type[Method], settings: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for one word to the host, after a round's end: how many clients' computation has failed."""
    federation = blobs([23, 7, 2, 14])
    more = FEW_STEPS.get(cls, {})
    waits = in_rounds(cls(network_for(cls, federation), **settings, **more), federation, monkeypatch)
    if cls is PFedGP:  # (at each step: how many examples are below each node of the largest tree)
        known = [key for key in waits if key[1].startswith("models/baselines/pfedgp.py")]
        assert sum(waits.pop(key) for key in known) == HOW["rounds"]
    only_one_word(waits)


# (Newton's steps to the curvature's metric ask whether they have arrived)
@pytest.mark.parametrize("settings", [s for s in CHAINS if "precondition" not in s], ids=str)
def test_chains_do_not_wait(settings: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = blobs([23, 7, 2, 14])
    method = FedPop(architecture("mlp:5", federation), **SHORT, **settings)
    only_one_word(in_rounds(method, federation, monkeypatch))


@pytest.mark.parametrize("precision", ["full", "diagonal", "count", "equal"])
def test_messages_of_centroids_do_not_wait(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the eigenvalues of full precisions, and for whether the server's product of them is one."""
    federation = bumps(test=0.3)
    method = PFedVMP(architecture("mlp:6", federation), precision=precision)
    waits = in_rounds(method, federation, monkeypatch)
    known = {key: times for key, times in waits.items() if key[1].startswith("hierfl/ppl/gaussian_factors.py")}
    # (the classes of all clients together where their sizes are alike)
    once = {"aten._linalg_eigh": HOW["rounds"], "aten._local_scalar_dense": HOW["rounds"]}
    assert {operation: times for (operation, _), times in known.items()} == (once if precision == "full" else {})
    only_one_word(Waits({key: times for key, times in waits.items() if key not in known}))


def test_combinations_of_heads_wait_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a round for who has reported, V and H, and the weights; for nothing else."""
    federation = blobs([23, 7, 2, 14])
    waits = in_rounds(FedPAC(network_for(FedPAC, federation)), federation, monkeypatch)
    files = ("inference/server/rules/own_combination.py", "inference/server/rules/simplex.py")
    known = {key: times for key, times in waits.items() if key[1].startswith(files)}
    found = Counter[str]()
    for (operation, _), times in known.items():
        found[operation] += times
    assert found == {"aten.nonzero": HOW["rounds"], "aten._to_copy": 3 * HOW["rounds"]}
    only_one_word(Waits({key: times for key, times in waits.items() if key not in known}))


def only_one_word(waits: Waits) -> None:
    """The host has read one number in each round, at its end."""
    for key in [*waits]:
        if key == ("aten._to_copy", "docs/student_t.py:36"):  # torch's StudentT makes tensors of numbers, and waits
            del waits[key]
    assert {line.partition(":")[0] for _, line in waits} == {"inference/run/fit.py"}, waits
    assert sum(waits.values()) == HOW["rounds"]
