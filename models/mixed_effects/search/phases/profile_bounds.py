"""Bounds of profile-likelihood intervals, one after the other, around the estimates; see :mod:`..profile`."""

from __future__ import annotations

import torch

from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..bounds import at_zero
from ..climb import Climb
from ..profile import Profile
from ..requests import EXPANSION, Phase
from .base import SearchPhase


class ProfileBounds(SearchPhase):
    """The phase of profile bounds, where they are asked for."""

    number, request = Phase.PROFILE, EXPANSION

    @classmethod
    def wanted(cls, method: MixedModel) -> bool:
        """Whether the settings ask for a profile of numbers that are searched."""
        return bool(method.settings.profile and method.k)

    def begin(self) -> None:
        """Begins at the estimates, standard deviations above zero."""
        search, surface = self.search, self.search.surface
        at, inside = surface.coordinates(search.numbers), surface.inside(search.values)
        start = torch.where(at_zero(search.method, search.values), inside, at)
        level, effects = search.method.settings.profile, len(search.values["profile"])
        height = Climb.read(search.memory).height
        search.memory.update(Profile.begin(at, start, height, level, surface.longest("mixing"), effects).state())

    def ask(self) -> State:
        """The next point."""
        return {"at": self.search.surface.of_coordinates(Profile.read(self.search.memory).next)}

    def tell(self, sums: State) -> None:
        """Takes derivatives of the criterion by coordinates."""
        search, profile = self.search, Profile.read(self.search.memory)
        criterion, nodes = search.criterion, search.known
        expansion = search.surface.expansion(sums, profile.next, criterion, nodes, coordinates=True)
        profile = profile.updated(search.method, *expansion)
        search.memory.update(profile.state())
        search.values["profile"] = profile.bounds
        self.done = profile.done
