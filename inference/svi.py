"""Local stochastic variational inference on a restricted model.

Given the globals, clients are independent, so the rows' objective is the joint model restricted to the plate's rows:

    ELBO_j = E_q(w_j) [ sum_i log p(y_ij | x_ij, w_j, theta) + log p(w_j | w) - log q(w_j) ].

It is returned per row; the gradient of the sum splits by row, so that one backward pass trains S clients. The KL is
analytic where it is exact (both sites from a registered pair, no Delta), the same draws' Monte-Carlo estimate
elsewhere. log p(globals) belongs to no client and is left to the server.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, get_args

import pyro
import torch
from pyro.distributions import Delta, Normal
from pyro.distributions.util import scale_and_mask
from torch import Tensor
from torch.distributions import Independent, TransformedDistribution, kl_divergence
from torch.nn.utils.rnn import pad_sequence

from hierfl.batch_norm import Norms, is_statistic
from hierfl.errors import UserError, unknown
from hierfl.federation import Batch, Federation, buckets, pad
from hierfl.networks import Network
from hierfl.noise import ClientNoise, Noise, SigmaPoints, permutation
from hierfl.plates import FrozenFeatures, Restrict, Site, draw_with

from .method import Local, Method, State, visible


def guide_latents(
    method: Method, batch: Batch, values: Mapping[str, Tensor], noise: Noise | None, norms: Norms | None = None
) -> dict[str, Site]:
    """Runs the guide: each personal latent's distribution and value, (K, S, 1 or n, *event), no K at its centre."""
    with Restrict(values, draw=draw_with(noise), norms=norms) as seen:
        method.guide(batch)
    for name, site in seen.sites.items():
        if site.kind == "latent" and not site.per_client:
            raise UserError(
                f"guide site {name!r} stands outside the client plate; a global latent is a point: name it in shared()"
            )
    return {name: site for name, site in seen.sites.items() if site.kind == "latent"}


class _Peeked(Exception):
    """A guide has looked at data."""


class _Outline:
    """A batch without its data: what a guide of the client plate alone needs to know."""

    def __init__(self, batch: Batch) -> None:
        self.rows, self.row_numbers, self.n = batch.rows, batch.row_numbers, batch.n

    def __getattr__(self, name: str) -> Any:
        raise _Peeked(name)


def standing_latent(
    method: Method, batch: Batch, values: Mapping[str, Tensor], noise: ClientNoise, moving: Collection[str]
) -> Site | None:
    """The guide's only latent, if its distribution is the same at every step: it need not be asked again for it.

    It is where the guide asks for no value that moves, looks at no data, and has no other latent on which this one
    might depend. None otherwise.
    """
    with Restrict(values, draw=draw_with(noise)) as seen:
        try:
            method.guide(_Outline(batch))  # type: ignore[arg-type]
        except _Peeked:
            return None
    if len(seen.sites) != 1 or not seen.asked.isdisjoint(moving):
        return None
    (site,) = seen.sites.values()
    return site if site.kind == "latent" and site.per_client else None


def model_sites(
    method: Method,
    batch: Batch,
    values: Mapping[str, Tensor],
    latents: Mapping[str, Site],
    frozen: FrozenFeatures | None = None,
    noise: Noise | None = None,
    norms: Norms | None = None,
) -> dict[str, Site]:
    """Runs the model with the guide's draws, and dropout where there is noise for it."""
    drawn, drop = {name: site.value for name, site in latents.items()}, None
    if isinstance(noise, ClientNoise):

        def drop(name: str, x: Tensor) -> Tensor:
            return noise.normal(name, x.shape[-2], x.shape[-1:])[0]  # one mask for all particles

    with Restrict(values, latents=drawn, frozen=frozen, drop=drop, norms=norms) as seen:
        method.model(batch)
    unused = latents.keys() - seen.sites.keys()
    if unused:
        raise UserError(f"guide site {sorted(unused)[0]!r} is not a latent of the model")
    return seen.sites


def elbo(
    method: Method,
    batch: Batch,
    values: Mapping[str, Tensor],
    noise: Noise | None,
    *,
    frozen: FrozenFeatures | None = None,
    analytic: bool = True,
    moving: bool = False,
    latents: Mapping[str, Site] | None = None,
    norms: Norms | None = None,
    terms: Literal["all", "data", "prior"] = "all",
) -> Tensor:
    """The rows' restricted ELBOs, averaged over the particles of ``noise``: (S,).

    Args:
        method: whose model and guide.
        batch: rows and data.
        values: every parameter and global latent.
        noise: None evaluates at the guide's centre (exact for point guides).
        frozen: outputs of networks that do not move.
        analytic: False estimates every KL from the draws.
        moving: leaves out the terms that have no gradient in the leaves of ``values``.
        latents: the guide's, where they have been drawn already.
        norms: how batch norm normalises; None for by its running statistics.
        terms: "data" for those of the data plate alone, "prior" for the others, which need no data.
    """
    if terms == "prior":  # (of no data: nothing is dropped, nothing is normalised by a batch)
        batch, norms = batch.narrow(), None
        if isinstance(noise, ClientNoise):
            noise = noise.narrow()
    latents = guide_latents(method, batch, values, noise, norms) if latents is None else latents
    total = torch.zeros(batch.rows, dtype=batch.n.dtype, device=batch.n.device)
    drop = noise if terms != "prior" else None
    for name, site in model_sites(method, batch, values, latents, frozen, drop, norms).items():
        if not site.per_client:
            continue  # log p(globals): the server's
        if terms != "all" and site.per_example != (terms == "data"):
            continue
        if moving and not _moves(site) and (site.kind != "latent" or not _moves(latents[name])):
            continue
        if site.kind != "latent":
            total = total + _rows(_log_density(site.fn, site), batch.rows)
            continue
        q = latents[name]
        if analytic and _exact(q.fn) and _exact(site.fn):
            try:
                kl = kl_divergence(q.fn, site.fn)
            except NotImplementedError:
                pass
            else:
                # scale and mask of the guide's site, as in TraceMeanField_ELBO
                total = total - _rows(scale_and_mask(kl, q.scale, q.mask), batch.rows)
                continue
        total = total + _rows(_log_density(site.fn, site), batch.rows) - _rows(_log_density(q.fn, q), batch.rows)
    return total


def log_joint(
    method: Method,
    batch: Batch,
    values: Mapping[str, Tensor],
    latents: Mapping[str, Tensor],
    *,
    frozen: FrozenFeatures | None = None,
) -> Tensor:
    """The rows' restricted log joints, log p(w_j | w) + sum_i log p(y_ij | x_ij, w_j, theta): (K, S).

    Args:
        method: whose model.
        batch: rows and data.
        values: every parameter and global latent.
        latents: values of the personal latents, {name: (K, S, 1, *event)}.
        frozen: outputs of networks that do not move.

    Raises:
        UserError: for a latent that the model does not have.
    """
    with Restrict(values, latents=latents, frozen=frozen) as seen:
        method.model(batch)
    for name in latents:
        if name not in seen.sites:
            raise unknown("latent", name, [k for k, site in seen.sites.items() if site.kind == "latent"])
    terms = [_log_density(site.fn, site).sum(-1) for site in seen.sites.values() if site.per_client]
    return torch.stack(torch.broadcast_tensors(*terms)).sum(0)


def _moves(site: Site) -> bool:
    """Whether a site's term may have a gradient: its value or one of its distribution's tensors has one."""
    if site.value.requires_grad or not isinstance(site.fn, Independent):
        return True
    base = site.fn.base_dist
    return type(base) is not Normal or base.loc.requires_grad or base.scale.requires_grad


def _log_density(fn: Any, site: Site) -> Tensor:
    return scale_and_mask(fn.log_prob(site.value), site.scale, site.mask)


def _exact(fn: Any) -> bool:
    """Whether a registered KL may be trusted: pyro's own drop a Delta's log_density."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return not isinstance(fn, Delta | TransformedDistribution)


def _rows(terms: Tensor, rows: int) -> Tensor:
    """(..., S, n) or (..., S, 1) -> (S,): mean over what stands left of the clients, sum over data."""
    if terms.dim() > 2:
        terms = terms.flatten(0, -3).mean(0)
    terms = terms.sum(-1)
    return terms if terms.shape == (rows,) else terms.expand(rows)


def global_log_prob(
    method: Method, batch: Batch, shared: Mapping[str, Tensor], personal: Mapping[str, Tensor]
) -> Tensor:
    """log p(globals): the sites of the model outside the client plate, at the shared values, observed ones included.

    Args:
        batch: any batch; :meth:`Federation.template` will do.
        shared: the globals.
        personal: one row of personal values (S, 1, *shape), which the sum does not depend on.
    """
    values = visible(shared, personal)
    latents = guide_latents(method, batch, values, None)
    total = torch.zeros((), dtype=batch.n.dtype, device=batch.n.device)
    for site in model_sites(method, batch, values, latents).values():
        if not site.per_client and site.kind != "latent":
            total = total + _log_density(site.fn, site).sum()
    return total


def check_rows(method: Method, federation: Federation, shared: State, personal: State) -> None:
    """Checks that what a client's ELBO is does not depend on who stands beside it in the plate.

    Two clients with a few examples each and states that differ, once together and once alone.

    Raises:
        UserError: if it does.
    """
    if federation.clients < 2:
        return
    picked = [federation.train[j][:3] for j in (0, 1)]
    own = {k: torch.stack([v, v * 1.1]).unsqueeze(1) for k, v in personal.items()}

    def value(rows: list[int]) -> Tensor:
        index, mask = pad([picked[j] for j in rows])
        batch = federation.gather(index, mask, rows)
        noise = ClientNoise(
            [("rows", j) for j in rows], 3, counts=[len(picked[j]) for j in rows],
            device=federation.device, dtype=federation.dtype,
        )  # fmt: skip
        return elbo(method, batch, visible(shared, {k: v[rows] for k, v in own.items()}), noise)

    with torch.no_grad():
        together, alone = value([0, 1]), torch.cat([value([0]), value([1])])
    if together.isfinite().all() and not torch.allclose(together, alone, rtol=1e-3, atol=1e-3):
        raise UserError(
            "the model or guide mixes clients: a client's ELBO changes with who stands beside it in the plate "
            f"({together.tolist()} together, {alone.tolist()} alone)"
        )


def check_shapes(
    method: Method, federation: Federation, shared: State, personal: State, rows: Sequence[str]
) -> dict[str, Site]:
    """Runs guide and model once on empty data and checks that every site has its plates' shape.

    A parameter with one dimension too few or too many broadcasts clients against data or particles without a word,
    and biases everything. Two clients, three particles and five examples leave it nowhere to hide.

    Args:
        method: whose model and guide.
        federation: for the shape of the data.
        shared: {name: (*shape)}.
        personal: one row, {name: (*shape)}.
        rows: shared values that clients train or differentiate by.

    Returns:
        The model's sites.

    Raises:
        UserError: naming the site.
    """
    clients, particles, width = 2, 3, 5
    own = {k: v.expand(clients, 1, *v.shape) for k, v in {**{k: shared[k] for k in rows}, **personal}.items()}
    batch, values = federation.template(clients, width), visible(shared, own)
    noise = ClientNoise([("shapes", j) for j in range(clients)], particles, device=batch.x.device, dtype=batch.n.dtype)
    with torch.no_grad():
        latents = guide_latents(method, batch, values, noise)
        sites = model_sites(method, batch, values, latents)
    for name, site in [*latents.items(), *sites.items()]:
        if site.kind == "latent" and not site.per_client:
            raise UserError(f"model site {name!r} is in the guide's client plate, but not in the model's")
        expected = (clients, width if site.per_example else 1)
        shape = tuple(site.fn.batch_shape)
        if site.per_client and (shape[-2:] != expected or shape[:-2] not in ((), (1,), (particles,))):
            raise UserError(
                f"site {name!r} has batch shape {shape} for {clients} clients, {width} examples and {particles} "
                f"particles, expected {expected}: a parameter has one dimension too few or too many (a scalar beside a "
                "vector needs shape (1,), one beside the data shape ()), or the site lacks .to_event"
            )
    return sites


# -- training -------------------------------------------------------------------------------------------------------

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> MakeOptimizer:
    """Stochastic gradient descent."""
    return partial(torch.optim.SGD, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=True)


def adam(lr: float, weight_decay: float = 0.0, memory: float = 0.999) -> MakeOptimizer:
    """Adam; ``weight_decay`` times the value is added to the gradient, ``memory`` is its beta_2."""
    return partial(torch.optim.Adam, lr=lr, weight_decay=weight_decay, betas=(0.9, memory))


#: values by name -> gradient of the rows' losses there, {name: (S, 1, *shape)}, on one of an iteration's minibatches
GradientAt = Callable[[Mapping[str, Tensor], int], State]


class Direction(Protocol):
    """Where a step goes instead of down the gradient of the rows' losses."""

    @property
    def batches(self) -> int:
        """How many minibatches an iteration uses."""
        ...

    def __call__(self, gradient: GradientAt, at: State, values: Mapping[str, Tensor]) -> State:
        """What the optimiser is given for a gradient, {name: (S, 1, *shape)}.

        Args:
            gradient: of the losses (minus the ELBO, divided as :class:`SVI`'s ``per`` says) at any values.
            at: what is trained, as it is.
            values: everything that the rows see.
        """
        ...


@dataclass(frozen=True)
class Corrected:
    """The gradient and a difference of other values: g + plus - minus (a control variate; SCAFFOLD).

    Args:
        trained: the value that is trained.
        plus, minus: values of the same shape, shared or personal.
    """

    trained: str
    plus: str
    minus: str
    batches: ClassVar[int] = 1

    def __call__(self, gradient: GradientAt, at: State, values: Mapping[str, Tensor]) -> State:
        """See the class."""
        found = gradient(at, 0)
        return {**found, self.trained: found[self.trained] + values[self.plus] - values[self.minus]}


@dataclass(frozen=True)
class AfterOneStep:
    """The gradient of the loss that is left after one step of gradient descent: (I - a H(w)) g(w - a g(w)).

    The Hessian's product with a vector v is the difference (g(w + d v) - g(w - d v)) / 2 d. The three gradients are of
    three minibatches (Per-FedAvg, HF; Fallah et al., NeurIPS 2020, Eq. 8 and Alg. 1).

    Args:
        step: a, the length of the inner step.
        difference: d.
    """

    step: float
    difference: float
    batches: ClassVar[int] = 3

    def __call__(self, gradient: GradientAt, at: State, values: Mapping[str, Tensor]) -> State:
        """See the class."""

        def moved(by: float, direction: State) -> State:
            return {k: torch.add(w, direction[k], alpha=by) for k, w in at.items()}

        v = gradient(moved(-self.step, gradient(at, 0)), 1)
        above, below = gradient(moved(self.difference, v), 2), gradient(moved(-self.difference, v), 2)
        return {k: v[k] - self.step / (2 * self.difference) * (above[k] - below[k]) for k in at}


#: a number, or one for each round, the same for all clients
Count = int | Callable[[Local], int]
Terms = Literal["all", "data", "prior"]


@dataclass(frozen=True)
class Block:
    """Values that are trained in turn with others, on the same minibatches.

    Args:
        names, optimizer, terms, repeats: as for :class:`SVI`.
    """

    names: Sequence[str]
    optimizer: MakeOptimizer
    terms: Terms = "all"
    repeats: int = 1


@dataclass(frozen=True)
class SVI:
    """Gradient steps on the rows' restricted ELBO, by a fresh optimiser each round.

    Args:
        names: what is trained: personal values, or shared ones (then each row trains a copy of its own). Running
            statistics of batch norm among them follow the batches, without a gradient.
        epochs: passes through a client's data.
        optimizer: from leaves to a torch optimiser that treats every element alike (SGD, Adam, ...).
        batch: examples per step; None for all of them.
        particles: K, draws of the guide per step.
        per: "sum" ascends the ELBO; "example" ascends ELBO / n_j, the mean log likelihood less KL / n_j.
        steps: so many minibatches instead of whole epochs.
        repeats: steps on each minibatch.
        terms: of the ELBO: all, those of the data plate, or the others (of which no data are needed).
        then: other values, trained after these on each minibatch.
        direction: where the steps go, if not down the gradient.
    """

    names: Sequence[str]
    epochs: int
    optimizer: MakeOptimizer
    batch: int | None = None
    particles: int = 1
    per: Literal["sum", "example"] = "sum"
    steps: Count | None = None
    repeats: int = 1
    terms: Terms = "all"
    then: Sequence[Block] = ()
    direction: Direction | None = None

    def __post_init__(self) -> None:
        if self.per not in ("sum", "example"):
            raise unknown("objective (SVI's per)", self.per, ["sum", "example"])
        if isinstance(self.names, str):
            raise UserError(f"SVI trains a list of values: SVI([{self.names!r}], ...)")
        for block in self._blocks:
            if block.terms not in get_args(Terms):
                raise unknown("terms of an ELBO (SVI's terms)", block.terms, get_args(Terms))
            if block.repeats < 1:
                raise UserError(f"SVI's repeats must be at least 1, not {block.repeats}")
        least = {"epochs": 0, "particles": 1, "batch": 1, "steps": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if isinstance(value, int) and value < lowest:
                raise UserError(f"SVI's {name} must be at least {lowest}, not {value}")
        if self.direction is not None and self.direction.batches > 1 and (self.steps is None or self.batch is None):
            raise UserError("a direction of several minibatches is counted in steps: SVI(..., batch=B, steps=N)")
        if self.direction is not None and self.then:
            raise UserError("a direction is of one block of values: SVI(..., then=()) beside it")

    @property
    def _blocks(self) -> tuple[Block, ...]:
        return (Block(self.names, self.optimizer, self.terms, self.repeats), *self.then)

    @property
    def trains(self) -> Sequence[str]:
        """What is trained."""
        return tuple(name for block in self._blocks for name in block.names)

    def run(self, local: Local, phase: object) -> Local:
        """Trains the rows; see the class."""
        blocks = []
        for block in self._blocks:
            names = [k for name in block.names for k in local.method.expand(name, local.values)]
            blocks += [dataclasses.replace(block, names=names)] if names else []
        trained = [k for block in blocks for k in block.names]
        local = local.own(trained)  # without epochs, too: what is trained is what is sent
        steps = self.steps(local) if callable(self.steps) else self.steps
        if not blocks or not (self.epochs if steps is None else steps):
            return local
        # validation costs in a hot loop; gradients are wanted whatever the caller has switched off
        with pyro.validation_enabled(False), torch.enable_grad():
            if self.batch is None:
                for first, last in buckets(local.sizes):
                    self._whole(local.part(first, last), blocks, phase, self.epochs if steps is None else steps)
            else:
                self._minibatches(local, blocks, phase, steps)
        return local

    def _whole(self, local: Local, blocks: Sequence[Block], phase: object, steps: int) -> None:
        names = frozenset(k for block in blocks for k in block.names)
        batch = local.batch()
        trainers = [_Trainer(self, block, local) for block in blocks]
        noise = local.noise(phase, self.particles, local.sizes)
        values = {**local.values, **_joined(trainers)}
        frozen = FrozenFeatures.of(batch.x, names, values)
        for step in range(steps):
            noise.at(step)
            self._round([batch], trainers, values, noise, frozen, step)

    def _minibatches(self, local: Local, blocks: Sequence[Block], phase: object, steps: int | None) -> None:
        names = frozenset(k for block in blocks for k in block.names)
        each = self.direction.batches if self.direction is not None else 1
        plans = _plans(local, phase, self.batch or 1, self.epochs, None if steps is None else steps * each)
        frozen = FrozenFeatures(names, partial(standing_features, local))
        noise = local.noise(phase, self.particles)
        batches = minibatches(local, plans, frozen, noise)
        before: list[_Trainer | None] = [None] * len(blocks)
        alone = len(blocks) == 1 and blocks[0].repeats == 1 and self.direction is None
        # rows come largest first, so their plans longest first
        for first, last, active in spans([len(steps) for steps in plans]):
            part = local.part(0, active)
            trainers = [_Trainer(self, block, part, old) for block, old in zip(blocks, before, strict=True)]
            before = [*trainers]
            values, standing = {**part.values, **_joined(trainers)}, None
            for step in range(first, last, each):
                group = [*itertools.islice(batches, each)]
                if alone and step == first:
                    standing = standing_latent(local.method, group[0], values, noise, names)
                drawn = None if standing is None else standing.redrawn(noise)
                self._round(group, trainers, values, noise, frozen, step // each, drawn)

    def _round(
        self,
        batches: Sequence[Batch],
        trainers: Sequence[_Trainer],
        values: Mapping[str, Tensor],
        noise: ClientNoise,
        frozen: FrozenFeatures,
        step: int,
        latents: Mapping[str, Site] | None = None,
    ) -> None:
        """All blocks on one minibatch (or an iteration's several), one after the other."""
        turns, turn = sum(trainer.block.repeats for trainer in trainers), 0
        for trainer in trainers:
            for _ in range(trainer.block.repeats):
                if turns > 1 or self.direction is not None:  # (a turn has draws of its own)
                    noise.at(step * turns + turn, batches[0].rows)
                trainer.step(batches, values, noise, frozen, latents)
                turn += 1


def _plans(local: Local, phase: object, size: int, epochs: int, steps: int | None) -> list[Tensor]:
    """Every row's minibatches: of whole epochs, or as many as there are steps."""
    rows = range(len(local.clients))
    if steps is None:
        return [plan(local, row, phase, size, epochs) for row in rows]
    enough = [-(-steps // -(-n // size)) for n in local.sizes]
    return [plan(local, row, phase, size, enough[row])[:steps] for row in rows]


def _joined(trainers: Sequence[_Trainer]) -> State:
    """All leaves."""
    return {k: v for trainer in trainers for k, v in trainer.leaves.items()}


class _Trainer:
    """One block of values in training: its leaves, its optimiser.

    Args:
        svi, block: what is trained, and how.
        local: the rows that are.
        before: what trained them so far, with more rows; None at the beginning.
    """

    def __init__(self, svi: SVI, block: Block, local: Local, before: _Trainer | None = None) -> None:
        self.svi, self.block, self.method = svi, block, local.method
        self.leaves = _leaves(local, block.names)
        self.optimizer: torch.optim.Optimizer | None = None
        if self.leaves:
            known = before.optimizer if before is not None else None
            self.optimizer = shrunk(known, block.optimizer, list(self.leaves.values()), len(local.clients))

    def step(
        self,
        batches: Sequence[Batch],
        values: Mapping[str, Tensor],
        noise: ClientNoise,
        frozen: FrozenFeatures,
        latents: Mapping[str, Site] | None,
    ) -> None:
        """One step of the optimiser; running statistics follow the batch.

        Args:
            batches: one, or as many as the direction needs.
            values: everything that the rows see, the leaves of all blocks among them.
            noise: at this step.
            frozen: outputs of networks that do not move.
            latents: the guide's, where they have been drawn already.
        """
        norms = Norms(batches[0].mask, frozen.moving)
        direction = self.svi.direction
        if direction is None:
            # (zero_grad costs more: it calls the profiler)
            for group in self.optimizer.param_groups if self.optimizer else ():
                for leaf in group["params"]:
                    leaf.grad = None
            loss = self._loss(batches[0], values, noise, frozen, latents, norms)
            if self.optimizer is not None:
                loss.backward(inputs=list(self.leaves.values()) if self.svi.then else None)
        else:

            def gradient(at: Mapping[str, Tensor], number: int) -> State:
                nonlocal norms
                batch = batches[number]
                norms = Norms(batch.mask, frozen.moving)
                noise.counts = _present(batch)
                leaves = {k: v.detach().requires_grad_() for k, v in at.items()}
                loss = self._loss(batch, {**values, **leaves}, noise, frozen, None, norms)
                slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
                return {
                    k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(leaves.items(), slopes, strict=True)
                }

            found = direction(gradient, {k: v.detach() for k, v in self.leaves.items()}, values)
            for name, leaf in self.leaves.items():
                leaf.grad = found[name].detach()
        if self.optimizer is not None:
            self.optimizer.step()
        for name, new in norms.running.items():
            values[name].copy_(new.unsqueeze(1))

    def _loss(
        self,
        batch: Batch,
        values: Mapping[str, Tensor],
        noise: ClientNoise,
        frozen: FrozenFeatures,
        latents: Mapping[str, Site] | None,
        norms: Norms,
    ) -> Tensor:
        """Minus the sum of the rows' objectives."""
        objective = elbo(
            self.method, batch, values, noise,
            frozen=frozen, moving=True, latents=latents, norms=norms, terms=self.block.terms,
        )  # fmt: skip
        if self.optimizer is not None and not objective.requires_grad:
            raise UserError(f"SVI of {', '.join(self.block.names)}: the ELBO does not depend on it")
        return -(objective / batch.n if self.svi.per == "example" else objective).sum()


def _present(batch: Batch) -> list[int]:
    """How many examples each row has in a batch."""
    return [batch.width] * batch.rows if batch.mask is None else batch.mask.sum(1).tolist()


@dataclass(frozen=True)
class Likeliest:
    """A personal number from a few that makes a client's ELBO largest: hard assignment (the MAP of a label).

    Args:
        name: the personal value, (1,).
        choices: how many; the value is one of 0 ... choices - 1, and the first of equals.
    """

    name: str
    choices: int

    @property
    def trains(self) -> Sequence[str]:
        """The value that is set."""
        return (self.name,)

    def run(self, local: Local, phase: object) -> Local:
        """Tries them all on all of a client's training data."""
        if self.name not in local.rows:
            raise UserError(f"Likeliest sets {self.name!r}, which personal() does not declare")
        found = []
        with pyro.validation_enabled(False):
            for first, last in buckets(local.sizes):
                part = local.part(first, last)
                batch, old = part.batch(), part.rows[self.name]
                heights = [
                    elbo(local.method, batch, {**part.values, self.name: torch.full_like(old, label)}, None)
                    for label in range(self.choices)
                ]
                # (one that is not a number is never the likeliest)
                heights = [h.nan_to_num(nan=-torch.inf) for h in heights]
                found.append(torch.stack(heights).argmax(0).view_as(old).to(old))
        return local.put({self.name: torch.cat(found)})


def running_statistics(names: Iterable[str], epochs: int, batch: int | None) -> SVI:
    """Runs model and guide over the data for the sake of batch norm alone: running statistics follow, nothing learns.

    For weights that were averaged, whose statistics nobody has seen yet (Izmailov et al., UAI 2018, section 3.2).

    Args:
        names: values among which are running statistics; the others stay.
        epochs: passes through a client's data.
        batch: examples at a time; None for all of them.
    """
    return SVI(sorted(filter(is_statistic, names)), epochs, sgd(0.0), batch)


def elbo_gradient(
    local: Local, names: Sequence[str], particles: int, phase: object, *, sigma_points: bool = False
) -> State:
    """Each row's gradient of its restricted ELBO in shared values, at what was broadcast: {name: (S, *shape)}.

    A row's own copy of one of these values plays no part: the gradient belongs to the value that the server holds.

    Args:
        local: the rows.
        names: the shared values.
        particles: K, draws of the guide.
        phase: keys them.
        sigma_points: takes expectations at these instead; see :class:`~hierfl.noise.SigmaPoints`.
    """
    rows = {k: v for k, v in local.rows.items() if k not in names}
    at_broadcast = dataclasses.replace(local, rows=rows).own(names)
    gradients = {k: torch.zeros_like(at_broadcast.rows[k]) for k in names}
    with pyro.validation_enabled(False), torch.enable_grad():
        for first, last in buckets(local.sizes):
            part = at_broadcast.part(first, last)
            batch = part.batch()
            leaves = _leaves(part, names)
            noise = SigmaPoints(part.federation.dtype) if sigma_points else part.noise(phase, particles, part.sizes)
            objective = elbo(local.method, batch, {**part.values, **leaves}, noise)
            if not objective.requires_grad:
                continue  # a value that only log p(globals) knows: the server's own gradient moves it
            found = torch.autograd.grad(objective.sum(), list(leaves.values()), allow_unused=True)
            for name, gradient in zip(leaves, found, strict=True):
                if gradient is not None:
                    gradients[name][first:last] = gradient
    return {k: g.squeeze(1) for k, g in gradients.items()}


def plan(local: Local, row: int, phase: object, size: int, epochs: int) -> Tensor:
    """A row's minibatches in order, epoch after epoch: (steps, size), places in its own data, -1 for padding."""
    n = local.sizes[row]
    orders = [permutation(n, *local.key(phase, row), "epoch", epoch) for epoch in range(epochs)]
    return torch.cat([torch.nn.functional.pad(order, (0, -n % size), value=-1).view(-1, size) for order in orders])


def minibatches(local: Local, plans: Sequence[Tensor], frozen: FrozenFeatures, noise: ClientNoise) -> Iterator[Batch]:
    """The minibatches of all rows, step by step; rows that have finished are left out.

    Args:
        local: the rows.
        plans: each row's steps, see :func:`plan`; no row has more than the one before it.
        frozen: is told what is shown.
        noise: is moved to the step.
    """
    federation = local.federation
    position = pad_sequence(list(plans), padding_value=-1)  # (steps, S, B)
    present = position >= 0
    counts = present.sum(-1)
    # a step is as wide as its fullest row (the last batch of an epoch is short, and a small client has no other),
    # and needs no mask where all rows are full
    widths = counts.max(1).values
    complete = ((counts == widths[:, None]) | (counts == 0)).all(1).tolist()
    position, mask = position.clamp_min(0).to(federation.device), present.to(federation.device)
    networks = local.method.network.networks
    defer = any(frozen.moving.isdisjoint(network.names) for network in networks)
    n = local.n
    weight = (n / counts.to(federation.device))[..., None]  # n_j / b_j; who has finished is never asked
    places = local.examples.first(local.clients) + position
    for first, last, active in spans([len(steps) for steps in plans]):
        sizes = n[:active]
        for step, width in zip(range(first, last), widths[first:last].tolist(), strict=True):
            x, y = local.examples.at(places[step, :active, :width], defer)
            here = None if complete[step] else mask[step, :active, :width]
            frozen.show(x, places[step, :active, :width])
            noise.counts = counts[step]
            noise.at(step, active)
            yield Batch(x, y, here, sizes, weight[step, :active])


def standing_features(local: Local, network: Network) -> Tensor:
    """A network's output on the rows' examples, where these lie among the plate's: (N, features).

    Args:
        local: the rows; the network's weights stand still.
        network: which.
    """
    sizes, firsts = local.sizes, local.examples.first(local.clients).flatten().tolist()
    kept: Tensor | None = None
    for first, last in buckets(sizes):
        part = local.part(first, last)
        found = network.apply(network.parameters_from(part.values), part.batch().x)
        if kept is None:
            kept = found.new_zeros((local.examples.size, *found.shape[2:]))
        for row, place, n in zip(found, firsts[first:last], sizes[first:last], strict=True):
            kept[place : place + n] = row[:n]
    assert kept is not None
    return kept


def spans(steps: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Stretches of steps during which the same rows take part: first step, last + 1, how many rows (the first ones)."""
    first = 0
    for last in sorted(set(steps)):
        yield first, last, sum(s >= last for s in steps)
        first = last


def _leaves(local: Local, names: Sequence[str]) -> State:
    """Autograd leaves that share the rows' memory, so that an optimiser's step is seen in them."""
    return {k: local.rows[k].detach().requires_grad_() for k in names if not is_statistic(k)}


def shrunk(
    old: torch.optim.Optimizer | None, make: MakeOptimizer, leaves: list[Tensor], active: int
) -> torch.optim.Optimizer:
    """An optimiser for the rows that are left, which remembers what the old one knew of them.

    A momentum moves rows without a gradient, too: rows that have finished must not be among its leaves.
    """
    new = make(leaves)
    if old is not None:
        for before, after in zip(old.param_groups[0]["params"], leaves, strict=True):
            new.state[after] = {
                k: v[:active] if torch.is_tensor(v) and v.shape == before.shape else v
                for k, v in old.state[before].items()
            }
    return new
