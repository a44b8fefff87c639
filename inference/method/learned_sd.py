"""A regression's method with a response whose standard deviation is learned, in the likelihood alone.

The network says whose it is (:attr:`~hierfl.nn.architecture.Architecture.learned`): all clients', a shared value that
the sums of the clients' squared residuals give, or each client's own. Responses are standardised by the mean and the
standard deviation of all training responses; no prior and no other step knows either. Columns of inputs that are far
from unit scale, and that nothing standardises yet, are standardised at the first layer.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyro
import torch

from hierfl.data.federation import Federation
from hierfl.data.input_scales import MAX_UNSCALED
from hierfl.data.response_units import ResponseUnits
from hierfl.data.standard_units import in_standard_units, with_scaled_inputs
from hierfl.errors import UserError
from hierfl.nn.architecture import Architecture
from hierfl.nn.likelihoods import RESPONSE_SD
from hierfl.ppl.restrict import Restrict

from ..local.base import LocalStep
from ..local.response_sd import OwnResponseSd
from ..local.svi import SVI
from ..objective.sites import guide_latents
from ..server.rules.base import AggregationRule
from ..server.rules.response_sd import PooledResponseSd
from ..state import State, client_view
from .base import Method
from .capabilities import is_tabular
from .derived import derived
from .initial import InitialWeights
from .schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd

    from ..evaluation.fitted import Fitted

log = logging.getLogger("hierfl")


def with_learned_sd(method: Method, federation: Federation, *, alone: bool = False) -> tuple[Method, Federation]:
    """A method that learns the response's standard deviation, and the federation in standard units.

    Both are as they were where the network says a number, and where the model has a likelihood of its own, which is
    in the user's units. Every client has a standard deviation of its own where a method sends nothing, and where what
    clients predict with is trained after the last message.

    Args:
        method: what is fitted.
        federation: to what.
        alone: whether it is one site's of several.
    """
    if is_tabular(method) or federation.task != "regression":
        return method, federation
    if not _asks(method, federation):
        _warn_of_units(method, federation)
        return method, federation
    learning, federation = copy.copy(method), in_standard_units(federation, alone=alone)
    federation = federation if alone else with_scaled_inputs(federation)
    fitted_last = any(isinstance(step, SVI) for step in method.schedule().final_steps)
    everyone = method.network.learned == "shared" and method.exchange() and not fitted_last
    learning.__class__ = derived(type(method), _SharedSd if everyone else _OwnSd)
    learning.response_units = federation.units  # type: ignore[attr-defined]
    if method.conditions:
        learning.network = _with_parameter(method)
    return learning, federation


def _warn_of_units(method: Method, federation: Federation) -> None:
    """Says that a likelihood of the method's own sees responses as they are, where these are far from unit scale."""
    units = federation.response_units
    if (
        not method.network.learned
        or units is None
        or RESPONSE_SD in method.shared(InitialWeights.for_network(method.network, 0))
    ):
        return
    whole = bool((federation.y == federation.y.round()).all())  # counts, whose likelihood has no other unit
    if not whole and (
        abs(units.mean) > MAX_UNSCALED * max(1.0, units.sd) or not 1 / MAX_UNSCALED < units.sd < MAX_UNSCALED
    ):
        log.warning(
            "the model has a likelihood of its own, which sees the responses as they are, mean %.4g and sd %.4g: "
            "network.likelihood(...) standardises them, or do so before the federation is made",
            units.mean, units.sd,
        )  # fmt: skip


class _Learning(Architecture):
    """Whose noise is the parameter wherever a model asks for it."""

    learned = "shared"

    @property
    def noise(self) -> Any:
        return pyro.param(RESPONSE_SD)


def _with_parameter(method: Method) -> Architecture:
    """The network of a method whose model computes with the standard deviation itself."""
    if method.network.learned != "shared":
        name = method.name or type(method).__name__
        raise UserError(f'{name} has one response\'s sd for all clients: noise="shared" (--learn-sd shared)')
    network = object.__new__(_Learning)
    vars(network).update({k: v for k, v in vars(method.network).items() if k != "noise"})
    return network


def _asks(method: Method, federation: Federation) -> bool:
    """Whether the model asks for the standard deviation that is to be learned."""
    if not method.network.learned:
        return False
    if method.conditions:  # its model computes with the number, and cannot be tried without
        return not isinstance(method.network, _Learning)
    template, start = federation.template(), InitialWeights.for_network(method.network, 0)
    shared, own = (
        {k: v.to(template.n) if v.is_floating_point() else v.to(template.n.device) for k, v in values.items()}
        for values in (method.shared(start), method.personal(start))
    )
    values = client_view(shared, {k: v[None, None] for k, v in own.items()})
    if RESPONSE_SD in values:
        return False  # the method has one of its own
    values[RESPONSE_SD] = torch.ones_like(template.n[0])
    with pyro.validation_enabled(False), torch.no_grad():
        latents = guide_latents(method, template, values, None)
        with Restrict(values, {k: site.value for k, site in latents.items()}) as restricted:
            method.model(template)
    return RESPONSE_SD in restricted.asked


class _SharedSd(Method):
    """One standard deviation of all clients' responses."""

    response_units: ResponseUnits

    def shared(self, start: InitialWeights) -> State:
        return {**super().shared(start), RESPONSE_SD: torch.ones((), dtype=torch.float64)}

    def exchange(self) -> Mapping[str, AggregationRule]:
        return {**super().exchange(), RESPONSE_SD: PooledResponseSd()}

    def prediction_params(self, shared: State) -> State:
        return {**super().prediction_params(shared), RESPONSE_SD: shared[RESPONSE_SD]}

    def population_summary(self, fitted: Fitted) -> tuple[pd.DataFrame | None, dict[str, float]]:
        effects, numbers = super().population_summary(fitted)
        return effects, {**numbers, RESPONSE_SD: float(fitted.shared[RESPONSE_SD]) * self.response_units.sd}


class _OwnSd(Method):
    """A standard deviation of each client's responses; a new client begins with that of the mean variance."""

    response_units: ResponseUnits

    def personal(self, start: InitialWeights) -> State:
        return {**super().personal(start), RESPONSE_SD: torch.ones((), dtype=torch.float64)}

    def local(self) -> Sequence[LocalStep]:
        return [*super().local(), OwnResponseSd(RESPONSE_SD)]

    def schedule(self) -> Schedule:
        inner = super().schedule()
        if not any(isinstance(step, SVI) for step in inner.final_steps):
            return inner
        return replace(inner, final_steps=[*inner.final_steps, OwnResponseSd(RESPONSE_SD)])

    def new_client_steps(self) -> Sequence[LocalStep]:
        return [step for step in super().new_client_steps() if not isinstance(step, OwnResponseSd)]

    def new_client_terms(self, personal: State) -> State:
        return {**super().new_client_terms(personal), RESPONSE_SD: personal[RESPONSE_SD].square()}

    def init_new_client(self, means: State, initial: State, personal: State) -> State:
        others = {k: v for k, v in means.items() if k != RESPONSE_SD}
        own = means[RESPONSE_SD].sqrt() if RESPONSE_SD in means else initial[RESPONSE_SD]
        return {**super().init_new_client(others, initial, personal), RESPONSE_SD: own}

    def client_summary(self, values: State) -> State:
        sd = values[RESPONSE_SD].flatten() * self.response_units.sd
        return {**super().client_summary(values), RESPONSE_SD: sd}
