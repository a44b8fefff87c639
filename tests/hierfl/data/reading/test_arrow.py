"""Parquet and Arrow files are read as the csv with the same entries."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hierfl import UserError, read_table
from hierfl.data.tables import is_table, stem
from hierfl.experiments.configure import configure


def table() -> dict[str, list]:
    return {
        "ward": ["01", "1", "b", "b"], "age": [61.25, None, 1 / 3, 4.0], "n": [2**53 + 1, 0, -3, 7],
        "smokes": [True, False, True, True], "visit": [date(2026, 1, 2)] * 4, "arm": ["drug", "none", "drug", "drug"],
    }  # fmt: skip


def write(folder: Path, kind: str) -> Path:
    arrow = pytest.importorskip("pyarrow")
    rows, path = arrow.table(table()), folder / f"rows.{'parquet' if kind == 'parquet' else 'arrow'}"
    if kind == "parquet":
        from pyarrow import parquet

        parquet.write_table(rows, path)
        return path
    maker = arrow.ipc.new_file if kind == "file" else arrow.ipc.new_stream
    with maker(str(path), rows.schema) as writer:
        writer.write_table(rows)
    return path


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_they_are_the_csv(tmp_path: Path, kind: str) -> None:
    df = read_table(write(tmp_path, kind), types={"ward": "category", "visit": "date", "arm": "category"})
    assert list(df) == list(table())
    assert df.n.tolist() == table()["n"]
    assert df.age.tolist()[2:] == [1 / 3, 4.0]
    assert np.isnan(df.age[1])
    assert df.smokes.dtype == bool
    assert df.ward.tolist() == ["01", "1", "b", "b"]
    assert df.visit[0] == (date(2026, 1, 2) - date(1970, 1, 1)).days
    pd.DataFrame(table()).to_csv(tmp_path / "rows.csv", index=False)
    again = read_table(tmp_path / "rows.csv", types={"ward": "category", "visit": "date", "arm": "category"})
    pd.testing.assert_frame_equal(df, again, check_exact=True)


def test_what_they_cannot_be_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(UserError, match="no text: decimal says nothing of it"):
        read_table(path, decimal=",")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UserError, match=r"needs pyarrow: pip install 'hierfl\[parquet\]'"):
            read_table(path)
    arrow = pytest.importorskip("pyarrow")
    with pytest.raises(UserError, match="is no parquet or Arrow file, or a damaged one"):
        read_table(path)
    from pyarrow import parquet

    parquet.write_table(arrow.table({"a": [[1], [2]]}), path)
    with pytest.raises(UserError, match="column 'a' holds list entries"):
        read_table(path)


def test_a_saved_data_set_is_its_files_one_after_the_other(tmp_path: Path) -> None:
    """As ``datasets`` writes it: splits, several files, classes with names."""
    arrow = pytest.importorskip("pyarrow")
    folder = tmp_path / "photos" / "train"
    folder.mkdir(parents=True)
    (tmp_path / "photos" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    files = [f"data-0000{k}-of-00002.arrow" for k in range(2)]
    for k, name in enumerate(files):
        rows = arrow.table({"site": ["a", "b"], "x": [1.5 + k, 2.5], "label": [k, 1 - k]})
        with arrow.ipc.new_stream(str(folder / name), rows.schema) as writer:
            writer.write_table(rows)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": f} for f in files], "_split": None}))
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "x": {"dtype": "float64", "_type": "Value"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    df = read_table(folder)
    assert df.x.tolist() == [1.5, 2.5, 2.5, 2.5]
    assert df.label.astype(str).tolist() == ["cat", "dog", "dog", "cat"]
    assert is_table(str(folder))
    assert stem(f"{folder}/") == "train"
    assert configure("pfedvem", str(folder), {"group": "site", "y": "label"}, {}).run.data == str(folder)
    with pytest.raises(UserError, match="holds the splits train, test: name one, such as .*/photos/train"):
        read_table(tmp_path / "photos")
    (folder / "state.json").write_text('{"_data_files": [{"filename": "../../x.arrow"}]}')
    with pytest.raises(UserError, match="which is no file of that folder"):
        read_table(folder)


def test_numbers_of_three_decimals_have_types_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a csv 1.500 may be in thousands."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"a": [1.125, 2.375], "b": ["1.125", "2.375"]}), tmp_path / "t.parquet")
    read_table(tmp_path / "t.parquet")
    assert [record.args[0] for record in caplog.records] == ["b"]
