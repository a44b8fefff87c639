"""Densities of the population's numbers: the priors of a Bayesian population, and what keeps others off their bounds.

Coordinates are those of :class:`.covariance.Covariance`: log sd, unconstrained correlations; and the family's numbers.
Everything is in the design's units, in which columns have a spread of one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.formula.units import INTERCEPT

from ..model.arithmetic import log_normal
from ..model.equations import MixedModel
from ..model.prior_text import log_density, read

#: standard deviation of a prior that is not declared, over the response's; a response without units counts as 1
DEFAULT_PRIOR_SD = 2.5
#: standard deviation of coefficients without a declared prior where the response is not gaussian, in the design's
#: units: so wide that any data outweigh it
WIDE_BETA = 10.0
#: the same for logarithms and logits of a family's own parameters
WIDE_OWN = 3.0
#: shape of the gamma density that keeps standard deviations from zero where the population has no prior (Chung et al.,
#: Psychometrika 2013), and its mean over the response's spread
SHAPE, MEAN = 1.5, 1.0


@dataclass(frozen=True)
class Priors:
    """Log densities, up to constants.

    Args:
        method: whose numbers, and whose settings.
    """

    method: MixedModel

    @property
    def bayes(self) -> bool:
        """Whether the priors are the user's, not only what a mixing density needs to be proper."""
        return bool(self.method.settings.population == "bayes")

    def beta(self) -> tuple[Tensor, Tensor] | None:
        """Means and standard deviations of the coefficients, (p,) each; None where their prior is flat."""
        s, d = self.method.settings, self.method.network
        if not self.bayes:
            # Where they are not searched, the sums say where coefficients are; others may be at infinity.
            wide = WIDE_BETA * self.method.unit
            flat = torch.full((len(d.fixed),), wide, dtype=torch.float64)
            return (torch.zeros_like(flat), flat) if self.method.likelihood.searches_beta else None
        scale = torch.tensor(d.fixed_units.scale, dtype=torch.float64)
        mean, sd = torch.zeros_like(scale), torch.full_like(scale, DEFAULT_PRIOR_SD * d.scale)
        for k, name in enumerate(d.fixed):
            setting = "intercept_prior" if name in INTERCEPT else "beta_prior"
            if text := getattr(s, setting):
                kind, numbers = read(setting, text)
                middle, width = numbers if kind == "normal" else (0.0, torch.inf)
                mean[k] = middle * scale[k] - (d.offset if name in INTERCEPT else 0.0)
                sd[k] = width * scale[k]
        return mean, sd

    def covariance(self, coordinates: Tensor, level: str) -> Tensor:
        """The log prior of log sd and correlations (..., r) of a level's effects: (...)."""
        s, d, covariance = self.method.settings, self.method.network, self.method.covariances[level]
        q = covariance.q
        log_sd = coordinates[..., :q]
        if self.bayes:
            kind, numbers = read("sd_prior", s.sd_prior or f"half-t(3, {DEFAULT_PRIOR_SD * d.scale!r})")
            units = log_sd.new_tensor(self.method.groupings[level].units.scale) if s.sd_prior else 1.0
            density = log_density(kind, numbers, log_sd.exp() / units) + log_sd
            return density.sum(-1) + covariance.log_lkj(coordinates, s.lkj)
        keep = SHAPE * log_sd - SHAPE / (MEAN * d.scale) * log_sd.exp()
        return keep.sum(-1) + covariance.log_lkj(coordinates, 1.0)

    def family(self, numbers: Tensor) -> Tensor:
        """The log prior of the family's own numbers (..., m): (...). A residual's log sd, the first, is flat without
        a prior.

        Others can have no end (the size of a negative binomial, where counts spread as a Poisson's do), so that what is
        mixed over them needs a density that ends.
        """
        if not numbers.shape[-1]:
            return numbers.new_zeros(numbers.shape[:-1])
        if self.method.response_family.own_prior == "family_prior":
            return self._of_own(numbers)
        if (serial := getattr(self.method.response_family, "serial", None)) is not None:
            # Rho is uniform, and the last of them.
            uniform: Tensor = serial.log_uniform(numbers[..., -1])
            return uniform + (self._residual(numbers[..., :-1]) if self.bayes else 0.0)
        if slopes := self.method.response_family.slopes:
            if not self.bayes:
                return numbers.new_zeros(numbers.shape[:-1])
            rest = [k for k in range(numbers.shape[-1]) if k not in slopes]
            zero = numbers.new_zeros(())
            return log_normal(numbers[..., list(slopes)], zero, zero + WIDE_OWN) + self._residual(numbers[..., rest])
        numbers, others = numbers[..., :1], numbers[..., 1:]
        more = self._of_own(others) if others.shape[-1] else numbers.new_zeros(numbers.shape[:-1])
        return self._residual(numbers) + more if self.bayes else more

    def _residual(self, numbers: Tensor) -> Tensor:
        """The log prior of log standard deviations of residuals (..., m): (...)."""
        text = self.method.settings.residual_prior or f"half-t(3, {DEFAULT_PRIOR_SD * self.method.network.scale!r})"
        spread = numbers.exp() * self.method.response_family.unit
        log_p = log_density(*read("residual_prior", text), spread) + numbers
        return log_p.sum(-1)

    def _of_own(self, numbers: Tensor) -> Tensor:
        """The log prior of numbers (..., m) that :attr:`.settings.Settings.family_prior` is of: (...)."""
        kind, parameters = read("family_prior", self.method.settings.family_prior or f"normal(0, {WIDE_OWN})")
        mean, sd = parameters if kind == "normal" else (0.0, torch.inf)
        return log_normal(numbers, numbers.new_tensor(mean), numbers.new_tensor(sd))
