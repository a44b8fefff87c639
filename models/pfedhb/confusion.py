"""Confusions between labels and classes, one for each client, with a population. They model drift of concepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.messages.form import Field, Form, not_negative
from hierfl.inference.objective.sites import guide_latents, model_sites
from hierfl.inference.server.rules.base import AggregationContext, AggregationRule
from hierfl.inference.server.rules.label_shares import step as log_step
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.label_confusion import ConfusionGiven, LabelConfusion, given_densities
from hierfl.ppl.plates import param
from hierfl.ppl.unlabelled_shares import DOUBT
from hierfl.rng import ClientNoise

from .heads import HeadSpreads
from .report import PARTS
from .rho_nodes import RhoNodes
from .trust import TrustedNodes, TrustedSpreads, TrustWeighted, trust_of

#: classes at most: a draw has the square of it
MAX_CLASSES = 64
#: where the population begins: one client in ten, half of its labels, rows with half of their mass at the label
LAMBDA, MU, A = 0.1, 0.5, 1.0
#: lambda's mean under a prior that weighs as much as one client: without evidence a client's labels are not confused
PRIOR = 0.1
#: both concentrations stay in this range
LEAST_CONCENTRATION, MOST_CONCENTRATION = 1e-3, 1e3
#: sweeps of a client's posterior in a round, and in the end
SWEEPS, FINAL_SWEEPS = 10, 50
#: numbers of densities that are held at a time
MAX_DENSITIES_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Confusion:
    """A client's B_j[y, k] = P(class k | label y), see :mod:`hierfl.ppl.label_confusion`.

    Args:
        classes: C.
        draws: of each client's posterior in the end.
        bare: the same model without confusion and label shares; its network classifies the inputs.
        fixed: whether the population stays where it begins.
    """

    classes: int
    draws: int
    bare: Any
    fixed: bool = False

    def shared(self) -> State:
        """The population's numbers: lambda, mu, a and b."""
        off = A / max(1, self.classes - 1)
        return {"confusion.numbers": torch.tensor([LAMBDA, MU, A, off], dtype=torch.float64)}

    def personal(self, like: Tensor) -> State:
        """The identity, and nothing learned."""
        identity = torch.eye(self.classes).to(like).flatten()
        unit = like.new_ones(1)
        return {"b_j_mean": identity, "b_j_draws": identity.expand(1, 1, -1), "confused": 0 * unit, "trust": unit}

    def prior(self) -> LabelConfusion:
        """p(B_j)."""
        return LabelConfusion(param("confusion.numbers"), self.classes)

    def given(self) -> ConfusionGiven:
        """q(B_j)."""
        return ConfusionGiven(param("b_j_draws"), param("b_j_mean"))

    def rules(self, others: Mapping[str, AggregationRule]) -> dict[str, AggregationRule]:
        """The rule that learns the population, if it is learned, and other rules with flagged clients' weights."""
        rules: dict[str, AggregationRule] = {}
        if not self.fixed:
            rules["confusion"] = ConfusionPopulation("confusion", self.classes)
        for name, rule in others.items():
            if type(rule) is SampleWeighted:
                rules[name] = TrustWeighted(**vars(rule))
            if type(rule) is HeadSpreads:
                rules[name] = TrustedSpreads(**vars(rule))
            if type(rule) is RhoNodes:
                rules[name] = TrustedNodes(**vars(rule))
        return rules

    def step(self, final: bool = False) -> Meanings:
        """The posteriors of B_j."""
        return Meanings(self, FINAL_SWEEPS if final else SWEEPS, self.draws if final else 0)


@dataclass(frozen=True)
class Meanings:
    """A local step on q(B_j), given the mean of the client's other latents. It also leaves the sums for the population.

    A part :data:`~hierfl.ppl.unlabelled_shares.DOUBT` of each density is the same for all classes, as where shares are
    estimated from inputs: a network's few sure errors would otherwise be a client's own meaning.

    Args:
        part: the part.
        sweeps: of the variational updates.
        final: draws in the end; 0 for none.
    """

    part: Confusion
    sweeps: int
    final: int

    @property
    def trains(self) -> Sequence[str]:
        """Mean and draws, the number of labels that mean something else, and the client's weight."""
        return ("b_j_mean", "b_j_draws", "confused", "trust")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Computes the posteriors of all rows."""
        values: dict[str, list[Tensor]] = {}
        with torch.no_grad():
            for first, last in buckets(chunk.sizes, max(1, MAX_DENSITIES_AT_ONCE // self.part.classes)):
                for key, value in self._rows(chunk.part(first, last)).items():
                    values.setdefault(key, []).append(value.to(chunk.n.dtype).unsqueeze(1))
        return chunk.put({key: torch.cat(parts) for key, parts in values.items()})

    def _rows(self, chunk: ClientChunk) -> State:
        bare, batch, c = self.part.bare, chunk.batch(), self.part.classes
        sites = model_sites(bare, batch, chunk.view, guide_latents(bare, batch, chunk.view, None))
        log_m = chunk.shared["shares.log_pooled"].log_softmax(-1)
        density = (1 - DOUBT) * (sites["y"].fn.logits - log_m).double().softmax(-1) + DOUBT / c
        numbers = chunk.shared["confusion.numbers"]
        given = given_densities(numbers, density.log(), batch.y, batch.mask, self.sweeps)
        draws = chunk.values["b_j_draws"].squeeze(1)
        if self.final:
            noise = ClientNoise(
                chunk.keys.to(draws.device), (chunk.seed, "confusion"), self.final, dtype=torch.float64
            )  # fmt: skip
            u = noise.uniform("b_j", 1, torch.Size([1 + c + 2 * c * c])).squeeze(2).clamp(1e-12, 1 - 1e-12)
            draws = given.draws(u).flatten(-2).transpose(0, 1)[:, None]  # (S, 1, K, C C)
        sums = {f"b_j/{key}": value for key, value in given.sums().items()}
        confused = given.confused[:, None]
        own = {"b_j_mean": given.mean.flatten(1), "b_j_draws": draws, "confused": confused}
        return {**own, "trust": trust_of(confused), **sums}


@dataclass(frozen=True)
class ConfusionPopulation:
    """EM on lambda, mu, a and b of :class:`~hierfl.ppl.label_confusion.LabelConfusion`.

    The shared value is NAME.numbers (4,). A client sends six numbers: P(g_j = 1), the expected number of its labels
    that mean something else, of how many that it has, and of a and b three sums whose ratios are Minka's fixed points.
    lambda has a prior of one client in all, of which a tenth is confused; mu of one label, log a and log b of standard
    deviation 2 around where they begin. Where only some clients report, what they say replaces as large a part of what
    was known.

    Args:
        name: NAME.
        classes: C.
    """

    name: str
    classes: int
    no_noise: ClassVar[str] = "whose labels mean what is learned from few clients, whom noise would hide: confusion=off"
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """A probability, labels, and sums that are not below zero."""
        dtype, few = old[f"{self.name}.numbers"].dtype, self.classes + 1e-3
        return {
            "clients": Field((1,), dtype, lambda p: (p >= 0) & (p <= 1 + 1e-6)),
            "labels": Field((1,), dtype, lambda p: (p >= 0) & (p <= few)),
            "seen": Field((1,), dtype, lambda p: (p >= 0) & (p <= few)),
            **{key: Field((1,), dtype, not_negative) for key in ("up_a", "up_b", "down")},
        }

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """What the local step has left."""
        like = chunk.shared[f"{self.name}.numbers"]
        keys = ("clients", "labels", "seen", "up_a", "up_b", "down")
        return {key: chunk.values[f"b_j/{key}"].squeeze(1).to(like) for key in keys}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """One step of EM."""
        kept, share = context.rule_state, context.reported / context.num_clients
        for key, value in total.items():
            means = value.double() / context.reported
            kept[key] = means if key not in kept else kept[key] + share * (means - kept[key])
        clients, labels, clients_seen, up_a, up_b, down = (
            kept[key] * context.num_clients for key in ("clients", "labels", "seen", "up_a", "up_b", "down")
        )
        numbers = old[f"{self.name}.numbers"]
        _, _, a, b = numbers.double().split(1)
        chance = (clients + PRIOR) / (context.num_clients + 1)
        some = (labels + MU) / (clients_seen + 1)
        off = A / max(1, self.classes - 1)
        a = moved(a, up_a, down, A)
        b = moved(b, up_b, down * (self.classes - 1), off)
        new = torch.cat([chance.clamp(1e-6, 1 - 1e-6), some.clamp(1e-6, 1 - 1e-6), a, b])
        return {f"{self.name}.numbers": new.to(numbers)}


def moved(old: Tensor, up: Tensor, down: Tensor, begun: float) -> Tensor:
    """A concentration after a step of EM: up are sums of x (psi(n + x) - psi(x)), down of psi(n + s) - psi(s)."""
    log_old = old.log()
    away = log_old - torch.as_tensor(begun).to(old).log()  # the prior is around where it began
    return (log_old + log_step(up, down * old, away)).exp().clamp(LEAST_CONCENTRATION, MOST_CONCENTRATION)


def without(kind: Callable[..., Any], network: Architecture, settings: Any, *parts: str) -> Any:
    """A method with the same settings, but for some parts that are off."""
    values = {**vars(settings), **dict.fromkeys(parts, "off")}
    silent = [] if any(values[part] == "auto" for part in PARTS) else ["judged"]
    silent += ["adapter_rank", "adapter_layers"] if values["adapters"] == "off" else []
    of_labels = {values[part] for part in PARTS if part != "outcome"}
    silent += ["prior"] if of_labels == {"off"} else []  # it sets how populations are learned, and here is none
    silent += ["every"] if {values[part] for part in ("heads", "features", "adapters")} == {"off"} else []
    return kind(network, **{**values, **{name: getattr(type(settings), name) for name in silent}})
