"""What all sites of a study agree on, and whether a site's data fit it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from hierfl.data.patients import beyond_words
from hierfl.data.reading.options import Reading
from hierfl.errors import UserError
from hierfl.files import shown
from hierfl.plurals import counted

from ..as_json import AsJson, print_json
from ..options import Settings, TrustCode, path_option, with_run_options
from ..reading import with_reading
from .options import StudyFile

STUDY_OPTIONS = (
    "rounds", "participation", "evaluate_every", "quorum", "max_message_ratio", "absent_clients", "draws", "final",
    "seed", "precision", "calibrate", "conformal", "network", "head", "network_weights", "response_sd", "learn_sd",
    "formula", "group", "family", "known_se", "event", "weights", "precision_weights", "dispersion", "zero_inflation",
    "correlation", "model", "spellings", "test_fraction", "validation_fraction", "masked", "mask_groups", "robust",
    "dp", "epsilon", "delta", "clip", "patient_rows", "patient", "usual_rows",
)  # fmt: skip


@with_reading()
@with_run_options(*STUDY_OPTIONS)
def study(
    method: Annotated[
        str, typer.Argument(help="A method (see hierfl methods), or FILE.py beside --out: one's own, or a plain model.")
    ],
    sample: Annotated[Path, path_option("FILE", "A file in the form of the sites' data files, without real rows.")],
    site: Annotated[
        list[str],
        typer.Option("--site", metavar="NAME|NAME.pub", help="A site on the roster, or its public card; repeatable."),
    ],
    key: Annotated[Path | None, path_option("FILE.pub", "The server's public card. [default: none yet]")] = None,
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
    from ...configure import parse_settings
    from ...federate.draft import draft
    from ...federate.roster_keys import SERVER, with_cards
    from ...run_folder.files import write_text

    if out.exists() and not overwrite:
        raise UserError(f"{out} exists; choose another --out, or say --overwrite")
    clients, keys = with_cards(site, key)
    settings = parse_settings(setting or [])
    text = draft(method, sample, clients, name, given, settings, keys=keys, x=x or (), y=y, out=out)
    write_text(out, text)
    if lacking := [who for who in (SERVER, *clients) if who not in keys]:
        typer.echo(f"{out}: no card yet of {', '.join(lacking)}: their lines go into its part keys")
    typer.echo(f"{out}: edit it, then send it to {len(site)} site{'s' * (len(site) != 1)}; each says: hierfl federate "
               f"approve HOME --study {out.name} --data FILE --by NAME --pin CARD.pub ...")  # fmt: skip


@with_reading(columns=(), drop=False)
def check(
    study: StudyFile,
    data: Annotated[Path, path_option("FILE", "The site's own data: FILE.csv or FILE.npz.")],
    home: Annotated[
        Path | None, path_option("HOME", "The site's own folder, to check the rules of its policy, too.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
    reading: Any = None,
) -> None:
    """Check whether a site's data fit a study, and list what would leave the site. Nothing is sent or written."""
    from ...federate.guard.approve import propose
    from ...federate.guard.home import Home
    from ...federate.leaving import leaving
    from ...federate.masks import summed_over
    from ...federate.study import Study
    from ...federate.study_site import read_site_data
    from ..screen import console
    from .showing import parties, show_leaving, show_parties, show_rules

    agreed = Study.read(study, trust_code=trust_code)
    site_data = read_site_data(agreed, data, "this", Reading.from_table(reading))
    if as_json:
        proposal = (
            None
            if home is None
            else propose(Home(home), study, data, Reading.from_table(reading), trust_code=trust_code)
        )
        return print_json({
            "study": agreed.name, "rows": site_data.rows, "left_out": site_data.left_out,
            "leaving": list(map(asdict, leaving(agreed, site_data))),
            **({} if proposal is None else {
                "rules": list(map(asdict, proposal.rules)), "parties": parties(proposal.parties)
            }),
        })  # fmt: skip
    screen = console()
    facts = f"{agreed.loaded.name}, {counted(len(agreed.clients), 'site')}"
    screen.print(f"{data}: {counted(site_data.rows, 'row', 'fits', 'fit')} {shown(agreed.name)} ({facts})")
    if site_data.left_out:
        screen.print(f"{counted(site_data.left_out, 'more row', 'lacks', 'lack')} a value: left out")
    if site_data.beyond:
        privacy = agreed.table["privacy"]
        screen.print(beyond_words(site_data.beyond, privacy["patient"], privacy.get("patient_rows", 1)))
    show_leaving(leaving(agreed, site_data), summed_over(agreed))
    if home is not None:
        proposal = propose(Home(home), study, data, Reading.from_table(reading), trust_code=trust_code)
        screen.print()
        show_rules(proposal.rules)
        show_parties(proposal.parties)
    screen.print("Nothing has been sent.")
    return None
