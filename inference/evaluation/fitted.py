"""Predictions of any method, from its model and guide alone.

A *personal* prediction (PM) runs the model at a client's own values: at the posterior mean of its latents, or
averaged over draws. The *global* one (GM) knows the shared values only: personal latents are at their prior mean, or
are drawn from the prior (:attr:`~hierfl.inference.method.base.Method.global_draws`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.distributions import Normal

from hierfl.data.batch import Batch, Given
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.reparametrise import reparametrise
from hierfl.ppl.restrict import Restrict, Site
from hierfl.ppl.sigma_points import SigmaPoints
from hierfl.rng import ClientNoise, client_keys

from ..method.integrated import integrated
from ..objective.sites import guide_latents, model_sites
from ..state import State, client_view
from .keyed_draws import sample_keyed
from .predictive_model import PredictiveModel
from .response import over_draws, response
from .trace import Trace

#: latents of single examples (draws x examples x features) that a client's prediction holds at a time; part of what its
#: draws are keyed by, so not an option
LATENTS = 4_000_000


@dataclass(frozen=True)
class Population:
    """What is known of all clients, wherever they are.

    Attributes:
        new_client_means: see :meth:`~hierfl.inference.method.base.Method.new_client_terms`.
        summary_sums: see :meth:`~hierfl.inference.method.base.Method.summary_terms`.
    """

    new_client_means: State
    summary_sums: State


@dataclass(frozen=True)
class Fitted:
    """A method with the state that a fit has reached; all that predictions need.

    Attributes:
        method, federation: what was fitted to what.
        shared: {name: (*shape)}.
        personal: {name: (J, *shape)}.
        copies: {name: (J, *shape)}, clients' own copies of shared values.
        initial: one client's initial row, {name: (*shape)}.
        seed: keys the draws.
        population: what is known of all clients where only some of them are here; None where all are.
        fixed: clients' vectors, latents or personal values, that are as they are here whatever a fit says of them,
            {name: ([K,] J, d)}.
    """

    method: PredictiveModel
    federation: Federation
    shared: State
    personal: State
    copies: State
    initial: State
    seed: int
    population: Population | None = None
    fixed: State = field(default_factory=dict)

    @cached_property
    def trace(self) -> Trace:
        """The sites of guide and model, whichever the client is."""
        first = {k: v[:1] if len(v) else self.initial[k][None] for k, v in self.personal.items()}
        own = {k: v.unsqueeze(1).to(self.federation.device) for k, v in first.items()}
        view = client_view(self.shared, own)
        return Trace.from_template(
            self.method, self.federation.template(), view, self.shared, lambda: bool(self.shared_draws(1))
        )

    def kept_draws(self) -> State:
        """What chains have kept of the clients here, {latent: (J, chains, kept, *event)}; empty where none have."""
        if not self.trace.kept:
            return {}
        rows = range(self.federation.clients)
        with pyro.validation_enabled(False), torch.no_grad():
            sites = guide_latents(self.method, self.federation.template(len(rows)), self.values(rows), None)
        return {name: site.fn.draws[:, 0] for name, site in sites.items()}

    def values(self, rows: Sequence[int]) -> State:
        """What these clients' models see: {name: (*shape) or (S, 1, *shape)}."""
        own = {**self.copies, **self.personal}
        if list(rows) != list(range(self.federation.clients)):  # of all clients' draws there is no second copy
            index = torch.tensor(rows, dtype=torch.long, device=self.federation.device)
            own = {k: v[index.to(v.device)] for k, v in own.items()}
        device = self.federation.device
        view = client_view(self.shared, {k: v.to(device).unsqueeze(1) for k, v in own.items()})
        return {**view, **{k: v[..., list(rows), :].to(device).unsqueeze(-2) for k, v in self.fixed.items()}}

    def shared_draws(self, draws: int) -> State:
        """See :meth:`~hierfl.inference.method.base.Method.shared_draws`; empty for no draws."""
        return self.method.shared_draws(self.shared, draws) if draws else {}

    def noise(self, rows: Sequence[int], draws: int, purpose: str) -> ClientNoise:
        """Client-keyed noise for these clients' draws."""
        keys = self.federation.keys[torch.tensor(rows, dtype=torch.long)].to(self.federation.device)
        return ClientNoise(keys, (self.seed, purpose), draws, dtype=self.federation.dtype)

    def given(self, rows: Sequence[int]) -> Given:
        """These clients' training data, for a method that conditions on them; what it draws is the same every time."""
        keys = self.federation.keys[torch.tensor(rows, dtype=torch.long)].to(self.federation.device)
        return Given(self.federation.batch(rows), keys, (self.seed, "given"))

    def personal_sites(
        self,
        rows: Sequence[int],
        batch: Batch,
        draws: int,
        purpose: str = "predict",
        features: FrozenFeatures | None = None,
        noise: ClientNoise | None = None,
        joint: bool = False,
    ) -> tuple[dict[str, Site], dict[str, Site]]:
        """The guide's and the model's sites for these clients.

        Args:
            rows: which clients.
            batch: their data.
            draws: of the guide; 0 is at the posterior mean.
            purpose: keys the draws.
            features: keeps what networks make of the batch for the next call.
            noise: what the guide draws with, where a batch comes in pieces: the same for all of them.
            joint: whether all latents are drawn, for the posterior itself; predictions put some at their mean
                (:func:`~hierfl.inference.method.integrated.integrated`).
        """
        values = {**self.values(rows), **self.shared_draws(draws)}
        if self.method.conditions:
            batch = replace(batch, given=self.given(rows))
        with pyro.validation_enabled(False), torch.no_grad():
            if draws and noise is None:
                noise = self.noise(rows, draws, purpose)
            if noise is not None:
                noise.counts = None if batch.mask is None else batch.present()
            latents = guide_latents(self.method, batch, values, noise)
            if draws and not joint:
                for name in latents.keys() & set(integrated(self.method)):
                    latents |= latents[name].redrawn(None)
            return latents, model_sites(self.method, batch, values, latents, features)

    def pieces(self, batch: Batch, draws: int) -> Iterator[Batch]:
        """A batch in pieces of so many examples that latents of single ones, if there are any, fit into memory.

        Where the cuts are depends on the method and the number of draws alone.
        """
        per_example = self.trace.numbers_per_example
        size = max(1, LATENTS // (per_example * max(1, draws))) if per_example else max(1, batch.width)
        for first in range(0, batch.width, size):
            part = slice(first, first + size)
            mask = None if batch.mask is None else batch.mask[:, part]
            all_counts = batch.counts
            counts = None if all_counts is None else [min(max(0, int(n) - first), size) for n in all_counts]
            yield Batch(batch.x[:, part], batch.y[:, part], mask, batch.n, counts=counts)

    def population_noise(self, rows: int, draws: int) -> ClientNoise | None:
        """What latents of single examples are drawn with by the global model, all pieces of a batch by the same."""
        if not draws:
            return None
        keys = client_keys(range(rows), self.federation.device)
        return ClientNoise(keys, (self.seed, "population"), draws, dtype=self.federation.dtype)

    def global_sites(self, batch: Batch, draws: int = 0, noise: ClientNoise | None = None) -> dict[str, Site]:
        """The model's sites where only the shared values are known.

        Latents of the clients come from their prior. Those of single examples come from the guide, which knows the
        example (an encoder).

        Args:
            batch: data, any rows.
            draws: 0 puts latents at their mean; more draws them.
            noise: :meth:`population_noise`, where a batch comes in pieces.

        Raises:
            UserError: if the method has no global model, or its prior no mean or draws.
        """
        if not self.method.has_global_model:
            raise UserError(f"{self.method.name or type(self.method).__name__} has no global model to predict with")
        values = {**self._newcomer(batch.num_clients), **self.shared_draws(draws)}
        noise = noise or self.population_noise(batch.num_clients, draws)
        with pyro.validation_enabled(False), torch.no_grad():
            latents = guide_latents(self.method, batch, values, noise)
        encoded = {name: site.value for name, site in latents.items() if site.per_example}
        # Noise from its beginning: all pieces of a batch are of the same clients.
        noise = self.population_noise(batch.num_clients, draws)
        return self.prior_sites(batch, values, noise, latents=encoded, at_mean=integrated(self.method))

    def global_moments(self, batch: Batch) -> Site:
        """The global model's response where it is Gaussian.

        See :class:`~hierfl.inference.method.capabilities.GlobalMoments`.

        Its mean, and its variance, the noise's and that of the mean, are exact at sigma points of the prior.
        """
        points = SigmaPoints(self.federation.dtype, self.federation.device)

        def from_prior(name: str, fn: Any, in_data: bool) -> Tensor:
            return reparametrise(fn, lambda: points.normal(name, None, fn.event_shape), name)

        values = self._newcomer(batch.num_clients)
        with pyro.validation_enabled(False), torch.no_grad(), Restrict(values, draw=from_prior) as restricted:
            self.method.model(batch)
        site = response(restricted.sites)
        mean, scale = over_draws(site.fn.mean), over_draws(site.fn.stddev)
        spread = (scale.square().mean(0) + mean.var(0, unbiased=False)).sqrt()
        return site._replace(fn=Normal(mean.mean(0), spread, validate_args=False))

    def newcomer(self) -> State:
        """The personal values of a client that was never seen, {name: (*shape)}."""
        personal = self.personal if self.federation.clients else {}
        values = self.method.init_new_client(self.new_client_means, self.initial, personal)
        return {k: v.to(self.federation.device) for k, v in values.items()}

    @property
    def new_client_means(self) -> State:
        """Means over all clients, see :meth:`~hierfl.inference.method.base.Method.new_client_terms`."""
        if self.population is not None:
            return self.population.new_client_means
        return {k: v / self.federation.clients for k, v in self.new_client_sums().items()}

    def new_client_sums(self) -> State:
        """Sums over the clients that are here."""
        return {k: v.sum(0) for k, v in self.method.new_client_terms(self.personal).items()}

    @property
    def summary_sums(self) -> State:
        """Sums over all clients, see :meth:`~hierfl.inference.method.base.Method.summary_terms`."""
        return self.method.summary_terms(self) if self.population is None else self.population.summary_sums

    def _newcomer(self, rows: int) -> State:
        """What clients that were never seen see."""
        newcomer = self.newcomer()
        return {**{k: v.expand(rows, 1, *v.shape) for k, v in newcomer.items()}, **client_view(self.shared, {})}

    def prior_sites(
        self,
        batch: Batch,
        values: State,
        noise: ClientNoise | None = None,
        latents: State | None = None,
        at_mean: Sequence[str] = (),
    ) -> dict[str, Site]:
        """The model's sites with latents from their prior, one after the other as the model has them, or as given.

        Args:
            batch: data, any rows.
            values: what they see.
            noise: what each latent is drawn with; None for its mean.
            latents: those that are given.
            at_mean: those that are at their expectation even where others are drawn.

        Raises:
            UserError: for a prior that has no mean (without noise), or cannot be drawn from.
        """

        def from_prior(name: str, fn: Any, in_data: bool) -> Tensor:
            if noise and name in at_mean:  # a mean may be a centre by convention; an expectation is none
                return getattr(fn, "expectation", fn.mean)
            try:
                return sample_keyed(fn, noise, name) if noise else fn.mean
            except NotImplementedError as error:
                wanted = "be drawn from" if noise else "be put at its mean"
                raise UserError(f"the prior of {name!r}, {type(fn).__name__}, cannot {wanted}") from error

        with pyro.validation_enabled(False), torch.no_grad(), Restrict(values, latents, draw=from_prior) as restricted:
            self.method.model(batch)
        return restricted.sites
