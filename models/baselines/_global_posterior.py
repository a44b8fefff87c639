"""Methods with one model for all, of whose weights the server has a posterior: what they share.

    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w)))              rho -> 0: w_j = w, all weights of a network
    q(w)         = what the server knows of w: a Gaussian, or draws

A client that works in a round has a copy of w, and its w_j is the point there. Where it predicts it has none, and w_j
is a draw of q(w), the same for all, as it is for the global model and for a client that was never seen.
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
    prior_has_seen_data = True

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
        return self.working_prior(w, batch) if w.dim() == 3 else self.at(w)

    def posterior_of(self) -> Any:
        return self.at(param(self.copied))

    def at(self, w: Tensor) -> Any:
        """q(w_j): q(w) where ``w`` is the server's own (d,), the point at copies (S, 1, d) or draws (K, 1, 1, d)."""
        return self.known(w) if w.dim() == 1 else Delta(w).to_event(1)

    def new_client_terms(self, personal: State) -> State:
        return {}
