"""FedROD: a global head that balances classes, and a personal residual head. Chen and Chao, ICLR 2022, the linear one.

    w, theta     ~ flat                                          rho -> 0: head h(z) = w^T z and base, z = h_theta(x)
    y_ij | x_ij  ~ Categorical(softmax(h(z_ij) + log n_j))       n_jk examples of class k (site y_balanced)
    delta_j      ~ flat                                          rho -> inf: w_j = w + delta_j
    y_ij | x_ij  ~ Categorical(softmax(h(z_ij) + delta_j^T z_ij))    h and z held (site y)

What it needs beyond the one model is the balanced softmax (Ren et al., NeurIPS 2020), a likelihood in which a client's
labels are as frequent as it has them, so that w alone predicts as if all classes were equally frequent; and a cut: from
site y nothing flows back to w and theta. The personal model has the logits h + delta_j^T z, the global one h.

A round: every client counts its labels, and trains copies of w and theta, and delta_j, on the same minibatches, by
gradient descent on both mean log likelihoods. Those who take part send n_j w_j, n_j theta_j and n_j; the server
divides. n_jk and delta_j never leave the client.

``shares="on"`` is an ablation of this project: site y has the offset log C E[pi_j | n_j] (:mod:`.._share_offset`).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.class_counts import ClassCounts
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, flat, param, sample

from .._share_offset import ShareOffset, shares_setting
from ._global_network import GlobalNetwork


class FedROD(ShareOffset, GlobalNetwork):
    """A head for all that balances classes; a client's own is added to it, from where nothing shared learns."""

    about = About(
        name="fedrod",
        what="balanced head, own residual head",
        paper="Chen & Chao, ICLR 2022",
        family="rho -> inf on w_j - w, cut",
        stays="residual head",
        sent="all",
        message_size=1.0,
        order=125,
    )
    balances_classes: ClassVar[bool] = True

    @dataclass(frozen=True)
    class Settings(GlobalNetwork.Settings):
        """FedAvg's, and an ablation."""

        shares: Literal["off", "on"] = shares_setting()

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if network.noise is not None:
            raise UserError("fedrod balances classes: data with labels, not a regression")
        super().__init__(network, **settings)

    def shared(self, start: InitialWeights) -> State:
        return {**super().shared(start), **self.offset_shared(start)}

    def personal(self, start: InitialWeights) -> State:
        # Equal counts are those of a client of which nothing is known; at delta_j = 0 its model is the global one.
        counts = start.head.new_ones(self.network.head.outputs)
        delta = start.head.new_zeros(self.network.head.d)
        return {"delta": delta, **self.offset_personal(start), "class_counts": counts}

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.head.d))
        with clients(batch), data(batch):
            z = net.base(batch.x)
            h = net.head(w, z)
            sample("y_balanced", net.likelihood(h + log_shares(param("class_counts"))), obs=batch.y)
            own = h.detach() + net.head(param("delta"), z.detach())
            sample("y", net.likelihood(self.at_client(own)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        """Everything is a point."""

    def local(self) -> list[LocalStep]:
        return [ClassCounts("class_counts"), *self.offset_steps(), self.sgd("w", "base", "delta")]

    def exchange(self) -> dict[str, AggregationRule]:
        return {**super().exchange(), **self.offset_rules()}

    def schedule(self) -> Schedule:
        return Schedule(new_client_steps=[ClassCounts("class_counts"), *self.offset_steps(), self.sgd("delta")])

    def new_client_terms(self, personal: State) -> State:
        return {}  # without a residual head of its own a client has the global model


def log_shares(counts: Tensor) -> Tensor:
    """log of a client's class shares relative to equal ones, log(C n_jk / n_j): (S, 1, C).

    As logits they are log n_jk: a shift of all classes changes no probability, and here equal counts add exactly 0. A
    class that the client lacks has -inf: its probability is 0, and no gradient comes from it or from the others to it.

    Args:
        counts: n_jk, (S, 1, C).
    """
    return (counts.shape[-1] * counts / counts.sum(-1, keepdim=True)).log()
