"""`hierfl sbc` and `hierfl ablate A.py B.py`, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.any_models import FEW, counts
from support.commands import Call

MODEL = """
import pyro
import pyro.distributions as dist

def model(batch):
    beta = pyro.sample("beta", dist.Normal(0.0, 0.2))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(beta, SPREAD))
        with batch.data():
            pyro.sample("y", dist.Poisson((u + 0.1 * batch["x"]).exp()), obs=batch["COLUMN"])
"""
SETTINGS = [part for name, value in FEW.items() for part in ("--set", f"{name}={value}")]


FACTORS = MODEL.replace('pyro.sample("y", dist', 'pyro.factor("y", dist').replace(
    ', obs=batch["COLUMN"])', '.log_prob(batch["y"]))'
)
TWO = MODEL + '            pyro.sample("z", dist.Normal(u, 1.0), obs=batch["x"])\n'
ONCE = MODEL + '        pyro.sample("z", dist.Normal(u, 1.0), obs=batch.client("y"))\n'
GUIDED = (
    MODEL
    + """

def guide(batch):
    import torch
    at = pyro.param("at", torch.zeros(2))
    pyro.sample("beta", dist.Normal(at[0], 0.1))
    with batch.clients():
        pyro.sample("u", dist.Normal(at[1], 0.1))
"""
)


def write(name: str, spread: str = "0.3", column: str = "y") -> Path:
    path = Path(name)
    path.write_text(MODEL.replace("SPREAD", spread).replace("COLUMN", column))
    return path


@pytest.mark.cpu(5, "eight fits")
def test_sbc_says_whether_intervals_cover_and_goes_on(hierfl: Call) -> None:
    write("counts.py")
    of = ("sbc", "counts.py", "--sites", 2, "--rows", 3, *SETTINGS, "--out", "there")
    code, out, _ = hierfl(*of, "--replicates", 4)
    assert code == 0
    assert "those that are observed are replaced: x standard normal; y standard normal" in " ".join(out.split())
    assert "beta" in out
    assert "4 replicates: 0 without a posterior" in out
    assert "intervals" in out.splitlines()[-1]
    assert Path("there/sbc.png").is_file()
    before = json.loads(Path("there/replicates.json").read_text())
    code, out, _ = hierfl(*of, "--replicates", 6)
    after = json.loads(Path("there/replicates.json").read_text())
    assert "6 replicates" in out
    assert [row["ranks"] for row in after["replicates"][:4]] == [row["ranks"] for row in before["replicates"]]
    code, _, err = hierfl(*of, "--seed", 1)
    assert code == 2
    assert "another calibration: rows_digest, seed differs" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("pfedvem",), "takes a model file"), (("counts.py", "--sites", 0), "--sites must be at least 1"),
        (("counts.py", "--group", "site"), "--group names a column of --data"),
        (("counts.py", "--data", "t.csv"), "--group COLUMN"), (("counts.py", "--values", "x"), "NAME=V,V"),
        (("counts.py", "--data", "t.csv", "--group", "site", "--values", "x=1"), "with --data they are the table's"),
    ],
)  # fmt: skip
def test_what_sbc_cannot_use_is_one_line(hierfl: Call, arguments: tuple[object, ...], word: str) -> None:
    write("counts.py")
    counts((3, 2)).to_csv("t.csv", index=False)
    code, _, err = hierfl("sbc", *arguments)
    assert code == 2
    assert word in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.cpu(4, "two fits, and their leave-one-out")
def test_ablate_compares_model_files_and_keeps_their_fits(hierfl: Call) -> None:
    write("learned.py")
    write("fixed.py", "3.0")
    counts((6, 5, 4)).to_csv("t.csv", index=False)
    of = ("ablate", "learned.py", "fixed.py", "--data", "t.csv", "--group", "site", *SETTINGS, "--out", "there")
    code, out, _ = hierfl(*of)
    assert code == 0
    assert "leave-one-out of 15 rows" in out
    rows = json.loads(Path("there/ablation.json").read_text())["models"]
    assert {row["name"] for row in rows} == {"learned", "fixed"}
    assert rows[0]["behind"] == 0
    assert rows[1]["behind"] == pytest.approx(rows[0]["elpd"] - rows[1]["elpd"])
    kept = Path("there/learned.json").stat().st_mtime_ns
    code, again, _ = hierfl(*of)
    assert again == out
    assert Path("there/learned.json").stat().st_mtime_ns == kept
    code, _, err = hierfl(*of, "--test-fraction", 0.5)
    assert code == 2
    assert "of another model, table or setting" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("a.py", "b.py"), "say the table"), (("a.py", "b.py", "--data", "t.csv"), "--group COLUMN"),
        (("a.py", "a.py", "--data", "t.csv", "--group", "site"), "two models are called a"),
        (("a.py", "pfedvem", "--data", "t.csv", "--group", "site"), "takes a model file"),
        (("a.py", "x.py", "--data", "t.csv", "--group", "site"), "a observes y, and x observes x"),
        (("a.py", "b.py", "--data", "t.csv", "--group", "site", "--seeds", 3), "--seeds is for a method's priors"),
        (("a.py", "b.py", "--data", "t.csv", "--group", "site", "--draws", 3), "--draws is not for alternatives"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_one_line(hierfl: Call, arguments: tuple[object, ...], word: str) -> None:
    write("a.py")
    write("b.py", "1.0")
    write("x.py", column="x")
    counts((3, 2)).to_csv("t.csv", index=False)
    code, _, err = hierfl("ablate", *arguments)
    assert code == 2
    assert word in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "more", "word"),
    [
        (FACTORS, (), "a: no row has a log likelihood of its own: pyro.factor gives none"),
        (TWO, (), "a: each row has 2 sites, y, z, and leave-one-out is of one: hold rows out by test_fraction=0.2"),
        (ONCE, ("--test-fraction", 0.5), "a observes something once for a client: its rows have no densities alone"),
    ],
)  # fmt: skip
def test_what_has_no_rows_to_compare_is_refused_before_its_fit(
    hierfl: Call, monkeypatch: pytest.MonkeyPatch, text: str, more: tuple[object, ...], word: str
) -> None:
    def fitted(*args: object, **how: object) -> None:
        raise AssertionError("a fit has begun")

    monkeypatch.setattr("hierfl.models.any_model.fit_model.fit", fitted)
    Path("a.py").write_text(text.replace("SPREAD", "0.3").replace("COLUMN", "y"))
    write("b.py", "1.0")
    counts((3, 2)).assign(y=1).to_csv("t.csv", index=False)
    code, _, err = hierfl("ablate", "b.py", "a.py", "--data", "t.csv", "--group", "site", *more)
    assert code == 2
    assert word in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.cpu(4, "two fits, and their leave-one-out")
def test_an_alternative_is_fitted_with_its_files_guide(hierfl: Call) -> None:
    Path("a.py").write_text(GUIDED.replace("SPREAD", "0.3").replace("COLUMN", "y"))
    Path("b.py").write_text(GUIDED.replace("SPREAD", "1.0").replace("COLUMN", "y"))
    counts((6, 5, 4)).to_csv("t.csv", index=False)
    small = [f"--set={name}" for name in ("fit_draws=4", "last_steps=3", "points=16", "inner=2", "draws=8")]
    code, out, err = hierfl("ablate", "a.py", "b.py", "--data", "t.csv", "--group", "site", "--rounds", 2, *small)
    assert (code, "leave-one-out of 15 rows" in out) == (0, True), err
    notes = json.loads(next(Path().rglob("a.json")).read_text())["scored"]["notes"]
    assert "guide's parameters still moved" in notes[0]


@pytest.mark.parametrize("command", [("tune", "a.py"), ("search", "a.py", "rate=0.1", "--out", "s.json")])
def test_settings_of_a_plain_model_have_nothing_to_be_chosen_by(hierfl: Call, command: tuple[str, ...]) -> None:
    write("a.py")
    code, _, err = hierfl(*command, "--data", "t.csv", "--group", "site")
    assert code == 2
    assert "a is a plain Pyro model: settings are chosen on validation data" in err
    assert len(err.strip().splitlines()) == 1
