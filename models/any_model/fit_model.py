"""One call for a plain Pyro model and a table.

    fitted = fit_model(model, df, group="site")
    fitted.summary()

Every client is in this process. At sites, where rows may not leave, the same model is a study (``hierfl federate``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hierfl.calls import checked_call
from hierfl.data.column_federation import column_federation, design_of
from hierfl.data.column_table import outline
from hierfl.data.federation import Federation
from hierfl.errors import UserError, unknown
from hierfl.inference.engines.plate import PlateEngine
from hierfl.inference.run.fit import EngineMaker, fit

from .columns import checked, columns_read
from .fitted_model import FittedModel
from .model_file import method_of
from .own_guide.for_clients import ForClients, form_of, refuse_automatic
from .sites import Model

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd


#: rounds after which a fit is evaluated: it has nothing held out, and a fit that goes on has the same settings
EVALUATION_INTERVAL = 10**6
#: guides that a fit may have
GUIDES = ("auto", "full", "low-rank", "diagonal", "point")


@checked_call
def fit_model(
    model: Model,
    data: pd.DataFrame | Federation,
    *,
    group: str = "site",
    guide: str | Model = "auto",
    client_guide: Any = "auto",
    rounds: int | None = None,
    seed: int = 0,
    spellings: str | Mapping[str, str] = "refuse",
    engine: EngineMaker = PlateEngine,
    device: str = "cpu",
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> FittedModel:
    """The posterior of a plain Pyro model's globals and of every client's latents.

    Args:
        model: a function of a :class:`~hierfl.data.column_batch.ColumnBatch`. Sites inside
            ``pyro.plate("client", batch.num_clients, dim=-2)`` are clients', those inside
            ``pyro.plate("data", batch.width, dim=-1)`` rows'; all others are of everyone.
        data: a table, of which the columns that the model reads must be complete; or what
            :meth:`~hierfl.data.federation.Federation.from_columns` has made of one.
        group: of a table, the column that says to which client a row belongs.
        guide: of the globals: "full", a Gaussian of full covariance, which is reweighted at the end, of at most 300
            numbers; "low-rank", one whose precision is a diagonal and ``rank`` directions; "diagonal", one of
            independent numbers; "point", the mode of p(z) p(y | z) with clients' latents integrated out; "auto" is
            "full", and "low-rank" beyond 300 numbers. Parameters of the model (``pyro.param``, modules) are points in
            all of them. Or a Pyro guide of one's own, a function of a batch: of its parameters those with a dimension
            of clients are clients' own.
        client_guide: of a client's latents given the globals: "auto", Gaussian by Newton steps; "normal",
            "multivariate", "low-rank" or "iaf", by stochastic gradients; Pyro's AutoGuide classes represent these.
        rounds: of the fit, at most: it ends where it is done. None for 200, and for 2,000 with a guide of one's own.
        seed: of the draws.
        spellings: of a table, as for :meth:`~hierfl.data.federation.Federation.from_columns`.
        engine: where the clients are.
        device: that computes.
        folder: where to keep checkpoints; None for none.
        resume: go on from the checkpoint in ``folder``.
        progress: a bar on standard error, if it takes longer than two seconds.
        **settings: fields of ``AnyModel.Settings``, such as ``draws=4000``, or ``transforms="on"``: "auto" gives each
            global a skew and a tail where nothing reweights the guide, "off" leaves it Gaussian.

    Raises:
        UserError: for a model, a table or a setting that cannot be used.
    """
    if not callable(model):
        raise UserError(f"a model is a function of a batch, not {type(model).__name__}")
    if isinstance(guide, str) and guide not in GUIDES:
        raise unknown("guide", guide, GUIDES)
    refuse_automatic(guide)
    own = None if isinstance(guide, str) else guide
    if own is not None and not callable(own):
        raise UserError(f"a guide is a function of a batch, or one of {', '.join(GUIDES)}, not {type(own).__name__}")
    by_name = None if client_guide == "auto" else ForClients(form_of(client_guide))
    if by_name is not None and guide != "auto":
        raise UserError("client_guide is of a fit whose globals have guide='auto': say one of guide and client_guide")
    if isinstance(data, Federation):
        federation, design = data, design_of(data)
        columns_read(model, design, own)
    else:
        columns = columns_read(model, outline(data, group), own)
        federation, design = column_federation(data, group, columns, spellings)
    if isinstance(guide, str) and by_name is None:
        settings["guide"] = guide
    method = method_of(model, guide=own or by_name)(checked(model, federation, design), **settings)
    rounds = method.usual_rounds if rounds is None else rounds
    run = fit(
        method, federation, rounds, seed=seed, device=device, engine=engine, folder=folder, resume=resume,
        progress=progress, dtype=torch.float64, splits=(), evaluate_every=EVALUATION_INTERVAL, chunk=1000,
    )  # fmt: skip
    return FittedModel(run)
