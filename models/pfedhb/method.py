"""PFedHB: a hierarchical prior for each kind of difference between clients.

A method of this project. One network for all, and for each kind of difference between clients a latent of its own:

    w, theta      ~ flat                                               f = w^T h_theta, of the pooled data: FedAvg's
    |A_j|         ~ kappa,   pi_j | A_j ~ Dirichlet(beta C m, A_j)     which classes client j has, and how often
    w_j           ~ N(w, diag(rho)^2)                                  its head; rho of the weights and of the biases
    s_j, t_j      ~ N(0, tau_s^2), N(0, tau_t^2)                       v_j: scales and shifts of its features
    B_j           ~ spike at the identity, Dirichlet rows around it    b_j: what its labels mean (:mod:`.confusion`)
    m_j, l_j      ~ N(nu, tau^2), N(mu, omega^2)                       o_j: location, log scale of its responses
    B_jl          ~ N(0, tau_l^2)                                      a_j: layers W_l + B_jl A_l (:mod:`.adapters`)
    y_ij | x_ij   ~ Categorical(softmax(w_j^T h + w^T (s_j h + t_j) + log pi_j - log m))     h = h_theta(x_ij)
        with B_j the logit of y is log m_y sum_k B_j[y, k] p_k / m_k, pi_j apart             m: pooled shares of classes
    y_ij | x_ij   ~ N(w_j^T h + u m_j, (sigma e^{l_j})^2)                of a regression, u its unit (:mod:`.outcome`)

Where p(x | y) is the same for all clients, f says p(y | x) of the pooled data, and log pi_j - log m turns that into
p(y | x) at client j. A label says how often its class comes, and the network what it looks like: given its counts a
client's shares have a posterior in closed form (:mod:`hierfl.ppl.label_shares`). A share ``floor`` of its labels comes
as in the pooled data, so that a class that it never had keeps a probability.

Shares, heads, features, confusion, outcome and adapters are each on, off or ``auto``: then they enter one after the
other, where they gain on a fold of every client's rows from which nothing is trained in the first ``judged`` rounds
(:mod:`.parts`, and :class:`~hierfl.inference.server.rules.part_gains.PartGains`).

Inference is cut twice. w and theta are trained by FedAvg, as if clients did not differ: trained through the shares the
global model is a point worse. Shares are learned from counts alone, and heads and features given the means of the
others. Each population is at the maximum of its marginal likelihood, a sum over clients. A client of which nothing is
known has E[pi_j] = m and w_j = w: the global model is FedAvg's, number by number, or with ``average`` that of its
averaged weights.

A round: a client trains copies of w and theta, counts its labels, and moves its head's Gaussian posterior. Those who
take part send n_j w_j, n_j theta_j and n_j, and for the populations 2 C + 2 numbers of shares and 7 of rho. The server
divides, takes a step of EM on kappa and beta, and a scoring step on log rho. Heads move in one round of ``every``.
"""

from typing import Any

import torch
from pyro.distributions import Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.class_counts import ClassCounts
from hierfl.inference.local.cut import Cut
from hierfl.inference.local.label_shares import DrawShares
from hierfl.inference.local.laplace.points import EXACT
from hierfl.inference.local.without_fold import WithoutFold
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.label_shares import LabelSharePopulation
from hierfl.inference.server.rules.part_gains import PartGains
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.label_confusion import confused
from hierfl.ppl.label_shares import LabelShares, SharesGiven, log_offset
from hierfl.ppl.plates import clients, data, flat, param, sample

from ..baselines.fedavg import FedAvg
from .adapters import Adapters
from .client_steps import client_steps, own_rules
from .confusion import MAX_CLASSES, Confusion, without
from .features import MAX_FEATURES, TAU_0, TAU_SCALE, Features
from .heads import CommonShift, Heads
from .outcome import Outcome
from .own_norm import OwnNorm
from .parts import DRAWS, NULLS, Judge, held_gains
from .report import ABLATIONS, PARTS, client_numbers, gain_numbers
from .response_gains import ResponseJudge
from .rho_nodes import NODES, initial_nodes
from .turns import Turns


class PFedHB(OwnNorm):
    """FedAvg's network under hierarchical populations of label shares and of heads."""

    about = About(
        name="pfedhb",
        what="label shares and heads, each with a population (this project)",
        family="hierarchical",
        stays="label shares, q(head)",
        sent="all, sums of label counts, score of rho",
        message_size=1.0,
        order=71,
    )
    independent_draws = True
    #: predictions at the means of these are exact: p(x, y | pi_j, B_j) is linear in both
    integrated = "pi_j", "b_j"
    ablations = ABLATIONS

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        s, regression = self.settings, network.noise is not None
        self.pooled = FedAvg(network, **{k: v for k, v in vars(s).items() if k in FedAvg.Settings.__dataclass_fields__})
        #: each part's, of those that the task has
        self.switches = switches = s.switches(regression)
        #: the same without confusion: heads and features are learned as if labels meant the same everywhere
        self.unconfused: PFedHB = without(PFedHB, network, s, "confusion") if s.confusion != "off" else self
        #: without adapters, too: other parts are learned at a client's own layers
        plain = without(PFedHB, network, s, "confusion", "adapters") if s.adapters != "off" else self.unconfused
        self.plain: PFedHB = plain
        #: parts that enter where they gain
        self.auto = tuple(part for part, switch in switches.items() if switch == "auto")
        self.shares = LabelSharePopulation("shares", "class_counts", bool(self.auto), s.prior == "fixed")
        self.labels = not regression
        self.outcome = Outcome.for_network(network, s.draws) if switches["outcome"] != "off" else None
        others = {"pi_j": self.labels, "v_j": switches["features"] != "off", "o_j": self.outcome is not None}
        given = tuple(latent for latent, is_there in others.items() if is_there)
        own = Heads(network.head, s.sigma_0, s.rho_scale, s.rank, s.points, s.draws, given, self.labels)
        self.heads = own if s.heads != "off" else None
        nodes = s.nodes == "on" or (s.nodes == "auto" and network.head.d <= EXACT)
        self.nodes = nodes and s.heads != "off" and s.prior != "fixed"
        self.features = Features(network.head, TAU_0, TAU_SCALE, s.draws) if s.features != "off" else None
        layers = s.adapter_rank, s.adapter_layers
        self.adapters = Adapters.for_network(network.base, *layers, s.draws) if s.adapters != "off" else None
        if self.features and network.head.features > MAX_FEATURES:
            raise UserError(
                f"features={s.features}: a head has {MAX_FEATURES} features at most, not {network.head.features}"
            )
        if s.confusion != "off" and network.head.outputs > MAX_CLASSES:
            raise UserError(f"confusion={s.confusion}: {MAX_CLASSES} classes at most, not {network.head.outputs}")
        bare = without(PFedHB, network, s, "confusion", "shares") if s.confusion != "off" else None
        self.confusion = Confusion(network.head.outputs, s.draws, bare, s.prior == "fixed") if bare else None
        #: whether predictions know of it
        self.meanings = self.confusion if s.confusion != "trust" else None
        kind = ResponseJudge if regression else Judge
        self.gains = PartGains(
            "parts", self.auto, s.judged, len(NULLS), lambda chunk: held_gains(chunk, self.auto, kind)
        )  # fmt: skip
        # Of a regression clients are averaged over: what is not known of a new one widens what is said of it.
        self.global_draws = 100 if regression and (self.outcome or self.heads) else 0

    def shared(self, start: InitialWeights) -> State:
        network = super().shared(start)
        equal = -start.head.new_full((self.network.head.outputs,), self.network.head.outputs).log()
        population = {"shares.log_kappa": equal, "shares.log_beta": equal.new_zeros(1), "shares.log_pooled": equal}
        population = population if self.labels else {}
        own = [part.shared() for part in (self.heads, self.features, self.confusion, self.outcome) if part]
        own += [self.adapters.shared(start.rng)] if self.adapters else []
        own += [initial_nodes(int(self.heads.blocks.max()) + 1)] if self.heads and self.nodes else []
        own += [self.gains.shared()] if self.auto else []
        own += [{"common": torch.zeros_like(start.head)}] if self.auto and self.heads else []
        if self.adapters and "adapters" in self.auto:
            own += [{"common_adapters": start.head.new_zeros(self.adapters.changes.d)}]
        return {**network, **population, **{k: v for part in own for k, v in part.items()}}

    def personal(self, start: InitialWeights) -> State:
        norms, counts = super().personal(start), start.head.new_zeros(self.network.head.outputs)
        kept = {part: DRAWS if part in self.auto else 1 for part in PARTS}
        heads = self.heads.personal(self.settings.init_scale * start.head, kept["heads"]) if self.heads else {}
        if self.heads and self.nodes:
            k = len(next(iter(initial_nodes(int(self.heads.blocks.max()) + 1).values())))
            heads |= {f"{n}_{NODES}": heads[n].expand(k, *heads[n].shape) for n in self.heads.step().posterior}
        features = self.features.personal(start.head, kept["features"]) if self.features else {}
        confusion = self.confusion.personal(counts) if self.confusion else {}
        outcome = self.outcome.personal(counts, kept["outcome"]) if self.outcome else {}
        adapters = self.adapters.personal(counts, kept["adapters"]) if self.adapters else {}
        shares = {"class_counts": counts, "log_pi_j_draws": counts.expand(1, 1, -1)} if self.labels else {}
        return {**norms, **shares, **heads, **features, **confusion, **outcome, **adapters}

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.head.d))
        with clients(batch):
            pi_j = sample("pi_j", self.population()) if self.labels else None
            w_j = self.entered("heads", sample("w_j", Normal(w, self.heads.rho(w)).to_event(1)), w) if self.heads else w
            v_j = sample("v_j", Normal(0.0, self.features.tau(w)).to_event(1)) if self.features else None
            b_j = sample("b_j", self.meanings.prior()) if self.meanings else None
            o_j = sample("o_j", self.outcome.prior(w)) if self.outcome else None
            a_j = sample("a_j", Normal(0.0, self.adapters.tau(w)).to_event(1)) if self.adapters else None
            with data(batch):
                if self.adapters and a_j is not None and self.is_in("adapters"):
                    h = self.adapters.features(net.base, batch.x, a_j)
                else:
                    h = net.base(batch.x)
                f = net.head(w_j, h)  # ([K,] S, n, C)
                if self.features and v_j is not None:
                    f = f + self.entered("features", self.features.added(w, h, v_j))
                if b_j is not None:
                    f = self.entered("confusion", confused(f, b_j, param("shares.log_pooled")), f)
                if pi_j is not None and self.settings.shares != "off":
                    f = f + self.entered("shares", self.offset(pi_j))
                y = net.likelihood(f)
                if self.outcome and o_j is not None:
                    y = self.outcome.at(y, self.entered("outcome", o_j))
                sample("y", y, obs=batch.y)

    def guide(self, batch: Batch) -> None:
        with clients(batch):
            if self.labels:
                draws = param("log_pi_j_draws").softmax(-1)
                sample("pi_j", SharesGiven(draws, self.population(param("class_counts")).mean))
            if self.heads:
                sample("w_j", EmpiricalDraws(param("w_j_draws"), 1))
            if self.features:
                sample("v_j", EmpiricalDraws(param("v_j_draws"), 1))
            if self.meanings:
                sample("b_j", self.meanings.given())
            if self.outcome:
                sample("o_j", self.outcome.given())
            if self.adapters:
                sample("a_j", EmpiricalDraws(param("a_j_draws"), 1))

    def is_in(self, part: str) -> bool:
        """Whether a part is in the model; read from the device, where it would cost another pass through a network."""
        return part not in self.auto or bool(param(f"parts.{part}") > 0)

    def entered(self, part: str, value: Tensor, without: Tensor | None = None) -> Tensor:
        """A part's value where the part is in the model; otherwise the value without it, or zero."""
        if part not in self.auto:
            return value
        return torch.where(param(f"parts.{part}") > 0, value, torch.zeros_like(value) if without is None else without)

    def population(self, counts: Tensor | None = None) -> LabelShares:
        """p(pi_j), and p(pi_j | n_j)."""
        return LabelShares(param("shares.log_kappa"), param("shares.log_beta"), param("shares.log_pooled"), counts)

    def offset(self, pi_j: Tensor) -> Tensor:
        """log of how much more often each class comes at the client than in the pooled data, (..., C)."""
        return log_offset(pi_j, param("shares.log_pooled").softmax(-1), self.settings.floor)

    @property
    def label_shares(self) -> bool:
        """See :class:`~hierfl.inference.method.label_shares.HasLabelShares`."""
        return self.switches["shares"] != "off"

    def shares_entered(self, shared: State) -> bool:
        """See :class:`~hierfl.inference.method.label_shares.MayHaveLabelShares`."""
        return "shares" not in self.auto or bool(shared["parts.shares"] > 0)

    def share_population(self, shared: State, counts: Tensor | None = None) -> LabelShares:
        return self.shares.population(shared, counts)

    def neutral_shares(self, shared: State) -> Tensor:
        return shared["shares.log_pooled"].softmax(-1)

    def at_shares(self, shared: State, pi: Tensor) -> State:
        return {"pi_j": pi}

    def local(self) -> list[LocalStep]:
        steps: list[LocalStep] = [Cut(self.pooled, self.sgd("w", "base"))]
        steps += [ClassCounts("class_counts")] if self.labels else []
        steps = [WithoutFold(step, self.settings.judged) for step in steps] if self.auto else steps
        return [*steps, *client_steps(self)]

    def untrained_parts(self, rounds: int) -> str:
        """See :class:`~hierfl.inference.method.few_rounds.NeedsRounds`."""
        judged = self.settings.judged
        return "" if not self.auto or rounds >= judged else (
            f"parts on auto are decided by round {judged}, and this fit has {rounds}: a third of every client's rows "
            f"is kept from training to its end; judged={rounds} decides in time"
        )  # fmt: skip

    def turns(self, part: str) -> Turns:
        """The rounds in which a part's posteriors move."""
        s = self.settings
        every = 1 if part == "outcome" else s.every
        return Turns(every, f"parts.{part}", s.judged) if part in self.auto else Turns(every)

    def exchange(self) -> dict[str, AggregationRule]:
        rules: dict[str, AggregationRule] = {**super().exchange(), **({"shares": self.shares} if self.labels else {})}
        rules |= own_rules(self)
        if self.confusion:
            rules |= self.confusion.rules(rules)
        if self.auto:
            until = self.settings.judged
            rules |= {"parts": self.gains, **({"common": CommonShift(until)} if self.heads else {})}
            rules |= {"common_adapters": CommonShift(until, "a", "")} if "adapters" in self.auto else {}
        return rules

    def schedule(self) -> Schedule:
        draws = DrawShares("log_pi_j_draws", self.shares, self.settings.draws)
        steps: list[LocalStep] = [ClassCounts("class_counts"), draws] if self.labels else []
        steps = [*self.statistics_of_averages(self.pooled), *steps, *client_steps(self, final=True)]
        new = self.steps_of_newcomer(self.pooled, steps)
        return Schedule(absent="freeze", final_steps=steps, final_when="evaluation", new_client_steps=new)

    @property
    def coordinates(self) -> dict[str, list[str]]:
        """See :class:`~hierfl.inference.method.capabilities.NamedCoordinates`."""
        return {"o_j_dim_0": ["shift", "log scale"]} if self.outcome else {}

    def client_summary(self, values: State) -> State:
        """Classes expected, and how far shares are from the pooled ones, in nats; of a regression its shift and sd."""
        return client_numbers(self, values)

    def population_summary(self, fitted: Fitted) -> tuple[None, dict[str, float]]:
        """What each part gained on held rows, in nats, its standard error, and whether it is in the model."""
        return None, gain_numbers(fitted.shared, self.auto, self.settings.judged)
