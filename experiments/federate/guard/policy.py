"""policy.toml: what a site decides for all its studies, whatever a study says."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import tomli_w

from hierfl.data.disclosure.rule import Limits
from hierfl.errors import UserError, unknown
from hierfl.files import make_folder, write_whole
from hierfl.models import METHODS
from hierfl.responses.registry import RESPONSES
from hierfl.schema import Number, Schema, check

#: what a budget calls all plain models
PLAIN = "model"
#: in a site's folder
POLICY = "policy.toml"
#: what may be said of what a site's own word can allow: it is refused, allowed by ``approve --allow``, or allowed
CHOICES = ("refuse", "approve", "allow")
#: of the file; an entry that is left out has its default
SCHEMA: Schema = {
    "least_rows?": Number(int, 1, 1_000_000),
    "least_cell?": Number(int, 1, 1_000_000),
    "least_groups?": Number(int, 1, 1_000_000),
    "parameters_per_row?": Number(float, 0, 1000),
    "largest_share?": Number(float, 0, 1),
    "pairs?": bool,
    "differing_rows?": Number(int, 1, 1_000_000),
    "least_sites?": Number(int, 1, 10_000),
    "forbidden_columns?": [str],
    "forbidden_families?": [str],
    "forbidden_methods?": [str],
    "single_messages?": bool,
    "networks?": str,
    "models?": str,
    "label_counts?": str,
    "points?": str,
    "exploration?": str,
    "residuals?": str,
    "train_scores?": bool,
    "masked?": bool,
    "noise?": bool,
    "largest_epsilon?": Number(float, 0, 1000),
    "budget?": {"*": Number(int, 0, 10**9)},
}
#: above each entry of the file
COMMENTS = {
    "least_rows": "A study needs so many rows of this site, and so many in each part that is held out.",
    "least_cell": "Rows in every cell of a category or interaction that is not empty; rows that a comparison selects.",
    "least_groups": "Groups inside the site, such as patients of (1 | site/patient). Cells are then counted in groups.",
    "parameters_per_row": "Columns of a formula's design, fixed and random together, for each row.",
    "largest_share": "Largest share of one row in what the design's columns determine (its leverage).",
    "pairs": "true: cells of every two categories count. X'X has them. false: those of interactions in the formula.",
    "differing_rows": "Rows of two studies are the same, or differ by at least so many.",
    "least_sites": "Sites on a study's roster whose public cards are pinned here, this site among them.",
    "forbidden_columns": "Columns that no study may use.",
    "forbidden_families": "Responses that no study may have, such as cox.",
    "forbidden_methods": "Methods that no study may run, such as fedavg; * is every method that is a file of its own.",
    "single_messages": "true: methods whose server reads each site's message by itself, such as one_round.",
    "networks": "Methods that train networks: refuse, approve (with approve --allow networks), or allow.",
    "models": "Plain Pyro models, files of the study's own: what they send depends on all that is written in them.\n"
    "refuse, approve (with approve --allow models), or allow.",
    "label_counts": "Messages that count this site's labels: refuse, approve (with --allow label-counts), or allow.",
    "points": "Plain models, and mixed models whose answers are no few sums (all but gaussian and log-normal ones of\n"
    "one level that hold out no rows): docs/rows-from-answers.md says what N answers tell of rows. refuse, approve\n"
    "(with approve --allow points), or allow.",
    "exploration": "Exploration of up to 4,096 points (of plain models as their settings say), but of gaussian models\n"
    "of one level: refuse, approve (with --allow exploration), or allow.",
    "residuals": "Counts of rows by the quantiles of their responses, at the server's estimates (residuals = true):\n"
    "refuse, approve (with --allow residuals), or allow. Sites whose cells are smaller than least_cell count none.",
    "train_scores": "true: scores of training rows are answered. They can show outcomes of single rows.",
    "masked": "true: a study needs masks, by which the server gets sums over all sites, and of one site nothing.",
    "noise": 'true: a study needs noise that is added inside this site (dp = "site").',
    "largest_epsilon": "Epsilon that studies with noise may spend on one data set, all of them together.",
    "budget": "Points that a study may ask about one data set, by family or method, in place of the defaults, such as\n"
    "binomial = 200. A data set is one across studies and names.",
}


@dataclass(frozen=True)
class Policy:
    """What a site decides for all its studies.

    The defaults are what a data protection officer would choose. A looser value is the site's own word.

    Attributes:
        least_rows, least_cell, least_groups, parameters_per_row, largest_share, pairs: of
            :class:`~hierfl.data.disclosure.rule.Limits`.
        differing_rows: least symmetric difference between the rows of two studies that are not of the same rows.
        least_sites: sites of a roster whose cards are pinned, this site among them.
        forbidden_columns, forbidden_families, forbidden_methods: names that no study may use; "*" is every method
            that is a file of its own.
        single_messages: whether a method's server may read each site's message by itself.
        networks, models, label_counts, points, exploration, residuals: each "refuse", "approve" or "allow".
        train_scores: whether scores of training rows are answered.
        masked, noise: whether messages must be masked, or have noise of this site's own.
        largest_epsilon: of one data set, across studies and names.
        budget: points of each family or method instead of the defaults.
    """

    least_rows: int = 10
    least_cell: int = 5
    least_groups: int = 5
    parameters_per_row: float = 0.33
    largest_share: float = 0.9
    pairs: bool = False
    differing_rows: int = 5
    least_sites: int = 3
    forbidden_columns: tuple[str, ...] = ()
    forbidden_families: tuple[str, ...] = ()
    forbidden_methods: tuple[str, ...] = ()
    single_messages: bool = False
    networks: str = "approve"
    models: str = "approve"
    label_counts: str = "approve"
    points: str = "approve"
    exploration: str = "approve"
    residuals: str = "approve"
    train_scores: bool = False
    masked: bool = False
    noise: bool = False
    largest_epsilon: float = 4.0
    budget: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], path: Path) -> Policy:
        """Reads a policy from the table of a file.

        Args:
            table: of the file.
            path: of the file, for messages.

        Raises:
            UserError: in one line, for an entry that is unknown or outside of its range.
        """
        names = [name.removesuffix("?") for name in SCHEMA]
        if strange := sorted(table.keys() - set(names)):
            raise unknown(f"entry of {path}:", strange[0], names)
        check(dict(table), SCHEMA, path)
        for name in ("networks", "models", "label_counts", "points", "exploration", "residuals"):
            if (choice := table.get(name, "approve")) not in CHOICES:
                raise unknown(f"value of {name} in {path}:", choice, CHOICES)
        for name in table.get("forbidden_families", ()):
            if name not in RESPONSES:
                raise unknown(f"family in {path}:", name, RESPONSES)
        for name in table.get("forbidden_methods", ()):
            if name != "*" and name not in METHODS:
                raise unknown(f"method in {path}:", name, ("*", *METHODS))
        for name in table.get("budget", ()):
            if name not in RESPONSES and name not in METHODS and name != PLAIN:
                raise unknown(f"family or method in budget of {path}:", name, (*RESPONSES, *METHODS, PLAIN))
        entries: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in table.items()}
        return cls(**entries)

    @classmethod
    def read(cls, home: Path) -> Policy:
        """A site's policy.

        Args:
            home: the site's folder.

        Raises:
            UserError: where it has none, or one that is damaged.
        """
        path = home / POLICY
        if not path.is_file():
            raise UserError(f"{home} has no {POLICY}: hierfl federate policy {home} writes one")
        try:
            return cls.from_table(tomllib.loads(path.read_text(encoding="utf-8")), path)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is damaged: {error}") from error

    def as_table(self) -> dict[str, Any]:
        """Undoes :meth:`from_table`; every entry is in it."""
        entries = {f.name: getattr(self, f.name) for f in fields(self)}
        entries["budget"] = dict(sorted(self.budget.items()))
        return {name: list(value) if isinstance(value, tuple) else value for name, value in entries.items()}

    def text(self) -> str:
        """The text of the policy's file, with a comment above each entry."""
        parts = []
        for name, value in self.as_table().items():
            words = "".join(f"# {line}\n" for line in COMMENTS[name].splitlines())
            parts.append(words + (tomli_w.dumps({name: value}) if value != {} else f"[{name}]\n"))
        head = "# What this site decides for all its studies, whatever a study says. A looser value is your own word.\n"
        return head + "\n" + "\n".join(parts)

    @property
    def digest(self) -> str:
        """The digest of all entries, 16 hex digits: an approval is of one policy."""
        entries = self.as_table()
        if entries["residuals"] == "approve":  # policies that were approved before there was the entry
            del entries["residuals"]
        return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def answers(self) -> dict[str, Any]:
        """What a site's answers depend on; see :meth:`~hierfl.experiments.federate.study_site.Membership.site`."""
        return {"train_scores": self.train_scores, "least_cell": self.least_cell}

    @property
    def limits(self) -> Limits:
        """What the rules on rows compare with."""
        return Limits(**{f.name: getattr(self, f.name) for f in fields(Limits)})


def write_policy(home: Path) -> Path:
    """Writes a policy with the defaults into a site's folder; returns its path.

    Raises:
        UserError: where there is one.
    """
    path = home / POLICY
    if path.exists():
        raise UserError(f"{path} exists: edit it, or remove it for the defaults")
    make_folder(home)
    write_whole(path, Policy().text().encode(), mode=0o600)
    return path
