"""`hierfl protocol`: finished runs with test labels of other shares."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from support.commands import Call
from support.run_folders import Finished


@pytest.mark.cpu(6, "two runs, each read from its folder again")
def test_a_runs_table_is_in_its_folder_and_says_which_rows_use_test_inputs(
    finished: Finished, hierfl: Call, tmp_path: Path
) -> None:
    folders = [finished("pfedhb", tmp_path / "pfedhb", "--set", "heads=off"), finished("local", tmp_path / "local")]
    code, out, error = hierfl("protocol", *folders, "--protocol", "own,shifted", "--out", "all.csv")
    assert code == 0, error
    assert "label shares from all test inputs together" in out
    table = pd.read_csv(tmp_path / "all.csv", keep_default_na=False)
    own = pd.read_csv(folders[0] / "protocols.csv", keep_default_na=False)
    assert own.equals(table[table["method"] == "pfedhb"].reset_index(drop=True))
    assert set(own["setting"]) == {"prior=hierarchical shares=on heads=off"}
    assert set(own.loc[own["transductive"].astype(str) == "True", "shares"]) == {"test"}
    code, out, error = hierfl("protocol", folders[1], "--protocol", "own", "--json")
    assert (code, error) == (0, "")
    assert [row["nll"] for row in json.loads(out)] == pytest.approx(
        table.loc[(table["method"] == "local") & (table["protocol"] == "own"), "nll"].astype(float).tolist()
    )
    of_local = table.loc[table["method"] == "local", ["predictions", "shares"]]
    assert of_local.drop_duplicates().values.tolist() == [["pm", ""]]
    assert hierfl("protocol", folders[1], "--offset")[2] == (
        "error: local has no global model that an offset could be put on\n"
    )
    assert hierfl("protocol", folders[1], "--protocol", "mine")[2].startswith("error: unknown protocol 'mine'")
