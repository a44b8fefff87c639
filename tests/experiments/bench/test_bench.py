"""The benchmark's contestants do the same work; its command measures, prints and writes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import Call

from hierfl import Federation
from hierfl.experiments.bench import command as bench
from hierfl.experiments.bench import timing
from hierfl.experiments.bench.memory import peak_memory
from hierfl.experiments.bench.mixed import line
from hierfl.experiments.bench.mixed_tables import CASES
from hierfl.experiments.bench.references.registry import REFERENCES
from hierfl.experiments.bench.references.work import Work
from hierfl.experiments.bench.settings import SETTINGS, Setting, choose_setting, prepare
from hierfl.experiments.bench.timing import work_flops
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FedRep, PFedV, PFedVEM
from hierfl.nn.networks.build import architecture

PFEDVEM = REFERENCES["pfedvem"]


@pytest.fixture
def images() -> Federation:
    """Seven clients of different sizes with small colour images of four classes."""
    rng = np.random.default_rng(0)
    sizes = [23, 7, 2, 14, 14, 5, 9]
    y = np.arange(sum(sizes)) % 4
    x = rng.normal(size=(len(y), 3, 16, 16)) + y[:, None, None, None]
    return Federation.from_arrays(x, y, np.repeat(np.arange(7), sizes), test=0)


@pytest.mark.parametrize("network", ["mlp:7", "cnn:3,4:6"])
@pytest.mark.parametrize("name", PFEDVEM)
def test_references_do_the_work_of_a_round(name: str, network: str, images: Federation) -> None:
    # with hardly any noise in the guide, and every client's data in one batch, a round has one result
    method = PFedVEM(
        architecture(network, images), sigma_0=1e-7, head_lr=1e-2, base_lr=1e-2, base_batch=1000,
        head_epochs=3, base_epochs=4,
    )  # fmt: skip
    fit = Fit(method, images, Options(rounds=9, dtype=torch.float64, chunk=3))
    fit.step()
    work = Work.for_method(method, fit.federation, fit.state.shared, fit.engine.store.personal, 3)
    before = {k: v.clone() for k, v in {**work.shared, **work.personal}.items()}
    with torch.random.fork_rng():
        theirs = PFEDVEM[name](work)
    fit.step()
    ours = {**fit.engine.store.personal, **fit.engine.store.copies}
    for key in theirs:
        assert not torch.allclose(theirs[key], before[key].expand_as(theirs[key]), rtol=1e-3, atol=1e-6), key
        assert torch.allclose(theirs[key], ours[key], rtol=1e-4, atol=1e-5), key  # noise of 1e-7, a few steps


@pytest.mark.parametrize("name", PFEDVEM)
def test_references_take_as_many_steps_on_the_base(name: str) -> None:
    # a client whose examples are all alike does not mind their order, so that minibatches have one result, too
    sizes = [23, 7, 2, 14, 11]
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(5, 6)), sizes, axis=0)
    fed = Federation.from_arrays(x, np.repeat([0, 1, 2, 0, 1], sizes), np.repeat(np.arange(5), sizes), test=0)
    method = PFedVEM(
        architecture("mlp:7", fed), sigma_0=1e-7, head_lr=1e-2, base_lr=1e-2, base_batch=4, head_epochs=0, base_epochs=3
    )
    fit = Fit(method, fed, Options(rounds=9, dtype=torch.float64, chunk=3))
    work = Work.for_method(method, fit.federation, fit.state.shared, fit.engine.store.personal, 3)
    with torch.random.fork_rng():
        theirs = PFEDVEM[name](work)
    fit.step()
    for key, ours in fit.engine.store.copies.items():
        assert not torch.allclose(ours, work.shared[key].expand_as(ours), rtol=1e-3, atol=1e-4)
        assert torch.allclose(theirs[key], ours, rtol=1e-6, atol=1e-6), key


@pytest.mark.parametrize("kl", ["mean", "sum"])
def test_the_reference_of_latent_features_does_the_work_of_a_round(kl: str, images: Federation) -> None:
    # hardly any noise in the guide, as above; the KL, of standard deviations of 1e-7, all the same counts
    network, results = architecture("bncnn:3,4:6", images, latent=True), []
    for alpha in (1e-14, 1e-30):
        alpha /= 1 if kl == "mean" else network.latents
        method = PFedV(network, kl=kl, alpha=alpha, lr=0.05, batch=1000, epochs=3)
        fit = Fit(method, images, Options(rounds=9, dtype=torch.float64, chunk=3))
        fit.state.shared["encoder.4.bias"][4:] = -32.0  # log variances
        work = Work.for_method(method, fit.federation, fit.state.shared, fit.engine.store.personal, 3)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            theirs = REFERENCES["pfedv"]["tensor loop"](work)
        fit.step()
        assert torch.allclose(theirs["w_j_point"], fit.engine.store.personal["w_j_point"], atol=1e-6)
        assert not torch.allclose(theirs["w_j_point"], work.personal["w_j_point"], atol=1e-2)
        share = torch.tensor(images.sizes(), dtype=torch.float64) / sum(images.sizes())
        for key, value in fit.state.shared.items():
            gap = float((torch.einsum("j,j...->...", share, theirs[key]) - value).abs().max())
            assert gap < 1e-6, (key, gap)
        results.append(theirs["encoder.4.weight"])
    assert not torch.allclose(results[0], results[1], atol=1e-3)  # the KL matters


@pytest.mark.parametrize("name", REFERENCES["fedrep"])
def test_the_references_of_alternating_training_do_the_work_of_a_round(name: str, images: Federation) -> None:
    method = FedRep(architecture("mlp:7", images), head_epochs=3, epochs=2, lr=0.05, batch=1000)
    fit = Fit(method, images, Options(rounds=9, dtype=torch.float64, chunk=3))
    fit.step()
    work = Work.for_method(method, fit.federation, fit.state.shared, fit.engine.store.personal, 3)
    with torch.random.fork_rng():
        theirs = REFERENCES["fedrep"][name](work)
    fit.step()
    for key, value in {**fit.engine.store.personal, **fit.engine.store.copies}.items():
        assert not torch.allclose(value, {**work.shared, **work.personal}[key].expand_as(value), atol=1e-4), key
        assert torch.allclose(theirs[key], value, rtol=1e-8, atol=1e-10), key
    small = Setting("small", (1, 4, 4), 200, 4, "mlp:5", 10, "fedrep")
    assert work_flops(small, prepare(small)) > 0


def test_operations_of_a_round_are_counted_as_by_hand() -> None:
    setting = choose_setting("digits", 4)
    fit = prepare(setting)
    s, n = fit.method.settings, sum(fit.federation.sizes())
    d, h, c = 64, 64, 10
    forward, head = 2 * d * h, 2 * h * c
    heads = forward + s.head_epochs * s.particles * 2 * head  # features once; product, and its gradient by the weight
    base = s.base_epochs * (2 * forward + s.particles * 2 * head)  # gradient by the weight; by the features
    assert work_flops(setting, fit) == pytest.approx(n * (heads + base), rel=1e-6)


def test_bench_measures_prints_and_writes(hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"about": "small", "event": (1, 4, 4), "examples": 60, "clients": 4, "network": "mlp:5", "batch": 15}
    monkeypatch.setitem(SETTINGS, "digits", type(SETTINGS["digits"])(**small))
    monkeypatch.setattr(timing, "matmul_rate", partial(timing.matmul_rate, size=256))  # 2048 take seconds
    monkeypatch.setattr(bench, "peak_memory", lambda *_: 123.0)  # a process for each setting
    before = torch.get_num_threads()
    code, out, _ = hierfl("bench", "digits", "--repeats", "1", "--clients", "4,6", "--out", "b.json")
    assert code == 0
    assert torch.get_num_threads() == before
    record = json.loads((tmp_path / "b.json").read_text())
    assert [r["setting"]["clients"] for r in record["results"]] == [4, 6]
    for result in record["results"]:
        assert set(result["rounds"]) == {"hierfl", *PFEDVEM}
        assert result["rounds"]["hierfl"]["times_hierfl"] == 1
        assert all(row["median_seconds"] > 0 for row in result["rounds"].values())
        assert result["bound"]["seconds"] > 0
        assert result["peak_memory_mib"] == 123
        host, taken = result["host"], result["rounds"]["hierfl"]["median_seconds"]
        assert 0 <= host["host_seconds"] < taken
        assert host["device_seconds"] > 0
        assert host["operators"] > 100
        parts = result["parts"]
        assert sum(parts["seconds"].values()) == pytest.approx(parts["total_seconds"])
        assert all(value >= 0 for value in parts["seconds"].values()), parts
        calls, steps = parts["calls"], parts["steps"]
        assert calls["backward"] == calls["likelihood"] == calls["head"] == steps > 0
        assert steps <= calls["noise"] <= 2 * steps  # a guide that stands still is asked once more
    for words in ("torch", "cores", "tensor loop", "GFLOP/s", "peak memory", "optimiser", "by clients"):
        assert words in out
    assert hierfl("bench", "digits", "--out", "b.json")[0] == 2  # nothing is overwritten


@pytest.mark.slow
@pytest.mark.cpu(5, "memory is measured in a process of its own, which has all imports")
def test_memory_at_the_peak_of_a_round_is_measured() -> None:
    small = replace(SETTINGS["digits"], event=(1, 4, 4), examples=60, clients=4, network="mlp:5", batch=10)
    assert 50 < peak_memory(small) < 5000


@pytest.mark.parametrize("name", [pytest.param("fashion-mnist-pfedeb", marks=pytest.mark.slow), "fashion-mnist-chosen"])
def test_a_method_is_timed_beside_another(
    hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    small = replace(SETTINGS[name], event=(1, 4, 4), examples=60, clients=4, network="mlp:5")
    monkeypatch.setitem(SETTINGS, name, small)
    monkeypatch.setattr(timing, "matmul_rate", partial(timing.matmul_rate, size=256))
    monkeypatch.setattr(bench, "peak_memory", lambda *_: 123.0)
    code, out, _ = hierfl("bench", name, "--repeats", "1", "--out", "b.json")
    assert code == 0
    assert "posteriors of heads" in out
    (result,) = json.loads((tmp_path / "b.json").read_text())["results"]
    assert set(result["rounds"]) == {"hierfl", "pfedvem"}
    assert result["bound"] is None  # nothing counts its work
    assert result["parts"]["seconds"]["posteriors of heads"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which benchmark? known: digits, fashion-mnist, cifar10, digit-three"),
        (["speed"], "unknown benchmark 'speed'"),
        (["digits", "--clients", "3"], "even number of clients"),
        (["digits", "--clients", "4,x"], "--clients takes whole numbers, as in 50,100; not '4,x'"),
        (["digits", "--repeats", "0"], "repeats must be at least 1"),
        (["digits", "--batch", "0"], "a batch needs at least one example"),
        (["fashion-mnist-chosen", "--batch", "5"], "takes no --batch: each method has its own"),
        (["digits", "--device", "abacus"], "device 'abacus' is not there"),
    ],
)
def test_a_benchmark_that_cannot_be_is_refused(arguments: list[str], words: str, hierfl: Call, tmp_path: Path) -> None:
    code, _, err = hierfl("bench", *arguments)
    assert code == 2
    assert words in err
    assert not list(tmp_path.iterdir())


PAGES = """
import resource, sys, numpy as np
from hierfl.experiments.allocator import keep_memory
kept = keep_memory()
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**23)  # 64 MiB
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(int(kept), after - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
@pytest.mark.parametrize(("settings", "keeps"), [({}, True), ({"MALLOC_ARENA_MAX": "2"}, False)])
def test_memory_is_kept_unless_the_environment_says_how_to_allocate(settings: dict[str, str], keeps: bool) -> None:
    rest = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    done = subprocess.run([sys.executable, "-c", PAGES], env={**rest, **settings}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kept, faults = map(int, done.stdout.split())
    assert kept == keeps
    assert faults < 10 if keeps else faults >= 32  # huge pages have 2 MiB


def test_lines_of_mixed_models_fit_eighty_letters() -> None:
    taken = {"first": 123.456, "again": [99.123, 98.1], "grown_mib": 1234.0}
    for name in CASES:
        lines = line(name, {"hierfl": taken, "lme4": taken, "draws": taken, "most": 2.0}).splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[0] == name
