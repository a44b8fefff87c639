"""Residuals that correlate within a series: beside the dense normal density, and the estimates of R's nlme."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal
from support.sites import Sites

from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.study_reader import study_reader
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.row_numbers import RowColumns
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.models import MixedEffects
from hierfl.models.mixed_effects.mixed_model import mixed_model
from hierfl.responses.serial import Serial

DATA = Path(__file__).parents[2] / "data"
KINDS = {"ar1(t | patient)": -0.4, "car1(day | patient)": 0.7, "cs(episode)": -0.1}


def table(clients: int = 3, patients: int = 4, rows: int = 6, seed: int = 0) -> pd.DataFrame:
    """Patients of clients, whose rows are at some of ten times, in no order; two episodes each."""
    rng = np.random.default_rng(seed)
    frames = []
    for client in range(clients):
        for patient in range(patients):
            t = np.sort(rng.choice(10, rows, replace=False))
            frames.append(
                pd.DataFrame(
                    {
                        "site": f"s{client}", "patient": f"p{patient}", "t": t, "day": t + rng.uniform(0, 0.9, rows),
                        "episode": [f"e{patient}{k % 2}" for k in range(rows)], "x": rng.normal(size=rows),
                        "y": rng.normal(size=rows) + rng.normal() + rng.normal(),
                    }
                )
            )  # fmt: skip
    return pd.concat(frames).sample(frac=1, random_state=seed).reset_index(drop=True)


def ovary() -> pd.DataFrame:
    """Follicles of 11 mares (Pierson and Ginther, 1987); of nlme."""
    df = pd.read_csv(DATA / "ovary.csv", dtype={"Mare": str})
    return df.assign(Mare="m" + df.Mare, s=np.sin(2 * np.pi * df.Time), c=np.cos(2 * np.pi * df.Time))


def body_weight() -> pd.DataFrame:
    """Weights of 16 rats over nine weeks (Hand and Crowder, 1996); of nlme."""
    df = pd.read_csv(DATA / "bodyweight.csv", dtype={"Rat": str})
    return df.assign(Rat="r" + df.Rat)


def correlations(kind: str, rho: float, rows: pd.DataFrame) -> np.ndarray:
    """C, (n, n)."""
    if kind.startswith("cs"):
        same = rows.episode.to_numpy()[:, None] == rows.episode.to_numpy()
        return np.where(np.eye(len(rows)) > 0, 1.0, np.where(same, rho, 0.0))
    time = rows["day" if kind.startswith("car1") else "t"].to_numpy(dtype=float)
    same = rows.patient.to_numpy()[:, None] == rows.patient.to_numpy()
    away = np.abs(time[:, None] - time)
    return np.where(same, np.sign(rho) ** away * np.abs(rho) ** away, 0.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_likelihood_is_the_normal_density(kind: str, inner: bool, known: bool) -> None:
    df, rho, sd, sd_inner, s = table(), KINDS[kind], 0.8, 0.6, 1.3
    df["se"] = np.random.default_rng(1).uniform(0.5, 2, len(df))
    grouping = "site/patient" if inner else "site"
    more = {"known_se": "se"} if known else {}
    federation, design = from_formula(df, f"y ~ x + (1 | {grouping})", correlation=kind, **more)
    method = MixedEffects(design, draws=0, population="ml")
    federation = federation.to("cpu", torch.float64)
    kept = {k: v.double().expand(3, 1, *v.shape) for k, v in method.likelihood.personal().items()}
    chunk = ClientChunk(method, federation, [0, 1, 2], 0, 0, {}, kept)
    for step in method.likelihood.steps():
        chunk = step.run(chunk, "test")
    serial = Serial.from_correlation(design.correlation)
    assert serial is not None
    z = torch.linspace(-3, 3, 60_001).double()
    z = z[(serial.rho(z) - rho).abs().argmin()]
    rho = float(serial.rho(z))
    more_numbers = [*([sd_inner] if inner else []), *([] if known else [np.log(s)])]
    numbers = torch.tensor([sd, *more_numbers, float(z)], dtype=torch.float64)
    rows = method.likelihood.rows(chunk)
    packed = method.likelihood.at_points(rows, {"effects.points": numbers[None]})[:, 0]
    beta = torch.tensor([0.3, -0.5], dtype=torch.float64)
    for j, client in enumerate(federation.ids):
        own = df[df.site == client]
        units = design.fixed_units
        x = np.column_stack([np.ones(len(own)), (own.x - units.centre[1]) / units.scale[1]])
        w = own.se.to_numpy() if known else np.full(len(own), s)
        same = own.patient.to_numpy()[:, None] == own.patient.to_numpy()
        v = w[:, None] * w * correlations(kind, rho, own) + sd**2 + inner * sd_inner**2 * same
        expected = multivariate_normal(x @ beta.numpy() + design.offset, v).logpdf(own.y)
        a = torch.zeros(3, 3).double()
        up, across = torch.triu_indices(3, 3)
        a[up, across] = a[across, up] = packed[j, :-1]
        b = torch.cat([-beta, torch.ones(1).double()])
        assert float(-0.5 * (packed[j, -1] + b @ a @ b)) == pytest.approx(expected, abs=1e-10)
    # derivatives beside differences
    around = method.likelihood.around(rows, {"effects.at": numbers})
    step = 1e-5 * torch.eye(len(numbers)).double()
    near = method.likelihood.at_points(rows, {"effects.points": torch.cat([numbers + step, numbers - step])})
    slope = (near[:, : len(numbers)] - near[:, len(numbers) :]) / 2e-5
    torch.testing.assert_close(around["cross"], packed, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(around["cross_1"], slope, rtol=1e-6, atol=1e-6)
    two = [method.likelihood.around(rows, {"effects.at": numbers + sign * step[-1]})["cross_1"] for sign in (1, -1)]
    torch.testing.assert_close(around["cross_2"][:, -1], (two[0] - two[1]) / 2e-5, rtol=1e-5, atol=1e-5)


#: of R 4.2.2, nlme 3.1-162: o <- Ovary; o$visit <- ave(seq_len(nrow(o)), o$Mare, FUN = seq_along);
#: f <- lme(follicles ~ sin(2 * pi * Time) + cos(2 * pi * Time), o, random = ~1 | Mare, method = "ML" or "REML",
#:     correlation = corAR1(form = ~visit | Mare))
#: fixef(f); VarCorr(f); f$sigma; logLik(f); coef(f$modelStruct$corStruct, unconstrained = FALSE)
OVARY = {
    "ml": ([12.1896278540, -2.9586188936, -0.8798849361, 2.663733, 3.616763386, 0.597466468], -776.517310890),
    "reml": ([12.1895830368, -2.9472827620, -0.8807160123, 2.807268, 3.665450126, 0.607442277], -775.223348784),
}
#: lme(weight ~ Time * Diet, BodyWeight, random = ~Time | Rat, correlation = corCAR1(form = ~Time | Rat))
BODY_WEIGHT = {
    "ml": (
        [251.5927746144, 0.3602923011, 200.6889930165, 252.3139587329, 0.6254924709, 0.3109513488, 33.3022849,
         0.2168057, -0.146, 4.548606780, 0.759862940], -573.080438033,
    ),
    "reml": (
        [251.5924468195, 0.3602961097, 200.6889078202, 252.3152042554, 0.6255177066, 0.3109452112, 36.9745101,
         0.2434605, -0.149, 4.550126064, 0.760381773], -566.029590058,
    ),
}  # fmt: skip


@pytest.mark.cpu(4, "four searches of a gaussian population")
@pytest.mark.parametrize("population", ["ml", "reml"])
def test_estimates_are_those_of_nlme(population: str) -> None:
    how = {"population": population, "draws": 0}
    wave = "follicles ~ s + c + (1 | Mare)"
    lines = "weight ~ Time * Diet + (Time | Rat)"
    fits = [
        (mixed_model(ovary(), wave, correlation="ar1(visit | Mare)", **how), OVARY),
        (mixed_model(body_weight(), lines, correlation="car1(Time)", **how), BODY_WEIGHT),
    ]
    for model, known in fits:
        values, height = known[population]
        table = model.summary().table
        fixed = table["effect"].isin(model.method.network.fixed).to_numpy()
        away = np.abs(table["estimate"].to_numpy() - values)
        assert (away[fixed] < 0.01 * table["standard_error"].to_numpy()[fixed]).all()
        assert (away[~fixed] < 0.01 * np.abs(values)[~fixed]).all()
        assert model.log_likelihood == pytest.approx(height, abs=1e-6)


@pytest.mark.cpu(4, "a search of some sixty rounds, asked of three sites through bytes")
@pytest.mark.parametrize("kind", ["ar1(t | patient)", "cs(episode, most=3)"])
def test_sites_find_what_the_table_would(kind: str, tmp_path: Path) -> None:
    df, formula = table(clients=4, patients=5), "y ~ x + (1 | site)"
    how = {"rounds": 60, "draws": 2, "dtype": torch.float64, "evaluate_every": 60, "splits": ("train",)}
    federation, design = from_formula(df, formula, correlation=kind)
    whole = fit(MixedEffects(design, draws=40), federation, progress=False, **how)
    columns = {"y": Column("number"), "x": Column("number"), "t": Column("whole", least=0, most=20)}
    columns |= {name: Column("name") for name in ("patient", "episode")}
    study = StudyFormula(formula, Dictionary(columns), "gaussian", RowColumns(correlation=kind))
    tables = {str(name): rows.drop(columns="site") for name, rows in df.groupby("site")}
    reader = study_reader(study, reduce(add, (study.first(rows) for rows in tables.values())))
    sums = reduce(add, (reader.second(rows) for rows in tables.values()))
    method = MixedEffects(reader.design(sums), draws=40)
    own = {name: reader.federation(rows, name) for name, rows in tables.items()}
    senders = Sites(method, own["s0"], tmp_path, own, **how)
    run = senders.fit()
    effects, numbers = method.population_summary(run.fitted)
    expected, pooled = whole.fitted.method.population_summary(whole.fitted)
    pd.testing.assert_frame_equal(effects, expected, rtol=1e-6)
    assert numbers["log_likelihood"] == pytest.approx(pooled["log_likelihood"], rel=1e-12)
    for name in ("b_mean", "b_root"):
        torch.testing.assert_close(senders.values("personal")[name], whole.personal[name], rtol=1e-6, atol=1e-8)
