"""`hierfl federate`: a study over sites whose data stay where they are."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from hierfl.data.reading.options import Reading
from hierfl.errors import UserError

from .options import Quiet, Settings, TrustCode, path_argument, path_option, with_run_options
from .reading import with_reading

federate = typer.Typer(
    help="A study over sites whose data stay where they are: hospitals, plants.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
STUDY_OPTIONS = (
    "rounds", "participation", "evaluate_every", "quorum", "max_message_ratio", "absent_clients", "draws", "final",
    "seed", "precision", "calibrate", "conformal", "network", "response_sd", "learn_sd", "formula", "group", "family",
    "known_se", "event", "weights", "spellings", "test_fraction", "validation_fraction",
)  # fmt: skip

StudyFile = Annotated[Path, path_argument("STUDY", "study.toml, the same at every site.")]
Folder = Annotated[Path, path_option("DIR", "The site's own folder.")]
OwnFile = Annotated[
    Path | None, path_option("FILE", "The site's own data: FILE.csv or FILE.npz. [default: what the folder says]")
]
OwnName = Annotated[str, typer.Option("--client", help="The site's name on the roster. [default: the folder's]")]
OwnStudy = Annotated[Path | None, path_option("STUDY", "study.toml, where the folder is new.")]
Device = Annotated[str, typer.Option(help="Device that computes: cpu, cuda, ...")]
Exchange = Annotated[Path | None, path_option("DIR", "Shared folder in which requests and replies are left as files.")]
SuperLink = Annotated[str, typer.Option(metavar="HOST:PORT", help="Flower's SuperLink on this machine.")]
Authority = Annotated[
    Path | None, path_option("FILE", "Certificate of the authority that signed the SuperLink's. [default: no TLS]")
]


@federate.command()
@with_reading()
@with_run_options(*STUDY_OPTIONS)
def study(
    method: Annotated[str, typer.Argument(help="A method (see hierfl methods), or FILE.py that lies beside --out.")],
    sample: Annotated[Path, path_option("FILE", "A file of the form that every site's has, without real rows.")],
    site: Annotated[list[str], typer.Option("--site", metavar="NAME", help="A site on the roster; repeatable.")],
    name: Annotated[str, typer.Option(help="Name of the study.")] = "study",
    x: Annotated[
        list[str] | None,
        typer.Option("--x", metavar="COLUMN", help="Input column of a network; repeatable. [default: all but --y]"),
    ] = None,
    y: Annotated[str, typer.Option("--y", metavar="COLUMN", help="Column that a network predicts.")] = "",
    setting: Settings = None,
    out: Annotated[Path, path_option("FILE", "The file to write.")] = Path("study.toml"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    **given: Any,
) -> None:
    """Write a draft of study.toml, with a data dictionary, for all sites to agree on."""
    from ..configure import parse_settings
    from ..federate.draft import draft
    from ..run_folder.files import write_text

    if out.exists() and not overwrite:
        raise UserError(f"{out} exists; choose another --out, or say --overwrite")
    text = draft(method, sample, site, name, given, parse_settings(setting or []), x=x or (), y=y, out=out)
    write_text(out, text)
    typer.echo(f"{out}: edit it, then send it to {len(site)} site{'s' * (len(site) != 1)}; each says: hierfl federate "
               f"check {out.name} --data FILE")  # fmt: skip


@federate.command()
@with_reading(columns=False, drop=False)
def check(
    study: StudyFile,
    data: Annotated[Path, path_option("FILE", "The site's own data: FILE.csv or FILE.npz.")],
    trust_code: TrustCode = False,
    reading: Any = None,
) -> None:
    """Whether a site's data fit a study, and what would leave the site. Offline: nothing is sent, or written."""
    from ..federate.leaving import leaving
    from ..federate.study import Study
    from ..federate.study_site import read_site_data
    from .screen import console, text_table

    agreed = Study.read(study, trust_code=trust_code)
    held = read_site_data(agreed, data, "this", Reading.of(reading))
    values = leaving(agreed, held)
    screen = console()
    screen.print(f"{data}: {held.rows} rows fit {agreed.name} ({agreed.loaded.name}, {len(agreed.clients)} sites)")
    if held.left_out:
        screen.print(f"{held.left_out} more rows lack a value, and are left out")
    screen.print("This would leave the site, and nothing else:")
    for request, group in groupby(values, key=lambda value: value.request):
        table, said = text_table("", "value", "shape", "bytes", "what it is"), ""
        for value in group:
            table.add_row(
                "", value.name, value.dimensions, f"{value.nbytes:,}", "" if value.meaning == said else value.meaning
            )
            said = value.meaning
        screen.print(f"\n{request}")
        screen.print(table)
    screen.print("Nothing has been sent.")


@federate.command()
def keys(folder: Annotated[Path, path_argument("DIR", "The site's own folder.")]) -> None:
    """Make the key pair of a site's node. The public key goes to the coordinator, the private one nowhere."""
    from ..federate.flower_control import write_keys

    typer.echo(f"{write_keys(folder)}: send it to the coordinator, who says: hierfl federate register")


@federate.command()
def certificates(
    folder: Annotated[Path, path_argument("DIR", "A new folder.")],
    host: Annotated[list[str], typer.Option("--host", help="Name or address of the SuperLink; repeatable.")],
    days: Annotated[int, typer.Option(min=1, help="How long they are valid.")] = 365,
) -> None:
    """Make a certificate of the SuperLink, where there is no authority that signs one."""
    from ..federate.flower_control import write_certificates

    for path in write_certificates(folder, host, days):
        typer.echo(path)


@federate.command()
def register(
    study: StudyFile,
    client: Annotated[str, typer.Option("--client", help="A site on the roster.")],
    superlink: SuperLink,
    key: Annotated[Path | None, path_option("FILE", "The public key of its node.")] = None,
    ca: Authority = None,
    remove: Annotated[bool, typer.Option("--remove", help="Keep its node out from now on.")] = False,
    trust_code: TrustCode = False,
) -> None:
    """Let a site's node in; which node is which site is kept in nodes.toml beside the study."""
    from hierfl.errors import unknown

    from ..federate.flower_control import Control
    from ..federate.study import Study

    if (key is None) != remove:
        raise UserError("say --key FILE to register a node, or --remove")
    if key is None:
        return Control(study, superlink, ca).unregister(client)
    clients = Study.read(study, trust_code=trust_code).clients
    if client not in clients:
        raise unknown("client of the study", client, clients)
    typer.echo(f"{client} is node {Control(study, superlink, ca).register(client, key)}")


@federate.command()
def server(
    study: StudyFile,
    exchange: Exchange = None,
    superlink: SuperLink = "",
    ca: Authority = None,
    out: Annotated[Path, path_option("DIR", "The server's own folder.")] = Path("server"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study in --out.")] = False,
    deadline: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Answers that take longer are not used; 0 waits until all are there."),
    ] = 0.0,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
) -> None:
    """Fit a study: ask the sites, add up what they send, keep what is everybody's."""
    from hierfl.inference.engines.remote.files import FileCourier

    from ..federate.server import serve
    from ..federate.study import Study
    from ..messages import to_stderr
    from .screen import print_summary

    if deadline < 0:
        raise UserError(f"--deadline must be at least 0, not {deadline:g}")
    if (exchange is None) == (not superlink):
        raise UserError("say what carries requests: --exchange DIR (files), or --superlink HOST:PORT (Flower)")
    agreed = Study.read(study, trust_code=trust_code)
    if exchange is None:
        from ..federate.flower_control import Control
        from ..federate.flower_server import serve_in_superlink

        control = Control(study, superlink, ca)
        summary = serve_in_superlink(
            agreed, out, control, resume=resume, deadline=deadline, trust_code=trust_code, say=to_stderr(not quiet)
        )
    else:
        place = exchange
        summary = serve(
            agreed, out, lambda recorded: FileCourier(place, agreed.clients, deadline, recorded.waiting),
            resume=resume, progress=not quiet,
        )  # fmt: skip
    if not quiet:
        print_summary(summary, out)


@federate.command()
def status(folder: Annotated[Path, path_argument("DIR", "The server's own folder.")]) -> None:
    """Where a study is: its round, who has yet to answer, who contributed when."""
    from ..federate.contributions import last_contributions, read_status
    from .screen import console, text_table

    held, screen = read_status(folder), console()
    screen.print(f"{held['study']}: round {held['round']} of {held['rounds']}")
    if held["ended"]:
        screen.print(f"nobody is asked any more: {held['ended']}")
    else:
        left = ", ".join(held["waiting"]) or "nobody"
        screen.print(f"asked ({held['kind']}) since {held['since']}; yet to answer: {left}")
    table = text_table("site", "rounds", "last answer", "kB from it")
    for row in last_contributions(folder):
        table.add_row(*row)
    screen.print(table)


@federate.command()
@with_reading(columns=False, drop=False)
def site(
    exchange: Exchange = None,
    folder: Folder = Path("site"),
    study: OwnStudy = None,
    client: OwnName = "",
    data: OwnFile = None,
    device: Device = "cpu",
    trust_code: TrustCode = False,
    quiet: Quiet = False,
    reading: Any = None,
) -> None:
    """Answer requests until the study has ended: in a shared folder, or those that Flower's node on this machine
    brings. Stop and start it as you like."""
    from ..federate.study_site import Membership, at_work
    from ..federate.work import answer_by_files, answer_by_flower
    from ..messages import to_stderr

    say = to_stderr(not quiet)
    with at_work(folder):
        read = Reading.of(reading) if reading else None
        member = Membership.join(folder, study, client, data, read, trust_code=trust_code)
        own = member.site(device)
        member.keep()
        say(f"{member.client} of {member.study.name}: its log is {folder / 'site.log'}")
        if exchange is None:
            answer_by_flower(own, folder, say)
        else:
            answer_by_files(own, exchange, member.client)
        say(f"the study has ended: hierfl report {folder}, hierfl predict {folder} --data FILE")


@federate.command()
@with_reading(columns=False, drop=False)
def respond(
    request: Annotated[list[Path], path_argument("REQUEST...", "Files that came from the server.")],
    out: Annotated[Path, path_option("DIR|FILE", "Where the replies go: a folder, or for one request a file.")],
    folder: Folder = Path("site"),
    study: OwnStudy = None,
    client: OwnName = "",
    data: OwnFile = None,
    device: Device = "cpu",
    trust_code: TrustCode = False,
    reading: Any = None,
) -> None:
    """Answer requests that came as files, by mail or SFTP or on a stick; nothing listens, nothing is sent."""
    from ..federate.respond import write_replies
    from ..federate.study_site import Membership, at_work

    with at_work(folder):
        read = Reading.of(reading) if reading else None
        member = Membership.join(folder, study, client, data, read, trust_code=trust_code)
        own = member.site(device)
        member.keep()
        for path, problem in write_replies(own.answer, request, out):
            typer.echo(f"{path}{f': {problem}' if problem else ''}")


@with_reading(columns=False, drop=False)
def predict(
    folder: Annotated[Path, path_argument("DIR", "A site's own folder.")],
    data: Annotated[Path, path_option("FILE", "New examples: FILE.csv, or FILE.npz with x.")],
    out: Annotated[Path | None, path_option("FILE", "A csv file to write to. [default: the screen]")] = None,
    draws: Annotated[int, typer.Option(min=0, help="Average over posterior draws; 0: at the posterior mean.")] = 0,
    trust_code: TrustCode = False,
    reading: Any = None,
) -> None:
    """Predict with a site's own model, at the site, after a study; no server is needed."""
    from ..federate.site_results import predictions, site_run
    from ..federate.study_site import Membership
    from ..run_folder.csv_files import write_frame

    member = Membership.read(folder, trust_code=trust_code)
    found = predictions(member, site_run(member), data, draws, Reading.of(reading) if reading else None)
    if out is None:
        typer.echo(found.to_csv(index=False, lineterminator="\n"), nl=False)
    else:
        write_frame(out, found)
