"""study.toml: what a server and its sites agree on before anything is computed. Everyone has the same file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hierfl.data.federated.study_data import StudyData
from hierfl.errors import UserError
from hierfl.files import user_path
from hierfl.inference.calibration.calibrate import check_wanted
from hierfl.inference.engines.remote.expected import refuse_replies
from hierfl.inference.engines.remote.keys import PublicCard
from hierfl.inference.engines.remote.wire import Handshake
from hierfl.inference.method.settings import make_settings
from hierfl.inference.options import Options
from hierfl.schema import Number, check, read_toml

from .. import fingerprints, methods
from ..columns import NETWORK
from ..config import Configuration, RunConfig, kinds, options
from .maskable import refuse_unmaskable
from .noise_check import refuse_noiseless
from .roster_keys import check_names, read_keys
from .study_data import MODEL, check_kind, data_of
from .study_format import DATA, FORMAT, PRIVACY, STUDY, check_format, refuse_strange
from .study_rows import check_bounds, check_rounds

if TYPE_CHECKING:
    from hierfl.inference import Method
    from hierfl.nn.architecture import Architecture


def fit_options() -> list[str]:
    """Options of a run that all have to agree on; the others are each machine's own."""
    agreed = [name for name, option in options().items() if option.fit and (option.identity or name == "seed")]
    return [name for name in agreed if name not in PRIVACY]


@dataclass(frozen=True)
class Study:
    """What all agree on.

    Attributes:
        path: of the file.
        table: what is in it.
        loaded: its method.
        data: what the sites' files are.
    """

    path: Path
    table: Mapping[str, Any]
    loaded: methods.Loaded
    data: StudyData

    @classmethod
    def read(cls, path: Path, *, trust_code: bool = False, finished: bool = False) -> Study:
        """Reads and checks study.toml.

        Args:
            path: of the file. A method's own file is beside it.
            trust_code: whether to run a method's file that this user has neither named nor run before.
            finished: whether it is for what a study has left behind, its predictions and reports: then it may be of the
                format before keys.

        Raises:
            UserError: for what is damaged, says nothing, or was written by another version; for a method that is not
                the one that was agreed on.
        """
        if not path.is_file():
            raise UserError(f"no file {path}: it is what hierfl federate study writes, the same at every site")
        return cls.from_table(read_toml(path, STUDY), path, trust_code=trust_code, finished=finished)

    @classmethod
    def from_table(
        cls, table: Mapping[str, Any], path: Path, *, trust_code: bool = False, finished: bool = False
    ) -> Study:  # fmt: skip
        """The same from what is in the file."""
        check_format(table, path, finished)
        refuse_strange(table, STUDY, path)
        refuse_strange(table["privacy"], STUDY["privacy"], path)
        kinds_said = {name: Number(kind) if kind in (int, float) else kind for name, kind in kinds().items()}
        # What is newer than a study was not agreed on in it.
        run = {f"{name}?" if options()[name].newer else name: kinds_said[name] for name in fit_options()}
        check(table["run"], run, path, "run")
        refuse_strange(table["run"], run, path)
        kind = table["data"].get("kind")
        if kind not in DATA:
            raise UserError(f"{path}: data.kind is {kind!r}; known: {', '.join(DATA)}")
        check(table["data"], DATA[kind], path, "data")
        refuse_strange(table["data"], {**DATA[kind], "kind": str}, path)
        check_bounds(table["privacy"], path)
        check_names(table["clients"], path)
        if table["format"] == FORMAT:
            read_keys(table["keys"], table["clients"], path)
        loaded = _method_of(table, path, trust_code)
        check_kind(loaded, kind, path)
        made = cls(path, table, loaded, data_of(table, path, loaded))
        refuse_replies(loaded.cls)
        make_settings(loaded.cls, table["settings"])
        given = made.options("cpu")
        if not finished:
            check_rounds(given, made.clients, path)
            # sites would be asked for sums before the server said so
            task = getattr(made.data, "task", "regression")
            check_wanted(given, task, table["data"].get("validation_fraction", 0.0) > 0)
            design = getattr(made.data, "design", None)
            refuse_unmaskable(loaded.cls, table["settings"], given, made.clients, made.keys, path, design)
        refuse_noiseless(table, made.data, given, path)
        return made

    @property
    def name(self) -> str:
        """The name of the study."""
        return str(self.table["name"])

    @property
    def clients(self) -> list[str]:
        """The roster."""
        return list(self.table["clients"])

    @property
    def new_clients(self) -> bool:
        """Whether sums of what a new client begins with leave the sites."""
        return bool(self.table["privacy"]["new_clients"])

    @property
    def least_rows(self) -> int:
        """A site with fewer rows takes no part."""
        return int(self.table["privacy"]["least_rows"])

    @cached_property
    def keys(self) -> dict[str, PublicCard]:
        """{name: public card} of the clients and, as "server", of the server; of those whose card is known."""
        return read_keys(self.table.get("keys", {}), self.clients, self.path)

    @cached_property
    def digest(self) -> str:
        """The digest of all that stays the same at every site. The roster and its keys do not: sites come and go."""
        agreed = {k: v for k, v in self.table.items() if k not in ("clients", "keys")}
        # What people sign must have no second meaning; studies from before are known by the shorter one.
        return _digest(agreed)[: 32 if self.table["format"] == FORMAT else 16]

    @cached_property
    def roster(self) -> str:
        """A digest of who takes part, and of their keys."""
        return _digest({"clients": self.clients, "keys": self.table.get("keys", {})})[:32]

    @property
    def handshake(self) -> Handshake:
        """What every request says."""
        return Handshake(self.digest, self.loaded.digest, self.roster)

    def method(self, network: Architecture) -> Method:
        """The method, made with its network or design."""
        return self.loaded.cls(network, **self.table["settings"])

    def options(self, device: str) -> Options:
        """How it is run; the device is each machine's own."""
        given = dict(self.table["run"])
        if self.table["data"]["kind"] == "formula":  # a statistician's digits, as for hierfl run
            split = "test" if self.table["data"]["test_fraction"] else "train"
            given |= {"dtype": torch.float64, "splits": (split,)}
        if self.table["data"]["kind"] == MODEL:
            given |= {"dtype": torch.float64, "splits": ()}
        return Options(**given, **self.privacy, device=device)

    @property
    def privacy(self) -> dict[str, Any]:
        """Options of the fit that its part "privacy" has."""
        return {name: value for name, value in self.table["privacy"].items() if name in PRIVACY}

    def configuration(
        self, data: str, device: str, clients: int, reading: Mapping[str, Any] | None = None
    ) -> Configuration:
        """The configuration of the study, as config.toml of a run folder has it.

        Args:
            data: what its data are called: the study, or a site's file.
            device: that computes.
            clients: how many there are.
            reading: how a site's table is read, as :meth:`~hierfl.data.reading.options.Reading.as_table` has it.
        """
        agreed = self.table["data"]
        table = agreed["kind"] == "formula"
        own: dict[str, Any] = {
            "network": agreed.get("network", NETWORK if agreed["kind"] == MODEL else "design"),
            "response_sd": agreed.get("response_sd", 1.0),
            "learn_sd": agreed.get("learn_sd", "no"),
            "head": agreed.get("head"),
            "network_weights": agreed.get("weights_file"),
        }
        if agreed["kind"] == MODEL:
            own |= {"na": agreed.get("na", "refuse"), "spellings": agreed.get("spellings", "keep"), "group": "",
                    "model": self.table.get("model"), "reading": dict(reading or {}) or None}  # fmt: skip
        if table:
            own |= {name: agreed[name] for name in ("formula", "family", "known_se", "test_fraction")}
            roles = ("event", "weights", "precision_weights", "correlation")
            own |= {name: agreed.get(name, "") for name in roles}
            own |= {"dispersion": "", "zero_inflation": ""}
            own |= {"na": agreed.get("na", "refuse"), "spellings": agreed.get("spellings", "keep"), "group": ""}
            own |= {"reading": dict(reading or {}) or None}
        run = RunConfig(
            method=self.loaded.reference, method_digest=self.loaded.digest, data=data, data_root="", clients=clients,
            split="sites", validation_fraction=agreed.get("validation_fraction", 0.0), chunk=0, device=device,
            **self.table["run"], **self.privacy, **own,
        )  # fmt: skip
        return Configuration(run, self.table["settings"])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _method_of(table: Mapping[str, Any], path: Path, trust_code: bool) -> methods.Loaded:
    """The method that was agreed on.

    Raises:
        UserError: for another version of it, or a file that this user has neither named nor run before.
    """
    name, digest = table["method"], table["method_digest"]
    if not name.endswith(".py"):
        loaded = methods.load(name)
        if not fingerprints.same_version(loaded.digest, digest):
            raise UserError(
                f"{name} is not the version here that {path} agreed on: install that version of hierfl at every site, "
                "or agree on a new study"
            )
        return loaded
    if Path(name).name != name:
        raise UserError(f"{path}: a method's own file is beside it, not at {name!r}")
    entries = {"method": str(user_path(path.parent / name)), "method_digest": digest, "model": table.get("model")}
    return methods.load_of(path, entries, trust_code=trust_code)
