"""Numbers at the edge on the command line, and methods of one's own that fail on the way."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from support.commands import Call

from hierfl.errors import UserError
from hierfl.experiments.methods import load
from hierfl.inference.checks import MAX_DRAWS
from hierfl.inference.method.settings import make_settings
from hierfl.inference.run.checkpoint import _checksum as checksum
from hierfl.models import METHODS
from hierfl.models.any_model.method import AnyModel
from hierfl.models.any_model.own_guide.method import OwnGuide
from hierfl.models.fedpop import FedPop
from hierfl.models.mixed_effects.method import MixedEffects


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "hpu"], "device 'hpu' is not there"),
        (["--draws", "100000000000000000000"], "draws must be at most"),
        (["--draws", "1e20"], "Invalid value for '--draws'"),
        (["--seed", "99999999999999999999"], "seed must be at most"),
        (["--rounds", "99999999999999999999"], "rounds must be at most"),
        (["--rounds", "1000000000"], "rounds must be at most 1000000, not 1000000000"),
        (["--draws", "1000000000"], "draws must be at most 100000, not 1000000000"),
        (["--clients", "1000000000"], "1000000000 clients are more than the data allow"),
        (["--max-message-ratio", "0.1"], "max_message_ratio must be 0"),
        (["--set", "base_epochs=1e20"], "base_epochs must be at most 2147483647 in size, not 1e20"),
        (["--set", "particles=20000"], "particles must be at most 10000, not 20000"),
        (["--set", "head_lr=1e300"], "head_lr must be at most 3.4e+38 in size, not 1e300"),
        (["--set", "sigma_0=1e30"], "sigma_0 must be at most 1e+12, not 1e30"),
        (["--participation", "0.0001", "--quorum", "3"], "3 practically never report together; raise participation"),
        (["--participation", "1e-300"], "1 practically never report together; raise participation"),
    ],
)
def test_extreme_numbers_get_one_line_and_leave_nothing(
    arguments: list[str], words: str, hierfl: Call, tmp_path: Path
) -> None:
    code, _, err = hierfl("run", "pfedvem", *arguments)
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("tol=1e30", "tol must be at most 0.1, not 1e30"), ("sd_0=1e30", "sd_0 must be at most 1000, not 1e30"),
        ("noise_0=1e30", "noise_0 must be at most 10000,"), ("draws=2000000000", "draws must be at most 100000,"),
        ("nodes=2000", "nodes must be at most 1000"), ("lkj=1e30", "lkj must be at most"),
    ],
)  # fmt: skip
def test_settings_of_a_mixed_model_have_limits(given: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        make_settings(MixedEffects, dict([given.split("=")]))


def test_draws_that_are_kept_have_one_limit_in_all_methods() -> None:
    kept = {"draws", "keep", "final_keep"}
    classes = {load(name).cls for name in METHODS} | {OwnGuide, AnyModel}
    limits = {
        (cls.__name__, f.name): f.metadata["at_most"]
        for cls in classes
        for f in fields(cls.Settings)
        if f.name in kept and isinstance(f.default, int)
    }
    assert len(limits) >= 8
    assert set(limits.values()) == {MAX_DRAWS}


def test_an_initial_scale_has_a_limit() -> None:
    with pytest.raises(UserError, match=re.escape("init_scale must be at most 1e+12, not 1e30")):
        make_settings(FedPop, {"init_scale": "1e30"})


OWN = '''
from pathlib import Path
from hierfl.models import FedAvg

class Mine(FedAvg):
    """Fails in round 3 as long as there is a file called stop."""

    def local(self):
        steps = super().local()

        class Step:
            trains = steps[0].trains

            def run(self, chunk, phase):
                if chunk.round == 3 and Path("stop").exists():
                    raise RuntimeError("out of\\nluck")
                return steps[0].run(chunk, phase)

        return [Step()]
'''


def test_a_method_of_ones_own_that_fails_later_is_one_line_and_can_go_on(hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "stop").touch()
    command = ("run", "mine.py", "--clients", 4, "--split", "iid", "--rounds", 4, "--quiet", "--out")
    code, _, err = hierfl(*command, "stopped")
    assert code == 2
    assert err.splitlines() == [
        f"error: {tmp_path / 'mine.py'} failed at round 3 of 4: RuntimeError: out of (line 16, in run)"
    ]
    (tmp_path / "stop").unlink()
    assert hierfl("run", "--resume", "stopped", "--quiet")[0] == 0
    assert hierfl(*command, "whole")[0] == 0
    a, b = ((tmp_path / name / "clients.csv").read_bytes() for name in ("stopped", "whole"))
    assert a == b


def test_the_bound_reaches_the_fit_and_is_kept_by_a_resumed_one(hierfl: Call, tmp_path: Path) -> None:
    command = ("run", "fedavg", "--clients", 4, "--split", "iid", "--rounds", 2, "--quiet")
    assert hierfl(*command, "--max-message-ratio", 1, "--out", "tight")[0] == 0
    assert "max_message_ratio = 1.0" in (tmp_path / "tight/config.toml").read_text()
    record = json.loads((tmp_path / "tight/checkpoint/checkpoint.json").read_text())
    assert record["fit"]["max_message_ratio"] == 1.0
    assert hierfl(*command, "--out", "other")[0] == 0
    config, state = tmp_path / "other/config.toml", tmp_path / "other/checkpoint/checkpoint.json"
    summary = (tmp_path / "other/summary.json").read_text()
    config.write_text("".join(x for x in config.read_text().splitlines(True) if "max_message_ratio" not in x))
    assert hierfl("run", "--resume", "other", "--quiet")[0] == 0  # it is the default
    assert (tmp_path / "other/summary.json").read_text() == summary
    record = json.loads(state.read_text())
    assert record["fit"]["max_message_ratio"] == 1e6
    for changed in ({"max_message_ratio": 10.0}, {}):  # another one; none
        del record["fit"]["max_message_ratio"]
        record["fit"] |= changed
        record["checksum"] = checksum(record)
        state.write_text(json.dumps(record))
        code, _, err = hierfl("run", "--resume", "other", "--quiet")
        assert (code, "begun with a different max_message_ratio" in err) == (2, True)
