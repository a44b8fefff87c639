"""Golden runs: the same small runs with two checkouts, compared bit for bit.

    python tests/support/golden.py write OUT [--case PATTERN] [--jobs N] [--old-noise]
    python tests/support/golden.py compare A B [--case PATTERN]
    python tests/support/golden.py list [--case PATTERN]

``write`` runs the cases of golden_cases.py through whatever ``hierfl`` the interpreter has. Cases are written in old
names; golden_names.py says what they are called now, and what need not be the same.
"""

from __future__ import annotations

import os

# before torch and numpy are imported, here and in worker processes
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg"}

import argparse
import sys
import time
from fnmatch import fnmatch
from pathlib import Path


def main() -> int:
    """The exit code: 1 if a case failed, or something differs."""
    parser = argparse.ArgumentParser(prog="golden.py", description="The same small runs with two checkouts, compared.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, places in (("write", ("out",)), ("compare", ("a", "b")), ("list", ())):
        one = commands.add_parser(name)
        for place in places:
            one.add_argument(place, type=Path)
        one.add_argument("--case", default="*", metavar="PATTERN", help="only cases such as 'fedpop/*'")
        if name == "write":
            one.add_argument("--jobs", type=int, default=1, help="processes")
            one.add_argument("--old-noise", action="store_true", help="random numbers as of old: see old_noise.py")
    said = parser.parse_args()
    from golden_cases import CASES

    names = [name for name in CASES if fnmatch(name, said.case)]
    if said.command == "list":
        for name in names:
            print(name, *CASES[name].lines, sep="\n    ")
        print(f"{len(names)} cases")
        return 0
    if said.command == "compare":
        from golden_compare import compare

        return compare(said.a, said.b, names)
    from golden_write import write

    start = time.perf_counter()
    failed = write(said.out, names, said.jobs, said.old_noise)
    print(f"{len(names)} cases in {time.perf_counter() - start:.0f} s, {len(failed)} failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
