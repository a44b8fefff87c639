"""Noise: its law, its grid, and where it comes from."""

from __future__ import annotations

import math
import os
import random

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest, norm

from hierfl.errors import UserError
from hierfl.inference.noise import KeyedNoise, Mechanism, NoiseSource, Plan, Privacy, SystemNoise, noisy
from hierfl.inference.noise.discrete_gaussian import MOST_SD, discrete_gaussian
from hierfl.inference.noise.sources import STEPS, grid, noise_sd, system_words


def fixed_words(seed: int):
    bits = np.random.default_rng(seed)
    return lambda count: bits.integers(0, 2**63 - 1, count, np.int64, endpoint=True)


@pytest.mark.parametrize("sd", [1, 3, 20])
def test_the_discrete_gaussian_has_its_probabilities(sd: int) -> None:
    drawn = discrete_gaussian(60_000, sd, fixed_words(sd))
    k = np.arange(-12 * sd, 12 * sd + 1)
    pmf = np.exp(-(k**2) / (2 * sd**2))
    pmf /= pmf.sum()
    expected = len(drawn) * pmf
    cells = np.flatnonzero(expected > 10)
    counts = np.array([(drawn == value).sum() for value in k[cells]])
    distance = ((counts - expected[cells]) ** 2 / expected[cells]).sum()
    assert distance < chi2.ppf(0.999, len(cells))
    variance = (pmf * k**2).sum()
    assert drawn.var() == pytest.approx(variance, rel=5 * math.sqrt(2 / len(drawn)))
    assert abs(drawn.mean()) < 4 * math.sqrt(variance / len(drawn))


def test_a_wide_discrete_gaussian_is_a_gaussian() -> None:
    drawn = discrete_gaussian(20_000, STEPS, fixed_words(5))
    assert kstest(drawn / STEPS, norm.cdf).pvalue > 1e-3
    for wrong in (0, 0.5, MOST_SD + 1):
        with pytest.raises(ValueError, match="whole number"):
            discrete_gaussian(1, wrong, fixed_words(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [SystemNoise(), KeyedNoise(3, "site")])
def test_what_is_released_lies_on_the_grid(source: NoiseSource) -> None:
    value = torch.linspace(-7, 9, 3000, dtype=torch.float64) / 3
    sd = noise_sd(3000, 0.3, 2.5)
    released = noisy(value, 0.3, 2.5, source, "statistics")
    step = grid(sd)
    assert math.log2(step) == round(math.log2(step))
    assert STEPS <= sd / step < 2 * STEPS
    assert bool(((released / step) == (released / step).round()).all())
    # The rounding is paid for: two neighbours on the grid are at most so much further apart.
    assert 0.75 < sd <= 0.75 * 1.001
    assert (0.3 + math.sqrt(3000) * step) * 2.5 <= sd * (1 + 1e-12)
    gaps = (released - value) / sd
    assert kstest(gaps.numpy(), norm.cdf).pvalue > 1e-4
    assert noisy(value.float(), 0.3, 2.5, source).dtype == torch.float32


def test_noise_beyond_its_grid_is_refused() -> None:
    with pytest.raises(
        UserError, match="noise of 100 times the sensitivity on each of 1000000000 numbers leaves nothing"
    ):
        noise_sd(10**9, 1.0, 100.0)
    for wrong in (0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="above 0"):
            grid(wrong)


def test_the_systems_noise_never_repeats_and_reads_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for _ in range(3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            random.seed(0)
            seen.add(tuple(SystemNoise().gaussian((8,), 1.0, "statistics", 1).tolist()))
    assert len(seen) == 3
    words = []
    monkeypatch.setattr(os, "urandom", lambda count: words.append(count) or b"\1" * count)
    assert len(system_words(5)) == 5
    assert words == [40]


def test_keyed_noise_is_a_function_of_its_key() -> None:
    noise = KeyedNoise(1, "a").gaussian((4,), 2.0, "steps", 1)
    assert torch.equal(noise, KeyedNoise(1, "a").gaussian((4,), 2.0, "steps", 1))
    assert torch.equal(KeyedNoise(1, "a").integers((4,), 9, 2), KeyedNoise(1, "a").integers((4,), 9, 2))
    others = (KeyedNoise(2, "a"), 1), (KeyedNoise(1, "b"), 1), (KeyedNoise(1, "a"), 2)
    assert not any(torch.equal(noise, source.gaussian((4,), 2.0, "steps", number)) for source, number in others)
    assert not torch.equal(KeyedNoise(1, "a").integers((4,), 9, 2), KeyedNoise(1, "a").integers((4,), 9, 3))


def test_a_site_takes_the_systems_noise_and_a_simulation_its_seeds() -> None:
    privacy = Privacy(Plan.for_epsilon("site", 1.0, 1e-5, [Mechanism("statistics", 1, 1)]), clip=1.0, seed=4)
    value = torch.zeros(5)
    simulated = [privacy.noisy("statistics", value, 1.0, "site-1", 1) for _ in range(2)]
    assert torch.equal(*simulated)
    real = [privacy.at_a_site().noisy("statistics", value, 1.0, "site-1", 1) for _ in range(2)]
    assert not torch.equal(*real)
    assert not torch.equal(simulated[0], privacy.noisy("statistics", value, 1.0, "site-2", 1))
