"""What clients send of a user's guide, and what the server makes of the sum."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.messages.form import Field, Form, not_negative
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State
from hierfl.pareto import k_hat

from ..names import BOUND, DRAWS, INNER, PHASE, TRACE, VERDICT, WORTH, Phase
from ..rule import IMPOSSIBLE, MISSED
from ..trace import traced
from ..verdict import Verdict
from .adam import Adam
from .names import PARAMS, RATE
from .steady import same, steady, summary
from .steps import bound_noise, sent, shared_noise

if TYPE_CHECKING:
    from .guided import Guided

log = logging.getLogger("hierfl")
#: iterates of one step size are looked at each so many rounds, at most so many of the last ones
CHECK_EVERY, MAX_ITERATES = 25, 400
#: how many of them are of one distribution where they have stopped to go anywhere
SIZES = (50, 100, 200, 400)
#: rounds of the last average
AVERAGED = 100
#: what steps are shortened by
SHORTER = 0.5
#: draws by which the globals are followed
FOLLOWED = 256


@dataclass(frozen=True)
class StochasticAscent:
    """Sums of the bound's gradients by the shared parameters; then sums of heights at draws of the guide.

    Args:
        method: whose model and guide.
    """

    method: Guided
    sends_gradients: ClassVar[bool] = False
    #: A message grows with the client's rows.
    comparable: ClassVar[bool] = False
    #: what each field of a message is, in words
    MEANINGS: ClassVar[Mapping[str, str]] = {
        "clients": "1: who has answered is counted",
        "bound": "its part of the bound of the log evidence at the broadcast guide: one number of all its rows",
        "gradient": "first derivatives of its part of the bound by the parameters of the guide that everyone shares",
        "heights": "log marginal likelihoods of its rows at draws of the guide that are weighed at the end; else zeros",
        "noise": "Monte-Carlo variance of these",
    }

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """All that a round may ask: 3 + P + M numbers, zeros where it does not."""
        number = torch.float64
        if old[PARAMS].dtype != number:
            raise UserError(
                f"a plain model is fitted in double precision: dtype=torch.float64, not {old[PARAMS].dtype}"
            )
        return {
            "clients": Field((), number), "bound": Field((), number), "gradient": Field((len(old[PARAMS]),), number),
            "heights": Field((self.method.check_points,), number), "noise": Field((), number, not_negative),
        }  # fmt: skip

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Each client's part of the sums; impossible is a height that is lowest."""
        count, like = len(chunk.clients), chunk.shared[PARAMS]
        made = {name: like.new_zeros(count, *field.shape) for name, field in self.form(chunk.shared).items()}
        made["clients"] += 1
        made |= sent(self.method, chunk)
        made["heights"] = made["heights"].clamp_min(IMPOSSIBLE)
        return made

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """The next parameters; at their end, what the weights of the guide's draws say."""
        stage = Phase(int(old[PHASE]))
        missing = context.num_clients - int(context.reported)
        if stage == Phase.DONE:
            return old
        if stage == Phase.EXPLORE:
            values = self._checked(dict(old), total, context, missing)
        else:
            scale = context.num_clients / context.reported.to(old[PARAMS])
            sums = {name: scale * value for name, value in total.items()}
            values = self._climbed(dict(old), sums, context, stage)
        moved = float((values[PARAMS] - old[PARAMS]).abs().max()) if len(old[PARAMS]) else 0.0
        trace = traced(old[TRACE], stage, context.round, bound=values[BOUND], moved=moved, worth=values[WORTH])
        return {**values, TRACE: trace}

    # -- climb --------------------------------------------------------------------------------------------------------

    def _climbed(self, values: State, total: State, context: AggregationContext, stage: Phase) -> State:
        """One step; every part of a sum is scaled up for those that are missing."""
        method, memory = self.method, context.rule_state
        params = values[PARAMS].detach().requires_grad_()
        noise = shared_noise(method, method.fit_draws, context.seed, context.round, "message")
        with torch.enable_grad():
            own = method.parts.over_draws(method.parts.server, params, noise).mean()
            gradient = torch.zeros_like(params)
            if own.requires_grad:
                gradient = torch.autograd.grad(own, params, materialize_grads=True)[0]
        bound, gradient = total["bound"] + own.detach(), total["gradient"] + gradient
        if "ascent.first" not in memory and not bool(bound.isfinite() & gradient.isfinite().all()):
            raise UserError(
                "the bound, or its gradient, is not finite where the fit begins: at the first values of the guide's "
                "parameters; start its standard deviations small"
            )
        adam = Adam.begin(params) if "ascent.first" not in memory else Adam(
            memory["ascent.first"], memory["ascent.second"], memory["ascent.steps"]
        )  # fmt: skip
        adam, move = adam.step(gradient, values[RATE])
        values[PARAMS] = params.detach() + move
        values[BOUND] = torch.where(bound.isfinite(), bound, values[BOUND])
        memory |= {"ascent.first": adam.first, "ascent.second": adam.second, "ascent.steps": adam.steps}
        kept, at = method.kept_noise(len(values[DRAWS]), context.seed), values[PARAMS]
        drawn = method.parts.globals(at, torch.cat([shared_noise(method, FOLLOWED, "followed"), kept]))
        self._followed(values, memory, stage, drawn[:FOLLOWED])
        # At the end of the climb parameters are an average.
        values[DRAWS] = drawn[FOLLOWED:] if values[PARAMS] is at else method.parts.globals(values[PARAMS], kept)
        return values

    def _followed(self, values: State, memory: State, stage: Phase, drawn: Tensor) -> None:
        """Whether steps become shorter, iterates are averaged, or the average is the end; by draws of the globals."""
        at = summary(drawn, values[BOUND])
        window = torch.cat([memory.get("ascent.window", at[None, :][:0]), at[None]])[-MAX_ITERATES:]
        memory["ascent.window"] = window
        rounds = memory.get("ascent.rounds", at.new_zeros(())) + 1
        memory["ascent.rounds"] = rounds
        if stage == Phase.FINE:
            mean = memory["ascent.mean"]
            memory["ascent.mean"] = mean + (values[PARAMS] - mean) / rounds
        if int(rounds) % CHECK_EVERY or len(window) < (AVERAGED if stage == Phase.FINE else 2 * CHECK_EVERY):
            return
        if stage == Phase.FINE:
            first, last = (half.mean(0) for half in window.tensor_split(2))
            if same(first, last):
                values[PARAMS], values[PHASE] = memory["ascent.mean"], values[PHASE].new_tensor(float(Phase.EXPLORE))
            self._again(values, memory)
            return
        still = next((window[-size:] for size in SIZES if size <= len(window) and steady(window[-size:])), None)
        if still is None:
            return
        average = still.mean(0)
        if "ascent.before" in memory and same(average, memory["ascent.before"]):
            values[PHASE] = values[PHASE].new_tensor(float(Phase.FINE))
        memory["ascent.before"] = average
        self._again(values, memory)

    def _again(self, values: State, memory: State) -> None:
        """Shorter steps, followed from here on."""
        values[RATE] = SHORTER * values[RATE]
        memory["ascent.window"] = memory["ascent.window"][:0]
        memory["ascent.rounds"] = torch.zeros_like(memory["ascent.rounds"])
        memory["ascent.mean"] = torch.zeros_like(values[PARAMS])

    # -- check --------------------------------------------------------------------------------------------------------

    def _checked(self, values: State, total: State, context: AggregationContext, missing: int) -> State:
        """The final guide's bound, and the verdict by the weights of its draws, which needs everyone in one round."""
        method = self.method
        noise = bound_noise(method, context.seed, context.round)
        scale = context.num_clients / context.reported.to(values[PARAMS])
        own = method.parts.over_draws(method.parts.server, values[PARAMS], noise).mean()
        values[BOUND] = (scale * total["bound"] + own).detach()
        often = context.rule_state.get("ascent.missed", values[WORTH].new_zeros(())) + bool(missing)
        context.rule_state["ascent.missed"] = often
        if missing and method.checks and int(often) < MISSED:
            log.warning(
                "round %d checks nothing: it needs all clients, and %s missing",
                context.round,
                "1 is" if missing == 1 else f"{missing} are",
            )
            return values
        if method.checks and not missing:
            noise = method.check_noise(context.seed)
            server = method.parts.over_draws(method.parts.server, values[PARAMS], noise).detach()
            weights = total["heights"] + server
            share = (weights - weights.logsumexp(0)).exp()
            verdict = Verdict(
                float(len(weights)), min(float(k_hat(weights)), 1e6), float(1 / share.square().sum()),
                float(total["noise"]), float(total["clients"]), inner=float(values[INNER]),
            )  # fmt: skip
            values[WORTH], values[VERDICT] = values[WORTH].new_tensor(verdict.worth), verdict.values.to(values[WORTH])
        values[PHASE] = values[PHASE].new_tensor(float(Phase.DONE))
        return values
