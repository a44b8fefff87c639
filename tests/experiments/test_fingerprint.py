"""The fingerprint of a method: a run goes on only with the code that it was begun with."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Call
from support.run_folders import arrays

from hierfl.experiments.fingerprints import _earlier, fingerprint, foundation, own_part, same_version
from hierfl.experiments.methods import load
from hierfl.experiments.run_folder.config_file import read_config
from hierfl.models import METHODS

MINE = "from hierfl.models import FedPer\n\n\nclass Mine(FedPer):\n    pass\n"
RUN = ("--data", "d.npz", "--split", "natural", "--network", "linear", "-T", 2, "-q", "--out", "o")


def changed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A file of ours is read as if it had a line more."""
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"\n#" * (path.name == name))


def test_the_files_that_a_class_inherits_from_in_order() -> None:
    def names(method: str) -> list[str]:
        return [path.name for path in foundation(load(method).cls)]

    assert names("fedbn") == ["_global_network.py", "_common_settings.py", "_local_head.py"]
    assert names("ditto") == ["_global_and_personal.py", "_common_settings.py", "_whole_network.py"]
    assert names("fedv") == ["_common_settings.py"]  # no class but its own file's
    mixed = names("mixed-effects")
    assert {"equations.py", "covariance.py", "cross_products.py", "posterior.py", "to_estimates.py"} <= set(mixed)
    assert not {"mixed_model.py", "predictions.py", "comparing.py"} & set(mixed)


def test_the_file_itself_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    loaded = load(str(path))
    assert [file.name for file in foundation(loaded.cls)] == ["fedper.py", "_local_head.py", "_common_settings.py"]
    other = fingerprint(loaded.cls, path.read_bytes() + b"#")
    assert own_part(other) != own_part(loaded.digest)
    assert other.partition("-")[2] == loaded.digest.partition("-")[2]


@pytest.mark.parametrize("method", ["fedper", "mine.py"])
def test_a_changed_base_file_refuses_a_resume(method: str, hierfl: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.py").write_text(MINE)
    arrays(Path("d.npz"))
    assert hierfl("run", method, *RUN) == (0, "", "")
    assert hierfl("run", "--resume", "o", "-q") == (0, "", "")
    before = read_config(Path("o")).run.method_digest
    with monkeypatch.context() as context:
        changed(context, "_local_head.py")
        code, _, error = hierfl("run", "--resume", "o", "-q")
    assert code == 2
    assert "builds on" in error
    assert "_local_head.py" in error
    assert "has changed since o was begun" in error
    assert read_config(Path("o")).run.method_digest == before
    with monkeypatch.context() as context:
        changed(context, "fedrep.py")  # not a file of it
        assert hierfl("run", "--resume", "o", "-q") == (0, "", "")


def test_a_changed_file_of_ones_own_is_not_run(hierfl: Call) -> None:
    Path("mine.py").write_text(MINE)
    arrays(Path("d.npz"))
    assert hierfl("run", "mine.py", *RUN) == (0, "", "")
    Path("mine.py").write_text(MINE + "\nopen('ran', 'w').close()\n")
    code, _, error = hierfl("run", "--resume", "o", "-q", "--trust-code")
    assert code == 2
    assert "mine.py has changed since o was begun" in error
    assert not Path("ran").exists()


def test_earlier_versions_that_give_the_same_numbers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a method of ours, and of a user's that builds on it; another file of the user's is another method."""
    earlier = {"aa-bb": ["cc-dd"], "bb": ["ee"]}
    monkeypatch.setattr("hierfl.experiments.fingerprints._earlier", lambda: earlier)
    assert same_version("aa-bb", "aa-bb")
    assert same_version("aa-bb", "cc-dd")
    assert same_version("ff-bb", "ff-ee")
    assert not same_version("ff-bb", "aa-ee")
    assert not same_version("ff-bb", "ff")
    assert not same_version("xx-yy", "cc-dd")
    assert not same_version("aa", "aa-ee")


def test_the_list_of_earlier_versions_is_of_todays_files() -> None:
    """Entries of files that have changed since are dead: tests/support/earlier_methods.py writes the list anew."""
    today = {load(name).digest for name in METHODS}
    own = {digest for digest in _earlier() if "-" in digest}
    assert own <= today
