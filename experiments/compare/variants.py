"""The variants among some runs: runs that differ in their seed alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hierfl.data.datasets.registry import defaults
from hierfl.errors import UserError
from hierfl.inference.method.settings import applicable, scale_setting
from hierfl.inference.options import OF_NOISE

from ..columns import NETWORK
from ..config import Configuration, options
from ..declared import PYTHON
from ..methods import known_class
from ..run_folder.config_file import read_config
from ..run_folder.csv_files import read_frame
from ..run_folder.identity import setting_of
from ..run_folder.summary import read_summary

if TYPE_CHECKING:
    from hierfl.inference import Method


@dataclass
class Variant:
    """Runs that differ in their seed alone.

    Attributes:
        name: of the method and of what tells it from the others.
        setting: "run" and "settings".
        runs: folders by seed.
        summaries: their summary.json.
        clients: a row for each seed and client, as in clients.csv.
        cls: the method's class; None for somebody's own file, which is not run for a comparison.
    """

    name: str
    setting: dict[str, Any]
    runs: dict[int, Path]
    summaries: dict[int, dict[str, Any]]
    clients: pd.DataFrame
    cls: type[Method] | None = None

    @property
    def method(self) -> str:
        """The method's name."""
        return _method_name(self.setting, self.cls)

    @property
    def telling(self) -> dict[str, Any]:
        """The settings, less those that change nothing beside the others."""
        return _effective_settings(self.setting, self.cls)

    @property
    def random(self) -> bool:
        """Whether the guide is no point."""
        return any(summary.get("pm_draws_nll") is not None for summary in self.summaries.values())

    @property
    def kinds(self) -> dict[str, str]:
        """Predictions there are for each client, {kind: what its columns begin with}: a point is its only draw."""
        if self.random and "draws_nll" not in self.clients:  # a run from before they were kept
            return {"mean": ""}
        return {"mean": "", "draws": "draws_" if self.random else ""}


def gather_variants(runs: Sequence[Path], labels: Mapping[Path, str] | None = None) -> list[Variant]:
    """The variants among some finished runs, in their order.

    Args:
        runs: their folders.
        labels: what tells each run's variant apart, in words; by default the settings in which variants differ.

    Raises:
        UserError: for folders that are no finished runs, the same run twice, or runs of different data or splits.
    """
    groups: list[tuple[dict[str, Any], type[Method] | None, dict[int, Path]]] = []
    configs = _configurations(runs)
    for run, config in configs.items():
        if config.run.network == NETWORK:
            raise UserError(
                f"{run} is of a plain model, which holds nothing out, and test data are what is compared: "
                "hierfl ablate a.py b.py --data FILE --group COLUMN compares models, hierfl report has leave-one-out"
            )
        seed = config.run.seed
        setting = setting_of(config)
        members = next((m for s, _, m in groups if s == setting), None)
        if members is None:
            groups.append((setting, known_class(config.run.as_table()), members := {}))
        if seed in members:
            earlier, later = (read_summary(folder).get("federation") for folder in (members[seed], run))
            if earlier and later and earlier != later:
                how = _how_data_differ(*map(_clients, (members[seed], run)))
                raise UserError(f"{run} is of other data than {members[seed]}, though their files have one name: {how}")
            raise UserError(f"{members[seed]} and {run} are the same run: same method, settings and seed")
        members[seed] = run
    same_data = [name for name, facts in options().items() if facts.same_data]
    facts = [{k: getattr(c.run, k) for k in same_data} for c in configs.values()]
    for run, mine in zip(configs, facts, strict=True):
        if other := [k for k in same_data if mine[k] != facts[0][k]]:
            k = other[0]
            if k == "data" and any(str(of["data"]).startswith(PYTHON) for of in (mine, facts[0])):
                raise UserError(
                    f"{run} and {runs[0]} cannot be compared: the data of a Python program have no name, and no run "
                    "of a command with the same seed has the same data to the bit"
                )
            raise UserError(f"{run} is of other data than {runs[0]}: its {k} is {mine[k]!r}, not {facts[0][k]!r}")
    variants = []
    if labels is None:
        names = _names([g[:2] for g in groups])
    else:
        names = [f"{_method_name(s, cls)} ({labels[next(iter(members.values()))]})" for s, cls, members in groups]
    for name, (setting, cls, members) in zip(names, groups, strict=True):
        summaries = {seed: read_summary(run) for seed, run in members.items()}
        frames = [_clients(run).assign(seed=seed) for seed, run in members.items()]
        variants.append(Variant(name, setting, members, summaries, pd.concat(frames, ignore_index=True), cls))
    digests: dict[int, tuple[str, Variant]] = {}
    for variant in variants:
        for seed, summary in variant.summaries.items():
            digest = summary.get("federation")  # runs from before it was kept have none
            if digest and digests.setdefault(seed, (digest, variant))[0] != digest:
                first = digests[seed][1]
                how = _how_data_differ(*(v.clients[v.clients["seed"] == seed] for v in (first, variant)))
                raise UserError(f"{variant.runs[seed]} is of other data than {first.runs[seed]}: {how}")
    return variants


def _configurations(runs: Sequence[Path]) -> dict[Path, Configuration]:
    """The configurations of finished runs. Runs from Python and from a command have one way of reading one data set.

    A program's data have a digest and no file. If a run of a command with the same seed has this digest, its options
    name the data. Options of a response's standard deviation are compared as they are.
    """
    configs: dict[Path, Configuration] = {}
    for run in runs:
        config = read_config(run)
        if run in configs:
            raise UserError(f"{run} and {run} are the same run: same method, settings and seed")
        configs[run] = config
    summaries = {run: read_summary(run) for run in configs}
    data = {run: (config.run.seed, summaries[run].get("federation")) for run, config in configs.items()}
    of_commands = {data[run]: c.run for run, c in configs.items() if not c.run.data.startswith(PYTHON)}
    for run, config in configs.items():
        command = of_commands.get(data[run])
        if config.run.data.startswith(PYTHON) and command is not None and data[run][1]:
            apart = ("response_sd", "learn_sd") if summaries[run].get("pm_accuracy") is None else ()
            names = {name for name, facts in options().items() if facts.same_data} | {"data_origin"}
            configs[run] = config.with_run(**{name: getattr(command, name) for name in names.difference(apart)})
    return configs


def _clients(run: Path) -> pd.DataFrame:
    return read_frame(run / "clients.csv", ("client",), ("client", "n", "n_test"), whole=True)


def _how_data_differ(first: pd.DataFrame, other: pd.DataFrame) -> str:
    """The difference of two runs' data in words, by their tables of clients."""
    sizes = [frame.set_index(frame["client"].astype(str))[["n", "n_test"]] for frame in (first, other)]
    if set(sizes[0].index) != set(sizes[1].index):
        return "it has other clients"
    if changed := [name for name in sizes[0].index if not sizes[0].loc[name].equals(sizes[1].loc[name])]:
        return f"client {changed[0]!r} has other numbers of rows, or is split otherwise"
    return "the same clients have other values, other columns, or the same rows in another order"


def _names(settings: Sequence[tuple[Mapping[str, Any], type[Method] | None]]) -> list[str]:
    """The names of variants: the method, its prior, and whatever else tells two of one method apart."""
    names = []
    for mine, cls in settings:
        method, own = _method_name(mine, cls), _effective_settings(mine, cls)
        others = [s for s, _ in settings if s is not mine and s["run"]["method"] == mine["run"]["method"]]
        prior = f" ({own['prior']} prior)" if "prior" in own else ""
        same = [s for s in others if s["settings"].get("prior") == own.get("prior")]
        apart = {k: own[k] for k in own if any(s["settings"].get(k) != own[k] for s in same)}
        run = {k: v for k, v in mine["run"].items() if any(s["run"].get(k) != v for s in same)}
        noise = [_noise_words(mine["run"])] if run.keys() & {"dp", "epsilon"} else []
        if noise:  # what is of noise alone follows from whether there is any
            of_noise = {*OF_NOISE, "dp", "epsilon"} if mine["run"].get("dp", "none") == "none" else {"dp", "epsilon"}
            run = {k: v for k, v in run.items() if k not in of_noise}
            apart = {k: v for k, v in apart.items() if not _follows(k, [mine, *same])}
        names.append(", ".join([method + prior, *noise, *(f"{k}={v}" for k, v in (apart | run).items())]))
    return names


def _noise_words(run: Mapping[str, Any]) -> str:
    """Epsilon of a run, in words."""
    where = {"none": "no noise", "client": f"epsilon {run.get('epsilon', 0):g} on the sum"}
    return where.get(run.get("dp", "none"), f"epsilon {run.get('epsilon', 0):g}")


def _follows(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a setting is one text in all runs with noise, and empty in all without, as ranges are."""
    noisy = [s["settings"].get(key) for s in settings if s["run"].get("dp", "none") != "none"]
    without = [s["settings"].get(key) for s in settings if s["run"].get("dp", "none") == "none"]
    return all(value == "" for value in without) and all(value == noisy[0] for value in noisy)


def _method_name(setting: Mapping[str, Any], cls: type[Method] | None) -> str:
    """A method's name, or that of its file."""
    return (cls.name if cls is not None else "") or Path(setting["run"]["method"]).stem


def _effective_settings(setting: Mapping[str, Any], cls: type[Method] | None) -> dict[str, Any]:
    return dict(setting["settings"]) if cls is None else applicable(cls, setting["settings"])


def differing(variants: Sequence[Variant]) -> dict[str, list[Any]]:
    """What differs between variants beside method and settings: {name: values}."""
    keys = dict.fromkeys(k for v in variants for k in v.setting["run"])
    options = {k: [v.setting["run"].get(k) for v in variants] for k in keys if k != "method"}
    return {k: values for k, values in options.items() if any(value != values[0] for value in values)}


def chosen_settings(variants: Sequence[Variant]) -> str:
    """Settings that differ between variants of one method, and the scales of their priors, in words."""
    lines = []
    for v, label in zip(variants, short_names(variants).values(), strict=True):
        same = [o for o in variants if o.setting["run"]["method"] == v.setting["run"]["method"]]
        own, others = v.telling, [o.telling for o in same if o is not v]
        apart = {k for k in own if any(o.get(k, own[k]) != own[k] for o in others)}
        if f"{own.get('prior')} prior" in label:
            apart.discard("prior")
        if v.cls is not None and any(o.get("prior") != own.get("prior") for o in others):
            apart |= own.keys() & {scale_setting(v.cls, own["prior"])}
        if apart:
            lines.append(f"{label} {', '.join(f'{k}={own[k]}' for k in own if k in apart)}")
    return "; ".join(lines)


def short_names(variants: Sequence[Variant]) -> dict[str, str]:
    """The variants' names, without the method where all have the same."""
    methods = {v.method for v in variants}
    start = f"{next(iter(methods))} (" if len(methods) == 1 else None
    return {v.name: v.name.removeprefix(start).replace(")", "", 1) if start else v.name for v in variants}


def same_clients(variant: Variant) -> bool:
    """Whether a client's name means the same data under every seed."""
    run = variant.setting["run"]
    if defaults(run["data"]).made:
        return False
    return run.get("network") == "design" or run["split"].partition(":")[0] in ("natural", "domains")
