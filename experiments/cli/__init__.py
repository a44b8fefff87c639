"""The command line. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hierfl.errors import UserError
from hierfl.files import shown, user_path

from ..allocator import keep_memory

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..compare.comparison import Comparison


def refuse_empty(arguments: Sequence[str]) -> None:
    """An empty value (of an unset variable, say) is not "nothing was said", and an empty path is not this folder.

    Raises:
        UserError: for one.
    """
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if not argument or (argument.startswith("--") and argument.find("=") == len(argument) - 1):
            option = (argument or before).removesuffix("=")
            raise UserError(f"{option} is empty" if option.startswith("-") else "an argument is empty")


app = typer.Typer(
    help="Hierarchical-Bayesian personalised federated learning.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Data = Annotated[str | None, typer.Option(help="A data set, FILE.npz or FILE.csv. [default: digits]")]
DataRoot = Annotated[
    Path | None, typer.Option(parser=user_path, metavar="DIR", help="Where data sets lie. [default: ./data]")
]
TrustCode = Annotated[bool, typer.Option("--trust-code", help="Run the method's file, though I have never run it.")]
Clients = Annotated[int | None, typer.Option("--clients", "-J", help="J, how many clients.")]
Split = Annotated[str | None, typer.Option(help="Such as label-skew:5 or dirichlet:0.3,redraw.")]
Rounds = Annotated[int | None, typer.Option("--rounds", "-T", help="T, how many rounds.")]
Participation = Annotated[float | None, typer.Option(help="Probability that a client reports in a round.")]
Network = Annotated[str | None, typer.Option(help="Such as mlp:100 (see hierfl datasets).")]
NoiseOf = Annotated[float | None, typer.Option(help="Of a regression's response. [default: 1]")]
Formula = Annotated[str | None, typer.Option(help="Of a table: 'y ~ 1 + x + (1 + x | site)'.")]
Family = Annotated[str | None, typer.Option(help="Of a table's response: gaussian, binomial or poisson.")]
EvaluateEvery = Annotated[int | None, typer.Option(help="Evaluate after rounds 1, 1+K, ... and the last.")]
DrawsOf = Annotated[int | None, typer.Option(help="For predictions averaged over draws. [default: 20]")]
MaxMessageRatio = Annotated[float | None, typer.Option(help="Bound on a client's value. [default: 1e6; 0: none]")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ... [default: cpu]")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")]


def _offline(context: typer.Context, said: bool) -> bool:
    """Forbids downloads while the command runs."""
    if said:
        from hierfl.vision import offline

        context.with_resource(offline())
    return said


Offline = Annotated[bool, typer.Option("--offline", callback=_offline, help="Download nothing (HIERFL_OFFLINE=1).")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from hierfl import __version__

        typer.echo(f"hierfl {__version__}")
        raise typer.Exit


@app.command()
def run(
    method: Annotated[str, typer.Argument(help="A method (see hierfl methods), or FILE.py that defines one.")] = "",
    data: Data = None,
    data_root: DataRoot = None,
    offline: Offline = False,
    clients: Clients = None,
    split: Split = None,
    rounds: Rounds = None,
    participation: Participation = None,
    prior: Annotated[str | None, typer.Option(help="hierarchical, fixed or flat.")] = None,
    validation: Annotated[float | None, typer.Option(help="Fraction to choose by. [default: 0.1, of tables 0]")] = None,
    network: Network = None,
    noise: NoiseOf = None,
    formula: Formula = None,
    client: Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: who a row belongs to.")] = None,
    family: Family = None,
    error: Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: known standard errors.")] = None,
    test: Annotated[float | None, typer.Option(help="Of a table: fraction of rows held out. [default: 0]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random. [default: 0]")] = None,
    device: Device = None,
    chunk: Annotated[int | None, typer.Option(help="Clients in one plate. [default: what suits the device]")] = None,
    quorum: Annotated[int | None, typer.Option(help="Fewest messages that change anything. [default: 1]")] = None,
    max_message_ratio: MaxMessageRatio = None,
    evaluate_every: EvaluateEvery = None,
    ood: Annotated[str | None, typer.Option(metavar="NAME", help="A data set of strange inputs to notice.")] = None,
    idle: Annotated[str | None, typer.Option(help="Those who do not report: train (default), rest or never.")] = None,
    draws: DrawsOf = None,
    observed_data: Annotated[
        bool | None,
        typer.Option("--observed-data/--no-observed-data", help="Responses in posterior.nc. [default: they are]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=user_path, metavar="DIR", help="The run's folder. [default: a new one in ./runs]"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that is in --out.")] = False,
    quiet: Quiet = False,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting (see hierfl methods NAME).")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(parser=user_path, metavar="DIR", help="Go on with the run in DIR.")
    ] = None,
    trust_code: TrustCode = False,
) -> None:  # fmt: skip
    """Fit a method to a federation, and keep everything in a run folder."""
    given: dict[str, Any] = {
        "data_root": data_root, "clients": clients, "split": split, "rounds": rounds, "participation": participation,
        "validation": validation, "network": network, "noise": noise, "formula": formula, "client": client,
        "family": family, "error": error, "test": test, "seed": seed, "device": device, "chunk": chunk,
        "quorum": quorum, "max_message_ratio": max_message_ratio, "evaluate_every": evaluate_every, "idle": idle,
        "ood": ood, "draws": draws, "observed_data": observed_data,
    }  # fmt: skip
    if resume is not None:
        from ..run_folder.resume import PLACE
        from ..run_folder.resume import resume as go_on

        given |= {"data": data, "out": out, "overwrite": overwrite or None, "prior": prior, "set": setting or None}
        place = {k: v for k, v in given.items() if v is not None}
        if more := [k for k in place if k not in PLACE]:
            raise UserError(
                f"--resume goes on with what the run's folder says, without --{more[0].replace('_', '-')}; a run that "
                "was moved takes --data, --data-root and FILE.py, another machine --device"
            )
        folder, summary = resume, go_on(resume, not quiet, place, method=method, trust_code=trust_code)
    else:
        if not method:
            from hierfl.models import METHODS

            raise UserError(f"which method? known: {', '.join(METHODS)}; or FILE.py")
        if overwrite and out is None:
            raise UserError("--overwrite replaces the run in --out; say which")
        if trust_code:
            raise UserError("--trust-code is for --resume: a method that is named here is run")
        from ..configure import configure, parse_settings
        from ..run_folder.start import start

        config = configure(method, data, given, parse_settings(setting or [], prior))
        folder, summary = start(config, out, overwrite, progress=not quiet)
    if not quiet:
        _show(summary, folder)


def _show(summary: dict[str, Any], folder: Path) -> None:
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    title = f"{summary['method']} on {summary['data']}: {summary['clients']} clients, {summary['rounds']} rounds"
    console.print(title)
    _show_effects(summary, folder, console)
    regression = summary["pm_rmse"] is not None
    names = ("rmse", "nll", "crps", "coverage90") if regression else ("accuracy", "nll", "brier", "ece")
    table = _table("test data", *names)
    for numbers, when in ((summary, "last round"), (summary["best"], "best by validation")):
        if numbers is None or (numbers is not summary and numbers["round"] == summary["rounds"]):
            continue  # nothing was held out, or the last round is the best one
        when = f"round {numbers['round']}, {when}" if "round" in numbers else when
        for kind, what in (("pm", "personal"), ("pm_draws", "personal, averaged draws"), ("gm", "global")):
            values = [numbers.get(f"{kind}_{name}") for name in names]
            if any(v is not None for v in values):
                table.add_row(f"{what} ({when})", *(_number(name, v) for name, v in zip(names, values, strict=True)))
    if table.row_count:
        console.print(table)
    if summary["failed_local_steps"]:
        console.print(f"{summary['failed_local_steps']} local steps diverged; those clients kept their previous state")
    console.print(f"everything is in {folder}", soft_wrap=True)


def _show_effects(summary: dict[str, Any], folder: Path, console: Console) -> None:
    """What a method reports of the population, and how well its chains have mixed."""
    from ..run_folder.files import EFFECT_COLUMNS, read_effects
    from ..run_folder.summary import fit_warnings

    if (folder / "effects.csv").is_file():
        table = _table(*EFFECT_COLUMNS)
        for row in read_effects(folder):
            table.add_row(*row)
        console.print(table)
    if summary.get("marginal_log_likelihood") is not None:
        console.print(f"marginal log likelihood {summary['marginal_log_likelihood']:.3f}")
    if summary["ood_auroc"] is not None:
        of = f"AUROC {summary['ood_auroc']:.3f} at the posterior mean"
        averaged = (
            "" if summary["ood_draws_auroc"] is None else f", {summary['ood_draws_auroc']:.3f} averaged over draws"
        )
        console.print(f"inputs of {summary['ood']} among its own, by predictive entropy: {of}{averaged}")
    for line in fit_warnings(summary):
        console.print(line)


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if name in ("accuracy", "coverage90") else f"{value:.3f}"


def _table(first: str, *others: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(first, box=box.SIMPLE_HEAD, pad_edge=False)
    for name in others:
        table.add_column(name, justify="right")
    return table


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(parser=user_path, metavar="RUN RUN...", help="Finished runs; first the one in question."),
    ],
    loo: Annotated[bool | None, typer.Option(help="Leave-one-out. [default: where all runs have draws]")] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=user_path, metavar="DIR", help="The comparison's folder. [default: a new one in ./runs]"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the comparison that is in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No table.")] = False,
) -> None:
    """Compare runs of the same data client by client: gains with intervals, who gains, leave-one-out."""
    from ..compare.comparison import compare_runs
    from ..report.comparison import comparison_folder, write_comparison
    from ..run_folder.layout import check_out

    check_out(out, overwrite, "comparison.json", "comparison")
    found = compare_runs(runs, loo)
    folder = comparison_folder(out)
    write_comparison(found, folder)
    if not quiet:
        _show_comparison(found, folder)


@app.command()
def ablate(
    method: Annotated[str, typer.Argument(help="A method with priors (see hierfl methods NAME), or FILE.py.")],
    data: Data = None,
    data_root: DataRoot = None,
    offline: Offline = False,
    clients: Clients = None,
    split: Split = None,
    rounds: Rounds = None,
    participation: Participation = None,
    network: Network = None,
    noise: NoiseOf = None,
    formula: Formula = None,
    family: Family = None,
    test: Annotated[float | None, typer.Option(help="Of a table: fraction of rows held out. [default: 0.2]")] = None,
    validation: Annotated[float | None, typer.Option(help="Fraction that scales are chosen by. [default: 0.1]")] = None,
    evaluate_every: EvaluateEvery = None,
    draws: DrawsOf = None,
    device: Device = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, the same for every prior.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each prior.")] = 5,
    choose_seeds: Annotated[int, typer.Option(help="To choose a scale by; 0 chooses none.")] = 1,
    scales: Annotated[str | None, typer.Option(metavar="V,V,...", help="To be tried. [default: 0.1 to 10 x]")] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=user_path, metavar="DIR", help="Folder of its runs. [default: ./runs/ablate-METHOD-DATA]"),
    ] = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Does the hierarchical prior earn its keep? Runs every prior, each with its own scale, and compares."""
    from ..configure import parse_settings
    from ..methods import load
    from ..search.ablate import ablate

    given = {
        "data_root": data_root, "clients": clients, "split": split, "rounds": rounds, "participation": participation,
        "network": network, "noise": noise, "formula": formula, "family": family, "test": test,
        "validation": validation, "evaluate_every": evaluate_every, "draws": draws, "device": device,
    }  # fmt: skip
    loaded = load(method)
    data = data or ("radon-like" if loaded.cls.tabular else "digits")
    folder = out or Path("runs") / f"ablate-{loaded.name}-{Path(data).stem}"
    found = ablate(
        method, data, {k: v for k, v in given.items() if v is not None}, parse_settings(setting or []), seeds, folder,
        choose_seeds=choose_seeds, scales=_decimals("--scales", scales) if scales else (), progress=not quiet,
    )  # fmt: skip
    if not quiet:
        _show_comparison(found, folder)


def _decimals(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option} takes numbers, as in 0.1,1,10; not {text!r}") from error


def _show_comparison(found: Comparison, folder: Path) -> None:
    from rich.console import Console

    from ..compare.display import display_tables, heading

    console = Console(markup=False, highlight=False)
    console.print(heading(found))
    for one in display_tables(found):
        console.print(f"\n{one.before}")
        table = _plain(one.columns[0])
        for name in one.columns[1:]:
            table.add_column(name, no_wrap=name in ("metric", "gain", "95 %", ""))
        for row in one.rows:
            table.add_row(*row)
        console.print(table)
        if one.after:
            console.print(one.after.strip())
    console.print(f"everything is in {folder}", soft_wrap=True)


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(parser=user_path, metavar="RUN|COMPARISON", help="A finished run, or a comparison.")
    ],
    data: Annotated[str | None, typer.Option(help="The run's data, if elsewhere.")] = None,
    data_root: Annotated[
        Path | None, typer.Option(parser=user_path, metavar="DIR", help="Where data sets lie, if elsewhere.")
    ] = None,
    offline: Offline = False,
    features: Annotated[bool, typer.Option(help="Draw a network's features, which needs the data.")] = True,
    rhat: Annotated[bool, typer.Option("--rhat", help="Insist on several chains and their R-hat.")] = False,
    trust_code: TrustCode = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no list.")] = False,
) -> None:
    """One page of a run or a comparison, report.html; of a run its features by class and by client (t-SNE), too."""
    from ..report.write import write_report as draw

    place = {k: v for k, v in (("data", data), ("data_root", data_root)) if v is not None}
    pictures = draw(folder, place, not quiet, features, rhat, trust_code)
    if not quiet:
        for path in pictures:
            typer.echo(path)


@app.command()
def table(
    name: Annotated[str, typer.Argument(help="pfedvem-1.")] = "",
    data: Annotated[str | None, typer.Option(metavar="NAME,...", help="Only these data sets.")] = None,
    clients: Annotated[str | None, typer.Option("--clients", "-J", metavar="J,...", help="Only these.")] = None,
    methods: Annotated[str | None, typer.Option(metavar="NAME,...", help="Only these methods.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many, from 0. [default: the paper's]")] = None,
    data_root: DataRoot = None,
    offline: Offline = False,
    device: Device = None,
    collect: Annotated[bool, typer.Option("--collect", help="Run nothing, collect what has finished.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(parser=user_path, metavar="DIR", help="Folder of its runs. [default: ./runs/table-NAME]"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run or collect a paper's table, ours beside published. Stopped, it goes on where it was."""
    from ..papers.table import make_table
    from ..papers.table_definitions import TABLES

    if not name:
        raise UserError(f"which table? known: {', '.join(TABLES)}")
    make_table(
        name,
        out,
        data=data.split(",") if data else None,
        clients=_numbers("--clients", clients) if clients else None,
        methods=methods.split(",") if methods else None,
        seeds=seeds,
        extra={k: v for k, v in (("data_root", data_root), ("device", device)) if v is not None},
        collect=collect,
        progress=not quiet,
    )


@app.command()
def tune(
    method: Annotated[str, typer.Argument(help="A method (see hierfl methods), or FILE.py.")],
    grid: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=V,V,...]", help="Values. [default: the published grid]")
    ] = None,
    data: Data = None,
    budget: Annotated[int, typer.Option(help="How many settings are run.")] = 6,
    data_root: DataRoot = None,
    offline: Offline = False,
    clients: Clients = None,
    split: Split = None,
    rounds: Rounds = None,
    participation: Participation = None,
    network: Network = None,
    formula: Formula = None,
    validation: Annotated[float | None, typer.Option(help="Fraction to choose by. [default: 0.1]")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each setting.")] = 1,
    settle: Annotated[int, typer.Option(help="Average over so many last evaluations.")] = 1,
    by: Annotated[
        str | None, typer.Option(metavar="METRIC,...", help="Judge by the mean of these. [default: pm_nll]")
    ] = None,
    device: Device = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=user_path, metavar="FILE", help="A json file. [default: ./runs/tune-METHOD-DATA.json]"),
    ] = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Choose a method's settings on validation data, with a budget. Stopped, it goes on where it was."""
    from ..configure import parse_settings
    from ..methods import load
    from ..search.cells import parse_metrics
    from ..search.tune import tune as search

    given = {
        "data_root": data_root, "clients": clients, "split": split, "rounds": rounds, "participation": participation,
        "network": network, "formula": formula, "validation": validation, "device": device,
    }  # fmt: skip
    data = data or ("radon-like" if load(method).cls.tabular else "digits")
    values = {key: said.split(",") for key, said in parse_settings(grid or []).items()}
    search(
        method, data, {k: v for k, v in given.items() if v is not None}, values, budget, out,
        seeds=seeds, settle=settle, by=parse_metrics(by or ""), progress=not quiet,
    )  # fmt: skip


@app.command()
def bench(
    name: Annotated[
        str, typer.Argument(help="digits, fashion-mnist, cifar10, digit-three, fashion-mnist-fedrep.")
    ] = "",
    clients: Annotated[str | None, typer.Option("--clients", "-J", metavar="J,J,...", help="Other numbers.")] = None,
    batch: Annotated[int | None, typer.Option(help="Examples per step of minibatches.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    chunk: Annotated[int, typer.Option(help="Clients in one plate; 0 for what suits the device.")] = 0,
    repeats: Annotated[int, typer.Option(help="Turns that every contestant takes.")] = 3,
    references: Annotated[bool, typer.Option(help="Run the same work written otherwise, too.")] = True,
    out: Annotated[
        Path | None,
        typer.Option(parser=user_path, metavar="FILE", help="A json file. [default: in a new folder in ./runs]"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Time a round of pFedVEM (digit-three: pFedV; ...-fedrep: FedRep) beside the same work done otherwise."""
    from ..bench.command import run_benchmark as measure_all

    sizes: list[int | None] = [*_numbers("--clients", clients)] if clients else [None]
    measure_all(name, sizes, batch, device, chunk, repeats, references, out, overwrite, quiet)


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option} takes whole numbers, as in 50,100; not {text!r}") from error


@app.command("methods")
def list_methods(
    name: Annotated[str, typer.Argument(help="Show this method's settings.")] = "",
) -> None:
    """List the methods, or one method's settings."""
    from rich.console import Console

    from hierfl.models import METHODS

    console = Console(markup=False, highlight=False)
    if not name:
        wide = console.width >= WIDE
        table = _plain("method", "family", "stays", "is sent", "size", *(["what it is"] if wide else []))
        for key, entry in METHODS.items():
            size = "" if entry.size is None else f"{entry.size:g}"
            about = [entry.about] if wide else []
            table.add_row(key, entry.family, entry.local, entry.sent, size, *about)
        console.print(table)
        console.print(
            "size: of a message, FedAvg's being 1, for mlp:100 on 28x28 images of ten classes", soft_wrap=True
        )
        console.print("hierfl methods NAME says what a method is, and its settings")
        return
    from ..methods import all_shipped, describe, load

    table = _plain("setting", "default", "meaning")
    loaded = load(name)
    if name in METHODS:
        entry = METHODS[name]
        console.print(f"{name}: {entry.about}; {entry.family}", soft_wrap=True)
        console.print(f"stays with a client: {entry.local}; is sent: {entry.sent}", soft_wrap=True)
    for row in describe(loaded.cls):
        table.add_row(*row)
    console.print(table)
    for data, chosen in all_shipped(loaded.name).items():
        console.print(f"on {data}: {', '.join(f'{k}={v}' for k, v in chosen.items())}", soft_wrap=True)


#: columns of a screen on which methods are said in words, too
WIDE = 140


@app.command("datasets")
def list_datasets() -> None:
    """List the data sets, the ways of splitting them, and the networks."""
    from rich.console import Console

    from hierfl.datasets import ARRAYS, DATASETS
    from hierfl.networks import NETWORKS
    from hierfl.partition import SPLITS
    from hierfl.tables import TABLES

    console = Console(markup=False, highlight=False)
    table = _plain("data set", "what it is", "by default")
    for name, entry in DATASETS.items():
        about = f"{entry.clients} clients, {entry.split}, {entry.rounds} rounds, {entry.network}"
        table.add_row(name, entry.about, about)
    table.add_row("FILE.npz", f"your own: {', '.join(ARRAYS)}", "say --clients and --split")
    console.print(table)
    table = _plain("table", "what it is", "by default")
    for name, known in TABLES.items():
        table.add_row(name, known.about, known.formula)
    table.add_row("FILE.csv", "your own, with a header", "say --formula")
    console.print(table)
    table = _plain("split", "what a client gets")
    for name, kind in SPLITS.items():
        table.add_row(f"{name}:{kind.parameter}" if kind.parameter else name, kind.about)
    console.print(table)
    table = _plain("network", "what stands before the head")
    for name, about in NETWORKS.items():
        table.add_row(name, about)
    console.print(table)


def _plain(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)


def main() -> NoReturn:
    """The console script: bad input is one line and exit code 2."""
    import logging

    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    keep_memory()
    try:
        refuse_empty(sys.argv[1:])
        code = app(standalone_mode=False)
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # a path that cannot be used, a full disk
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message(), err=True)  # type: ignore[attr-defined]
            sys.exit(2)
        if hasattr(error, "format_message"):  # the command line itself was not understood
            _fail(error.format_message())
        if type(error).__name__ == "Abort":
            sys.exit(130)
        raise
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {shown(' '.join(message.split()))}", err=True)
    sys.exit(2)
