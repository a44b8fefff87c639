"""`hierfl serve`: a finished run over http."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierfl.errors import UserError

from .options import TrustCode, path_argument


def serve(
    folder: Annotated[Path, path_argument("RUN", "A finished run.")],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address that it is bound to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port.")] = 8000,
    trust_code: TrustCode = False,
) -> None:
    """Answer predictions over http: POST /predict, GET /health, GET /card. It needs pip install 'hierfl[serve]'."""
    try:
        import uvicorn

        from ..predict.serving import LOOPBACK, application
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "fastapi"):
            raise
        raise UserError("hierfl serve needs fastapi and uvicorn: pip install 'hierfl[serve]'") from error
    app = application(folder, host=host, trust_code=trust_code)
    typer.echo(f"http://{host}:{port}/predict, /health, /card; Ctrl-C ends it", err=True)
    if host not in LOOPBACK:
        typer.echo("anyone who reaches this port may ask: it has no passwords and no encryption", err=True)
    uvicorn.run(app, host=host, port=port, log_level="warning")
