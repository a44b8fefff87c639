"""Which method files this user has run: a run folder from elsewhere names Python that must not run unasked.

A file that is named in a command is run, and remembered by its digest, outside all run folders: an empty file for each
in ``$HIERFL_STATE``, or ``hierfl`` under ``$XDG_STATE_HOME`` or ``~/.local/state``.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from hierfl.files import user_path

log = logging.getLogger("hierfl")

#: digests of this process: it goes on where nothing can be remembered
_named: set[str] = set()


def digest(source: bytes) -> str:
    """A fingerprint of a file."""
    return hashlib.sha256(source).hexdigest()


def state_folder() -> Path:
    """The folder of what hierfl remembers of this user, whatever it works in."""
    if own := os.environ.get("HIERFL_STATE"):
        return user_path(own)
    return user_path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "hierfl"


def memory() -> Path:
    """The folder of the digests that are remembered."""
    return state_folder() / "methods"


def remember(source: bytes) -> None:
    """Remembers that this user has run a file."""
    if trusted(source):
        return
    _named.add(digest(source))
    try:
        memory().mkdir(mode=0o700, parents=True, exist_ok=True)
        (memory() / digest(source)).touch(mode=0o600)
    except OSError as error:
        log.warning("%s cannot be remembered as yours (%s): later commands will ask for --trust-code", memory(), error)


def trusted(source: bytes) -> bool:
    """Whether this user has named or run a file with these bytes."""
    return digest(source) in _named or (memory() / digest(source)).is_file()
