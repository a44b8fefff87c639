"""Methods with one model for all, of whose weights the server has a posterior: what they share.

    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w)))              rho -> 0: w_j = w, all weights of a network
    q(w)         = what the server knows of w: a Gaussian, or draws

A client that works in a round has a copy of w, and its w_j is the point there. Where it predicts it has none, and w_j
is a draw of q(w), as it is for the global model and for a client that was never seen.
"""

from typing import Any, ClassVar

from pyro.distributions import Delta
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.state import State
from hierfl.ppl.plates import flat, param, sample

from ._whole_network import WholeNetwork


class GlobalPosterior(WholeNetwork):
    """rho -> 0, and a posterior of the shared w."""

    #: the shared value of which a client that works has a copy, (S, 1, d); the server's own is (d,)
    copied: ClassVar[str] = "w"

    def personal(self, start: InitialWeights) -> State:
        return {}

    def global_prior(self, batch: Batch) -> Any:
        """p(w)."""
        return flat(self.network.d)

    def known(self, w: Tensor) -> Any:
        """q(w), as the server has it; ``w`` is its own value, (d,)."""
        raise NotImplementedError

    def working_prior(self, w: Tensor, batch: Batch) -> Any:
        """p(w_j) at clients that work in a round; ``w`` are their copies, (S, 1, d)."""
        raise NotImplementedError

    def prior(self, batch: Batch) -> Any:
        w = sample(self.copied, self.global_prior(batch))
        return self.working_prior(w, batch) if w.dim() > 1 else self.known(w)

    def posterior_of(self) -> Any:
        w = param(self.copied)
        return Delta(w).to_event(1) if w.dim() > 1 else self.known(w)

    def new_client_terms(self, personal: State) -> State:
        return {}
