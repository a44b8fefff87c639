"""Predictions and evaluation of any method, from its model and guide alone.

A *personal* prediction (PM) runs the model at a client's own values: at the posterior mean of its latents, or
averaged over draws. The *global* one (GM) knows the shared values only: personal latents stand at their prior mean, or
are drawn from the prior (:attr:`~hierfl.inference.method.Method.global_draws`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, MultivariateNormal, Normal, Poisson

from hierfl.data.batch import Batch
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.metrics.classification import calibration_error, classification_rows
from hierfl.metrics.ood import predictive_entropy
from hierfl.metrics.pooling import over_clients
from hierfl.metrics.regression import regression_rows
from hierfl.nn.likelihoods import Softmax
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.reparametrise import reparametrise
from hierfl.ppl.restrict import Restrict, Site
from hierfl.ppl.sigma_points import SigmaPoints
from hierfl.rng import ClientNoise, key

from .elbo import guide_latents, model_sites
from .method import Local, Method, State, visible

#: numbers (draws x examples x classes) that a prediction holds at a time
BUDGET = 20_000_000
#: latents of single examples (draws x examples x features) that a client's prediction holds at a time; part of what its
#: draws are keyed by, so not an option
LATENTS = 4_000_000


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
    """

    method: Method
    federation: Federation
    shared: State
    personal: State
    copies: State
    initial: State
    seed: int

    def values(self, rows: Sequence[int]) -> State:
        """What these clients' models see: {name: (*shape) or (S, 1, *shape)}."""
        own = {**self.copies, **self.personal}
        if list(rows) != list(range(self.federation.clients)):  # (of everybody's draws there is no second copy)
            index = torch.tensor(rows, dtype=torch.long, device=self.federation.device)
            own = {k: v[index] for k, v in own.items()}
        return visible(self.shared, {k: v.unsqueeze(1) for k, v in own.items()})

    def noise(self, rows: Sequence[int], draws: int, purpose: str) -> ClientNoise:
        """Client-keyed noise for these clients' draws."""
        keys = [(self.seed, purpose, self.federation.ids[j]) for j in rows]
        return ClientNoise(keys, draws, device=self.federation.device, dtype=self.federation.dtype).reading(1)

    def personal_sites(
        self,
        rows: Sequence[int],
        batch: Batch,
        draws: int,
        purpose: str = "predict",
        features: FrozenFeatures | None = None,
        noise: ClientNoise | None = None,
    ) -> tuple[dict[str, Site], dict[str, Site]]:
        """The guide's and the model's sites for these clients.

        Args:
            rows: which clients.
            batch: their data.
            draws: of the guide; 0 stands at the posterior mean.
            purpose: keys the draws.
            features: keeps what networks make of the batch for the next call.
            noise: what the guide draws with, where a batch comes in pieces: the same for all of them.
        """
        values = self.values(rows)
        with pyro.validation_enabled(False), torch.no_grad():
            if draws and noise is None:
                noise = self.noise(rows, draws, purpose)
            if noise is not None:
                noise.counts = None if batch.mask is None else batch.mask.sum(1).tolist()
            latents = guide_latents(self.method, batch, values, noise)
            return latents, model_sites(self.method, batch, values, latents, features)

    def pieces(self, batch: Batch, draws: int) -> Iterator[Batch]:
        """A batch in pieces of so many examples that latents of single ones, if there are any, fit into memory.

        Where the cuts are depends on the method and the number of draws alone.
        """
        template, own = self.federation.template(), {k: v[:1].unsqueeze(1) for k, v in self.personal.items()}
        with pyro.validation_enabled(False), torch.no_grad():
            latents = guide_latents(self.method, template, visible(self.shared, own), None)
        held = sum(math.prod(site.fn.event_shape) for site in latents.values() if site.per_example)
        size = max(1, LATENTS // (held * max(1, draws))) if held else max(1, batch.width)
        for first in range(0, batch.width, size):
            part = slice(first, first + size)
            mask = None if batch.mask is None else batch.mask[:, part]
            yield Batch(batch.x[:, part], batch.y[:, part], mask, batch.n)

    def population_noise(self, rows: int, draws: int) -> ClientNoise | None:
        """What latents of single examples are drawn with by the global model, all pieces of a batch by the same."""
        if not draws:
            return None
        keys = [(self.seed, "population", row) for row in range(rows)]
        return ClientNoise(keys, draws, device=self.federation.device, dtype=self.federation.dtype).reading(1)

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
        values = self._newcomer(batch.num_clients)
        noise = noise or self.population_noise(batch.num_clients, draws)
        with pyro.validation_enabled(False), torch.no_grad():
            latents = guide_latents(self.method, batch, values, noise)
        encoded = {name: site.value for name, site in latents.items() if site.per_example}
        return self.prior_sites(batch, values, draws, [("population",)], latents=encoded)

    def global_moments(self, batch: Batch) -> Site:
        """The global model's response where it is Gaussian (:attr:`~hierfl.inference.method.Method.global_moments`).

        Its mean, and its variance, the noise's and that of the mean, are exact at sigma points of the prior.
        """
        points = SigmaPoints(self.federation.dtype)

        def from_prior(name: str, fn: Any, in_data: bool) -> Tensor:
            return reparametrise(fn, lambda: points.normal(name, None, fn.event_shape, batch.x.device), name)

        values = self._newcomer(batch.num_clients)
        with pyro.validation_enabled(False), torch.no_grad(), Restrict(values, draw=from_prior) as seen:
            self.method.model(batch)
        site = response(seen.sites)
        mean, scale = over_draws(site.fn.mean), over_draws(site.fn.stddev)
        spread = (scale.square().mean(0) + mean.var(0, unbiased=False)).sqrt()
        return site._replace(fn=Normal(mean.mean(0), spread, validate_args=False))

    def _newcomer(self, rows: int) -> State:
        """What clients that were never seen see."""
        newcomer = self.method.newcomer(self.personal, self.initial)
        return {**{k: v.expand(rows, 1, *v.shape) for k, v in newcomer.items()}, **visible(self.shared, {})}

    def prior_sites(
        self,
        batch: Batch,
        values: State,
        draws: int,
        purposes: Sequence[tuple[object, ...]] = (),
        latents: State | None = None,
    ) -> dict[str, Site]:
        """The model's sites with latents from their prior, one after the other as the model has them, or as given.

        Args:
            batch: data, any rows.
            values: what they see.
            draws: of each latent; 0 for its mean.
            purposes: key the draws of each row, or all rows' in one.
            latents: those that are given.

        Raises:
            UserError: for a prior that has no mean (``draws`` 0), or cannot be drawn from.
        """

        def from_prior(name: str, fn: Any, in_data: bool) -> Tensor:
            try:
                keys = [(self.seed, *purpose, name) for purpose in purposes]
                return sample_keyed(fn, draws, batch.x.device, keys) if draws else fn.mean
            except NotImplementedError as error:
                wanted = "be drawn from" if draws else "be put at its mean"
                raise UserError(f"the prior of {name!r}, {type(fn).__name__}, cannot {wanted}") from error

        with pyro.validation_enabled(False), torch.no_grad(), Restrict(values, latents, draw=from_prior) as seen:
            self.method.model(batch)
        return seen.sites


def adapted(fitted: Fitted, x: Tensor, y: Tensor, rounds: int) -> Fitted:
    """A client that was never seen, with its own posterior from a few examples; nothing shared moves, nothing is sent.

    Args:
        fitted: what the federation has learned.
        x, y: its examples: raw inputs (n, *event) and targets (n,).
        rounds: how often it does so.

    Raises:
        UserError: for a method with nothing personal to learn.
    """
    method, old = fitted.method, fitted.federation
    steps = method.adaptation()
    if not (fitted.initial and steps):
        raise UserError(f"{method.name or type(method).__name__} has nothing that a new client could learn for itself")
    nothing = torch.empty(0, dtype=torch.long, device=old.device)
    federation = replace(
        old, x=x, y=y, train=[torch.arange(len(x), device=old.device)], validation=[nothing], test=[nothing],
        global_test=nothing, ids=["newcomer"],
    )  # fmt: skip
    rows = {k: v[None, None].clone() for k, v in method.newcomer(fitted.personal, fitted.initial).items()}
    local = Local(method, federation, [0], 0, fitted.seed, fitted.shared, rows)
    with torch.no_grad():
        for again in range(rounds):
            for phase, step in enumerate(steps):
                local = step.run(local, ("newcomer", again, phase))
    personal = {k: local.rows[k].squeeze(1) for k in rows}
    return replace(fitted, federation=federation, personal=personal, copies={})


#: distributions of which a row of a plate is one of the same kind, by what they are made from; of others a plate has
#: one row
OF_ROWS: dict[type, tuple[str, ...]] = {
    Normal: ("loc", "scale"), MultivariateNormal: ("loc", "scale_tril"), Bernoulli: ("logits",), Poisson: ("rate",),
    Softmax: ("logits",),
}  # fmt: skip


def _kind(fn: Any) -> type | None:
    """Which of those a distribution is (Pyro's are torch's, with a mixin)."""
    return next((kind for kind in type(fn).__mro__[:2] if kind in OF_ROWS), None)


def has_rows(fn: Any) -> bool:
    """Whether :func:`sample_keyed` draws each row of this distribution by itself."""
    return _kind(fn.base_dist if isinstance(fn, Independent) else fn) is not None


def _row(fn: Any, row: int, width: int) -> Any:
    """The distribution of the first examples of one row of a plate, batch shape (..., 1, width)."""
    base, dims = (fn.base_dist, fn.reinterpreted_batch_ndims) if isinstance(fn, Independent) else (fn, 0)
    kind, parts = _kind(base), {}
    assert kind is not None
    for name in OF_ROWS[kind]:
        value, event = getattr(base, name), base.arg_constraints[name].event_dim
        value = value.expand(*base.batch_shape, *value.shape[value.dim() - event :])
        parts[name] = value[(..., slice(row, row + 1), slice(width), *[slice(None)] * (dims + event))]
    made = kind(**parts, validate_args=False)
    return Independent(made, dims, validate_args=False) if dims else made


def sample_keyed(
    fn: Any,
    draws: int,
    device: torch.device,
    keys: Sequence[tuple[object, ...]],
    counts: Sequence[int] | None = None,
) -> Tensor:
    """Draws (K, S, n, *event) from any distribution that can sample, as a function of the keys alone.

    A distribution whose parameters carry K draws already gives one for each of them. Torch's distributions read the
    global generator: it is borrowed, seeded by the key, and given back.

    Args:
        fn: what to draw from, batch shape ([K,] S, n).
        draws: K.
        device: of ``fn``.
        keys: one for each row, where it :func:`has_rows`; or one for all of them.
        counts: examples of each row; what is padded is zero. None where all rows are full.
    """
    shape = torch.Size() if len(fn.batch_shape) > 2 else torch.Size((draws,))
    parts = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for row, one in enumerate(keys):
            # (torch.manual_seed tells every accelerator, whether it is there or not: a millisecond each time)
            torch.default_generator.manual_seed(key(*one))
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(key(*one))
            if len(keys) == 1:
                return fn.sample(shape)
            parts.append(_row(fn, row, fn.batch_shape[-1] if counts is None else counts[row]).sample(shape))
    found = parts[0].new_zeros((len(parts[0]), len(parts), *fn.batch_shape[-1:], *fn.event_shape))
    for row, part in enumerate(parts):
        found[:, row, : part.shape[2]] = part[:, 0]
    return found


def response(sites: Mapping[str, Site]) -> Site:
    """The site that is predicted: the one called y, or else the only one observed in the data plate.

    Raises:
        UserError: if there are none or several.
    """
    observed = {name: site for name, site in sites.items() if site.kind == "observed" and site.per_example}
    if "y" in observed:
        return observed["y"]
    if len(observed) != 1:
        names = ", ".join(observed) or "none"
        raise UserError(f"which site is predicted? Call it y; observed in the data plate: {names}")
    return next(iter(observed.values()))


def log_probs(fn: Any) -> Tensor:
    """log p(class) of a categorical site, averaged over draws: (S, n, C)."""
    values = fn.log_probs if hasattr(fn, "log_probs") else fn.logits.log_softmax(-1)
    values = values.flatten(0, -4) if values.dim() > 3 else values.unsqueeze(0)
    return values.logsumexp(0) - math.log(values.shape[0])


def over_draws(values: Tensor) -> Tensor:
    """(..., S, n) -> (K, S, n)."""
    return values.flatten(0, -3) if values.dim() > 2 else values.unsqueeze(0)


def said(site: Site, y: Tensor, task: str) -> list[Tensor]:
    """What a response site says of targets (S, n), examples in the last dimension but those of a class."""
    if task == "classification":
        return [log_probs(site.fn).mT]  # (S, C, n)
    fn = site.fn
    spread = [over_draws(fn.stddev)] if isinstance(fn, Normal) else []
    return [over_draws(fn.mean), over_draws(fn.log_prob(y)), *spread]  # (K, S, n)


def site_rows(parts: Sequence[Sequence[Tensor]], batch: Batch, task: str) -> dict[str, Tensor]:
    """Metrics per row of what was said of the pieces of a batch, one after the other."""
    whole = [torch.cat(same, -1) if len(same) > 1 else same[0] for same in zip(*parts, strict=True)]
    if task == "classification":
        return classification_rows(whole[0].mT, batch.y, batch.mask)
    mean, log_density, *spread = whole
    return regression_rows(mean, spread[0] if spread else None, log_density, batch.y, batch.mask)


def pieces(sizes: Sequence[int], chunk: int, cost: int) -> list[list[int]]:
    """Clients with data, largest first, in groups whose padded size times ``cost`` stays within the budget."""
    order = sorted((j for j, n in enumerate(sizes) if n), key=lambda j: -sizes[j])
    groups: list[list[int]] = []
    for j in order:
        if groups and len(groups[-1]) < chunk and sizes[groups[-1][0]] * cost * (len(groups[-1]) + 1) <= BUDGET:
            groups[-1].append(j)
        else:
            groups.append([j])
    return groups


def evaluate_personal(
    fitted: Fitted, split: str, chunk: int, draws: Sequence[int] = (0,)
) -> list[dict[str, np.ndarray]]:
    """Every client's metrics on its own data of ``split``, {metric: (J, ...)}, NaN where it has none.

    Args:
        fitted: the state.
        split: "train", "validation" or "test".
        chunk: clients at a time.
        draws: for each of the results wanted: 0 predicts at the posterior mean, else averaged over so many draws.
    """
    federation = fitted.federation
    cost = max(1, *draws) * max(1, federation.classes) + federation.event_shape.numel()
    results: list[dict[str, Tensor]] = [{} for _ in draws]
    for rows in pieces(federation.sizes(split), chunk, cost):
        batch, values = federation.batch(rows, split), fitted.values(rows)
        index = torch.tensor(rows, device=federation.device)
        noises = [fitted.noise(rows, k, "predict") if k else None for k in draws]
        parts: list[list[list[Tensor]]] = [[] for _ in draws]
        for piece in fitted.pieces(batch, max(draws)):
            features = FrozenFeatures.of(piece.x, frozenset(), values)
            for k, noise, found in zip(draws, noises, parts, strict=True):
                _, sites = fitted.personal_sites(rows, piece, k, features=features, noise=noise)
                found.append(said(response(sites), piece.y, federation.task))
        for result, found in zip(results, parts, strict=True):
            for name, value in site_rows(found, batch, federation.task).items():
                if name not in result:
                    empty = 0.0 if name in ("n", "bins") else float("nan")
                    result[name] = value.new_full((federation.clients, *value.shape[1:]), empty)
                result[name][index] = value
    return [{name: value.cpu().double().numpy() for name, value in result.items()} for result in results]


def entropies(fitted: Fitted, x: Tensor | None = None, draws: int = 0, size: int = 500) -> list[np.ndarray]:
    """Every client's predictive entropy in nats, (n,) each: of its own model on its own test data, or on other inputs.

    Args:
        fitted: the state.
        x: raw inputs (n, *event), the same for everybody; None for everyone's own test data.
        draws: 0 predicts at the posterior mean, else averaged over so many draws.
        size: examples at a time.
    """
    federation, found = fitted.federation, []
    for j in range(federation.clients):
        own = x is None
        pieces = federation.test[j].split(size) if own else x.split(size)  # type: ignore[union-attr]
        parts = [np.empty(0)]
        for piece in pieces:
            if not len(piece):
                continue
            inputs = (
                federation.examples(piece[None])[0] if own else federation.inputs(piece.to(federation.device))[None]
            )
            y = federation.targets(torch.zeros(inputs.shape[:2], dtype=federation.y.dtype, device=federation.device))
            batch = Batch(inputs, y, None, torch.ones(1, dtype=federation.dtype, device=federation.device))
            _, sites = fitted.personal_sites([j], batch, draws, "entropy")
            parts.append(predictive_entropy(log_probs(response(sites).fn))[0].cpu().double().numpy())
        found.append(np.concatenate(parts))
    return found


def features(fitted: Fitted, most: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What every client's base network makes of its own test data: the last layer's inputs.

    Latent features stand at their mean.

    Args:
        fitted: the state.
        most: examples of all clients together; of more, some are taken at random, the same each time.

    Returns:
        Features (N, D), targets (N,) and the clients' names (N,).
    """
    federation, network = fitted.federation, fitted.method.network
    owner = np.repeat(np.arange(federation.clients), federation.sizes("test"))
    place = np.concatenate([np.arange(n) for n in federation.sizes("test")])
    taken = np.sort(np.random.default_rng(0).permutation(len(owner))[:most])
    found, targets = [np.empty((0, network.head.features))], [np.empty(0, dtype=federation.y[:0].cpu().numpy().dtype)]
    for j in np.unique(owner[taken]).tolist():
        index = federation.test[j][torch.as_tensor(place[taken[owner[taken] == j]], device=federation.device)]
        x, y = federation.examples(index[None])
        values = fitted.values([j])
        with torch.no_grad():
            for net in network.networks:
                x = net.apply(net.parameters_from(values), x)
                if net is network.encoder:
                    x = x[..., : network.latents]  # (the means)
        found.append(x[0].cpu().double().numpy())
        targets.append(y[0].cpu().numpy())
    names = np.array(federation.ids)[owner[taken]]
    return np.concatenate(found), np.concatenate(targets), names


def evaluate_global(fitted: Fitted, index: Tensor) -> dict[str, float]:
    """Metrics of the global model on the pool's examples ``index``, all as one client."""
    federation = fitted.federation
    moments = fitted.method.global_moments
    draws = 0 if moments else fitted.method.global_draws
    # (a score of draws passes over them again and again: pieces stay in a cache)
    size = max(1, BUDGET // max(1, federation.classes) // max(10, 100 * draws))
    parts, noise = [], fitted.population_noise(1, draws)
    for piece in index.split(size):
        x, y = federation.examples(piece[None])
        batch = Batch(x, y, None, torch.ones(1, dtype=federation.dtype, device=federation.device))
        found = [
            said(
                fitted.global_moments(p) if moments else response(fitted.global_sites(p, draws, noise)),
                p.y,
                federation.task,
            )
            for p in fitted.pieces(batch, draws)
        ]
        parts.append(site_rows(found, batch, federation.task))
    rows = {k: np.stack([p[k].cpu().double().numpy() for p in parts]) for k in parts[0]}
    n = rows["n"][:, 0]
    one = {k: (n @ v[:, 0] / n.sum())[None] for k, v in rows.items() if k not in ("n", "bins", "rmse")}
    if "rmse" in rows:
        one["rmse"] = np.sqrt(n @ rows["rmse"][:, 0] ** 2 / n.sum())[None]
    if "bins" in rows:
        one["bins"] = rows["bins"].sum(0)
        one["ece"] = calibration_error(torch.as_tensor(one["bins"])).numpy()
    return over_clients({**one, "n": np.array([n.sum()])}, federation.task)
