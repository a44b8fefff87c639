"""A finished run over http: rows in, predictions out. It needs the extra ``serve``.

A request is checked as :mod:`.answers` checks a file. No answer holds a row of the training data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse

from hierfl import __version__
from hierfl.errors import UserError

from ..cli.as_json import plain
from .answers import Question, answered
from .asked_rows import parsed, rows_of
from .card import model_card
from .codes import warnings_kept
from .ready import ready

#: bytes of a request
LARGEST = 64 * 2**20
#: names by which a server of this machine alone is asked
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
#: what a request may say, beside its rows
REQUEST_OPTIONS = {"client": str, "new": bool, "interval": float, "draws": int, "shares": str}
#: options of ``hierfl predict`` in messages, and what a request says instead
IN_JSON = (
    (r", --new, or of a table --group COLUMN", ', or "new": true'), (r"FILE\.npz with x and y", "x and y"),
    (r"or a table with (?=')", "or rows with the column "), (r"--new(?![\w-])", '"new": true'),
    (", of which pandas.to_numeric makes numbers", ""),
    (r", as df\.dropna\(.* in Python", ""),
    (r"(?<=and numbers in the fit): .*", ": write them without quotes"),
    (r"(?<=True and False in the fit): (df|write).*", ": write true and false without quotes"),
    (r"(?<=, which no formula reads): df.*", ": a column has values of one type"),
    (r"; encode it first \(for example with pandas\.get_dummies\)", ": write numbers without quotes"),
    (r"(?<=in the fit): df\[.*", ": write text in quotes"),
    (rf"--({'|'.join(REQUEST_OPTIONS)}|given) (?=[A-Z0-9])", r'"\1": '),
    (rf"--({'|'.join(REQUEST_OPTIONS)}|given)(?![\w-])", r'"\1"'),
)  # fmt: skip


def application(folder: Path, *, host: str = LOOPBACK[0], trust_code: bool = False) -> FastAPI:
    """The web application of a run: POST /predict, GET /health, GET /card.

    Args:
        folder: of the run.
        host: address at which it is served. Requests to a loopback address must be addressed to this machine.
        trust_code: as of :func:`hierfl.load_run`.

    Raises:
        UserError: as :func:`hierfl.load_run`.
    """
    loaded, run = ready(folder, trust_code=trust_code)
    card, alone = model_card(folder, loaded), Lock()
    app = FastAPI(title=f"hierfl: {folder.name}", version=__version__, docs_url=None, redoc_url=None)
    if host in LOOPBACK:  # a page in a browser may name this address as its own
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK))

    @app.exception_handler(UserError)
    async def refused(_: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"error": in_json(str(error))}, status_code=422)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "ok", "run": folder.name, "hierfl": __version__}

    @app.get("/card")
    def read_card() -> dict[str, Any]:
        return card

    @app.post("/predict")
    async def predict(request: Request) -> JSONResponse:
        asked = question(await body(request))

        def predictions() -> Any:
            with alone, warnings_kept() as lines:  # predictions set torch's own seed, which all threads share
                answers = plain(answered(loaded, run, asked))
            return {"predictions": answers, "warnings": list(dict.fromkeys(map(in_json, lines)))}

        return JSONResponse(await run_in_threadpool(predictions))

    return app


def in_json(message: str) -> str:
    """A message that names options of a command, with the fields of a request instead."""
    for option, field in IN_JSON:
        message = re.sub(option, field, message)
    return message


async def body(request: Request) -> dict[str, Any]:
    """The object of a request.

    Raises:
        UserError: for one that is too large, and what is no json object.
    """
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > LARGEST:
            raise UserError(f"a request has at most {LARGEST:,} bytes")
    entries = parsed(bytes(content))
    if not isinstance(entries, dict):
        raise UserError('a request is a json object, such as {"rows": [{...}]}')
    return entries


def question(entries: Mapping[str, Any]) -> Question:
    """What is asked by a request.

    Args:
        entries: ``rows``, a list of objects, or ``x``, nested lists, with ``client``, a name or one for each row; and
            ``new``, ``given`` (with ``rows``, or with ``x`` and ``y``), ``interval``, ``draws`` and ``shares``, as the
            options of ``hierfl predict``.

    Raises:
        UserError: for another key, or a value of another type.
    """
    given_options = {
        name: entries[name]
        for name in REQUEST_OPTIONS
        if entries.get(name) is not None and not isinstance(entries[name], list)
    }
    for name, value in given_options.items():
        if type(value) not in ({int, float} if REQUEST_OPTIONS[name] is float else {REQUEST_OPTIONS[name]}):
            raise UserError(f"{name} is {REQUEST_OPTIONS[name].__name__} in a request, not {type(value).__name__}")
    given = entries.get("given")
    if given is not None and not isinstance(given, dict):
        raise UserError("given is an object with rows, or with x and y")
    rows = rows_of(entries, {"x", "rows", "client", "given", *REQUEST_OPTIONS})
    return Question(
        rows, given=None if given is None else rows_of(given, {"x", "y", "rows", "client"}), **given_options
    )
