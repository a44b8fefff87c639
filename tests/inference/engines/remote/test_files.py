"""Requests and replies as files."""

from __future__ import annotations

from pathlib import Path

from hierfl.inference.engines.remote.files import FileCourier
from hierfl.inference.engines.remote.wire import encode


def test_a_courier_tidies_up(tmp_path: Path) -> None:
    """Only what is asked now lies there."""
    seen = []

    def waiting(names: list[str]) -> None:
        for name in names:
            for path in (tmp_path / name / "requests").iterdir():
                seen.append(path.name)
                (tmp_path / name / "replies" / f"{path.stem}.reply").write_bytes(encode({}, {}))

    courier = FileCourier(tmp_path, ["a", "b"], 0.0, waiting)
    for number in (1, 2):
        request = encode({"round": number, "kind": "round"}, {})
        assert courier({"a": request, "b": request}) == {"a": encode({}, {}), "b": encode({}, {})}
    assert len({name[:12] for name in seen}) == 2
    assert len(list((tmp_path / "a").rglob("*.*"))) == 2
