"""Counts, with masks and before any other sum, of sites at which each part of the data occurs; see
:mod:`hierfl.data.federated.support`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.data.federated.formula_data import FormulaData
from hierfl.data.federated.support import SUPPORT, check_support, part_names, parts_of
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.server.rules.class_means import ClassMeans
from hierfl.inference.server.rules.running import CountSum

if TYPE_CHECKING:
    from hierfl.data.federated.study_data import SiteData

    from .study import Study


class Support:
    """The first step of a study's preparation, where it has one.

    Args:
        study: what was agreed on; without masks nothing is counted.

    Attributes:
        steps: 1 or 0.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        options = study.options("cpu")
        # With noise nothing is asked before the first round: what one site alone has is hidden by its noise.
        self.steps = int(options.masked and options.dp == "none" and bool(self.names))

    @cached_property
    def classes(self) -> bool:
        """Whether the method's messages are sums over each class."""
        data = self.study.data
        if isinstance(data, FormulaData) or getattr(data, "task", "") != "classification":
            return False
        made_up = {
            name: np.full(shape, 8.0 if name.endswith("square") else 2.0) for name, shape in data.form([]).items()
        }
        method = self.study.method(data.model([made_up], self.study.loaded.cls.latent)[1])
        shared = method.shared(InitialWeights.for_network(method.network, self.study.options("cpu").seed))
        exchange = Exchange(
            method.exchange(), method.pipeline(), method.expand, {k: v.detach() for k, v in shared.items()}
        )
        return any(isinstance(group.rule, ClassMeans | CountSum) for group in exchange.sending.values())

    @cached_property
    def names(self) -> list[str]:
        """The names of the parts."""
        return part_names(self.study.data, classes=self.classes)

    def form(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the sums."""
        return {SUPPORT: (len(self.names),)}

    def sums(self, site: SiteData) -> dict[str, Any]:
        """One site's part: which of the parts it has."""
        return {SUPPORT: parts_of(site, classes=self.classes)}

    def check(self, before: Sequence[Mapping[str, Any]]) -> None:
        """Refuses a study by its first sums; without any nothing is known.

        Args:
            before: sums over all sites so far, this step's first.

        Raises:
            UserError: for a part that one or two sites have.
        """
        if self.steps and before:
            check_support(self.names, np.asarray(before[0][SUPPORT]))
