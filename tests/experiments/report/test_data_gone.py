"""A page is asked for where the run's data are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierfl import UserError
from hierfl.experiments.report.draw import check_data_exist


def test_data_that_are_gone_are_one_line_with_a_way_out(tmp_path: Path) -> None:
    for data in (str(tmp_path), "digits"):
        check_data_exist(data)
    with pytest.raises(UserError, match=r"photos is not here: --data says where .* --no-features leaves out"):
        check_data_exist(str(tmp_path / "photos"))
