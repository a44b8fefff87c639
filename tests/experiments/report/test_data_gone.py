"""A page is asked for where the run's data are gone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hierfl import UserError
from hierfl.experiments.report import draw
from hierfl.experiments.report.draw import data_exist, draw_features


def test_features_are_left_out_and_a_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert data_exist(str(tmp_path))
    assert data_exist("digits")
    config: Any = SimpleNamespace(run=SimpleNamespace(data=str(tmp_path / "photos")))
    monkeypatch.setattr(draw, "relocate", lambda config, location: config)
    assert draw_features(tmp_path, config, {}, False, False) == []
    assert "photos is not here: the page has no features, which need the run's data; --data says where" in caplog.text
    with pytest.raises(UserError, match=r"photos is not here: --data says where the run's data are now"):
        draw_features(tmp_path, config, {"data": str(tmp_path / "photos")}, False, False)
