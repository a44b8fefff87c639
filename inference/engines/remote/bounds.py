"""Which broadcasts a site computes with: checked before anything is.

A server chooses at which values a site's rows are evaluated. Values that no honest fit makes may be chosen to read the
rows: coefficients so steep that they count the rows above a value, or a first layer that copies its inputs. Four things
are checked:

    form        names, shapes and dtypes are the method's, and all numbers are finite
    start       round 1 has the values that every fit begins with; the site computes them by itself
    ranges      of a method that knows them (:func:`~hierfl.inference.method.capabilities.broadcast_error`)
    step        of a network, how far values are from the last broadcast that the site has seen

A value that clients train may move by :data:`OWN_STEPS` times what this site's own training has last moved it, or by
:data:`SHARE` of its size. Other values, and those that begin with zero, may move by :data:`SIZES` times their size.
Both count for every round since. Sums over rows, such as counts, are as large as there are many rows, and have no
such bound. Honest fits of all methods stay below (tests/inference/engines/test_bounds.py). The step bounds jumps, not
drift: a server may go anywhere in many rounds. With noise on a sum over clients no step is checked: noise moves values
farther than training does, and what a site's own training moves is hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...method.capabilities import broadcast_error, is_tabular
from ...method.response_checks import response_error
from ...state import State, form_of_state
from .points import points_of
from .site import Site
from .wire import Unreadable, check_form, put_under, under

#: a round's step of a trained value, in this site's own last steps
OWN_STEPS = 100.0
#: a round's step, of the size of a trained value, and of others
SHARE, SIZES = 0.1, 100.0
#: processors may differ in the last digits of initial values
RELATIVE_TOLERANCE = 1e-5
#: kinds of requests that carry shared values
CARRYING = ("scores", "sums", "calibration", "finish")


class OutOfBounds(Unreadable):
    """A broadcast that no honest fit makes. The line names what is out of bounds, and no value."""

    #: the class of the refusal
    refused = "bounds"


class Bounds:
    """What a site accepts as a broadcast, and what it has to remember of the last one.

    Args:
        site: whose.

    Attributes:
        memory: to be kept with the site's answers, and put back when it begins again: the last round's number and
            values, and how far this site has moved them; empty before the first round.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.memory: State = {}

    def check(self, head: Mapping[str, Any], tensors: State, *, by_rows: bool = True) -> None:
        """Checks a request, before it is answered.

        Args:
            head: of the request.
            tensors: of the request.
            by_rows: whether bounds that depend on the site's rows are checked, too.

        Raises:
            OutOfBounds: for a broadcast that no honest fit makes.
        """
        shared = self.formed(head, tensors)
        if shared is None:
            return
        number = int(head["round"]) + (head["kind"] != "round")  # after a round, of which the next one has the values
        if number == 1:
            self._begins(shared)
        if not by_rows:
            return
        # What has noise says as little of any rows anywhere, and a refusal by the rows would be without noise.
        noisy = self.site.plate.privacy is not None
        if not noisy and (problem := self._problem(shared)):
            raise OutOfBounds(problem)
        # How far a client's own training moves is hidden by noise on a sum over clients: a refusal by it would tell.
        if not is_tabular(self.site.method) and self.site.options.dp != "client":
            self._steps(number, shared)

    def formed(self, head: Mapping[str, Any], tensors: State) -> State | None:
        """The shared values of a request; None of one that carries none. Nothing of the site's rows is looked at.

        Raises:
            OutOfBounds: for names, shapes and dtypes that are not the method's, numbers that are not finite, and what
                the method never sends, whatever the rows are.
        """
        kind = head.get("kind")
        if kind != "round" and kind not in CARRYING:
            return None
        shared = tensors if kind == "round" else under("shared", tensors)
        try:
            shared = check_form(shared, form_of_state(self.site.shared))
        except Unreadable as error:
            raise OutOfBounds(str(error)) from error
        try:
            points_of(self.site.method, head, tensors)
        except ValueError as error:  # of a phase that is none
            raise OutOfBounds("it asks for nothing that the method knows") from error
        return shared

    def answered(self, head: Mapping[str, Any], tensors: State) -> None:
        """Remembers a round that was answered.

        Args:
            head: of the request.
            tensors: of the request, as it was checked.
        """
        if head.get("kind") != "round" or is_tabular(self.site.method):
            return
        moved = {k: torch.tensor(v, dtype=torch.float64) for k, v in self.site.plate.moved.items()}
        last = {k: v.detach().cpu().clone() for k, v in tensors.items()}
        number = torch.tensor(float(head["round"]), dtype=torch.float64)
        self.memory = {"round": number, **put_under("last", last), **put_under("moved", moved)}

    def _problem(self, shared: State) -> str:
        """Returns why the site's own rows do not go with a broadcast; empty where they do."""
        federation, method = self.site.plate.federation, self.site.method
        rows = federation.indices("train")[0]
        return broadcast_error(method, shared, federation.x[rows]) or response_error(method, shared, federation.y[rows])

    def _begins(self, shared: State) -> None:
        for name, first in self.site.shared.items():
            if not torch.allclose(
                shared[name], first, rtol=RELATIVE_TOLERANCE, atol=RELATIVE_TOLERANCE * _largest(first)
            ):
                raise OutOfBounds(f"{name!r} is not what every fit begins with")

    def _steps(self, number: int, shared: State) -> None:
        last = under("last", self.memory) or self.site.shared
        moved = under("moved", self.memory)
        rounds = max(1, number - int(self.memory["round"]) if self.memory else number - 1)
        growing = {name for group in self.site.plate.exchange.groups.values() for name in group.growing}
        for name, value in shared.items():
            if not value.is_floating_point() or not value.numel() or name in growing:
                continue
            before = last[name].to(value)
            size = max(rms(before), rms(self.site.shared[name]))
            most = SIZES * max(size, 1.0)
            if name in moved and rms(self.site.shared[name]) > 0:
                most = max(OWN_STEPS * float(moved[name]), SHARE * size)
            if rms(value - before) > rounds * most:
                raise OutOfBounds(f"{name!r} has moved farther since the last round than any fit does")


def rms(value: Tensor) -> float:
    """The root of the mean of squares."""
    return float(value.detach().double().square().mean().sqrt())


def _largest(value: Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0
