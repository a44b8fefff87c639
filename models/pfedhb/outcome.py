"""A location and a scale of each client's responses around the network's output, for regressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from pyro.distributions import Normal
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.laplace.posterior import pairs
from hierfl.inference.messages.form import Field, Form, not_negative
from hierfl.inference.objective.sites import guide_latents, model_sites
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.scoring import of_all, scored
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.client_outcome import Given, OutcomeGiven, Population, Residuals
from hierfl.ppl.plates import param
from hierfl.rng import ClientNoise

from .turns import Turns

#: where the spreads of location and of log scale begin, in units of the response, and of the latter's half-normal prior
TAU_0, OMEGA_0, OMEGA_SCALE = 0.5, 0.3, 10.0
#: bound on the size of the mean residuals and scores that a client sends
LARGEST = 1e9
#: examples of a step that are held at a time
EXAMPLES_AT_ONCE = 400_000


@dataclass(frozen=True)
class Outcome:
    """A client's o_j = (m_j, l_j), see :mod:`hierfl.ppl.client_outcome`.

    y_ij ~ N(f(x_ij) + u m_j, (sigma e^{l_j})^2), where u is the noise that is given, and 1 where sigma is learned.

    Args:
        unit: u.
        draws: of each client's posterior in the end.
    """

    unit: float
    draws: int

    @classmethod
    def for_network(cls, network: Architecture, draws: int) -> Outcome:
        """The outcome of a regression's network.

        Raises:
            UserError: where every client learns a standard deviation of its own.
        """
        if network.learned == "clients":
            raise UserError(
                "outcome gives each client a scale of its own, with a population, and noise=clients (--learn-sd "
                "clients) one without: noise=shared (--learn-sd shared), or outcome=off"
            )
        return cls(1.0 if network.learned else float(network.noise), draws)

    def shared(self) -> State:
        """The population's numbers."""
        location = torch.zeros(2, dtype=torch.float64)
        log_scale = torch.tensor([TAU_0, OMEGA_0], dtype=torch.float64).log()
        return {"outcome.location": location, "outcome.log_scale": log_scale}

    def personal(self, like: Tensor, kept: int) -> State:
        """Nothing of its own."""
        zero = like.new_zeros(2)
        return {"o_j_mean": zero, "o_j_draws": zero.expand(1, kept, -1)}

    def prior(self, like: Tensor) -> Normal:
        """p(o_j)."""
        location, log_scale = param("outcome.location"), param("outcome.log_scale")
        return Normal(location.to(like), log_scale.exp().to(like)).to_event(1)

    def given(self) -> OutcomeGiven:
        """q(o_j)."""
        return OutcomeGiven(param("o_j_draws"), param("o_j_mean"))

    def at(self, fn: Normal, o_j: Tensor) -> Normal:
        """The response (..., S, n) of clients with o_j (..., S, 1, 2)."""
        o_j = o_j.to(fn.loc)
        return Normal(fn.loc + self.unit * o_j[..., 0], fn.scale * o_j[..., 1].exp(), validate_args=False)

    def rule(self, turns: Turns) -> OutcomePopulation:
        """How the population is learned."""
        return OutcomePopulation("outcome", turns)

    def step(self, final: bool = False) -> LocationAndScale:
        """The posteriors of o_j."""
        return LocationAndScale(self, self.draws if final else 0)

    def summary(self, values: State, sd: Tensor | float, unit: float) -> State:
        """A client's shift and standard deviation, in the user's units.

        Args:
            values: of all clients.
            sd: sigma, as the model sees it.
            unit: the standard deviation by which responses were divided; 1 where they were not.
        """
        m, log_s = values["o_j_mean"].squeeze(1).unbind(-1)
        return {"shift": self.unit * unit * m, "sd": unit * sd * log_s.exp()}


@dataclass(frozen=True)
class LocationAndScale:
    """A local step on q(o_j) by quadrature, given the mean of the client's other latents. It also leaves the score.

    Args:
        part: the part.
        final: draws in the end; 0 for as many as there are.
    """

    part: Outcome
    final: int

    @property
    def trains(self) -> Sequence[str]:
        """Mean and draws."""
        return ("o_j_mean", "o_j_draws")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Computes the posteriors of all rows."""
        values: dict[str, list[Tensor]] = {}
        with torch.no_grad():
            for first, last in buckets(chunk.sizes, EXAMPLES_AT_ONCE):
                for key, value in self._rows(chunk.part(first, last), phase).items():
                    values.setdefault(key, []).append(value.to(chunk.n.dtype).unsqueeze(1))
        return chunk.put({key: torch.cat(parts) for key, parts in values.items()})

    def _rows(self, chunk: ClientChunk, phase: object) -> State:
        given = self.posterior(chunk)
        kept = self.final or chunk.values["o_j_draws"].shape[3]
        drawn = given.mean[:, None]
        if kept > 1:
            when = () if self.final else (chunk.round, phase)
            noise = ClientNoise(
                chunk.keys.to(chunk.n.device), (chunk.seed, "outcome", *when), max(1, kept // 2), dtype=torch.float64
            )  # fmt: skip
            u, z = pairs(noise, "o_j", 2, kept).unbind(-1)  # (K, S)
            drawn = given.draws(torch.special.ndtr(u), z).transpose(0, 1)
        sums = {"o_j/score": given.score, "o_j/information": given.information}
        return {"o_j_mean": given.mean, "o_j_draws": drawn[:, None], **sums}

    def posterior(self, chunk: ClientChunk) -> Given:
        """The posterior of the rows."""
        batch, unit = chunk.batch(), self.part.unit
        latents = guide_latents(chunk.method, batch, chunk.view, None)
        nothing = latents["o_j"]._replace(value=torch.zeros_like(latents["o_j"].value))
        fn = model_sites(chunk.method, batch, chunk.view, {**latents, "o_j": nothing})["y"].fn
        sd = fn.scale.expand(batch.y.shape)[:, 0] / unit
        population = Population(chunk.shared["outcome.location"], chunk.shared["outcome.log_scale"])
        return population.given(Residuals.from_residuals((batch.y - fn.loc) / unit, sd, batch.mask))


@dataclass(frozen=True)
class OutcomePopulation:
    """Scoring on nu, log tau, mu and log omega: maximum likelihood, every o_j integrated out.

    The shared values are NAME.location, nu and mu, and NAME.log_scale, log tau and log omega. A client sends the score
    of its log evidence by each, and the expected information, 8 numbers. omega has a half-normal prior.

    Args:
        name: NAME.
        turns: rounds in which the step was taken.
    """

    name: str
    turns: Turns
    no_noise: ClassVar[str] = "the spread of few clients' responses is learned, which noise would hide: outcome=off"
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Scores of any sign, and information."""
        dtype = old[f"{self.name}.location"].dtype
        return {
            "score": Field((4,), dtype, lambda s: s.abs() <= LARGEST),
            "information": Field((4,), dtype, lambda i: not_negative(i) & (i <= LARGEST)),
        }

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """What the local step has left; zeros where it was not taken."""
        like = chunk.shared[f"{self.name}.location"]
        if not self.turns(chunk.round, chunk.shared):
            return {key: like.new_zeros((len(chunk.clients), 4)) for key in ("score", "information")}
        left = {key: chunk.values[f"o_j/{key}"].squeeze(1).to(like) for key in ("score", "information")}
        return {key: value.nan_to_num(0.0).clamp(-LARGEST, LARGEST) for key, value in left.items()}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """A step. Sums of the clients that have reported are used for those of all."""
        if not self.turns(context.round, context.shared):
            return dict(old)
        sums, length = of_all(total, context)
        score, information = sums["score"], sums["information"]
        location, log_scale = (old[f"{self.name}.{key}"].double() for key in ("location", "log_scale"))
        least = torch.finfo(torch.float64).tiny
        location = location + length * score[0::2] / information[0::2].clamp_min(least) * (information[0::2] > 0)
        context.rule_state.setdefault("tries", torch.zeros(1, dtype=torch.float64, device=location.device))
        penalty = torch.stack([torch.zeros_like(log_scale[1]), (2 * log_scale[1]).exp() / OMEGA_SCALE**2])
        information = torch.diag(information[1::2] + 2 * penalty)
        moved = scored("log_scale", log_scale, score[1::2] - penalty, information, length, context)
        values = {"location": location.clamp(-LARGEST, LARGEST), "log_scale": moved.clamp(-LARGEST, LARGEST)}
        return {k: values[k.removeprefix(f"{self.name}.")].to(v) for k, v in old.items()}
