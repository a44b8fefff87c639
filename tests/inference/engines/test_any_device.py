"""Every method on a device that is not the host's: no tensor is left behind, and nothing differs from the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

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
from support.representatives import of_all, of_local, of_state, representatives
from torch import Tensor

from hierfl import Federation
from hierfl.arviz_data import group_names
from hierfl.data.formula.federate import from_formula
from hierfl.inference import Method, Run, fit
from hierfl.inference.method.capabilities import is_tabular
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.rules.gradient import Gradient
from hierfl.models import L2GD, QLSD, FedPAC, FedPop, MixedEffects, PFedEB, PFedGP, PFedHB, PFedV, PFedVEM, PFedVMP
from hierfl.nn.networks.build import architecture

HOW = {"rounds": 2, "participation": 0.6, "draws": 3, "dtype": torch.float64, "progress": False}
SHORT = FEW_STEPS[FedPop]
#: clients of which some take steps of the same shape again
RECORDED = [60, 50, 23]
Case = tuple[type[Method], dict]
TABLES = [("gaussian", "1"), ("binomial", "1"), ("binomial", "1 + x"), ("poisson", "1"), ("poisson", "1 + x")]
#: those with Newton steps take five times as long as the others, and are in the slow set
ON_HOST = [case for case in representatives(METHODS, of_state) if case[0] not in (PFedEB, PFedHB, FedPop)]
#: of the two that share these steps, the one that takes a fifth of the time
EVERYWHERE = [case for case in representatives(METHODS, of_local) if case[0] is not PFedHB]
RECORDABLE = [case for case in representatives(METHODS, of_local) if case[0] is not PFedHB]
#: FedPop's kernels, populations and codecs
CHAINS: list[dict[str, Any]] = [
    {"kernel": "metropolis", "chains": 2}, {"start": "stateless"}, {"step_batch": 4},
    {"precondition": "curvature"}, {"mu_scale": 1.0}, {"population": "diagonal"},
    {"compress": "quantise:4"}, {"compress": "sparsify:0.5"},
]  # fmt: skip


def chains(settings: list[dict[str, Any]], *options: str) -> pytest.MarkDecorator:
    """FedPop's: of the fewest with every mechanism those that set these options, and the others in the slow set."""
    quick = [setting for _, setting in representatives([(FedPop, {**SHORT, **setting}) for setting in settings])]
    chosen = [setting for setting in settings if {**SHORT, **setting} in quick and setting.keys() & {*options}]
    return pytest.mark.parametrize("settings", of_all(settings, chosen, str))


def same(expected: object, actual: object, rtol: float = 0.0, what: str = "") -> None:
    """The same numbers, to the bit where rtol is 0; tensors are each on its own device."""
    if isinstance(expected, Tensor):
        assert isinstance(actual, Held), what
        torch.testing.assert_close(actual.inner, expected, rtol=rtol, atol=rtol, equal_nan=True, msg=what)
    elif isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(expected, actual, rtol=rtol, atol=rtol, obj=what)
    elif isinstance(expected, dict):
        assert expected.keys() == actual.keys()
        for name in expected.keys() - {"seconds"}:
            same(expected[name], actual[name], rtol, f"{what} {name}")
    elif isinstance(expected, list):
        for number, (item, other) in enumerate(zip(expected, actual, strict=True)):
            same(item, other, rtol, f"{what} {number}")
    elif isinstance(expected, np.ndarray | float):
        np.testing.assert_allclose(expected, actual, rtol=rtol, atol=rtol, err_msg=what)
    else:
        assert expected == actual, what


def everything(run: Run) -> dict[str, Any]:
    """What a user may ask of a run; a refusal is an answer, too."""
    data = run.posterior(draws=4)
    groups = {
        f"{group}.{name}": data[group][name].values
        for group in group_names(data)
        for name in data[group].data_vars
        if group != "observed_data"
    }
    return {
        "shared": run.shared, "personal": run.personal, "evaluations": run.evaluations, "posterior": groups,
        "clients": run.clients,
    }  # fmt: skip


def both(make: Callable[[], tuple[Method, Federation]], **how: object) -> tuple[Run, Run, Waits]:
    """The same fit here and there, compared; and what waits there between a round's begin and its end."""
    on_cpu = fit(*make(), **{**HOW, **how})
    expected = everything(on_cpu)
    with simulated() as waits:
        with watched(waits):
            on_device = fit(*make(), device=DEVICE, **{**HOW, **how})
        same(expected, everything(on_device), rounding(on_device.fitted.method))
    return on_cpu, on_device, waits


@contextmanager
def watched(waits: Waits) -> Iterator[None]:
    """Evaluations are left out: only what waits in rounds is counted."""
    waits.on, step = False, Fit.step

    def in_round(fit: Fit) -> None:
        waits.on = True
        step(fit)
        waits.on = False

    with mock.patch.object(Fit, "step", in_round):
        yield


def rounding(method: Method) -> float:
    """To the bit, but where the server takes steps by Adam (elsewhere than on the host its step count is a tensor), of
    tables, where small matrices that are solved have other strides, and of Gaussian processes, of whose rows more are
    taken together elsewhere than on the host.
    """
    adam = any(isinstance(rule, Gradient) for rule in method.exchange().values())
    solved = isinstance(method, PFedGP) or getattr(method, "features", None) is not None
    return 1e-9 if adam or is_tabular(method) or solved else 0.0


@pytest.mark.cpu(6, "two fits, one of which is simulated")
@pytest.mark.parametrize("case", of_all(METHODS, EVERYWHERE, case_name))
def test_every_method(case: Case) -> None:
    """The same numbers as on the CPU. A round waits for the device once, at its end."""
    cls, settings = case
    federation = blobs([23, 7, 2, 14])
    more = FEW_STEPS.get(cls, {})
    on_cpu, on_device, waits = both(lambda: (cls(network_for(cls, federation), **settings, **more), federation))
    x = federation.x[:3]
    expected = [on_cpu.predict(x, 0), on_cpu.predict(x, 1, draws=3)]
    with simulated():
        same(expected, [on_device.predict(x, 0), on_device.predict(x, 1, draws=3)], rounding(on_device.fitted.method))
    if cls is PFedGP:  # at each step: how many examples are below each node of the largest tree
        known = [key for key in waits if key[1].startswith("models/baselines/pfedgp.py")]
        assert sum(waits.pop(key) for key in known) == HOW["rounds"]
    if cls is FedPAC:
        combinations_wait(waits)
    if cls not in (PFedEB, PFedHB):  # whose Newton steps ask whether they have arrived
        only_one_word(waits)


def recorded_is_the_same(method: Method, federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CUDA graph would issue again gives the same numbers.

    Nothing is recorded of steps that predict a half of the data from the other, nor of a single step a round.
    """
    recorders: list[SimulatedRecorder] = []

    def recorder(device: torch.device) -> SimulatedRecorder:
        recorders.append(SimulatedRecorder())
        return recorders[-1]

    monkeypatch.setattr("hierfl.inference.engines.plate.recorder", recorder)
    on_cpu = fit(method, federation, **HOW)
    with simulated():
        on_device = fit(method, federation, **HOW, device=DEVICE, cuda_graphs=True)
        same(on_cpu.shared, on_device.shared, rounding(method))
        same(on_cpu.personal, on_device.personal, rounding(method))
        same(on_cpu.evaluations, on_device.evaluations, rounding(method))
    (used,) = recorders
    if method.conditions or isinstance(method, QLSD):
        assert used.recorded == 0
    else:
        assert 0 < used.recorded < used.replayed


@pytest.mark.cpu(6, "two fits, one of which is simulated")
@pytest.mark.parametrize("case", of_all(METHODS, RECORDABLE, case_name))
def test_recorded_steps_are_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    cls, settings = case
    federation = blobs([200, 190, 60, 23] if cls.latent else RECORDED)
    more = SHORT if cls is FedPop else {"p": 0.1} if cls is L2GD else {}  # so that it steps more than once
    method = cls(network_for(cls, federation), **settings, **more)
    if cls not in (TUTORIAL, PFedEB):  # StudentT makes tensors of numbers, and pFedEB's population of its groups
        recorded_is_the_same(method, federation, monkeypatch)
        return
    with pytest.raises(RuntimeError, match="waits for the device, which is being recorded"):
        recorded_is_the_same(method, federation, monkeypatch)


@pytest.mark.cpu(3, "Newton's steps to a metric, each operation of which is simulated")
@chains(CHAINS[:5], "kernel")
def test_recorded_chains_are_the_same(settings: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = blobs([23, 7, 2, 14])
    recorded_is_the_same(FedPop(architecture("mlp:5", federation), **SHORT, **settings), federation, monkeypatch)


@pytest.mark.cpu(8, "three fits, two of which are simulated")
@pytest.mark.parametrize("case", of_all(METHODS, ON_HOST, case_name))
def test_clients_values_may_stay_with_the_host(case: Case, tmp_path: Path) -> None:
    """Then the device holds those of one plate alone; numbers are the same, also of a run that goes on."""
    cls, settings = case
    federation = blobs([23, 7, 2, 14])
    more = FEW_STEPS.get(cls, {})
    method = cls(network_for(cls, federation), **settings, **more)
    on_cpu = fit(method, federation, **HOW)
    with simulated():
        how = {**HOW, "device": DEVICE, "client_state": "host", "chunk": 2, "folder": tmp_path}
        fit(method, federation, **{**how, "rounds": 1})
        on_device = fit(method, federation, **how, resume=True)
        rtol = max(1e-6, rounding(method))  # plates of two
        for name, value in on_cpu.personal.items():
            kept = on_device.personal[name]
            assert kept.device.type == "cpu", name
            torch.testing.assert_close(kept, value, rtol=rtol, atol=rtol, msg=name)
        for name, value in on_cpu.fitted.copies.items():
            assert on_device.fitted.copies[name].device.type == "cpu"
            torch.testing.assert_close(on_device.fitted.copies[name], value, rtol=rtol, atol=rtol, msg=name)
        same(on_cpu.shared, on_device.shared, rtol)
        same(on_cpu.last(), on_device.last(), rtol)
        same([on_cpu.predict(federation.x[:3], 1, draws=3)], [on_device.predict(federation.x[:3], 1, draws=3)], rtol)
        on_device.posterior(draws=4)


@pytest.mark.cpu(3, "Newton's steps to a metric, each operation of which is simulated")
@chains(CHAINS, "kernel", "precondition", "compress")
def test_every_kernel_and_compressor(settings: dict) -> None:
    federation = blobs([23, 7, 2, 14])
    *_, waits = both(lambda: (FedPop(architecture("mlp:5", federation), **SHORT, **settings), federation))
    if "precondition" not in settings:  # Newton's steps to the curvature's metric ask whether they have arrived
        only_one_word(waits)


@pytest.mark.parametrize(
    ("prior", "precision"),
    [
        *(("hierarchical", precision) for precision in ("full", "diagonal", "count", "equal")),
        ("fixed", "full"), ("flat", "full"),  # the precision is that of a message of centroids
    ],
)  # fmt: skip
def test_centroids(prior: str, precision: str) -> None:
    """Rounds wait for the eigenvalues of full precisions, and for whether the server's product of them is one."""
    federation = bumps(test=0.3)
    *_, waits = both(lambda: (PFedVMP(architecture("mlp:6", federation), prior=prior, precision=precision), federation))
    if prior != "hierarchical":
        return
    known = {key: times for key, times in waits.items() if key[1].startswith("hierfl/ppl/gaussian_factors.py")}
    # The classes of all clients together where their sizes are alike.
    once = {"aten._linalg_eigh": HOW["rounds"], "aten._local_scalar_dense": HOW["rounds"]}
    assert {operation: times for (operation, _), times in known.items()} == (once if precision == "full" else {})
    only_one_word(Waits({key: times for key, times in waits.items() if key not in known}))


@pytest.mark.parametrize("cls", [PFedVEM, PFedV, FedPop])
def test_regressions(cls: type[Method]) -> None:
    federation = slopes([40, 11, 23, 8])
    more = FEW_STEPS.get(cls, {})
    both(lambda: (cls(architecture("mlp:5", federation, latent=cls.latent), **more), federation))


@pytest.mark.cpu(13, "a whole search, each operation of which is simulated")
@pytest.mark.parametrize(
    ("family", "random"),
    [("gaussian", "1 + x"), *(pytest.param(*case, marks=pytest.mark.slow) for case in TABLES)],
)
def test_tables(family: str, random: str) -> None:
    df = table(5)
    if family != "gaussian":
        df["y"] = (df["y"] > df["y"].median()).astype(int)

    def make() -> tuple[Method, Federation]:
        federation, design = from_formula(df, f"y ~ x + ({random} | site)", family=family, test=0.2)
        return MixedEffects(design, draws=20), federation

    run, on_device, _ = both(make, participation=1.0, rounds=20)
    expected = [run.fitted.method.population_summary(run.fitted), run.fitted.method.shrinkage_table(run.fitted)]
    with simulated():
        actual = [
            on_device.fitted.method.population_summary(on_device.fitted),
            on_device.fitted.method.shrinkage_table(on_device.fitted),
        ]
    pd.testing.assert_frame_equal(expected[0][0], actual[0][0], rtol=1e-9)
    pd.testing.assert_frame_equal(expected[1], actual[1], rtol=1e-9)


def combinations_wait(waits: Waits) -> None:
    """Heads are combined by the host, once a round: who has reported, V and H, and the weights; nothing else."""
    files = ("inference/server/rules/own_combination.py", "inference/server/rules/simplex.py")
    known = [key for key in waits if key[1].startswith(files)]
    counts = sum((Counter({key[0]: waits.pop(key)}) for key in known), Counter[str]())
    assert counts == {"aten.nonzero": HOW["rounds"], "aten._to_copy": 3 * HOW["rounds"]}


def only_one_word(waits: Waits) -> None:
    """The host has read one number in each round, at its end."""
    for key in [*waits]:
        if key == ("aten._to_copy", "docs/student_t.py:36"):  # torch's StudentT makes tensors of numbers, and waits
            del waits[key]
    assert {line.partition(":")[0] for _, line in waits} == {"inference/run/fit.py"}, waits
    assert sum(waits.values()) == HOW["rounds"]
