"""Ascent of the clients' summed gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...clients.chunk import ClientChunk
from ...clients.gradients import elbo_gradient
from ...clients.scores import controlled_scores
from ...local.optimizers import MakeOptimizer, step_on_device
from ...messages.form import Form, values_form
from ...state import State
from .base import AggregationContext

#: from an optimiser to one of torch's schedules, such as ``partial(ExponentialLR, gamma=0.99)``
MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclass(frozen=True)
class Gradient:
    """The generic rule: ascend the clients' summed gradient of the restricted ELBO in the shared values.

    Any model runs with it. The sum over the |A| that reported is scaled by J / |A|, so that it estimates the sum over
    everyone, and the gradient of log p(globals) is added once. Where the guide is made of a chain's draws this is
    stochastic ascent of the marginal likelihood by Fisher's identity, grad log p(D_j | beta) = E[grad log p(z, D_j |
    beta) | D_j] (FedPop; Kotelevskii et al., NeurIPS 2022, Alg. 1).

    Args:
        optimizer: from leaves to a torch optimiser; what it remembers is kept on the server.
        particles: K, draws per client.
        schedule: of the step size over rounds; None for a constant one.
        project: puts new values back where they must lie, {name: (*shape)} to the same; None for anywhere.
        controls: a latent of few numbers whose draws give control variates; see
            :func:`~hierfl.inference.clients.scores.controlled_scores`.
    """

    optimizer: MakeOptimizer
    particles: int = 1
    schedule: MakeSchedule | None = None
    project: Callable[[State], State] | None = None
    controls: str | None = None
    sends_gradients: ClassVar[bool] = True

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Gradients, which have no scale of their own."""
        return values_form(old)

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Each client's gradient at the broadcast values, at its own new posterior."""
        if self.controls is not None:
            return controlled_scores(chunk, names, self.controls, self.particles)
        return elbo_gradient(chunk, names, self.particles, ("gradient", *names))

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """One step of the optimiser on minus the estimated ELBO."""
        prior = context.prior_gradient(list(old))
        leaves = {name: value.clone().requires_grad_() for name, value in old.items()}
        optimizer = self.optimizer(list(leaves.values()))
        self._wind(optimizer, context.round - 1)
        for name, leaf in leaves.items():
            leaf.grad = -(total[name] * (context.num_clients / context.reported) + prior[name])
            mine = {k.removeprefix(f"{name}/"): v for k, v in context.rule_state.items() if k.startswith(f"{name}/")}
            if mine:
                optimizer.state[leaf] = {k: v.clone() for k, v in mine.items()}
        if next(iter(old.values())).device.type == "cpu":
            optimizer.step()
        else:
            step_on_device(optimizer)
        for name, leaf in leaves.items():
            for k, v in optimizer.state[leaf].items():
                if v is not None:
                    context.rule_state[f"{name}/{k}"] = torch.as_tensor(v).clone()
        new = {name: leaf.detach() for name, leaf in leaves.items()}
        return self.project(new) if self.project else new

    def _wind(self, optimizer: torch.optim.Optimizer, rounds: int) -> None:
        """Brings the step size to where the schedule has it after so many rounds."""
        if self.schedule is None:
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)`")
            schedule = self.schedule(optimizer)
            for _ in range(rounds):
                schedule.step()
