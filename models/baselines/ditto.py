"""Ditto: a personal model near FedAvg's. Li, Hu, Beirami and Smith, ICML 2021, Alg. 1.

    w            ~ flat                                          rho -> 0: FedAvg's, which learns nothing of v_j
    v_j | w      ~ N(w, rho_j^2 I),  rho_j^2 = 1 / (lambda n_j)  around w as it was broadcast; all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; v_j)))
    q(v_j)       = delta(v_j)

    minimised by client j: F_j(v_j) + (lambda / 2) |v_j - w|^2   (F_j the mean loss)

A round: every client trains a copy of w, and v_j, on the same minibatches. Those who take part send n_j w_j and n_j;
the server divides.
"""

from dataclasses import dataclass

from pyro.distributions import Delta, Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.method.about import About
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.ppl.plates import clients, param, sample

from ._global_and_personal import GlobalAndPersonal
from ._whole_network import penalty


class Ditto(GlobalAndPersonal):
    """v_j around w as it was broadcast."""

    about = About(
        name="ditto",
        what="a local model beside FedAvg's",
        paper="Li et al., ICML 2021",
        family="rho fixed, cut",
        stays="all",
        sent="all",
        message_size=1.0,
        order=350,
    )

    @dataclass(frozen=True)
    class Settings(GlobalAndPersonal.Settings):
        """The paper: lambda 1, or the best of 0.1, 1 and 2."""

        lam: float = setting(
            1.0,
            "lambda, how strongly a client's model is pulled to the shared one: rho_j^2 = 1 / (lambda n_j)",
            above=0,
            at_most=1e12,
        )

    settings: Settings

    def own(self, w: Tensor, batch: Batch) -> Tensor:
        around = Normal(param("broadcast.w"), penalty(self.settings.lam, batch))
        return sample("v_j", around.to_event(1))

    def guide(self, batch: Batch) -> None:
        with clients(batch):
            sample("v_j", Delta(param("v")).to_event(1))

    def schedule(self) -> Schedule:
        return Schedule(new_client_steps=[self.sgd("v")])
