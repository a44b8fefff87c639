"""How a network with a name is made: its layers, what it normalises by, its head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import UserError, unknown
from ..adapters import low_rank
from ..architecture import Architecture
from ..batch_norm_free import without_batch_norm
from ..functional import Network
from ..head import LinearHead
from ..latent_adapters import latent_low_rank
from .latent import Z_NORM, cut
from .registry import NETWORKS
from .spec import module_of
from .weights import Weights, has_batch_norm, with_weights

#: what a head may be, and what that means
HEADS = {
    "linear": "the last layer, on a network that is trained",
    "frozen": "the last layer, on a network that stays as its file has it",
    "lora:RANK": "low-rank adapters of all its layers beside the last layer, on a network that stays",
    "lora:RANK:LAYER,...": "the same of these layers alone",
    "lora-fixed:RANK": "the same, whose matrices A stay as they are drawn",
}
#: the ends of a network's name that say what its batch norm becomes, see :func:`.weights.with_weights`
NORMS = {",batch-norm": "batch", ",group-norm": "group", ",affine-norm": "affine"}
NETWORKS["NETWORK,batch-norm"] = "batch norm, of networks that have group norm otherwise; a client's own with fedbn"
NETWORKS["NETWORK,group-norm"] = "group norm instead of batch norm, of each picture by itself"
NETWORKS["NETWORK,affine-norm"] = "batch norm by the statistics that a file of weights has, which stay"


@dataclass(frozen=True)
class Head:
    """What ``head=`` says.

    Attributes:
        kind: "linear", "frozen", "lora" or "lora-fixed".
        rank: of adapters; 0 of others.
        layers: that are adapted; none for all.
    """

    kind: str
    rank: int = 0
    layers: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Head:
        """Reads a head from its text.

        Raises:
            UserError: for another text.
        """
        kind, _, rest = str(text).partition(":")
        if text in ("linear", "frozen"):
            return cls(kind)
        rank, _, layers = rest.partition(":")
        if kind not in ("lora", "lora-fixed") or not rank.isdecimal() or (":" in rest and not layers):
            raise unknown("head", str(text), HEADS)
        names = tuple(name.strip() for name in layers.split(",")) if layers else ()
        return cls(kind, int(rank), names)


@dataclass(frozen=True)
class Recipe:
    """What a network with a name is made of.

    Attributes:
        spec, latent, head: as for :func:`.build.architecture`.
        event: shape of an input.
        outputs: of the head.
    """

    spec: str
    event: tuple[int, ...]
    outputs: int
    latent: bool = False
    head: str = "linear"

    def as_json(self) -> dict[str, Any]:
        """The recipe as the json of a run folder."""
        return {**asdict(self), "event": list(self.event)}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Recipe:
        """Reads what :meth:`as_json` has written."""
        return cls(**{**record, "event": tuple(record["event"])})

    def made(self, noise: Any, weights: Weights | None = None, again: bool = False) -> Architecture:
        """The network.

        Args:
            noise: as an architecture has it.
            weights: that it begins with; None for those that are drawn.
            again: it was made before, so that its weights are somewhere else.

        Raises:
            UserError: see :func:`.build.architecture`.
        """
        head, whole = Head.parse(self.head), self.spec
        if head.kind != "linear" and weights is None and not again:
            raise UserError(
                f"head={self.head} is for a pretrained network: name the file of its weights, weights=FILE "
                "(--network-weights FILE)"
            )
        norm = next((word for end, word in NORMS.items() if whole.endswith(end)), None)
        spec = whole.removesuffix(f",{norm}-norm").removesuffix(Z_NORM)
        if spec != whole and norm is None and not self.latent:
            raise UserError(f"{Z_NORM[1:]} is for methods with latent features (pfedv, fedv); got {whole}")
        adapted = head.kind.startswith("lora")
        if self.latent and not adapted and (head.kind != "linear" or weights is not None or norm):
            raise UserError(
                "latent features of a network with weights=, or NETWORK,...-norm, take adapters: "
                "head=lora:RANK:LAYER,..."
            )
        example, latents = torch.zeros(1, *self.event), 0
        encoder: Any = None
        with torch.random.fork_rng(devices=[]):  # the weights made here are never used: see Network.init
            try:
                module, kind = module_of(spec, torch.Size(self.event))
                if norm == "batch" and not has_batch_norm(module):
                    raise UserError(f"network {spec} has no batch norm that batch-norm could keep")
                module = self._normed(module, norm or kind.norm, weights, again)
                features = module.eval()(example).shape[-1]
                if self.latent and not adapted:
                    encoder, module = cut(module, torch.Size(self.event), whole)
                    latents = encoder.eval()(example).shape[-1] // 2
            except RuntimeError as error:
                small = "size" in str(error)  # torch's word for a picture that a convolution does not fit into
                why = f"does not fit inputs {self.event}" if small else "does not fit into memory"
                raise UserError(f"network {spec} {why}") from error
        how = example, self.outputs, head.rank, head.layers, head.kind == "lora"
        if adapted and self.latent:
            encoder, base, own, latents = latent_low_rank(module, *how)
            return Architecture(base, own, noise, whole, encoder, latents, recipe=self.as_json())
        if adapted:
            base, own = low_rank(module, *how)
            return Architecture(base, own, noise, whole, recipe=self.as_json())
        last = LinearHead(features, self.outputs, bias=kind.head_bias)
        start: Literal["given", "drawn"] = "drawn" if weights is None else "given"
        module.requires_grad_(head.kind == "linear")
        if encoder is None:
            return Architecture(Network(module, weights=start), last, noise, whole, recipe=self.as_json())
        base = Network(module, event=1, weights="drawn")
        return Architecture(base, last, noise, whole, Network(encoder, "encoder", weights="drawn"), latents)

    def _normed(self, module: nn.Module, norm: str, weights: Weights | None, again: bool) -> Any:
        if again and norm == "affine":
            return without_batch_norm(module, "affine")
        return with_weights(module, weights, norm, self.spec)

    def again(
        self, noise: Any, constants: Mapping[str, Tensor], of_encoder: Mapping[str, Tensor] | None = None
    ) -> Architecture:
        """The same network with the values that were constant in it.

        Args:
            noise: as the architecture had it.
            constants: by the base network's names.
            of_encoder: by the encoder's; None where there is none.
        """
        blank = self.made(noise, again=True)
        own = {key.removeprefix("network."): value for key, value in constants.items()}
        kept = {key for key in blank.base.module.state_dict() if key.startswith("network.")}
        with torch.no_grad():
            for net in {id(net): net for net in (blank.base, blank.last_network)}.values():
                for key, value in (*net.module.named_parameters(), *net.module.named_buffers()):
                    name = key.removeprefix("network.") if kept else key
                    if name in own:
                        value.copy_(own[name])
                net.whole.constants_changed()  # a head's were read already
        if blank.encoder is not None:
            with torch.no_grad():
                encoder = blank.encoder.module
                for key, value in (*encoder.named_parameters(), *encoder.named_buffers()):
                    if key in (of_encoder or {}):
                        value.copy_((of_encoder or {})[key])
            blank.encoder.whole.constants_changed()
        return blank
