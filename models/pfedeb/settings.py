"""What a user of PFedEB may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hierfl.errors import UserError
from hierfl.inference.method.settings import setting

UNLESS_PRIOR_IS_FLAT: dict[str, tuple[object, ...]] = {"prior": ("flat",)}
UNLESS_PRIOR_IS_LEARNED: dict[str, tuple[object, ...]] = {"prior": ("fixed", "flat")}
GAUSSIAN: dict[str, tuple[object, ...]] = {"prior": ("hierarchical", "fixed")}
NOT_LOW_RANK: dict[str, tuple[object, ...]] = {"covariance": ("diagonal", "kronecker", "full")}


@dataclass(frozen=True)
class PFedEBSettings:
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
        unless=UNLESS_PRIOR_IS_FLAT,
    )
    rank: int = setting(50, "of covariance=low_rank", at_least=1, unless=NOT_LOW_RANK)
    exchange: Literal["auto", "diagonal", "outputs", "full"] = setting(
        "auto",
        "what a client sends of its likelihood's precision, and so q(w)'s covariance: the diagonal | a matrix for "
        "each output | all of it; auto: all where the head has at most 600 numbers, else a matrix for each output",
        unless=UNLESS_PRIOR_IS_LEARNED,
    )
    spreads: Literal["pooled", "blocks", "clients"] = setting(
        "blocks", "one rho | weights and biases have one each | each client has its own two, under a learned prior",
        unless=UNLESS_PRIOR_IS_LEARNED,
    )  # fmt: skip
    nodes: Literal["auto", "on", "off"] = setting(
        "auto",
        "integrate over log rho with q(w) at each of nine nodes; auto: for heads of at most 50 numbers; otherwise "
        "its posterior is Gaussian",
        unless=UNLESS_PRIOR_IS_LEARNED,
    )
    sigma_0: float = setting(
        0.3,
        "initial rho of every block",
        above=0,
        unless=UNLESS_PRIOR_IS_FLAT,
        scale_of=("hierarchical", "fixed"),
        at_most=1e12,
    )
    w_scale: float = setting(
        0.0,
        "s_w, prior standard deviation of w's numbers; 0: learned, log s_w ~ N(0, 1)",
        at_least=0,
        unless=UNLESS_PRIOR_IS_LEARNED,
        at_most=1e12,
    )
    rho_scale: float = setting(
        10.0, "scale of the half-normal prior of rho", above=0, unless=UNLESS_PRIOR_IS_LEARNED, at_most=1e12
    )
    init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0, at_most=1e12)
    newton: int = setting(1, "Newton steps on the head in a round, at most", at_least=1, unless=UNLESS_PRIOR_IS_FLAT)
    head_epochs: int = setting(10, "gradient steps on the head in a round", at_least=0, unless=GAUSSIAN)
    head_lr: float = setting(1e-2, "step size of those, on the sum over examples", above=0, unless=GAUSSIAN)
    base_epochs: int = setting(5, "passes through a client's data that train the base in a round", at_least=0)
    base_rounds: int = setting(
        0, "rounds after which the base is held, so that q(w) and rho settle; 0: trained in all", at_least=0
    )
    settle: int = setting(
        0, "rounds at most in which the base waits at the start until rho has settled; 0: it does not wait",
        at_least=0, unless=UNLESS_PRIOR_IS_LEARNED, newer=True,
    )  # fmt: skip
    base_lr: float = setting(1e-3, "step size of the base, on the mean over examples", above=0)
    base_batch: int = setting(10, "examples in a minibatch of the base's training", at_least=1)
    base_clip: float = setting(30.0, "norm to which longer gradients of the base are shortened", above=0)
    momentum: float = setting(0.9, "momentum of those steps; every round begins without any", at_least=0)
    points: int = setting(
        0,
        "points of each example's predictor over which its likelihood is averaged, at least; 1: at the mode "
        "(Laplace); 0: 16, or 64 for a head of at most 50 numbers",
        at_least=0,
        unless=UNLESS_PRIOR_IS_FLAT,
        at_most=1_000_000,
    )
    server_lr: float = setting(
        1.0, "how far the server goes to what the clients say, of w, rho and the base", above=0, at_most=1
    )
    server_momentum: float = setting(
        0.0, "momentum of the base at the server, while it is trained", at_least=0, below=1
    )
    draws: int = setting(
        100,
        "draws of each client's posterior that are kept at the end",
        at_least=2,
        unless=UNLESS_PRIOR_IS_FLAT,
        at_most=100_000,
    )

    def __post_init__(self) -> None:
        if self.nodes == "on" and self.spreads == "clients":
            raise UserError("nodes=on integrates over a rho that clients share, and spreads=clients has none")
        if self.base_rounds and self.settle >= self.base_rounds:
            raise UserError(f"settle={self.settle} leaves the base no round: base_rounds is {self.base_rounds}")
