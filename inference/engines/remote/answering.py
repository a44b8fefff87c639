"""How a site answers: always something, if only that it cannot."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch

from hierfl.errors import UserError
from hierfl.files import shown
from hierfl.nn.precision import precision

from ...state import State
from .refusals import Refused
from .wire import Handshake, Unreadable, decode, encode

log = logging.getLogger("hierfl")
#: from a request's header, tensors and digest to the answer's bytes
Handler = Callable[[dict[str, Any], State, str], bytes]
#: Pyro's handlers are the process's: two sites in one process answer one after the other
_ONE_AT_A_TIME = threading.RLock()


class Desk:
    """Reads requests to one client, and answers those that it may.

    Args:
        client: its name.
        handshake: what it has in common with its server.
        device: of tensors.

    Attributes:
        most: bytes of the largest request.
        patient: whether an error of the disk is raised, so that the caller can ask again; else it is answered.
    """

    def __init__(self, client: str, handshake: Handshake, device: torch.device, most: int) -> None:
        self.client, self.handshake, self.device, self.most = client, handshake, device, most
        self.patient = False

    @torch.no_grad()
    @precision("full")
    def answer(self, request: bytes, kinds: Mapping[str, Handler]) -> bytes:
        """What one of ``kinds`` makes of a request; where that fails, that it has.

        What a server hears of a failure is its class, and one line that holds nothing of the data; this site's log
        holds all of it.

        Raises:
            OSError: of a desk that is patient.
        """
        try:
            head, tensors = decode(request, self.most)
            if problem := self.handshake.differs(head.get("handshake")):
                raise Refused(problem, "version")
            if head.get("client") != self.client:
                raise Unreadable("it is for another client: compare the name at both ends")
            if head.get("kind") not in kinds:
                raise Unreadable("a kind of request that this version does not know")
            with _ONE_AT_A_TIME, pyro.get_param_store().scope():
                on_device = {k: v.to(self.device) for k, v in tensors.items()}
                answer = kinds[head["kind"]](head, on_device, hashlib.sha256(request).hexdigest())
            log.info("%s of round %s: answered by %d bytes", head["kind"], head.get("round"), len(answer))
            return answer
        except Unreadable as error:
            log.warning("a request was refused: %s", shown(error))
            return self.says({"error": str(error), "refused": getattr(error, "refused", "failed")})
        except UserError as error:  # what is wrong with the data is this site's to know
            log.error("the data do not fit: %s", shown(error))
            return self.says({"error": "its data do not fit: see the site's own log", "refused": "data"})
        except OSError as error:
            if self.patient:
                raise
            log.exception("a request could not be answered")
            return self.says({"error": f"{type(error).__name__} (see the site's own log)", "refused": "failed"})
        except Exception as error:  # a site goes on, whatever a request has done to it
            log.exception("a request could not be answered")
            return self.says({"error": f"{type(error).__name__} (see the site's own log)", "refused": "failed"})

    def says(self, head: Mapping[str, Any], tensors: State | None = None) -> bytes:
        """An answer."""
        return encode({**head, "client": self.client}, tensors or {})
