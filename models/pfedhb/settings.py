"""What a user of PFedHB may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hierfl.errors import UserError
from hierfl.inference.method.settings import setting

from ..baselines.fedavg import FedAvg
from .report import PARTS

#: settings that heads alone have, and those of heads whose spread is learned
NO_HEADS: dict[str, tuple[object, ...]] = {"heads": ("off",)}
NO_SPREADS: dict[str, tuple[object, ...]] = {**NO_HEADS, "prior": ("fixed",)}
#: settings that adapters alone have
NO_ADAPTERS: dict[str, tuple[object, ...]] = {"adapters": ("off",)}
#: parts of labels alone, and of responses alone
OF_LABELS, OF_RESPONSES = ("shares", "features", "confusion"), ("outcome",)


@dataclass(frozen=True)
class PFedHBSettings(FedAvg.Settings):
    """FedAvg's, and those of the populations."""

    prior: Literal["hierarchical", "fixed"] = setting(
        "hierarchical",
        "populations of all parts: learned from sums | held where they begin, with all numbers of classes equally "
        "likely and sigma_0 for heads", newer=True,
    )  # fmt: skip
    floor: float = setting(
        1e-4,
        "share of a client's labels that come as in the pooled data, whatever its own shares",
        above=0,
        below=1,
        unless={"shares": ("off",)},
    )
    shares: Literal["on", "auto", "off"] = setting(
        "on", "of labels: whether predictions use a client's label shares; auto: where they gain", newer=True
    )
    heads: Literal["on", "auto", "off"] = setting(
        "on", "whether clients have heads of their own around w; auto: where they gain"
    )
    features: Literal["on", "auto", "off"] = setting(
        "off", "whether clients shift and scale the features; auto: where that gains", newer=True
    )
    confusion: Literal["on", "auto", "trust", "off"] = setting(
        "off", "whether a client's labels may mean other classes; auto: where that gains; trust: that says alone how "
        "much a client counts in w, and predictions are as without", newer=True,
    )  # fmt: skip
    outcome: Literal["on", "auto", "off"] = setting(
        "on", "of a regression: whether a client's responses have a location and scale of their own; auto: where they "
        "gain", newer=True,
    )  # fmt: skip
    local_norm: Literal["nothing", "statistics", "all"] = setting(
        "nothing", "what of batch norm each client has for itself: nothing | running statistics | its weights, too",
        newer=True,
    )  # fmt: skip
    bn_refresh_epochs: int = setting(
        0, "passes through a client's data that update its own running statistics under the weights that predict",
        at_least=0, unless={"local_norm": ("nothing",)}, newer=True,
    )  # fmt: skip
    adapters: Literal["on", "auto", "off"] = setting(
        "off", "whether clients change layers below the head, by a low rank; auto: where that gains", newer=True
    )
    adapter_rank: int = setting(2, "rank of a layer's change", at_least=1, unless=NO_ADAPTERS, newer=True)
    adapter_layers: str = setting(
        "", "the layers that are changed, with commas between them, by the network's names; all linear ones and "
        "convolutions where none is named", unless=NO_ADAPTERS, newer=True,
    )  # fmt: skip
    judged: int = setting(
        20, "auto: rounds in which parts enter; a third of a client's rows is kept from training so long",
        at_least=1, newer=True,
    )  # fmt: skip
    every: int = setting(
        2, "of so many rounds one moves the posteriors of heads, features and adapters; nothing flows back from them",
        at_least=1, newer=True,
    )  # fmt: skip
    sigma_0: float = setting(
        0.1, "initial rho of the heads' weights and biases", above=0, at_most=1e12, unless=NO_HEADS
    )
    rho_scale: float = setting(10.0, "scale of the half-normal prior of rho", above=0, unless=NO_SPREADS, at_most=1e12)
    rank: int = setting(
        50, "rank of a head's covariance where it has more than 600 numbers", at_least=1, unless=NO_HEADS
    )
    points: int = setting(
        16, "points of each example's predictor over which its likelihood is averaged; 1: at the mode (Laplace)",
        at_least=1, unless=NO_HEADS, at_most=1_000_000,
    )  # fmt: skip
    nodes: Literal["auto", "on", "off"] = setting(
        "auto", "draws integrate over rho at nine nodes; auto: for heads of at most 50 numbers", newer=True,
        unless=NO_SPREADS,
    )  # fmt: skip
    draws: int = setting(100, "draws of each client's posterior that are kept at the end", at_least=2, at_most=100_000)

    def switches(self, regression: bool) -> dict[str, str]:
        """Each part's switch; parts that a task has not are off.

        Args:
            regression: whether responses are numbers, and not labels.

        Raises:
            UserError: for a part of the other task that was asked for, or a setting without effect.
        """
        absent = OF_LABELS if regression else OF_RESPONSES
        task, other = ("a regression", "data with labels")[:: 1 if regression else -1]
        for part in absent:
            chosen, default = getattr(self, part), type(self).__dataclass_fields__[part].default
            if chosen not in (default, "off"):
                raise UserError(f"{part}={chosen} is of {other}, and this is {task}: {part}=off")
        switches = {part: "off" if part in absent else str(getattr(self, part)) for part in PARTS}
        if self.prior == "fixed" and set(switches.values()) == {"off"}:
            raise UserError("prior=fixed changes nothing where all parts are off")
        if self.judged != type(self).judged and "auto" not in switches.values():
            raise UserError(f"judged={self.judged} changes nothing where no part is auto")
        if self.every != type(self).every and {switches[p] for p in ("heads", "features", "adapters")} == {"off"}:
            raise UserError(f"every={self.every} changes nothing where heads, features and adapters are off")
        return switches
