"""The population of heads that are integrated out: its mean's posterior, and the spreads' marginal likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.laplace.population_terms import Groups
from hierfl.inference.messages.form import Field, Form, not_negative
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.scoring import scored
from hierfl.inference.state import State

from .waiting import waits_on

#: fields of a client's message, see :mod:`hierfl.inference.local.laplace.population_terms`
MESSAGE_FIELDS = ("gradient", "precision", "score", "information", "log_evidence")
#: some of them where A_j is not sent as a whole, and where clients have spreads of their own
STRETCH, VARIES = "stretch", ("varies_score", "varies_information")


@dataclass(frozen=True)
class HeadPopulation:
    """q(w) = N(m, S) and a spread rho_b for each block, from the clients' likelihoods of w with w_j integrated out.

        S = (sum_j A_j + A_0)^-1,    m <- m + S (sum_j u_j - A_0 m),    A_0 = diag(s_w)^-2

    which is S (sum b_j) in natural parameters; then damped scoring steps on log rho, and on log s_w by w's own marginal
    likelihood, d l / d log s_w = (|m|^2 + tr S) / s_w^2 - d in each block, and its prior N(0, 1). Where few clients
    report their sums are scaled by J / |A|. The shared values are NAME (m), NAME.covariance (S, packed),
    NAME.log_scale (log s_w, (B,)), NAME.log_rho (B,), NAME.information (B, B), of log rho and without w's share,
    NAME.log_evidence (1,), the log marginal likelihood of all data at what was broadcast, and where clients have
    spreads of their own NAME.log_varies (B,), log s of log rho_j ~ N(log rho, s^2).

    Args:
        name: NAME.
        latent: the heads' site, whose :class:`~hierfl.inference.local.laplace.step.GaussianHead` leaves the terms.
        order: of the weight matrix, in which the terms are, (d,).
        blocks: of the head's numbers in that order, (d,).
        groups: of A_j, and of S.
        rho_scale: of each rho's half-normal prior, which bounds rho where the data do not.
        learn_scale: whether s_w is learned.
        server_lr: share of the newest sums in the running ones of A_j and b_j, and length of the steps on logarithms.
        settle: most rounds in which the base waits (:mod:`.waiting`), where NAME.waits (1,) is a shared value.
    """

    name: str
    latent: str
    order: Tensor
    blocks: Tensor
    groups: Groups
    rho_scale: float
    learn_scale: bool = True
    server_lr: float = 1.0
    settle: int = 0
    sends_gradients: ClassVar[bool] = False

    @property
    def growing(self) -> tuple[str, ...]:
        """The evidence, a sum over all examples."""
        return (f"{self.name}.log_evidence",)

    @property
    def moving(self) -> tuple[str, ...]:
        """The mean, by which it is measured how far a round has moved."""
        return (self.name,)

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The terms."""
        w, blocks = old[self.name], old[f"{self.name}.log_rho"].shape
        form = {
            "gradient": Field(tuple(w.shape), w.dtype),
            "precision": Field((self.groups.packed_size,), w.dtype, self.groups.positive),
            "score": Field(blocks, w.dtype),
            "information": Field((*blocks, *blocks), w.dtype, not_negative),
            "log_evidence": Field((1,), w.dtype),
        }
        if self.groups.number > 1:
            form[STRETCH] = Field((2,), w.dtype, not_negative)
        if f"{self.name}.log_varies" in old:
            form |= {VARIES[0]: Field(blocks, w.dtype), VARIES[1]: Field(blocks, w.dtype, not_negative)}
        return form

    def message(self, names: object, chunk: ClientChunk) -> State:
        """What the local step has left."""
        keys = {f"{self.latent}/{key}": key for key in (*MESSAGE_FIELDS, STRETCH, *VARIES)}
        return {key: chunk.values[name].squeeze(1) for name, key in keys.items() if name in chunk.values}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Natural-gradient step on q(w), scoring on the logarithms of spreads."""
        name, order = self.name, self.order.to(old[self.name].device)
        blocks = self.blocks.to(order.device)
        current = {k.removeprefix(f"{name}."): v.double() for k, v in old.items()}
        current["m"] = current.pop(name)[order]
        sums = sums_of(total, context)
        current, sums, length, evidence = line_search(current, sums, self.groups, blocks, context)
        length = self.server_lr * length
        prior = (-2 * current["log_scale"]).exp()[blocks]
        mean = posterior_mean(current["m"], prior, sums, self.groups, context.rule_state, length)
        values = {
            "covariance": self.groups.packed(mean.covariance),
            "log_evidence": evidence,
            name: mean.m[order.argsort()],
        }
        penalty = (2 * current["log_rho"]).exp() / self.rho_scale**2
        information = sums["information"] + torch.diag(2 * penalty)
        values["log_rho"] = scored("log_rho", current["log_rho"], sums["score"] - penalty, information, length, context)
        values["information"] = information
        if f"{name}.waits" in old:
            # what was broadcast, and not what belongs to a step that is taken again
            waits, log_rho = old[f"{name}.waits"], current["log_rho"]
            values["waits"] = waits_on(waits, log_rho, values["log_rho"], self.settle, context)
        if "log_varies" in current:
            penalty = (2 * current["log_varies"]).exp()  # a half-normal prior of s, too: of scale 1, in log rho
            information = torch.diag(sums["varies_information"] + 2 * penalty)
            score = sums["varies_score"] - penalty
            values["log_varies"] = scored("log_varies", current["log_varies"], score, information, length, context)
        values["log_scale"] = current["log_scale"]
        if self.learn_scale:
            member = torch.nn.functional.one_hot(blocks).to(prior)
            # Log s_w ~ N(0, 1). Without it a block of few numbers, such as a single bias, often has its maximum at 0.
            scale, within = self.groups.split(prior.sqrt()), self.groups.split(member.mT).movedim(0, -1)
            left = torch.eye(self.groups.size).to(prior) - scale[..., :, None] * mean.covariance * scale[..., None, :]
            gamma = left.diagonal(dim1=-2, dim2=-1).flatten() @ member
            score = (prior * mean.m.square()) @ member - gamma - current["log_scale"]
            information = 2 * torch.einsum("gpb,gpq,gqc->bc", within, left.square(), within) + torch.eye(len(score)).to(
                prior
            )
            values["log_scale"] = scored("log_scale", current["log_scale"], score, information, length, context)
        return {k: bounded(values[k.removeprefix(f"{name}.")]).to(v) for k, v in old.items()}


#: no sum is larger than this, whatever was sent: squares of it are numbers, and it is one in single precision
LARGEST = 1e30


def bounded(value: Tensor) -> Tensor:
    """A value that is a number in single precision, too."""
    return value.clamp(-LARGEST, LARGEST)


def sums_of(total: State, context: AggregationContext) -> State:
    """Sums over all clients from those of the clients that have reported, in double precision."""
    return {k: bounded(v.double() * (context.num_clients / context.reported)) for k, v in total.items()}


def evidence_of(current: State, sums: State, groups: Groups, prior: Tensor) -> Tensor:
    """The log marginal likelihood of all data, or its lower bound, at what was broadcast: (..., 1).

    Args:
        current: as it was broadcast, m (..., d) and covariance (..., packed).
        sums: sums of the terms.
        groups: of the head's numbers.
        prior: A_0, a diagonal (..., d).
    """
    return sums["log_evidence"] - _divergence(current["m"], groups.unpacked(current["covariance"]), prior, groups)


#: rounds that begin again, one after the other, where a step has gone too far; then it is taken as it is
RETRIES = 4
#: what the evidence may fall by while clients' posteriors, spreads and the base follow, relative to its size: where all
#: clients report, and where a sample of them does
EVEN, SAMPLED = 0.2, 1.0


def line_search(
    current: State, sums: State, groups: Groups, blocks: Tensor, context: AggregationContext
) -> tuple[State, State, Tensor, Tensor]:
    """Start and length of the next step: a line search over rounds.

    A large fall of the evidence shows that the last step was too long. Newton's may be, where likelihoods are flat
    further out. Then the step is taken again from its start, with the sums of that round, a quarter as long. Each of
    several populations (...) has its own search.

    Args:
        current: as it was broadcast: m (..., d), covariance, log_scale and what else belongs to it.
        sums: sums of the terms.
        groups, blocks: of the head's numbers.
        context: of the round.

    Returns:
        The population and the sums at the step's start, the step's length (..., 1), and the evidence of what was
        broadcast, (..., 1).
    """
    kept = context.rule_state
    prior = (-2 * current["log_scale"]).exp()[..., blocks]
    evidence = evidence_of(current, sums, groups, prior)
    joined = _joined(groups)
    # Before the first round q(w) has the broadcast population's mean and the first sums' precision.
    begun = {"linear": joined(groups.unpacked(sums["precision"]), current["m"]), "precision": sums["precision"]}
    state = {f"known/{k}": v for k, v in current.items()} | {f"said/{k}": v for k, v in sums.items()}
    nothing = torch.zeros_like(evidence)
    damping, tries, old = (kept.get(k, nothing) for k in ("damping", "tries", "begun"))
    state |= {f"running/{k}": _chosen(old > 0, kept.get(k, v), v) for k, v in begun.items()} | {"evidence": evidence}
    reference = kept.get("last/evidence", evidence)
    all_here = (context.reported == context.num_clients).to(evidence.device)
    least = reference - torch.where(all_here, EVEN, SAMPLED) * reference.abs().clamp_min(1)
    fallen = (old > 0) & ~(evidence >= least) & (tries < RETRIES)
    state = {k: _chosen(fallen, kept.get(f"last/{k}", v), v) for k, v in state.items()}
    damping = torch.where(fallen, 4 * damping + 3, 0.5 * damping).clamp_max(15.0)
    tries = torch.where(fallen, tries + 1, nothing)
    kept.update({f"last/{k}": v.clone() for k, v in state.items()}, damping=damping, tries=tries, begun=nothing + 1)
    kept.update({k: state[f"running/{k}"] for k in begun})
    return _under("known/", state), _under("said/", state), 1 / (1 + damping), evidence


def _under(prefix: str, values: State) -> State:
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _chosen(which: Tensor, first: Tensor, other: Tensor) -> Tensor:
    """Chooses one or the other of values (..., *shape) for each population, (..., 1)."""
    which = which.reshape(*which.shape[:-1], *[1] * (first.dim() - which.dim() + 1))
    return torch.where(which, first, other)


@dataclass(frozen=True)
class PopulationMean:
    """q(w), in the order of the weight matrix: m (..., d) and S (..., G, p, p)."""

    m: Tensor
    covariance: Tensor


def posterior_mean(
    m: Tensor, prior: Tensor, sums: State, groups: Groups, kept: State, length: Tensor
) -> PopulationMean:
    """A natural-gradient step on q(w); of several populations (...) side by side.

    Args:
        m: where the sums were made, (..., d).
        prior: A_0, a diagonal (..., d).
        sums: gradient (..., d), precision (..., packed) and, where the groups leave out some of the precision, stretch
            (..., 2), a weighted sum and its weights.
        groups: of the precision.
        kept: natural parameters "linear" and "precision", which go part of the way to the newest.
        length: the part, (..., 1).
    """
    joined = _joined(groups)
    newest = {
        "linear": sums["gradient"] + joined(groups.unpacked(sums["precision"]), m),
        "precision": sums["precision"],
    }
    for key, value in newest.items():
        kept[key] = kept[key] + length * (value - kept[key])
    # Rounding errors of the clients' may take it below the prior's.
    scale = groups.split(prior).rsqrt()
    precision = groups.unpacked(kept["precision"]) + torch.diag_embed(groups.split(prior))
    values, vectors = torch.linalg.eigh(precision * scale[..., :, None] * scale[..., None, :])
    root = scale[..., :, None] * vectors * values.clamp_min(1).rsqrt()[..., None, :]
    covariance = root @ root.mT
    move = joined(covariance, kept["linear"] - joined(precision, m))
    if STRETCH in sums:
        move = move * sums[STRETCH][..., 1:] / sums[STRETCH][..., :1]
    # A move's root mean square is at most one prior standard deviation: the base is trained on the heads it leads to.
    move = move / (prior * move.square()).mean(-1, keepdim=True).sqrt().clamp_min(1)
    return PopulationMean(m + move, covariance)


def _divergence(m: Tensor, covariance: Tensor, prior: Tensor, groups: Groups) -> Tensor:
    """KL(q(w) || p(w)), (..., 1); none where nothing is known of w yet."""
    scaled = groups.split(prior)[..., None] * covariance
    has_covariance = (covariance != 0).flatten(-3).any(-1)
    identity = torch.eye(scaled.shape[-1], dtype=m.dtype, device=m.device)
    log_det = torch.linalg.slogdet(torch.where(has_covariance[..., None, None, None], scaled, identity)).logabsdet.sum(
        -1
    )
    trace = scaled.diagonal(dim1=-2, dim2=-1).sum((-2, -1))
    spread = torch.where(has_covariance, trace - m.shape[-1] - log_det, 0.0)
    return 0.5 * ((prior * m.square()).sum(-1) + spread)[..., None]


def _joined(groups: Groups) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda blocks, v: (blocks @ groups.split(v)[..., None]).squeeze(-1).flatten(-2)
