"""A client's fitted network as a plain torch module: its weights as they are at the posterior mean, or at draws.

The weights are those with which the method's own model has called the network and its head. What the module computes is
compared with the model's predictions before it is handed out.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from hierfl.data.batch import Batch
from hierfl.data.response_units import ResponseUnits
from hierfl.errors import UserError
from hierfl.metrics import calibration
from hierfl.nn.adapters import LowRankHead, merged
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead, orthonormal_contrasts

from ..checks import check_draws
from .fitted import Fitted
from .inputs import client_row
from .response import over_draws, predictions, response

if TYPE_CHECKING:
    from hierfl.nn.adapters import Before

#: inputs on which the module and the model are compared, and by how much they may differ, relative to the largest
INPUTS, TOLERANCE = 3, 1e-4
#: the largest value of a byte
BYTE = 255.0


class ClientModule(nn.Module):
    """A client's network for raw inputs, (n, *event), as in the pool.

    Its output is log probabilities (n, C), averaged over its draws' probabilities; of a regression mean and standard
    deviation (n, 2) in the user's units.

    Attributes:
        mean, std, sd: of the arguments; buffers.
        labels: names of the classes, in the order of the output's columns; empty of a regression.
        power: 1 / T of a temperature T; 1 for none.
        event: the shape of one input; None where it is not checked.

    Args:
        bases: a base network, or one for each draw.
        weight, bias: of the head, (K, outputs, features) and (K, outputs).
        mean, std: by which inputs are standardised; None for as they are.
        scale: by which they are divided before: 255 of bytes; 0 of ids, which stay as they are.
        sd: of a regression's response at each draw, (K,); None of a classification.
        units: of a standardised response.
    """

    mean: Tensor | None
    std: Tensor | None
    sd: Tensor | None

    def __init__(
        self, bases: list[nn.Module], weight: Tensor, bias: Tensor, mean: Tensor | None, std: Tensor | None,
        scale: float, sd: Tensor | None, units: ResponseUnits | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.labels, self.power = list[str](), 1.0
        self.event: tuple[int, ...] | None = None
        self.bases = nn.ModuleList(bases)
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.ids = scale == 0
        for name, value in (("mean", mean), ("std", std), ("sd", sd)):
            self.register_buffer(name, value)
        self.scale, self.units = scale, units

    def forward(self, x: Tensor) -> Tensor:
        """Computes the responses of raw inputs, (n, *event).

        Raises:
            UserError: for inputs that are no tensor or of another shape, and for pixels from 0 to 1 where the pool's
                are from 0 to 255; an exported module cannot say so.
        """
        self._check_shape(x)
        if not self.ids:
            self._check_scale(x)
            x = x if x.is_floating_point() else x.to(self.weight.dtype)
            x = x / self.scale if self.scale != 1 else x
            if self.mean is not None and self.std is not None:  # in the inputs' precision, as dates need
                x = (x - self.mean.to(x.dtype)) / self.std.to(x.dtype)
            x = x.to(self.weight.dtype)
        features = torch.stack([base(x) for base in self.bases])  # (1 or K, n, D)
        output = features @ self.weight.mT + self.bias[:, None]  # (K, n, outputs)
        if self.sd is None:
            log_p = output.log_softmax(-1).logsumexp(0) - torch.log(output.new_tensor(float(len(output))))
            return calibration.tempered(log_p, self.power)
        centre, spread = output[..., 0].mean(0), output[..., 0].var(0, unbiased=False)
        sd = (self.sd.square().mean() + spread).sqrt()
        if self.units is not None:
            centre, sd = centre * self.units.sd + self.units.mean, sd * self.units.sd
        return torch.stack([centre, sd], -1)

    def _check_shape(self, x: Tensor) -> None:
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or self.event is None:
            return
        expected = f"(n, {', '.join(map(str, self.event))})"
        if not isinstance(x, Tensor):
            raise UserError(f"inputs are a {type(x).__name__}, and this module takes a tensor {expected}")
        if tuple(x.shape[1:]) != self.event:
            hint = " (one input x is x[None])" if tuple(x.shape) == self.event else ""
            raise UserError(f"inputs have shape {tuple(x.shape)}, expected {expected}{hint}")

    def _check_scale(self, x: Tensor) -> None:
        if self.scale != BYTE or not x.is_floating_point() or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return
        if x.numel() and 0 < float(x.max()) <= 1:
            raise UserError(
                f"inputs reach to {float(x.max()):g}, and this module takes pixels from 0 to 255, as in files"
            )


@dataclass
class _Called:
    """The weights with which a network and a head were called."""

    bases: list[Mapping[str, Tensor]] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)


def client_module(fitted: Fitted, row: int, draws: int) -> ClientModule:
    """The module of a client.

    Args:
        fitted: the fit.
        row: the client's position.
        draws: of its posterior; 0 for the posterior mean.

    Raises:
        UserError: for a method whose predictions are not those of one network and one head.
    """
    federation, name = fitted.federation, fitted.method.name or type(fitted.method).__name__
    network = getattr(fitted.method, "network", None)
    if not isinstance(network, Architecture) or type(network.base) is not Network or fitted.method.conditions:
        alone = "client_module is of methods that predict with a network alone"
        raise UserError(
            f"{name} does not predict with a network alone: {alone}; run.predict(df) has every method's answer"
        )
    if network.encoder is not None:
        raise UserError(f"{name} has latent features, which are drawn for each example: no plain module predicts so")
    called = _Called()
    spied: Any = copy.copy(fitted.method)
    spied.network = replace(network, base=_spied(network.base, called), head=_spied_head(network.head, called))
    x = _inputs(fitted)
    _, sites = replace(fitted, method=spied).personal_sites(
        [row], Batch(*_inputs_and_targets(fitted, x), None, federation.template().n), draws
    )
    fn = response(sites).fn
    wanted = predictions(fn, federation.task, federation.units)
    for base, head in product(reversed(called.bases), reversed(called.heads)):
        made = _made(fitted, network, base, head, fn, max(1, draws))
        if _agrees(made, x, wanted, classes=federation.task == "classification"):
            return made
    raise UserError(f"{name} predicts with more than one network and one head: client_module is of those alone")


def _inputs(fitted: Fitted) -> Tensor:
    """Some raw inputs, of the kind and scale of the federation's."""
    federation, rng = fitted.federation, torch.Generator().manual_seed(0)
    shape = (INPUTS, *federation.event_shape)
    if federation.x.dtype == torch.int64:
        parts = fitted.method.network.base.module.modules()
        sizes = [part.num_embeddings for part in parts if isinstance(part, nn.Embedding)]
        return torch.randint(0, min([*sizes, int(federation.extent[1]) + 1]), shape, generator=rng)
    if federation.x.dtype == torch.uint8:
        return torch.randint(0, 256, shape, generator=rng).to(torch.uint8)
    least, most = federation.extent
    x = least + (most - least) * torch.rand(shape, generator=rng, dtype=federation.dtype)
    if federation.mean is None or federation.std is None:
        return x
    return (federation.mean + federation.std * torch.randn(shape, generator=rng)).to(x)


def _inputs_and_targets(fitted: Fitted, x: Tensor) -> tuple[Tensor, Tensor]:
    federation = fitted.federation
    return federation.inputs(x)[None], federation.targets(torch.zeros((1, len(x)), dtype=federation.y.dtype))


def _spied(base: Network, called: _Called) -> Network:
    """The network, which remembers the weights that it is called with."""

    class Spied(Network):
        def apply(self, weights: Mapping[str, Tensor], x: Tensor, drop: Any = None, norms: Any = None) -> Tensor:
            called.bases.append(dict(weights))
            return super().apply(weights, x, drop, norms)

    spied = copy.copy(base)
    spied.__class__ = Spied
    return spied


def _spied_head(head: LinearHead, called: _Called) -> LinearHead:
    kind: Any = type(head)

    class SpiedHead(kind):
        def __call__(self, w: Tensor, z: Tensor) -> Tensor:
            called.heads.append(w)
            return super().__call__(w, z)

    return SpiedHead(**{field.name: getattr(head, field.name) for field in fields(head)})


def _made(
    fitted: Fitted, network: Architecture, base: Mapping[str, Tensor], head: Tensor, fn: Any, draws: int
) -> ClientModule:
    federation, head_layer = fitted.federation, network.head
    w = head.reshape(-1, head_layer.d).detach().clone()
    last = w[:, head_layer.adapters_d :] if isinstance(head_layer, LowRankHead) else w
    cut = head_layer.rows * head_layer.features
    weight = last[:, :cut].unflatten(-1, (head_layer.rows, head_layer.features))
    bias = last[:, cut:] if head_layer.bias else w.new_zeros(len(w), head_layer.rows)
    if head_layer.contrasts:
        turn = orthonormal_contrasts(head_layer.outputs).to(w)
        weight, bias = turn.mT @ weight, bias @ turn
    dims = {key: value.dim() for key, value in network.base.module.state_dict().items()}
    by_draw = {key: value.reshape(-1, *value.shape[value.dim() - dims[key] :]) for key, value in base.items()}
    number = max((len(value) for value in by_draw.values()), default=1)
    if isinstance(head_layer, LowRankHead):
        number = max(number, len(w))
    sd = over_draws(fn.stddev)[:, 0, 0].expand(draws).detach().clone() if isinstance(fn, Normal) else None
    scale = {torch.uint8: BYTE, torch.int64: 0.0}.get(federation.x.dtype, 1.0)
    values = [{key: value[k % len(value)] for key, value in by_draw.items()} for k in range(number)]
    bases = [
        merged(cast("Before", network.base.module), head_layer, w[k % len(w)], own)
        if isinstance(head_layer, LowRankHead)
        else _loaded(network.base.module, own, w.dtype)
        for k, own in enumerate(values)
    ]
    mean, std = (None if value is None else value.clone() for value in (federation.mean, federation.std))
    made = ClientModule(bases, weight.contiguous(), bias.contiguous(), mean, std, scale, sd, federation.units).eval()
    made.event = tuple(federation.event_shape)
    return made


def _loaded(module: nn.Module, values: Mapping[str, Tensor], dtype: torch.dtype) -> nn.Module:
    loaded = copy.deepcopy(module).to(dtype)
    state = loaded.state_dict()
    loaded.load_state_dict({**state, **{key: value.detach().to(dtype) for key, value in values.items()}})
    return loaded.requires_grad_(requires_grad=True)


def _agrees(made: ClientModule, x: Tensor, wanted: Tensor, *, classes: bool) -> bool:
    """Whether a module says what the model says."""
    with torch.no_grad():
        computed = made(x).exp() if classes else made(x)
    wanted = wanted.to(computed)
    near = TOLERANCE * float(wanted.abs().max())
    return computed.shape == wanted.shape and bool(((computed - wanted).abs() <= near).all())


class ClientModules:
    """What gives a run's clients as modules; its attributes are of :class:`~hierfl.inference.run.result.Run`."""

    fitted: Fitted
    calibration: Any

    def client_module(self, client: int | str, draws: int = 0, *, tempered: bool = False) -> ClientModule:
        """A client's own model as a plain torch module, for raw inputs as in the pool: pixels are from 0 to 255.

        ``torch.export`` takes it, and with the extra ``onnx`` ``torch.onnx.export``.

        Args:
            client: its name, as for :meth:`~hierfl.inference.run.result.Run.predict`.
            draws: 0 for the posterior mean; else an ensemble of so many draws.
            tempered: whether its probabilities are at the temperature of a fit with ``calibrate="temperature"``,
                as those of ``hierfl predict``.

        Returns:
            A module whose output is log probabilities (n, C), with names in its ``labels``; or mean and standard
            deviation (n, 2).

        Raises:
            UserError: for a client that does not exist; for a method whose predictions are not those of one network
                and one head; where there is no temperature.
        """
        check_draws(draws)
        federation = self.fitted.federation
        made = client_module(self.fitted, client_row(federation, client), draws)
        if federation.task == "classification":
            made.labels = federation.label_names
        if tempered:
            powers = None if self.calibration is None else self.calibration.powers
            if powers is None:
                raise UserError("the fit has no temperature: fit(..., calibrate='temperature')")
            made.power = powers[-1 if draws else 0]
        return made
