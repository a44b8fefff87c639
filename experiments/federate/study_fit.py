"""A study's mixed model as a fitted one, after its end: at the coordinator, and at a site."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hierfl.argument_types import typed_call
from hierfl.data.federated.formula_data import FormulaData
from hierfl.errors import UserError
from hierfl.files import user_path
from hierfl.inference.engines.remote.preparation import PREPARED_FILE, read_sums
from hierfl.inference.evaluation.fitted import Fitted, Population
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.of_options import of_options
from hierfl.inference.options import Options
from hierfl.inference.run import checkpoint
from hierfl.inference.run.arguments import initial_values
from hierfl.inference.run.result import Run
from hierfl.models.mixed_effects.after.histogram import CELLS
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.model.names import RESIDUALS
from hierfl.models.mixed_effects.report.predictions import Level
from hierfl.models.mixed_effects.report.same_data import NO_ROWS
from hierfl.models.mixed_effects.rowless_fit import RowlessMixedModel
from hierfl.schema import read_toml

from ..run_folder.summary import read_summary
from .guard.home import SITE, STUDY_COPY
from .public_sums import is_public, kept_public_sums
from .site_results import site_run
from .study import STUDY, Study
from .study_site import Membership, as_numbers

if TYPE_CHECKING:
    import pandas as pd

#: of a server's checkpoint, what all share
SHARED = "server/shared/"


class OfStudy:
    """What no fit of a study answers, since it needs all rows, and they are at their sites."""

    @typed_call
    def refit(self, update: str = "~ .", df: pd.DataFrame | None = None, **changes: Any) -> Any:
        """Refused."""
        raise UserError("refit needs all rows, and they are at their sites: another formula is another study")

    @typed_call
    def save(self, folder: str | Path) -> None:
        """Refused."""
        raise UserError("a study is kept by its folder: copy that, and load_study(FOLDER) loads it")

    @typed_call
    def shrinkage(self) -> pd.DataFrame:
        """Refused."""
        raise UserError("shrinkage needs all rows, and they are at their sites: load_study(FOLDER).ranef() at a site")

    @typed_call
    def compare(self, other: FittedMixedModel, *_: Any, **__: Any) -> pd.DataFrame:
        """Refused: no one sees that two studies are of the same rows, and REML's are fitted again."""
        raise UserError(
            "compare needs all rows, and they are at their sites: test('x = 0') and anova() test effects of one study"
        )


class SiteMixedModel(OfStudy, FittedMixedModel):
    """A study's fit at one of its sites, with the site's own rows."""


class StudyMixedModel(OfStudy, RowlessMixedModel):
    """A study's fit at its coordinator: answers from sums; what is of single sites is at the sites."""

    @typed_call
    def posterior(self, **how: Any) -> Any:
        """Refused: what ArviZ is given has rows."""
        raise UserError(
            "posterior() has clients and rows, which are at the sites: summary() has the population's intervals, and "
            "load_study(FOLDER) at a site its own posterior()"
        )

    @typed_call
    def ranef(self, level: str = "client") -> pd.DataFrame:
        """The random effects of groups of sites, as of any fit; a site's own effects stay there.

        Raises:
            UserError: for these.
        """
        if level not in [level_above.grouping.factor for level_above in self.method.above]:
            raise _at_sites("ranef")
        return super().ranef(level)

    @typed_call
    def residual_sds(self, level: float = 0.9) -> pd.DataFrame:
        """Refused: sites' own deviations stay there."""
        raise _at_sites("residual_sds")

    @typed_call
    def influence(self) -> pd.DataFrame:
        """Refused: single sites' rows are not counted here."""
        raise _at_sites("influence")

    @typed_call
    def predict(
        self, df: pd.DataFrame, level: Level = "client", interval: float | None = 0.9,
        given: pd.DataFrame | None = None,
    ) -> pd.DataFrame:  # fmt: skip
        """Predictions as of any fit, for levels "population" and "new".

        Raises:
            UserError: for level "client".
        """
        if level == "client":
            raise _at_sites("predict with level='client'")
        return super().predict(df, level, interval, given)


@typed_call
def load_study(folder: str | Path) -> FittedMixedModel:
    """A study's mixed model as it has ended.

    Args:
        folder: the coordinator's (``--out`` of ``hierfl federate serve``): summaries, tests and marginal means from
            sums. Or the study's folder at a site: these, and that site's own effects, residuals and predictions.

    Raises:
        UserError: for another folder, a study of another model, or one that has not ended.
    """
    study_folder = user_path(folder)
    if (study_folder / SITE).is_file():
        return _at_site(Membership.read(study_folder))
    if not (study_folder / STUDY_COPY).is_file():
        raise UserError(f"{study_folder} is no folder of a study: it has no {STUDY_COPY}")
    study = Study.from_table(read_toml(study_folder / STUDY_COPY, STUDY), study_folder / STUDY_COPY, finished=True)
    _check(study)
    if not (study_folder / "summary.json").is_file():
        raise UserError(f"{study_folder}: the study has not ended")
    fitted, options = _restored(study, study_folder)
    run = Run(fitted, study.clients, options, [], 0.0, bool(len(fitted.shared["effects.draws"])))
    return StudyMixedModel(run, study.table["data"]["formula"])


def _restored(study: Study, folder: Path) -> tuple[Fitted, Options]:
    """What the server's last checkpoint has reached. No site is asked for anything."""
    public = is_public(study)
    totals = (
        kept_public_sums(study, folder) if public else read_sums(folder / PREPARED_FILE, study.handshake.study)[1]
    )  # fmt: skip
    options = study.options("cpu")
    outline, network = study.data.model(as_numbers(totals), study.loaded.cls.latent)
    method, outline = of_options(options, study.method(network), outline)
    outline = replace(outline.to("cpu", options.dtype), about={**outline.about, NO_ROWS: True})
    state, _ = checkpoint.load(folder / "checkpoint")
    shared = {k.removeprefix(SHARED): v for k, v in state.items() if k.startswith(SHARED)}
    initial = initial_values(method, InitialWeights.for_network(method.network, options.seed))[1]
    initial = {k: v.detach().to(options.dtype) for k, v in initial.items()}
    no_rows = {k: v.new_zeros((0, *v.shape)) for k, v in initial.items()}
    params = method.prediction_params(shared)
    return Fitted(method, outline, params, no_rows, {}, initial, options.seed, counted(folder)), options


def counted(folder: Path) -> Population | None:
    """Sums over all sites that the report has kept: rows by their quantile residuals; None where none were counted."""
    summary = read_summary(folder)
    counts = [summary[name] for k in range(1, CELLS + 1) if (name := f"{RESIDUALS}_{k}") in summary]
    return Population({}, {RESIDUALS: torch.tensor(counts, dtype=torch.float64)}) if len(counts) == CELLS else None


def _at_site(member: Membership) -> FittedMixedModel:
    """A site's own, with its rows."""
    _check(member.study)
    assert isinstance(member.study.data, FormulaData)
    run = site_run(member)
    index = member.study.data.site(member.data, member.client, member.reading).df.index
    federation = run.fitted.federation
    own_federation = replace(federation, about={**federation.about, "index": index})
    formula = member.study.data.formula.formula
    return SiteMixedModel(replace(run, fitted=replace(run.fitted, federation=own_federation)), formula)


def _check(study: Study) -> None:
    if not issubclass(study.loaded.cls, MixedEffects):
        raise UserError(f"{study.name} is a study of {study.loaded.name}: load_study is of mixed-effects models")


def _at_sites(what: str) -> UserError:
    return UserError(f"{what} is of single sites, and stays there: load_study(FOLDER) at a site, of its study's folder")
