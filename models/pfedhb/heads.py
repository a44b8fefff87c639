"""Heads around the global one, with spreads by marginal likelihood."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.laplace.points import deviations
from hierfl.inference.local.laplace.population_terms import Groups, PopulationTerms
from hierfl.inference.local.laplace.step import GaussianHead
from hierfl.inference.messages.form import Field, Form, beside, not_negative
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.scoring import LARGEST, LEAST_LOG, of_all, scored
from hierfl.inference.server.rules.weights import times_rows
from hierfl.inference.state import State
from hierfl.nn.head import LinearHead
from hierfl.ppl.plates import param

from ..pfedeb.config import block_numbers
from ..pfedeb.population import of_numbers
from .turns import Turns

#: heads of so many numbers at most have covariances without an approximation
MAX_EXACT_NUMBERS = 600
#: Newton's steps, at most, of a client that is far from its mode: it was away, and the network is another one
MAX_CATCH_UP_STEPS = 4
#: largest gain or loss by its head, in nats, that one client reports
MAX_GAIN_NATS = 1e5
#: a spread is too wide where heads say less by so many nats than none, after so many turns; it begins again narrower
TOO_WIDE_NATS, TOO_WIDE_TURNS, NARROWING_FACTOR = -3.0, 2, 10.0


@dataclass(frozen=True)
class HeadSpreads:
    """Scoring steps on log rho, of heads w_j ~ N(w, diag(rho)^2) around a point w.

    A client sends d l_j / d log rho (B,) and the expected information (B, B) of its marginal likelihood, its head
    integrated out (:mod:`hierfl.inference.local.laplace.population_terms`). The shared values are NAME.log_rho (B,) and
    NAME.information (B, B). Each rho has a half-normal prior.

    Where heads are ``judged`` a client also sends its gain, its bound on the log marginal likelihood less its log
    likelihood at w_j = w, which is rho = 0. Where the sum of gains is below zero rho is too
    wide: so wide that posteriors do not settle, and steps of scoring lead nowhere. It begins again at a tenth, and
    clients' posteriors at w (NAME.restart (1,) is 1 in that round).

    Args:
        name: NAME.
        latent: the heads' site, whose step leaves the terms.
        rho_scale: scale of the prior.
        turns: rounds in which the step was taken.
        judged: whether clients send their gain.
        no_noise: why there is none with noise; "" where there may be.
    """

    name: str
    latent: str
    rho_scale: float
    turns: Turns
    judged: bool = False
    no_noise: str = ""
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """A score of any sign and an information."""
        log_rho = old[f"{self.name}.log_rho"]
        blocks = tuple(log_rho.shape)
        return {
            "score": Field(blocks, log_rho.dtype),
            "information": Field((*blocks, *blocks), log_rho.dtype, not_negative),
            **({"gain": Field((1,), log_rho.dtype, lambda gain: gain.abs() <= MAX_GAIN_NATS)} if self.judged else {}),
        }

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """The score and information of log rho that the local step has left; zeros where it was not taken."""
        like, size = chunk.shared[f"{self.name}.log_rho"], len(chunk.clients)
        if not self.turns(chunk.round, chunk.shared):
            form = self.form({f"{self.name}.log_rho": like})
            return {key: like.new_zeros((size, *field.shape)) for key, field in form.items()}
        left = {key: chunk.values[f"{self.latent}/{key}"].squeeze(1).to(like) for key in ("score", "information")}
        if self.judged:
            left["gain"] = (
                chunk.values[f"{self.latent}/gain"]
                .squeeze(1)
                .to(like)
                .nan_to_num(-MAX_GAIN_NATS)
                .clamp(-MAX_GAIN_NATS, MAX_GAIN_NATS)
            )
        return left

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """A step. Sums of the clients that have reported are used for those of all."""
        if not self.turns(context.round, context.shared):
            return dict(old)
        kept, log_rho = context.rule_state, old[f"{self.name}.log_rho"].double()
        sums, length = of_all(total, context)
        penalty = (2 * log_rho).exp() / self.rho_scale**2
        information = sums["information"] + torch.diag(2 * penalty)
        zero = torch.zeros_like(log_rho)
        kept.setdefault("tries", zero[:1])
        moved = scored("log_rho", log_rho, sums["score"] - penalty, information, length, context)
        values = {"log_rho": moved, "information": information}
        if self.judged:
            # Where a sample of clients reports, gains are averaged over about as many messages as there are clients.
            known = (kept["taken"] >= TOO_WIDE_TURNS) & (kept["taken"] * context.reported >= context.num_clients)
            wide = (sums["gain"] < TOO_WIDE_NATS) & known & (log_rho > LEAST_LOG).any()
            narrower = (log_rho - math.log(NARROWING_FACTOR)).clamp_min(LEAST_LOG)
            kept["taken"] = torch.where(wide, 0, kept["taken"])
            # Steps begin again, too.
            kept |= {
                f"log_rho/{k}": torch.where(wide, zero, kept[f"log_rho/{k}"]) for k in ("step", "whole", "log_factor")
            }
            values |= {"log_rho": torch.where(wide, narrower, moved), "restart": wide}
        new = {k: values.get(k.removeprefix(f"{self.name}."), v) for k, v in old.items()}
        return {k: new[k].clamp(-LARGEST, LARGEST).to(v) for k, v in old.items()}


@dataclass(frozen=True)
class CommonShift:
    """The heads' mean distance from w, weighted by their clients' rows: the part that w itself is off.

    Args:
        until: the last round in which it is sent.
        mean: the personal value.
        centre: the shared value that it is beside; "" for zero.
    """

    until: int
    mean: str = "mu"
    centre: str = "w"
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """A shift times a number of rows, and that."""
        ((_, value),) = old.items()
        return {"shift": Field(tuple(value.shape), value.dtype, weight=itemgetter("weight")), "weight": beside(old)}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """(n_j (mu_j - w), n_j)."""
        (name,), shared = names, chunk.method.prediction_params(chunk.shared)  # type: ignore[attr-defined]
        shift = chunk.values[self.mean].squeeze(1) - (shared[self.centre] if self.centre else 0.0)
        shift = shift if chunk.round <= self.until else torch.zeros_like(shift)
        return {"shift": times_rows(chunk.n, shift).to(chunk.shared[name]), "weight": chunk.n.to(chunk.shared[name])}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Divide."""
        return dict.fromkeys(old, total["shift"] / total["weight"])


@dataclass(frozen=True)
class Heads:
    """The clients' own heads: their values, local step and server rule.

    Args:
        head: of the network.
        sigma_0: where rho begins.
        rho_scale: of its prior.
        rank: of a head's covariance where d x d numbers are too many.
        points: of each example's predictor, over which its likelihood is averaged.
        draws: of each client's posterior in the end.
        centred: other latents of a client, whose means it is given.
        labels: whether responses are labels, no probability of which is above one.
    """

    head: LinearHead
    sigma_0: float
    rho_scale: float
    rank: int
    points: int
    draws: int
    centred: tuple[str, ...] = ("pi_j",)
    labels: bool = True

    @cached_property
    def blocks(self) -> Tensor:
        """Weights 0, biases 1: (d,)."""
        return block_numbers(self.head, apart=True)

    def rho(self, like: Tensor) -> Tensor:
        """The spread of each of the head's numbers, (d,)."""
        return of_numbers(param("heads.log_rho"), self.blocks).to(like)

    def shared(self) -> State:
        """log rho, its information, and whether posteriors begin again."""
        log_rho = torch.full((int(self.blocks.max()) + 1,), self.sigma_0, dtype=torch.float64).log()
        return {"heads.log_rho": log_rho, "heads.information": torch.eye(len(log_rho), dtype=torch.float64),
                "heads.restart": torch.zeros(1, dtype=torch.float64)}  # fmt: skip

    def personal(self, w: Tensor, kept: int = 1) -> State:
        """A posterior at w with spread zero, and its draws."""
        values = {"mu": w, "w_j_draws": w.expand(1, kept, -1), "seen": w.new_zeros(int(self.blocks.max()) + 2)}
        return values | ({"w_j_away": w.new_zeros(deviations(len(w)), len(w))} if self.points > 1 else {})

    def step(self, final: bool = False) -> GaussianHead:
        """A step on q(w_j), given the mean of the client's other latents."""
        order = self.head.matrix_order
        terms = PopulationTerms(
            blocks=self.blocks[order], groups=Groups(self.head.d, 1), covariance="", summary="seen",
            beside_none="probabilities" if self.labels else "densities",
        )  # fmt: skip
        small = self.head.d <= MAX_EXACT_NUMBERS
        turns, newton, nearer = (2, 5, 0) if final else (1, 1, MAX_CATCH_UP_STEPS)
        return GaussianHead(
            "w_j", "mu", covariance="full" if small else "low_rank", newton=newton, nearer=nearer, turns=turns,
            rank=self.rank, terms=None if final else terms, final=self.draws if final else 0, points=self.points,
            centred=self.centred,
        )  # fmt: skip

    def rule(self, turns: Turns) -> HeadSpreads:
        """How spreads are learned."""
        return HeadSpreads("heads", "w_j", self.rho_scale, turns, judged=True)
