"""APFL: a learned mixture of a personal model and FedAvg's. Deng, Kamani and Mahdavi, 2020, Alg. 1.

    w            ~ flat                                          rho -> 0: FedAvg's, which learns nothing of v_j
    v_j          ~ flat                                          rho -> inf: all weights of a network
    w_j          = alpha_j v_j + (1 - alpha_j) w
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w_j)))

A round: every client takes a step on alpha_j, back into [0, 1], and then trains a copy of w, and v_j through the
mixture, on the same minibatches. Those who take part send n_j w and n_j; the server divides.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.closed_form import ClosedForm
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.state import State
from hierfl.ppl.plates import param

from ._global_and_personal import GlobalAndPersonal


class APFL(GlobalAndPersonal):
    """v_j mixed with w, by a weight that is learned."""

    about = About(
        name="apfl",
        what="a mixture with FedAvg's model",
        paper="Deng et al., 2020",
        family="rho -> inf, mixed, cut",
        stays="all, alpha",
        sent="all",
        message_size=1.0,
        order=360,
    )

    @dataclass(frozen=True)
    class Settings(GlobalAndPersonal.Settings):
        """The paper: alpha_j learned, from 0.5 or 0.01."""

        alpha: float = setting(
            0.5,
            "initial share of a client's own model in its mixture: 0 is the shared model alone",
            at_least=0,
            below=1,
        )
        alpha_lr: float = setting(1e-2, "step size of that share, one step a round; 0 holds it", at_least=0)

    settings: Settings

    def personal(self, start: InitialWeights) -> State:
        return {**super().personal(start), "alpha": torch.tensor([self.settings.alpha], dtype=torch.float64)}

    def own(self, w: Tensor, batch: Batch) -> Tensor:
        return torch.lerp(w, param("v"), param("alpha"))

    def guide(self, batch: Batch) -> None:
        """Everything is a point."""

    def mixing(self) -> list[LocalStep]:
        """One step on alpha_j, back into [0, 1]."""
        s = self.settings
        if not s.alpha_lr:
            return []
        step = SVI(["alpha"], 1, sgd(s.alpha_lr), per="example")
        return [step, ClosedForm("alpha", lambda v: v["alpha"].clamp(0, 1))]

    def local(self) -> list[LocalStep]:
        return [*self.mixing(), *super().local()]

    def schedule(self) -> Schedule:
        begin = ClosedForm("alpha", lambda v: torch.full_like(v["alpha"], self.settings.alpha))
        return Schedule(new_client_steps=[begin, self.sgd("v"), *self.mixing()])

    def new_client_terms(self, personal: State) -> State:
        return {"v": personal["v"]}

    def init_new_client(self, means: State, initial: State, personal: State) -> State:
        return {**means, "alpha": torch.zeros_like(initial["alpha"])}  # alpha 0 is w alone

    def client_summary(self, values: State) -> State:
        return {"alpha": values["alpha"].flatten()}
