"""Parquet and Arrow files are read as the csv with the same entries."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hierfl import UserError, read_table


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
