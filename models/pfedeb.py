"""PFedEB: personalised federated empirical Bayes, the heads integrated out.

A method of this project: the model of pFedVEM, with a posterior of w and with spreads that the data decide.

    w            ~ N(0, diag(s_w)^2)
    w_j | w      ~ N(w, D),   D = diag(rho)^2;    s_w and rho: one for the weights, one for the biases
    y_ij | x_ij  ~ Categorical(softmax(Q^T w_j h_theta(x_ij)))       Q: orthonormal contrasts of the classes

    q(w)         = N(m, S)
    q(w_j | w)   = N(P_j^-1 (H_j mu_j + g_j + D^-1 w), P_j^-1),    P_j = H_j + D^-1

with g_j and H_j gradient and curvature of client j's log likelihood, averaged over draws of q(w_j). A round, at every
client: mu_j by Newton's steps; what its likelihood says of w with w_j integrated out, and of log rho; a copy of theta
by gradient on the mean log likelihood. Those who take part send these, and n_j theta_j, n_j; the server adds them up:

    A_j = H_j (I + D H_j)^-1,   u_j = D^-1 (E[w_j | m] - m)
    S = (sum A_j + A_0)^-1,     m <- m + S (sum u_j - A_0 m),      A_0 = diag(s_w)^-2
    d l / d log rho_b = sum_j |E[w_j | m] - m|_b^2 / rho_b^2 - sum_j tr_b(H_j P_j^-1) + rho_b^2 sum_j tr_b(A_j S A_j)


Predictions draw log rho, then w, then w_j given w: a client's own data are counted once.
"""

from dataclasses import dataclass
from typing import Literal

from pyro.distributions import Delta, Normal

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.gradient_transforms import Clipped
from hierfl.inference.local.laplace.nodes import AtNodes
from hierfl.inference.local.laplace.population_terms import PopulationTerms
from hierfl.inference.local.laplace.step import GaussianHead
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.local.until import Until
from hierfl.inference.method.about import About
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.head_nodes import HeadNodes
from hierfl.inference.server.rules.heads import HeadPopulation
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, data, flat, param, sample

from ._normal_population import NormalPopulation, of_numbers

FLAT: dict[str, tuple[object, ...]] = {"prior": ("flat",)}
HELD: dict[str, tuple[object, ...]] = {"prior": ("fixed", "flat")}
GAUSSIAN: dict[str, tuple[object, ...]] = {"prior": ("hierarchical", "fixed")}
NOT_LOW_RANK: dict[str, tuple[object, ...]] = {"covariance": ("diagonal", "kronecker", "full")}


class PFedEB(NormalPopulation):
    """Laplace posteriors of heads with correlations, Gaussian q(w), spreads by marginal likelihood, averaged base."""

    about = About(
        name="pfedeb",
        what="empirical Bayes, heads integrated out (this project)",
        family="hierarchical",
        stays="q(head)",
        sent="likelihood of w, score of rho, base",
        message_size=1.58,
        order=70,
    )
    independent_draws = True

    @dataclass(frozen=True)
    class Settings:
        """Nothing published: defaults hold for features of unit size."""

        prior: Literal["hierarchical", "fixed", "flat"] = setting(
            "hierarchical",
            "prior of the clients' heads: q(w) and rho learned | held at 0 and sigma_0 | none, and a point by gradient "
            "steps",
        )
        covariance: Literal["auto", "diagonal", "kronecker", "low_rank", "full"] = setting(
            "auto",
            "of a head's posterior: variances alone | a Kronecker product | low rank, variances | any; auto: any for "
            "heads of at most 600 numbers, else low rank",
            unless=FLAT,
        )
        rank: int = setting(50, "of covariance=low_rank", at_least=1, unless=NOT_LOW_RANK)
        exchange: Literal["auto", "diagonal", "outputs", "full"] = setting(
            "auto",
            "what a client sends of its likelihood's precision, and so q(w)'s covariance: the diagonal | a matrix for "
            "each output | all of it; auto: all where the head has at most 600 numbers, else a matrix for each output",
            unless=HELD,
        )
        spreads: Literal["pooled", "blocks", "clients"] = setting(
            "blocks", "one rho | weights and biases have one each | each client has its own two, under a learned prior",
            unless=HELD,
        )  # fmt: skip
        nodes: Literal["auto", "on", "off"] = setting(
            "auto",
            "integrate over log rho with q(w) at each of nine nodes; auto: for heads of at most 50 numbers; otherwise "
            "its posterior is Gaussian",
            unless=HELD,
        )
        sigma_0: float = setting(
            0.3, "initial rho of every block", above=0, unless=FLAT, scale_of=("hierarchical", "fixed")
        )
        w_scale: float = setting(
            0.0, "s_w, prior standard deviation of w's numbers; 0: learned, log s_w ~ N(0, 1)", at_least=0, unless=HELD
        )
        rho_scale: float = setting(10.0, "scale of the half-normal prior of rho", above=0, unless=HELD)
        init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0)
        newton: int = setting(1, "Newton steps on the head in a round, at most", at_least=1, unless=FLAT)
        head_epochs: int = setting(10, "gradient steps on the head in a round", at_least=0, unless=GAUSSIAN)
        head_lr: float = setting(1e-2, "step size of those, on the sum over examples", above=0, unless=GAUSSIAN)
        base_epochs: int = setting(5, "passes through a client's data that train the base in a round", at_least=0)
        base_rounds: int = setting(
            0, "rounds after which the base is held, so that q(w) and rho settle; 0: trained in all", at_least=0
        )
        base_lr: float = setting(1e-3, "step size of the base, on the mean over examples", above=0)
        base_batch: int = setting(10, "examples in a minibatch of the base's training", at_least=1)
        base_clip: float = setting(30.0, "norm to which longer gradients of the base are shortened", above=0)
        momentum: float = setting(0.9, "momentum of those steps; every round begins without any", at_least=0)
        points: int = setting(
            0,
            "points of each example's predictor over which its likelihood is averaged, at least; 1: at the mode "
            "(Laplace); 0: 16, or 64 for a head of at most 50 numbers",
            at_least=0,
            unless=FLAT,
        )
        server_lr: float = setting(
            1.0, "how far the server goes to what the clients say, of w, rho and the base", above=0, at_most=1
        )
        server_momentum: float = setting(
            0.0, "momentum of the base at the server, while it is trained", at_least=0, below=1
        )
        draws: int = setting(100, "draws of each client's posterior that are kept at the end", at_least=2, unless=FLAT)

        def __post_init__(self) -> None:
            if self.nodes == "on" and self.spreads == "clients":
                raise UserError("nodes=on integrates over a rho that clients share, and spreads=clients has none")

    settings: Settings

    def model(self, batch: Batch) -> None:
        net, s = self.network, self.settings
        p = flat(net.head.d)
        if s.prior == "hierarchical":
            scale = of_numbers(param("w.log_scale"), self.blocks)
            w = sample("w", Normal(0.0 * scale, scale).to_event(1))
        elif s.prior == "fixed":
            w = sample("w", flat(net.head.d))
        if s.prior != "flat":
            p = Normal(w, of_numbers(param("log_rho" if self.own else "w.log_rho"), self.blocks)).to_event(1)
        with clients(batch):
            w_j = sample("w_j", p)  # (K, S, 1, d)
            with data(batch):
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        q = Delta(param("mu")).to_event(1) if self.settings.prior == "flat" else EmpiricalDraws(param("w_j_draws"), 1)
        with clients(batch):
            sample("w_j", q)

    def posterior(self, terms: PopulationTerms | None = None, final: bool = False) -> GaussianHead:
        """Steps on q(w_j)."""
        s, learned = self.settings, self.settings.prior == "hierarchical"
        turns, newton, draws = (*((3, 20) if self.is_small else (2, 5)), s.draws) if final else (1, s.newton, 0)
        own = "log_rho" if self.own else ""
        return GaussianHead(
            "w_j", "mu", self.covariance, newton, turns, s.rank, terms, "w" if learned else "",
            self.groups if learned else None, draws, own, self.has_nodes, self.points,
        )  # fmt: skip

    def local(self) -> list[LocalStep]:
        s = self.settings
        descent, particles = sgd(s.base_lr, s.momentum), 1 if s.prior == "flat" or self.points == 1 else self.base_draws
        clipped = Clipped(s.base_clip)  # (where few examples say little of a head, some draws are far away)
        base = SVI(["base"], s.base_epochs, descent, s.base_batch, particles, per="example", transform=clipped)
        if s.prior == "flat":
            return [SVI(["mu"], s.head_epochs, sgd(s.head_lr, s.momentum)), Until(base, s.base_rounds)]
        own = ("log_rho", "w.log_rho", "w.log_varies") if self.own else ()
        terms = PopulationTerms(self.blocks[self.order_of_matrix], self.groups, "w.covariance", "seen", *own)
        head = self.posterior(terms if s.prior == "hierarchical" else None)
        nodes = [AtNodes(head, "w", "nodes")] if self.has_nodes else []
        return [head, *nodes, Until(base, s.base_rounds)]

    def exchange(self) -> dict[str, AggregationRule]:
        s, order = self.settings, self.order_of_matrix
        rules: dict[str, AggregationRule] = {"base": SampleWeighted(s.server_lr, s.server_momentum, s.base_rounds)}
        if s.prior == "hierarchical":
            about = (order, self.blocks[order], self.groups, s.rho_scale)
            rules["w"] = HeadPopulation("w", "w_j", *about, learn_scale=not s.w_scale, server_lr=s.server_lr)
            if self.has_nodes:
                rules["nodes"] = HeadNodes("nodes", "w", *about, server_lr=s.server_lr)
        return rules

    def schedule(self) -> Schedule:
        s = self.settings
        if s.prior == "flat":
            return Schedule()
        # (a posterior follows from the shared values and the client's data: who does not report need not keep it fresh)
        return Schedule(absent="freeze", final_steps=[self.posterior(final=True)], final_when="evaluation")
