"""Mutants of the sources, and which tests see them.

    python tests/support/mutants.py draw LIST.json [--seed 46] [--number 30]
    python tests/support/mutants.py run LIST.json OUT.json [--only N ...] [--slow] [--again] [-- PYTEST OPTIONS]
    python tests/support/mutants.py run LIST.json OUT.json --control
    python tests/support/mutants.py show OUT.json

``draw`` makes the list from the working tree. ``run`` puts one mutant at a time into a copy of the working tree, and
runs the tests on it, stopped at the first failure; it goes on where it was stopped. ``--control`` does so with no
mutant, as number 0, which has to survive. To OUT.json's mutants may be added, and is kept:

    "judged": "equivalent: why nothing behaves otherwise"
    "judged": "explained: why no test sees it"
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> None:
    """One of the commands above."""
    sys.path.append(str(ROOT / "tests"))  # last: there is a folder "hierfl" of tests
    from support.mutant_draw import draw
    from support.mutant_runs import Settings, run, write
    from support.mutant_table import table

    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="mutants.py", description="Mutants of the sources, and which tests see them.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("draw", help="make the list of mutants")
    command.add_argument("out", type=Path)
    command.add_argument("--seed", type=int, default=46)
    command.add_argument("--number", type=int, default=30)
    command = commands.add_parser("run", help="run the tests on every mutant; pytest's options follow --")
    command.add_argument("list", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--only", type=int, nargs="+", metavar="N", help="the mutants of these numbers")
    command.add_argument(
        "--slow", action="store_true", help="the slow set too, on mutants that the quick set lets live"
    )
    command.add_argument("--again", action="store_true", help="mutants that have been run, too")
    command.add_argument("--control", action="store_true", help="the sources as they are, as number 0")
    command.add_argument(
        "--timeout", type=float, default=1500.0, metavar="SECONDS", help="of a phase; a longer one is a kill"
    )
    commands.add_parser("show", help="print what was found").add_argument("out", type=Path)
    options = parser.parse_args(arguments[:cut])
    if options.command == "draw":
        write(options.out, draw(ROOT, options.seed, options.number))
    elif options.command == "run":
        how = Settings(
            options.only, options.slow, options.again, options.control, options.timeout, tuple(arguments[cut + 1 :])
        )
        run(ROOT, json.loads(options.list.read_text())["mutants"], options.out, how)
    else:
        print(table(json.loads(options.out.read_text())["mutants"]))


if __name__ == "__main__":
    main(sys.argv[1:])
