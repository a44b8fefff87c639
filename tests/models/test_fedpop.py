"""FedPop: its messages, options, data and command line."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import Call
from support.federations import blobs, slopes
from support.representatives import of_all
from support.rounds import rejections

from hierfl import Federation, UserError
from hierfl.data.datasets import registry
from hierfl.data.synthetic import (
    synthetic,
    synthetic_pool,
)
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.gradients import elbo_gradient
from hierfl.inference.engines.base import ClientStatus
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.run.result import Run
from hierfl.models import FedPop
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture
from hierfl.rng import generator


def test_messages_are_fishers_identity(small: Federation, net: Architecture) -> None:
    """grad_mu = mean (z - mu) / sigma^2, grad_log_sigma = mean |z - mu|^2 / sigma^2 - d, over the draws."""
    for population in ("isotropic", "diagonal"):
        method = FedPop(net, population=population, chains=2)
        start = InitialWeights.for_network(net, 0)
        shared = {k: v.double() for k, v in method.shared(start).items()}
        shape = (7, 1, *method.personal(start)["z_draws"].shape)
        z = torch.randn(shape, generator=generator("z"), dtype=torch.float64)
        order = sorted(range(7), key=lambda j: -len(small.train[j]))
        chunk = ClientChunk(method, small, order, 1, 0, shared, {"z_draws": z})
        got = elbo_gradient(chunk, ["mu", "log_sigma"], 10, "any")
        gap, variance = z.flatten(2, 3).squeeze(1) - shared["mu"], (2 * shared["log_sigma"]).exp()
        assert torch.allclose(got["mu"], (gap / variance).mean(1), rtol=1e-10)
        by_number = gap.square().mean(1) / variance - 1
        wanted = by_number if population == "diagonal" else by_number.sum(1, keepdim=True)
        assert torch.allclose(got["log_sigma"], wanted, rtol=1e-10)


def test_a_fixed_population_is_never_moved_and_a_flat_one_is_not_there(small: Federation, net: Architecture) -> None:
    short = {"final_steps": 6, "final_keep": 2}
    fixed = fit(FedPop(net, prior="fixed", sigma_0=0.7, **short), small, rounds=3, dtype=torch.float64, progress=False)
    assert (fixed.shared["mu"] == 0).all()
    assert torch.allclose(fixed.shared["log_sigma"].exp(), torch.tensor(0.7).double())
    assert not torch.equal(
        fixed.shared["base.1.weight"], InitialWeights.for_network(net, 0).base["base.1.weight"].double()
    )
    flat = fit(FedPop(net, prior="flat", **short), small, rounds=3, dtype=torch.float64, progress=False)
    assert set(flat.personal) == {"z_point"}
    assert "mu" not in flat.shared
    for run in (fixed, flat):
        with pytest.raises(UserError, match="no global model"):
            run.predict_new_client(torch.zeros(1, 4, dtype=torch.float64))


#: options of messages, steps and bases that other methods have, too: theirs are in the slow set
ELSEWHERE = {"compress", "base_decay", "beta2", "step_batch", "chains"}
VARIANTS = [
    {"kernel": "metropolis"},
    {"start": "stateless"},
    {"population": "diagonal"},
    {"step_batch": 5},
    {"inner_phi_steps": 2},
    {"compress": "quantise:4"},
    {"compress": "sparsify:0.3"},
    {"base_decay": 0.5},
    {"mu_scale": 0.05},
    {"chains": 3},
    {"population": "energy"},
    {"population": "energy", "energy_hidden": 4},
    {"precondition": "curvature"},
    {"beta2": 0.5},
    {"inner_phi_steps": 2, "inner_batch": 4, "inner_momentum": 0.9},
]


@cache
def after_two_rounds(chunk: int, **how: object) -> Run:
    """Of four clients, one of which has two examples."""
    fed = blobs([12, 7, 2, 9])
    short = {"steps": 4, "burn": 1, "step_size": 0.02, "final_steps": 6, "final_keep": 2, "final_chains": 2}
    method = FedPop(architecture("mlp:5", fed), **short, **how)
    return fit(method, fed, 2, chunk=chunk, dtype=torch.float64, progress=False, evaluate_every=2)


@pytest.mark.parametrize("variant", of_all(VARIANTS, [case for case in VARIANTS if not case.keys() & ELSEWHERE], str))
def test_every_option_changes_the_fit_and_none_depends_on_the_chunk(variant: dict) -> None:
    plain, single, four = after_two_rounds(4), after_two_rounds(1, **variant), after_two_rounds(4, **variant)
    assert any(
        not torch.equal(single.shared[k], v) for k, v in plain.shared.items() if v.shape == single.shared[k].shape
    )
    for name, value in {**single.shared, **single.personal}.items():
        assert torch.allclose(value, {**four.shared, **four.personal}[name], rtol=1e-6, atol=1e-9), name


def test_too_many_numbers_for_control_variates(small: Federation, net: Architecture) -> None:
    with pytest.raises(UserError, match="5 draws are too few for 189 control variates"):
        fit(FedPop(net, control_variates=True), small, rounds=1, dtype=torch.float64, progress=False)


def test_readings_of_the_synthetic_data() -> None:
    fed, made = synthetic(1)
    assert sorted(fed.sizes())[0] == 5
    assert fed.sizes().count(10) == 10
    rest = torch.cat([y - x @ made.phi @ z for (x, y), z in zip(map(fed.examples, fed.train), made.z, strict=True)])
    assert float(rest.var()) == pytest.approx(0.1, rel=0.2)
    fed, made = synthetic(1, reading="notebook")
    assert fed.sizes().count(2) == 90
    assert torch.allclose(made.z.norm(dim=1), torch.ones(100).double())
    assert made.noise == 0.1
    with pytest.raises(UserError, match="paper or notebook"):
        synthetic(1, reading="mine")  # type: ignore[arg-type]


def test_fedpop_on_the_command_line_resumes_and_reports(hierfl: Call, tmp_path: Path) -> None:
    short = ["--set", "final_steps=16", "--set", "final_keep=5", "--clients", "6", "--network", "mlp:4", "--quiet"]
    assert hierfl("run", "fedpop", "--rounds", "1", "--out", "whole", *short)[0] == 0
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert summary["gm_accuracy"] is not None
    code, _, err = hierfl("run", "fedpop", "--out", "bad", "--set", "compress=zip")
    assert code == 2
    assert "compress is none, quantise:LEVELS or sparsify:SHARE" in err
    kept = {p.name: p.read_bytes() for p in (tmp_path / "whole" / "checkpoint").iterdir()}
    posterior = (tmp_path / "whole" / "posterior.nc").read_bytes()
    assert hierfl("run", "--resume", "whole", "--quiet")[0] == 0
    assert kept == {p.name: p.read_bytes() for p in (tmp_path / "whole" / "checkpoint").iterdir()}
    assert posterior == (tmp_path / "whole" / "posterior.nc").read_bytes()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"burn": 10}, "no draw is left"),
        ({"kernel": "metropolis", "step_batch": 5}, "needs all examples"),
        ({"final_steps": 10, "final_keep": 9}, "leaves 8 draws to keep, not 9"),
        ({"compress": "quantise:many"}, "compress is none"),
        ({"compress": "sparsify:0"}, "keeps a share"),
        ({"lr_decay": 1.5}, "at most 1"),
        ({"base_decay": 0.5, "inner_phi_steps": 2}, "sends none of the base"),
        ({"mu_scale": 1.0, "prior": "fixed"}, "mu_scale=1.0 changes nothing with prior=fixed"),
        ({"population": "energy", "prior": "fixed"}, "population=energy is learned"),
        ({"energy_hidden": 3}, "energy_hidden=3 changes nothing with population=isotropic"),
        ({"control_variates": True, "inner_phi_steps": 1}, "messages that are gradients"),
        ({"precondition": "curvature", "population": "energy"}, "a Gaussian population"),
        ({"precondition": "curvature", "step_size": 1.5}, "at most 1"),
    ],
)
def test_settings_that_cannot_be(settings: dict, words: str, net: Architecture) -> None:
    with pytest.raises(UserError, match=words):
        FedPop(net, **settings)


def test_shared_values_that_have_diverged_end_in_no_traceback() -> None:
    """A regression's model says NaN then, which Pyro's validation would refuse."""
    fed = slopes([6, 4], features=2)
    method = FedPop(architecture("linear", fed, noise=0.5), final_steps=0)
    ready = Fit(method, fed, Options(rounds=2, dtype=torch.float64))
    ready.step()
    gone = {**ready.state.shared, "mu": torch.full_like(ready.state.shared["mu"], torch.nan)}
    ready.state = replace(ready.state, shared=gone)
    ready.step()
    assert ready.journal.diverged == 2
    assert rejections(ready) == [1, 1]
    assert ready.journal.status[-1].tolist() == [ClientStatus.REJECTED] * 2


def test_the_synthetic_data_have_a_name_and_are_made_from_the_seed(hierfl: Call, tmp_path: Path) -> None:
    few = ["--data", "fedpop-synthetic", "--rounds", 1, "--validation-fraction", 0.3, "--quiet"]
    for seed in (0, 1):
        code, _, err = hierfl("run", "local", *few, "--seed", seed, "--out", f"s{seed}")
        assert code == 0, err
    summaries = [json.loads((tmp_path / f"s{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    assert [s["clients"] for s in summaries] == [100, 100]
    assert summaries[0]["federation"] != summaries[1]["federation"]
    pool, truth = synthetic_pool(1)
    fed = Federation.from_pool(registry.load("fedpop-synthetic", tmp_path, 1), 0, "natural", validation=0.3, seed=1)
    assert fed.digest() == summaries[1]["federation"]
    assert np.array_equal(pool.y_train, synthetic(1)[0].y[: len(pool.y_train)])
    config = tomllib.loads((tmp_path / "s0" / "config.toml").read_text())["run"]
    assert (config["response_sd"], config["network"], config["chunk"]) == (0.1**0.5, "projection:2", 100)
    assert truth.noise == config["response_sd"]
    code, _, err = hierfl("run", "pfedvmp", *few, "--out", "no")
    assert code == 2
    assert len(err.splitlines()) == 1
