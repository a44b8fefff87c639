"""policy.toml: what is written, what is refused, and its digest."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from support.commands import Call

from hierfl.data.disclosure.rule import Limits
from hierfl.errors import UserError
from hierfl.experiments.federate.guard.policy import COMMENTS, POLICY, SCHEMA, Policy, write_policy
from hierfl.inference.engines.remote.keys import Identity

ENTRIES = {f.name for f in fields(Policy)}


def test_the_file_has_every_entry_with_a_comment(hierfl: Call, tmp_path: Path) -> None:
    """And says what is in force without it; it is written once."""
    home = tmp_path / "at-north"
    assert "has no keys" in hierfl("federate", "policy", home)[2]
    Identity.make("north").save(home)
    code, out, _ = hierfl("federate", "policy", home)
    assert code == 0
    assert str(home / POLICY) in out
    text = (home / POLICY).read_text()
    assert Policy.read(home) == Policy()
    assert ENTRIES == set(COMMENTS) == {name.removesuffix("?") for name in SCHEMA}
    for name in ENTRIES:
        assert f"\n{name} = " in text or f"\n[{name}]" in text
        assert f"# {COMMENTS[name].splitlines()[0]}" in text
    assert (home / POLICY).stat().st_mode & 0o777 == 0o600
    code, _, err = hierfl("federate", "policy", home)
    assert code == 2
    assert "exists: edit it" in err


def test_a_changed_entry_has_another_digest(tmp_path: Path) -> None:
    path = write_policy(tmp_path)
    path.write_text(path.read_text().replace("least_cell = 5", "least_cell = 3") + "binomial = 90\n")
    policy = Policy.read(tmp_path)
    assert (policy.least_cell, policy.limits.least_cell, dict(policy.budget)) == (3, 3, {"binomial": 90})
    assert len({Policy().digest, policy.digest, Policy.from_table({"pairs": True}, path).digest}) == 3
    assert Policy.from_table({"least_rows": 10}, path).digest == Policy().digest


def test_defaults_of_the_rules_are_those_of_the_file() -> None:
    assert Policy().limits == Limits()


WRONG = [
    ("least_row = 3", "unknown entry of .*: 'least_row'; known: least_rows"),
    ("least_rows = 0", "is damaged: least_rows is 0"),
    ("least_cell = true", "is damaged: least_cell is True"),
    ("parameters_per_row = -1", "parameters_per_row is -1"),
    ("largest_share = nan", "largest_share is nan"),
    ("networks = 'yes'", "unknown value of networks in .*: 'yes'; known: refuse, approve, allow"),
    ("exploration = 'no'", "unknown value of exploration"),
    ("forbidden_families = ['gauss']", "unknown family in .*: 'gauss'"),
    ("forbidden_methods = ['fedavgg']", r"unknown method in .*: 'fedavgg'; known: \*"),
    ("[budget]\nnormal = 3", "unknown family or method in budget of .*: 'normal'"),
    ("[budget]\nbinomial = -1", "budget.binomial is -1"),
    ("least_rows 3", "is damaged: "),
]


@pytest.mark.parametrize(("text", "line"), WRONG, ids=[text for text, _ in WRONG])
def test_what_says_nothing_or_something_wrong_is_refused(text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / POLICY).write_text(text)
    with pytest.raises(UserError, match=line) as refused:
        Policy.read(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_site_without_a_policy_is_told_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no policy.toml: hierfl federate policy"):
        Policy.read(tmp_path)
