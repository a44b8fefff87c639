"""Sites that check every broadcast."""

from __future__ import annotations

from collections.abc import Mapping

from support.sites import Sites

from hierfl.inference.engines.remote.bounds import Bounds
from hierfl.inference.engines.remote.wire import decode


class Checked(Sites):
    """Sites that check every request; what is refused is raised."""

    def checking(self) -> Checked:
        self.bounds = {name: Bounds(site) for name, site in self.sites.items()}
        return self

    def ask(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {}
        for name, request in requests.items():
            head, tensors = decode(request)
            bounds = self.bounds[name]
            bounds.check(head, tensors)
            answers |= super().ask({name: request})
            bounds.answered(head, tensors)
            memory, bounds.memory = bounds.memory, {}
            bounds.memory = {k: v.clone() for k, v in memory.items()}  # as from a disk
        return answers
