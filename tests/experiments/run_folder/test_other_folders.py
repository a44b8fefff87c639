"""Folders and files that are not a run's: commands say what they are, and what takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Call
from support.run_folders import Finished, lines

from hierfl import UserError
from hierfl.experiments.run_folder.load import load_run

KINDS = {
    "server": (("status.json", "study.toml"), "the folder of a study's server: hierfl federate status takes it"),
    "part": (("site.toml", "study.toml"), "a site's part of one study: hierfl predict and hierfl report take the"),
    "home": (("site.key",), "a site's or a coordinator's own folder: hierfl predict and hierfl report take a site's"),
    "compared": (("comparison.json",), "is a comparison: hierfl report takes it"),
    "ablated": (("comparison/comparison.json",), "is an ablation: hierfl ablation-table takes it"),
    "table": (("table.json", "fedavg-0/config.toml"), "is the folder of a table, which is table.md"),
    "runs": (("0001-a/config.toml", "0002-b/config.toml"), "holds 2 runs: say one of them, such as"),
    "outer": (("o/config.toml",), "holds a run: say "),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_folder_says_what_it_is(name: str, tmp_path: Path) -> None:
    files, words = KINDS[name]
    for file in files:
        path = tmp_path / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with pytest.raises(UserError) as caught:
        load_run(tmp_path / name)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_say_what_takes_them(hierfl: Call, tmp_path: Path) -> None:
    texts = {
        "study.toml": ('name = "a"\nmethod_digest = "b"\nclients = []\n[run]\n[settings]\n', "hierfl federate check"),
        "mine.toml": ('title = "A table"\nmethods = ["fedavg"]\n', "hierfl table takes it"),
        "policy.toml": ("least_rows = 10\nleast_cell = 5\n", "hierfl federate approve reads it"),
    }
    for name, (text, words) in texts.items():
        (tmp_path / name).write_text(text)
        code, _, err = hierfl("run", "--config", tmp_path / name)
        assert (code, len(lines(err))) == (2, 1), err
        assert words in err
    assert (
        "study.toml is a file: hierfl predict takes the folder"
        in hierfl("predict", tmp_path / "study.toml", "--data", "x.csv")[2]
    )


def test_predict_names_what_a_folder_is(hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/table.json").touch()
    assert "it is the folder of a table" in hierfl("predict", "t", "--data", "x.csv", "--new")[2]


def test_an_edited_formula_is_noticed(finished: Finished, tmp_path: Path) -> None:
    """Predictions were by the columns of the formula in config.toml, not by those that were fitted."""
    folder = finished("mixed-effects", tmp_path / "run", options=("--rounds", 2, "--set", "draws=0", "--quiet"))
    config = folder / "config.toml"
    text = config.read_text()
    fitted = next(line for line in text.splitlines() if line.startswith("formula = "))
    config.write_text(text.replace(fitted, 'formula = "log_radon ~ 1 + (1 | county)"'))
    with pytest.raises(UserError, match=r"config.toml has the formula log_radon ~ 1 .*, and the model in model/ log"):
        load_run(folder)
    config.write_text(text)
    load_run(folder)
