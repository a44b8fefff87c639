"""Which networks' methods send nothing without noise, what they release, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.federations import blobs, slopes
from support.methods import network_for
from support.representatives import over_methods
from support.sites import Sites
from torch import Tensor

from hierfl import Federation, UserError, fit
from hierfl.inference import SVI, Method
from hierfl.inference.engines.base import ClientStatus
from hierfl.inference.local.gradient_transforms import Clipped
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.noise import Part, Plan, Privacy
from hierfl.inference.noise.networks import with_noise
from hierfl.inference.noise.step_noise import KeyedSteps
from hierfl.inference.options import Options
from hierfl.models import (
    APFL,
    L2GD,
    MOON,
    QLSD,
    Ditto,
    FedAvg,
    FedAvgFT,
    FedPer,
    FedProto,
    FedProx,
    FedRep,
    FedROD,
    LGFedAvg,
    Local,
    PerFedAvg,
    PFedBayes,
    PFedBreD,
    PFedMe,
    PFedVEM,
    Scaffold,
)  # fmt: skip
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture

SITE: dict[str, Any] = {"dp": "site", "epsilon": 4.0}
#: those whose steps are SVI's and whose messages are made of values; settings with one sample of all rows in a step
WORK: list[tuple[type[Method], dict[str, Any]]] = [
    (FedAvg, {"batch": 8}), (FedAvgFT, {"batch": 8}), (FedProx, {"batch": 8}), (FedPer, {"batch": 8}),
    (FedRep, {"batch": 8}), (LGFedAvg, {"batch": 8}), (Scaffold, {"batch": 8}), (PerFedAvg, {"batch": 8}),
    (MOON, {"batch": 8}), (Ditto, {"batch": 8}), (APFL, {"batch": 8}), (PFedVEM, {"base_batch": 8}),
    (PFedMe, {"rounds": 4}), (PFedBreD, {"rounds": 4}), (PFedBayes, {}), (QLSD, {}), (L2GD, {"batch": 8}),
]  # fmt: skip


def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits with noise get plans of no noise and an infinite bound."""

    def privacy_of(method: Any, options: Options) -> Privacy | None:
        if options.dp == "none":
            return None
        parts = {m.name: Part(m, 0.0) for m in method.mechanisms(options)}
        return Privacy(Plan(options.dp, 1e-5, parts), math.inf)

    monkeypatch.setattr("hierfl.inference.engines.plate.privacy_of", privacy_of)


@over_methods(WORK)
@pytest.mark.parametrize("dp", ["site", "client"])
def test_without_noise_and_bound_a_fit_is_the_plain_one(
    case: tuple[type[Method], dict[str, Any]], dp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of clients with as many rows as is public, whose weights are equal."""
    cls, settings = case
    if dp == "client" and cls in (PFedVEM, QLSD):
        pytest.skip("weights differ" if cls is PFedVEM else "compressed")
    unbounded(monkeypatch)
    federation = blobs([8, 8, 8])
    how: dict[str, Any] = {"rounds": 2, "progress": False, "dtype": torch.float64, "splits": ()}
    method = cls(network_for(cls, federation), **settings)
    plain, private = fit(method, federation, **how), fit(method, federation, dp=dp, epsilon=1.0, **how)
    assert private.status is not None
    assert (private.status == plain.status).all()
    for name, value in plain.shared.items():
        torch.testing.assert_close(private.shared[name], value, rtol=1e-7, atol=1e-9)
    for name, value in plain.personal.items():
        torch.testing.assert_close(private.personal[name], value, rtol=1e-7, atol=1e-9)


def test_releases_are_all_steps_of_all_rounds(small: Federation, net: Architecture) -> None:
    """Seven clients with 74 rows: 11 are usual; absent ones train as well."""
    options = Options(**SITE, rounds=7, participation=0.5)

    def released(method: Method, **how: Any) -> list[tuple[int, float]]:
        made: Any = with_noise(dataclasses.replace(options, **how), method, small)[0]
        return [(m.releases, m.rate) for m in made.mechanisms(dataclasses.replace(options, **how))]

    assert released(FedAvg(net, batch=4, epochs=2)) == [(7 * 2 * 3, 4 / 11)]
    assert released(FedAvg(net, batch=4, epochs=2), usual_rows=40) == [(7 * 2 * 10, 0.1)]
    ((_, rate),) = released(FedAvg(net, batch=4, epochs=2), usual_rows=40, patient_rows=3)
    assert rate == pytest.approx(1 - 0.9**3)
    assert released(FedRep(net, batch=4, epochs=2, head_epochs=3)) == [(7 * 3 * 3, 4 / 11), (7 * 2 * 3, 4 / 11)]
    assert released(PFedVEM(net, base_batch=4, base_epochs=2)) == [(7 * 10, 1.0), (7 * 2 * 3, 4 / 11)]
    assert released(PerFedAvg(net, batch=4, steps=5))[0][0] == 7 * 5 * 4


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (FedAvg, {}), (FedRep, {"head_epochs": 2}), (PerFedAvg, {"steps": 2}), (PFedBreD, {}), (PFedBayes, {}),
        (PFedMe, {}), (L2GD, {}), (Scaffold, {}), (APFL, {}), (PFedVEM, {}), (QLSD, {}),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)  # fmt: skip
def test_as_many_gradients_have_noise_as_are_accounted_for(
    cls: type[Method], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a release of its part, with noise that no other one has."""
    federation = blobs([6, 6])
    method = cls(architecture("mlp:2", federation, latent=cls.latent), **settings)
    options = Options(**SITE, rounds=2, usual_rows=6)
    made: Any = with_noise(options, method, federation)[0]
    added, plain = [], KeyedSteps.gaussian

    def counted(self: KeyedSteps, keys: Tensor, entries: int, sd: float, step: float, *what: object) -> Tensor:
        added.append((what, plain(self, keys, entries, sd, step, *what)))
        return added[-1][1]

    monkeypatch.setattr(KeyedSteps, "gaussian", counted)
    monkeypatch.setattr(Plan, "for_epsilon", lambda level, epsilon, delta, parts: Plan(level, delta, {
        m.name: Part(m, 1.0) for m in parts
    }))  # fmt: skip
    fit(method, federation, rounds=2, usual_rows=6, splits=(), progress=False, **SITE)
    counts = Counter(what[1] for what, _ in added)
    assert counts == {m.name: m.releases for m in made.mechanisms(options)}
    assert (
        len({what for what, _ in added}) == len({tuple(noise.flatten().tolist()) for _, noise in added}) == len(added)
    )


def test_a_transform_that_takes_more_gradients_than_it_says_is_stopped(small: Federation, net: Architecture) -> None:
    class Twice(Clipped):
        def __call__(self, gradient: Any, at: Any, values: Any) -> Any:
            gradient(at, 0)
            return gradient(at, 0)

    class Said(FedAvg):
        def local(self) -> list[Any]:
            return [SVI(["w", "base"], 1, sgd(0.1), transform=Twice(1.0))]

    with pytest.raises(UserError, match="Twice takes more than 1 gradients"):
        fit(Said(net), small, rounds=1, progress=False, splits=(), **SITE)


@pytest.mark.parametrize(
    ("make", "dp", "words"),
    [
        (lambda net: Local(net), "site", "sends nothing"),
        (lambda net: FedProto(net), "site", "ClassMeans, the message of 'centroids', reads data"),
        (lambda net: FedROD(net), "site", "the local step ClassCounts of class_counts reads data"),
        (lambda net: _Watched(net), "site", "is watched"),
        (lambda net: QLSD(net), "client", "pass a pipeline"),
    ],
)
def test_what_would_leave_without_noise_is_refused(
    make: Any, dp: str, words: str, small: Federation, net: Architecture
) -> None:
    with pytest.raises(UserError, match=words) as error:
        fit(make(net), small, rounds=1, dp=dp, epsilon=1.0, progress=False)
    assert "\n" not in str(error.value)


class _Watched(FedAvg):
    def local(self) -> list[Any]:
        return [SVI(["w", "base"], 1, sgd(0.1), watch=lambda chunk, first, number: None)]


def test_other_refusals(small: Federation) -> None:
    from support.methods import network_for as made

    from hierfl.models import FedBN

    options = Options(**SITE, rounds=1)
    with pytest.raises(UserError, match="batch norm"):
        with_noise(options, FedBN(made(FedBN, small)), small)
    lines = slopes([12, 9])
    learned = FedAvg(architecture("mlp:5", lines))
    with pytest.raises(UserError, match="reads data without noise"):
        fit(learned, lines, rounds=1, progress=False, **SITE)
    with pytest.raises(UserError, match="usual_rows"):
        with_noise(options, FedAvg(made(FedAvg, small)), small, alone=True)
    for more in ({"masked": True, "mask_groups": 2}, {"robust": "median"}):
        with pytest.raises(UserError, match="in the sum over all"):
            with_noise(dataclasses.replace(options, dp="client", **more), FedAvg(made(FedAvg, small)), small)
    with pytest.raises(UserError, match="needs masked sums"):
        with_noise(dataclasses.replace(options, dp="client"), FedAvg(made(FedAvg, small)), small, alone=True)


def test_a_site_divides_the_noise_among_all_sites_of_the_study(small: Federation, net: Architecture) -> None:
    """One that does not know how many there are adds all of it."""
    options = Options(**{**SITE, "dp": "client"}, rounds=1, masked=True)
    for everyone, shares in ((10, 4), (0, 1)):
        method: Any = with_noise(options, FedAvg(net), small.select([0]), alone=True, everyone=everyone)[0]
        assert method.changes.shares == shares


def test_how_many_rows_a_client_has_is_in_no_message(small: Federation, net: Architecture) -> None:
    """Weights are the public number, and so is what the prior knows."""
    method: Any = with_noise(Options(**SITE, rounds=1, usual_rows=9), FedProx(net), small)[0]
    from support.methods import chunk_of

    from hierfl.inference.server.exchange import Exchange

    run = fit(FedProx(net, batch=100), small, rounds=1, usual_rows=9, progress=False, **SITE)
    assert run.status is not None
    assert (run.status == ClientStatus.REPORTED).all()
    chunk = chunk_of(method, small)
    sealed = method.local()[-1].run(chunk.own(k for k in chunk.shared), 0)
    sent = Exchange(method.exchange(), {}, method.expand, chunk.shared).messages(sealed)
    assert {float(v) for group in sent.values() for v in group["weight"]} == {9.0}


def test_pixels_are_standardised_by_public_numbers() -> None:
    x = torch.randint(0, 50, (40, 6, 6), generator=torch.Generator().manual_seed(0)).byte()
    images = Federation.from_arrays(x, [0, 1] * 20, [0] * 20 + [1] * 20)
    assert images.mean is not None
    made = with_noise(Options(**SITE, rounds=1), FedAvg(architecture("mlp:5", images)), images)[1]
    inputs = made.inputs(torch.tensor([[0, 255]], dtype=torch.uint8).expand(1, 2)[..., None, None])
    assert made.mean is not None
    assert {float(v) for v in inputs.flatten()} == {-1.0, 1.0}


def test_a_new_client_takes_plain_steps_and_final_steps_stay(small: Federation, net: Architecture) -> None:
    """Nothing that they make is sent."""
    method = FedAvgFT(net)
    private = with_noise(Options(**SITE, rounds=1), method, small)[0]
    assert [step.trains for step in private.schedule().final_steps] == [("offset",)]
    assert all(type(step) is SVI for step in private.schedule().final_steps)
    assert [type(step) for step in private.new_client_steps()] == [type(step) for step in method.new_client_steps()]
    assert private.name == "fedavg-ft"


def test_a_sites_samples_and_noise_are_the_systems(small: Federation, net: Architecture, tmp_path: Path) -> None:
    """The same seed, other numbers; and epsilon is that of the plan."""
    how: dict[str, Any] = {**SITE, "rounds": 2, "usual_rows": 11}
    runs = [Sites(FedAvg(net, batch=100, epochs=2), small, tmp_path / name, **how).fit() for name in ("one", "other")]
    assert not torch.equal(runs[0].shared["w"], runs[1].shared["w"])
    assert runs[0].status is not None
    assert (runs[0].status == ClientStatus.REPORTED).all()
    assert runs[0].noise is not None
    assert runs[0].noise.epsilon == pytest.approx(4.0)
    simulated = [fit(FedAvg(net, batch=100, epochs=2), small, progress=False, **how).shared["w"] for _ in range(2)]
    assert torch.equal(*simulated)
