"""A site at work: it answers until the study has ended for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hierfl.inference.engines.remote.files import POLL, answer_all
from hierfl.inference.engines.remote.preparation import PreparedSite

from .local_socket import answer_couriers, listening


def has_ended(site: PreparedSite) -> bool:
    """Whether the study has, for this site."""
    return site.site is not None and site.site.state.ended


def answer_by_files(site: PreparedSite, exchange: Path, client: str) -> None:
    """Answers what lies in a shared folder."""
    while not has_ended(site):
        if not answer_all(exchange, client, site.answer):
            time.sleep(POLL)


def answer_by_flower(site: PreparedSite, folder: Path, say: Callable[[str], None]) -> None:
    """Answers what a node of Flower on this machine brings."""
    with listening(folder) as listener:
        say(f"""it answers Flower's node: flower-supernode --node-config 'folder="{folder.resolve()}"' ...""")
        answer_couriers(listener, site.answer, lambda: has_ended(site))
