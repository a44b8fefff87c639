"""What a reader has to know of a fit of a plain model, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hierfl.data.column_design import ColumnDesign
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.plurals import counted

from .guide import PATIENCE
from .marginals.notes import shape_notes
from .names import PHASE, TRACE, WORTH, Phase
from .trace import last_move
from .verdict import Verdict

if TYPE_CHECKING:
    from .plain import GaussianModel

#: standard deviations of a last step that a reader has to know of: beyond a tenth, means are not known to one
MIN_NOTED_SDS = 0.1
#: levels of a column of text whose codes are listed; who reads one of more knows what it holds
MOST_LISTED = 5


def fit_notes(fitted: Fitted, rounds: int) -> list[str]:
    """How text was coded, whether a fit of so many rounds has arrived, and how its globals were drawn."""
    return [*_code_notes(cast("GaussianModel", fitted.method).network), *_of_fit(fitted, rounds)]


def _code_notes(design: ColumnDesign) -> list[str]:
    """What the codes of columns of few words represent: a model of ``healthy`` and ``ill`` is of one of them."""
    lists = {name: levels for name, levels in design.level_names.items() if len(levels) <= MOST_LISTED}
    return [
        f"{name} is text: " + ", ".join(f"{level} is {code}" for code, level in enumerate(levels))
        for name, levels in lists.items()
    ]


def _of_fit(fitted: Fitted, rounds: int) -> list[str]:
    method, shared = cast("GaussianModel", fitted.method), fitted.shared
    phase, settings = Phase(int(shared[PHASE])), method.settings
    if phase != Phase.DONE:
        what = "the guide still moved" if phase <= Phase.FINE else "the posterior of the globals was being explored"
        return [
            f"not arrived: after {counted(rounds, 'round')} {what}; its draws are not of the posterior: say more rounds"
        ]
    moved = last_move(shared[TRACE])
    points = [latent.name for latent in method.sites.globals if latent.point]
    notes = [f"points without a spread: {', '.join(points)}"] if points else []
    if own := [latent.name for latent in method.sites.own_points]:
        notes.append(
            f"points of each client, which move with the globals alone: {', '.join(own)}; "
            "globals have the profile likelihood, which underrates standard deviations of residuals"
        )
    if moved >= MIN_NOTED_SDS:
        notes.append(
            f"the guide's last step was {moved:.2g} standard deviations, and {PATIENCE} rounds had not raised the "
            "bound: it may not be where it should"
        )
    if not len(method.sites.start):
        return [*notes, "no globals: each client's posterior is its own"]
    spread = int(method.family.spread.sum())
    p = len(method.sites.start)
    if 0 < method.rank < p and spread and not method.family.diagonal:
        notes.append(
            f"the guide has low rank: {method.rank} directions of {p} numbers beside a diagonal, so that standard "
            "deviations may be too small"
        )
    notes += shape_notes(fitted)
    worth = float(shared[WORTH])
    if not worth:
        given_up = Verdict.read(shared).warnings
        return [*notes, *(given_up or ([_why_not(method, spread)] if spread else []))]
    reweighted = f"globals are reweighted: the points are worth {worth:,.0f} independent draws"
    if worth < settings.worth:
        reweighted += f", fewer than the {settings.worth:,.0f} that were wanted: intervals are rough"
    return [*notes, reweighted, *Verdict.read(shared).lines()]


def _why_not(method: GaussianModel, spread: int) -> str:
    settings = method.settings
    if getattr(method, "layout", None) is not None:
        return f"globals are the guide's: they were not reweighted, since a client has {method.q:,} numbers"
    if settings.reweigh and spread <= settings.most_globals:
        return "exact: all log joints are Gaussian, as far as the guide reaches"
    why = f"{spread} numbers are more than {settings.most_globals}" if settings.reweigh else "reweigh=False"
    return f"globals are the guide's: they were not reweighted, since {why}"
