"""The configuration of a run: one declaration for each of its options.

Four things follow from the declarations: the options of the commands (:mod:`hierfl.experiments.cli.options`), defaults
(:mod:`hierfl.experiments.configure`), the checks of config.toml (:mod:`hierfl.experiments.run_folder.config_file`), and
which options must agree between runs of one setting, or may change when a run is resumed. Nothing heavy is imported.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from hierfl.errors import unknown
from hierfl.responses.registry import RESPONSES, spoken

from .declared import Option, flag, of_network, of_rows, of_table, of_validation, of_watching, option, recorded

ALL = ("run", "ablate", "tune", "search")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The table "run" of config.toml: everything needed to repeat a run, but for the method's settings.

    What does not apply is None, and is left out of config.toml.
    """

    method: str = recorded()
    method_digest: str = recorded(identity=False)
    data: str = option(
        "Data set (see hierfl datasets), FILE.npz, a folder of pictures (client/label/*.png) or FILE.csv: a formula's "
        "or model's, or with --group and --y any method's. [default: digits]",
        commands=ALL, same_data=True, moves=True,
    )  # fmt: skip
    data_root: str = option(
        "Folder in which data sets are looked for, and into which they are downloaded. [default: ./data]", "data",
        commands=ALL, path=True, metavar="DIR", identity=False, moves=True,
    )  # fmt: skip
    clients: int = option(
        "Number of clients that the data are split among. [default: the data set's]",
        commands=ALL, flags=("--clients", "-J"), data="arrays", same_data=True,
    )  # fmt: skip
    split: str = option(
        "How examples are distributed over clients, such as label-skew:5 (five classes each) or dirichlet:0.3,redraw; "
        "see hierfl datasets. [default: the data set's]",
        commands=ALL, data="arrays", same_data=True,
    )  # fmt: skip
    validation_fraction: float = option(
        "Fraction of each client's training data that is used as validation data, to choose settings and the best "
        "round. [default: 0.1; for tables 0]", 0.1,
        commands=ALL, same_data=True,
    )  # fmt: skip
    validation_of: str = of_validation()
    network: str = option(
        "Architecture before the last layer, such as mlp:100; see hierfl datasets. [default: the data set's]",
        commands=ALL, data="arrays",
    )  # fmt: skip
    head: str | None = of_network("A client's own part: frozen, lora:RANK[:LAYER,...]. [default: linear]", "HEAD")
    network_weights: str | None = of_network("Start weights: a .safetensors or .pt. [default: none]", "FILE", path=True)
    response_sd: float = option(
        "Standard deviation of a regression's response around its prediction. [default: it is learned]",
        commands=("run", "ablate"), data="arrays", same_data=True,
    )  # fmt: skip
    learn_sd: str = option(
        "Learn the standard deviation around the prediction: shared (one), clients (one for each), no (it is "
        "--response-sd). [default: shared; no with --response-sd and for fedpop-synthetic]", "no",
        commands=("run", "ablate"), choices=("shared", "clients", "no"), metavar="shared|clients|no", data="arrays",
        same_data=True, newer=True,
    )  # fmt: skip
    standardise: str = option(
        "Standardise inputs of an .npz: auto (where a column of fractions is far from unit scale), yes, no.", "no",
        choices=("auto", "yes", "no"), metavar="auto|yes|no", data="arrays", same_data=True, newer=True,
    )  # fmt: skip
    image_size: int | None = of_network("Pixels that pictures are resized to. [default: as is]", "N", same_data=True)
    rounds: int = option(
        "Rounds, at most 1,000,000. [default: the data set's]", commands=ALL, flags=("--rounds", "-T"), fit=True
    )
    participation: float = option(
        "Probability that a client reports in a round. [default: the data set's, mostly 1]", commands=ALL, fit=True
    )
    evaluate_every: int = option(
        "Evaluate after rounds 1, 1+K, 1+2K, ... and the last. [default: the data set's]",
        commands=("run", "ablate"), metavar="K", fit=True,
    )  # fmt: skip
    quorum: int = option("A round with fewer valid messages than this changes nothing. [default: 1]", fit=True)
    max_message_ratio: float = option(
        "A client's message is rejected if its largest number is more than this many times that of the broadcast "
        "value (or of 1, if that is less); 0 for no bound. [default: 1e6]", 1e6, fit=True, newer=True,
    )  # fmt: skip
    absent_clients: str = option(
        "What clients do in a round in which they do not report: train (their own part stays fresh), catch-up (train "
        "only in rounds that are evaluated), freeze (stay as they last reported). [default: train]", "train",
        choices=("train", "catch-up", "freeze"), metavar="train|catch-up|freeze", fit=True, newer=True,
    )  # fmt: skip
    ood: str = option(
        "Data set of strange inputs: the AUROC measures how well predictive entropy separates them from the clients' "
        "own test inputs.", "", metavar="NAME", data="arrays", newer=True,
    )  # fmt: skip
    draws: int = option(
        "Posterior draws that predictions are averaged over, at most 100,000. [default: 20]", 20,
        commands=("run", "ablate"), fit=True,
    )  # fmt: skip
    calibrate: str = option(
        "After the last round: temperature fits one temperature for all clients on their validation data, and reports "
        "its effect on test data. [default: none]", "none",
        choices=("none", "temperature"), metavar="none|temperature", data="arrays", fit=True, newer=True,
    )  # fmt: skip
    conformal: float = option(
        "After the last round: sets of labels that miss the true label with at most this probability, computed from "
        "validation data. A line reports their coverage on test data. 0 for none. [default: 0]", 0.0,
        metavar="ALPHA", data="arrays", fit=True, newer=True,
    )  # fmt: skip
    final: str = option(
        "What clients do after the last round: the method's own final steps, or Metropolis-adjusted chains on their "
        "heads with fixed shared values, which give all posterior draws. [default: method]", "method",
        choices=("method", "chains"), metavar="method|chains", fit=True, newer=True,
    )  # fmt: skip
    masked: bool = option(
        "The server only gets sums over clients, in fixed point, as in a study with masks.", False,
        flags=("--masked",), fit=True, newer=True,
    )  # fmt: skip
    mask_groups: int = option(
        "Groups of at least three clients whose masked sums a robust rule compares; 0 for one sum. [default: 0]", 0,
        metavar="G", fit=True, newer=True,
    )  # fmt: skip
    robust: str = option(
        "How messages are combined if some may be false: none (a sum), trimmed:SHARE, median, centred-clip:RADIUS or "
        "krum:LIARS. [default: none]", "none", metavar="RULE", fit=True, newer=True,
    )  # fmt: skip
    dp: str = option(
        "Noise for differential privacy: none, site (inside each client: hides a patient) or client (on the sum: hides "
        "a client). [default: none]", "none", choices=("none", "site", "client"), metavar="none|site|client",
        fit=True, newer=True,
    )  # fmt: skip
    epsilon: float = option(
        "Epsilon of all that leaves a client in the whole fit, with --dp. [default: 0]", 0.0, fit=True, newer=True,
    )  # fmt: skip
    delta: float = option("Delta of the whole fit, with --dp. [default: 1e-5]", 1e-5, fit=True, newer=True)
    clip: float = option(
        "Norm to which a row (--dp site) or a client (--dp client) is clipped. [default: 1]", 1.0, fit=True, newer=True,
    )  # fmt: skip
    patient_rows: int = option(
        "Rows of one patient that --dp site uses; further rows are left out. [default: 1]", 1, metavar="N", fit=True,
        newer=True,
    )  # fmt: skip
    usual_rows: int = option(
        "A public number of rows of a client, which replaces its private number for a network with --dp site; 0 for "
        "the mean over clients. [default: 0]", 0, metavar="N", fit=True, newer=True,
    )  # fmt: skip
    observed_data: bool = option(
        "Keep the training responses in posterior.nc, which posterior-predictive checks need. [default: keep]", True,
        flags=("--observed-data/--no-observed-data",), identity=False, newer=True,
    )  # fmt: skip
    rows: bool = option(
        "Keep all entries of single training rows in posterior.nc: responses, log likelihoods, predictive draws. "
        "Leave-one-out and posterior-predictive checks need them. [default: keep]", True,
        flags=("--rows/--no-rows",), identity=False, newer=True,
    )  # fmt: skip
    seed: int = option(
        "Seed of everything random: split, initial values, participation, minibatches, noise. [default: 0]", 0,
        fit=True, identity=False,
    )  # fmt: skip
    device: str = option(
        "Device that computes: cpu, cuda, cuda:1, ... [default: cpu]", "cpu",
        commands=ALL, fit=True, identity=False, moves=True,
    )  # fmt: skip
    client_state: str = option(
        "Where clients' own values are stored between rounds: device, or host (its memory, from which clients are "
        "streamed to the GPU if not all of them fit on it). [default: device]", "device",
        choices=("device", "host"), metavar="device|host", fit=True, identity=False, moves=True, newer=True,
    )  # fmt: skip
    precision: str = option(
        "Precision of networks' products in training: full, tf32 (CUDA) or bf16; evaluation is always full. "
        "[default: full]", "full", choices=("full", "tf32", "bf16"), metavar="full|tf32|bf16", fit=True, newer=True,
    )  # fmt: skip
    cuda_graphs: bool = option(
        "Record the steps on a CUDA device and replay them, which costs the host less time.", False,
        fit=True, identity=False, moves=True, newer=True,
    )  # fmt: skip
    chunk: int = option(
        "Number of clients computed at once, which trades memory for speed and changes numbers by rounding alone; "
        "0 for what suits the device. [default: 0; for tables 1000]", fit=True, identity=False,
    )  # fmt: skip
    formula: str | None = option(
        "Model of a table: 'y ~ 1 + x + (1 + x | site)'. [default: a named table's own]", None,
        commands=ALL, data="tables", same_data=True,
    )  # fmt: skip
    model: str | None = of_table("Function of the model in a model file. [default: model, or the only one]", "NAME")
    group: str | None = option(
        "Column of a table that says to which client a row belongs. [default: the formula's grouping factor; of "
        "several the outermost]", None,
        commands=("run", "ablate", "tune", "search"), metavar="COLUMN", data="tables", same_data=True,
    )  # fmt: skip
    y: str | None = of_rows("Column of a table that a network predicts.")
    x: str | None = of_rows("Columns of a network's inputs, as in age,arm; text is a category. [default: all others]")
    task: str | None = of_rows("Kind of response --y. [default: by its entries, if they are clear]", tasks=True)
    least_rows: int | None = of_rows("Leave out clients with fewer rows of the table than this. [default: 1]", "N")
    family: str | None = option(
        f"Distribution of a table's response: {spoken(RESPONSES)}. [default: gaussian]", None,
        commands=("run", "ablate"), data="tables", same_data=True,
    )  # fmt: skip
    known_se: str | None = option(
        "Column of a table with each response's known standard error, as in a meta-analysis. [default: none]", None,
        metavar="COLUMN", data="tables", same_data=True,
    )  # fmt: skip
    event: str | None = of_table("Column that says how a time ended: 1 event, 0 censored. [default: all are events]")
    weights: str | None = of_table("Column of the number of rows that each row represents. [default: none]")
    precision_weights: str | None = of_table("Column of divisors of the residual variance. [default: none]")
    dispersion: str | None = of_table("Formula of the log dispersion, such as '~ arm'. [default: none]", "FORMULA")
    zero_inflation: str | None = of_table("Formula of the logit of the zero probability. [default: none]", "FORMULA")
    correlation: str | None = of_table(
        "Of residuals, as 'ar1(visit | patient)', 'car1(day)', 'cs(ward)'. [default: none]"
    )
    patient: str | None = option(
        "Column of a table that names patients. --dp site uses --patient-rows rows of each patient of a client, and "
        "hides them together. [default: none: every row is a patient]", None, metavar="COLUMN", data="tables",
        same_data=True, newer=True)  # fmt: skip
    spellings: str | None = option(
        "If names of clients, groups or levels of a table differ only in blanks, capitals or Unicode form: refuse the "
        "table, join them under the most frequent name, or keep them; or by column, as in ward=join,gene=keep. "
        "[default: refuse]", None, commands=ALL, metavar="refuse|join|keep", data="tables", same_data=True, newer=True,
    )  # fmt: skip
    track: str | None = of_watching("Log metrics to csv, tensorboard, mlflow, wandb. [default: none]", "NAME,...")
    na: str | None = recorded(None, data="tables", same_data=True, newer=True)
    reading: dict | None = recorded(None, data="tables", same_data=True, newer=True)  # noqa: RUF009
    test_fraction: float | None = option(
        "Fraction of each client's rows of a table that is test data. [default: 0; of ablate 0.2]", None,
        commands=("run", "ablate"), data="tables", same_data=True,
    )  # fmt: skip
    settings_chosen: str | None = recorded(None, identity=False)
    redraws: int | None = recorded(None, identity=False)
    federation: str | None = recorded(None, identity=False)
    data_origin: str | None = recorded(None)

    def __post_init__(self) -> None:
        for name, declared in options().items():
            value = getattr(self, name)
            if declared.choices and value is not None and value not in declared.choices:
                raise unknown(f"value of {flag(name)}", value, declared.choices)

    def as_table(self) -> dict[str, Any]:
        """The configuration as a table of config.toml."""
        return {k: v for k in options() if (v := getattr(self, k)) is not None}

    def identity(self) -> dict[str, Any]:
        """What is the same in all runs of one setting."""
        return {k: v for k, v in self.as_table().items() if options()[k].identity}

    def fit_options(self) -> dict[str, Any]:
        """What is said to the fit."""
        return {k: v for k, v in self.as_table().items() if options()[k].fit}


@dataclass(frozen=True)
class Configuration:
    """What config.toml holds: how it is run, and the method's settings."""

    run: RunConfig
    settings: Mapping[str, Any]

    def with_run(self, **changes: Any) -> Configuration:
        """The same with some entries of "run" changed."""
        return replace(self, run=replace(self.run, **changes))

    def as_tables(self) -> dict[str, dict[str, Any]]:
        """Both tables of config.toml."""
        return {"run": self.run.as_table(), "settings": dict(self.settings)}


@cache
def options() -> dict[str, Option]:
    """All entries of :class:`RunConfig`, as they are declared."""
    return {f.name: f.metadata["option"] for f in fields(RunConfig)}


@cache
def kinds() -> dict[str, type]:
    """The type of every entry, None left out."""
    hints = typing.get_type_hints(RunConfig)
    return {
        name: next(t for t in typing.get_args(kind) if t is not type(None))
        if isinstance(kind, types.UnionType)
        else kind
        for name, kind in hints.items()
    }


def has_default(name: str, value: Any) -> bool:
    """Whether an entry has this default."""
    return any(f.name == name and f.default is value for f in fields(RunConfig))


def names_of(command: str) -> tuple[str, ...]:
    """The options that a command has."""
    return tuple(name for name, declared in options().items() if command in declared.commands)
