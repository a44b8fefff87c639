"""Requests that came as files, and replies to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hierfl.errors import UserError
from hierfl.files import make_folder, shown
from hierfl.inference.engines.remote.files import REPLY, name_of, read
from hierfl.inference.engines.remote.refusals import refusal
from hierfl.inference.engines.remote.wire import Unreadable, header
from hierfl.plain_folder import PlainFolder


def write_replies(answer: Callable[[bytes], bytes], requests: Sequence[Path], out: Path) -> Iterator[tuple[Path, str]]:
    """Answers requests in the order of their rounds.

    Args:
        answer: the site.
        requests: files.
        out: a folder; for one request also a file, which ends in ``.reply``.

    Yields:
        The reply's file, and why it holds no answer; empty where it does.

    Raises:
        UserError: for files that are none.
    """
    named = []
    for path in requests:
        data = read(path)
        if not data:
            raise UserError(f"{shown(path)} is no file that can be read")
        try:
            named.append((name_of(data), data))
        except Unreadable as error:
            raise UserError(f"{shown(path)} is no request: {error}") from error
    single = out.suffix == REPLY
    target = out.parent if single else out
    if target.is_symlink():
        raise UserError(f"{shown(target)} is a link: say the folder that it leads to")
    if single and len(named) > 1:
        raise UserError(f"{len(named)} replies do not go into one file: --out DIR")
    for name, data in sorted(named):
        path = out if single else out / f"{name}{REPLY}"
        make_folder(path.parent)
        reply = answer(data)
        PlainFolder(path.parent).write(path.name, reply)
        refused = refusal(header(reply))
        yield path, f"refused ({refused}): the log of this site says why" if refused else ""
