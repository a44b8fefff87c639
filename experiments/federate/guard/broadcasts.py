"""Broadcast values at a site's gate: within bounds, compared with the last that were answered."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.files import write_whole
from hierfl.inference.engines.remote.bounds import Bounds, OutOfBounds
from hierfl.inference.engines.remote.kept_bytes import decode_kept, encode_kept
from hierfl.inference.engines.remote.site import Site
from hierfl.inference.engines.remote.wire import Unreadable
from hierfl.inference.state import State

from .replies import Refused

log = logging.getLogger("hierfl")
#: of a study's folder: what is remembered of the last broadcast
LAST_BROADCAST_FILE = "broadcast.safetensors"


class Broadcasts:
    """Bounds of one site, which a process that begins again goes on with.

    Args:
        folder: the study's at its site.
        site: what answers.
    """

    def __init__(self, folder: Path, site: Site) -> None:
        self.path, self.site, self.bounds, self._fit = folder / LAST_BROADCAST_FILE, site, Bounds(site), True
        if self.path.is_file():
            try:
                self.bounds.memory = decode_kept(self.path.read_bytes())[1]
            except Unreadable as error:
                raise UserError(f"{self.path} is damaged: {error}") from error

    def check_form(self, head: Mapping[str, Any], tensors: State) -> None:
        """Refuses values of another form than the method's: of that the site's rows say nothing.

        Raises:
            Refused: likewise.
        """
        try:
            self.bounds.formed(head, tensors)
        except OutOfBounds as error:
            raise Refused("bounds", str(error)) from error

    def check(self, head: Mapping[str, Any], tensors: State, *, by_rows: bool = True) -> None:
        """Refuses values that no honest server sends.

        Args:
            head, tensors: of the request.
            by_rows: whether also those that none sends to a site with these rows.

        Raises:
            Refused: likewise.
        """
        try:
            self.bounds.check(head, tensors, by_rows=by_rows)
        except OutOfBounds as error:
            raise Refused("bounds", str(error)) from error

    def fits(self, head: Mapping[str, Any], tensors: State) -> bool:
        """The same without a refusal, which would say something of one site's rows; the site's log says why."""
        device = self.site.plate.device
        try:
            self.check(head, {name: value.to(device) for name, value in tensors.items()})
        except Refused as error:
            log.warning("this site has no message: %s", error.reason)
            self._fit = False
        else:
            self._fit = True
        return self._fit

    def remember(self, head: Mapping[str, Any], tensors: State) -> None:
        """Keeps what later values are compared with, of values that fit; it is on the disk when this returns."""
        if head["kind"] != "round" or not self._fit:
            return
        self.bounds.answered(head, tensors)
        if self.bounds.memory:  # a mixed model's bounds compare with nothing
            write_whole(self.path, encode_kept({}, self.bounds.memory), mode=0o600)
