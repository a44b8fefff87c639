"""What a mixed-effects run of many rows and clients takes: CPU seconds and memory of the whole command, by its parts.

python experiments/results/mixed-effects/size.py [ROWSxCLIENTS ...]

A part's time is what it took in the process; the whole has the imports, too, and every file that the run leaves.
"""

import functools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

SIZES = ("20000x2000", "100000x10000", "1000000x1000")
FORMULA = "y ~ 1 + x + (1 + x | site)"


def table(rows: int, clients: int) -> pd.DataFrame:
    """Intercepts and slopes that go together; every client has a row, the others are anybody's."""
    rng = np.random.default_rng(1)
    who = np.sort(np.r_[np.arange(clients), rng.integers(0, clients, rows - clients)])
    x = rng.normal(size=rows)
    b = rng.normal(size=(clients, 2)) @ np.array([[1.0, 0.3], [0.0, 0.5]])
    y = 1 + 0.5 * x + b[who, 0] + b[who, 1] * x + 0.8 * rng.normal(size=rows)
    return pd.DataFrame({"site": [f"s{j:05d}" for j in who], "x": x, "y": y})


def measured(arguments: list[str]) -> None:
    """Runs a command of hierfl in this process, and prints what its parts took."""
    from hierfl.experiments.cli import main
    from hierfl.experiments.run_folder import start
    from hierfl.inference.engines import plate
    from hierfl.inference.run import fit, inference_data
    from hierfl.models.mixed_effects.method import MixedEffects

    spent: dict[str, list[float]] = {}
    peak: dict[str, float] = {}

    def timed(owner: object, name: str, label: str) -> None:
        whole = getattr(owner, name)

        @functools.wraps(whole)
        def call(*args: object, **kwargs: object) -> object:
            start = time.process_time()
            try:
                return whole(*args, **kwargs)
            finally:
                spent.setdefault(label, []).append(time.process_time() - start)
                peak[label] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

        setattr(owner, name, call)

    timed(start, "build", "table, federation, checks")
    timed(fit.Fit, "step", "a round")
    timed(plate, "evaluate_personal", "an evaluation, personal")
    timed(plate, "evaluate_global", "an evaluation, global")
    timed(plate.PlateEngine, "_final_values", "draws of the clients' effects")
    timed(inference_data, "_all_draws", "draws of the posterior, densities")
    timed(MixedEffects, "population_summary", "effects and standard errors")
    timed(MixedEffects, "shrinkage_table", "shrinkage")
    sys.argv = ["hierfl", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    used = resource.getrusage(resource.RUSAGE_SELF)
    for label, seconds in spent.items():
        times = f", {len(seconds)} times" if len(seconds) > 1 else ""
        print(f"  {label:34} {np.mean(seconds):7.2f} s{times}, {peak[label]:.2f} GiB at most until then")
    print(
        f"  {'the whole command':34} {used.ru_utime + used.ru_stime:7.2f} s CPU, {used.ru_maxrss / 2**20:.2f} GiB peak"
    )


def main() -> None:
    """Each size in a process of its own, for its peak of memory is its own."""
    for size in sys.argv[1:] or SIZES:
        rows, clients = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as folder:
            table(rows, clients).to_csv(Path(folder) / "table.csv", index=False)
            command = ["run", "mixed-effects", "--data", f"{folder}/table.csv", "--formula", FORMULA]
            command += ["--out", f"{folder}/run", "--quiet"]
            print(f"{rows} rows, {clients} clients:", flush=True)
            subprocess.run([sys.executable, __file__, "--measure", *command], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measured(sys.argv[2:])
    else:
        main()
