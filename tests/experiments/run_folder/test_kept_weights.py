"""A run's folder is enough: the file of first weights is copied into it."""

from __future__ import annotations

from pathlib import Path

from hierfl.experiments.configure import configure
from hierfl.experiments.run_folder.config_file import write_config
from hierfl.experiments.run_folder.kept_model import keep_weights, with_kept_weights


def test_a_run_begins_with_the_copy_and_another_file_may_be_named(tmp_path: Path) -> None:
    given, folder = tmp_path / "backbone.pt", tmp_path / "run"
    given.write_bytes(b"weights")
    folder.mkdir()
    config = configure("fedavg", "digits", {"network_weights": str(given)}, {})
    write_config(folder, config)
    assert with_kept_weights(folder, config) == config  # killed before there was a copy
    keep_weights(folder, config)
    given.unlink()
    copy = folder / "network-weights.pt"
    assert with_kept_weights(folder, config).run.network_weights == str(copy)
    assert copy.read_bytes() == b"weights"
    moved = config.with_run(network_weights=str(tmp_path / "other.pt"))
    assert with_kept_weights(folder, moved) == moved
    plain = config.with_run(network_weights=None)
    assert with_kept_weights(folder, plain) == plain
