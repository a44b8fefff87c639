"""What attacks get, measured; figures of docs/threats.md.

    python tests/support/attack_figures.py FOLDER [OUT.csv] [OUT.png] [PART ...]
    python tests/support/attack_figures.py TABLE.csv OUT.png   # the picture, from a table that is there

FOLDER/PART.json has the numbers of each part; parts that are there are not computed again. OUT.csv has all of them:
what was tried, how, of how many ("of"), with how many requests, and what was known then: images to the pixel
(imprinting); the share of images that are seen, and as "exact" of those known to the pixel (inversion); the area under
the ROC curve, its standard error, and as "exact" the share of members that are named while 1 % of others are
(membership). All take seven CPU minutes.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from hierfl.experiments import methods  # noqa: F401

sys.path.append(str(Path(__file__).parents[1]))  # last: there is a folder "hierfl" of tests
from support.attacks import imprint, inversion, membership
from support.attacks.coordinator import Coordinator, initial, plain
from support.attacks.gated import Hospital

SITES = ["north", "south", "east"]
#: settings that a coordinator may draft, by which a round is one long step on all images
DRAFTED = {
    "fedavg": {"batch": 1000, "epochs": 1, "lr": 10.0},
    "pfedvem": {"base_batch": 1000, "base_epochs": 1, "base_lr": 10.0},
}
#: of networks, as chosen for digits
CHOSEN = {
    "fedavg": {"lr": 0.1, "batch": 10, "epochs": 2},
    "pfedvem": {"head_lr": 0.01, "base_lr": 0.005, "sigma_0": 1.0},
}
Row = dict[str, Any]


def site_of(
    folder: Path, method: str, x: np.ndarray, y: np.ndarray, units: int, *, gate: bool = False, **how: object
) -> Coordinator:
    """A prepared site of these images, without a gate or behind one."""
    path, data = imprint.image_study(folder, method, SITES, x, y, units, **how), folder / f"{SITES[0]}.npz"
    if gate:
        north = Hospital(folder / "hospital", SITES)
        site: Coordinator = north.approved(north.study(path), data, allow=["networks"])
    else:
        site = plain(folder / "site", path, SITES[0], data)
    if not site.prepared():
        raise RuntimeError(f"the site does not answer: {site.refusals[-1]}")
    return site


def imprinting(method: str, settings: str, gate: bool, rounds: int = 30, images: int = 310) -> list[Row]:
    """Images known to the pixel after each request of different values; behind the gate of a site that allows networks
    until its budget is used up.
    """
    x, y = membership.digits(images)
    how = DRAFTED[method] if settings == "drafted" else {}
    numbers = [1] + [2] * (3 * rounds) if gate else [*range(1, rounds + 1), *[rounds] * rounds]
    with tempfile.TemporaryDirectory() as folder:
        site = site_of(Path(folder), method, x, y, 100, gate=gate, rounds=rounds, **how)
        shared, truth, before = initial(site.study, site.totals), x.reshape(len(x), -1).astype(float), site.answered
        counts = imprint.attack(site, shared, truth, numbers, walks=gate, restarts=gate)[: site.answered - before]
    where = "gate, --allow networks" if gate else "no gate"
    return [
        {"what": method, "how": f"{settings} settings, {where}", "of": len(x), "requests": k + 1, "known": n}
        for k, n in enumerate(counts)
    ]


def gradients(images: int, steps: int, repeats: int = 4) -> list[Row]:
    """Images that are seen in one honest broadcast's message: one local step on all of them, or several."""
    every, labels = membership.digits(600)
    seen, exact = [], []
    for repeat in range(repeats):
        which = slice(10 + repeat * images, 10 + (repeat + 1) * images)
        own, y = every[which], labels[which]
        x, y = (np.repeat(own, 2, 0), np.repeat(y, 2)) if images == 1 else (own, y)
        with tempfile.TemporaryDirectory() as folder:
            how = {"batch": 1000, "epochs": steps, "momentum": 0.0, "lr": 0.1}
            site = site_of(Path(folder), "fedavg", x, y, 32, rounds=2, **how)
            sent, scale = initial(site.study, site.totals), imprint.moments(site.totals[0])
            message = site.round(1, sent)
            assert message is not None
            moved, truth = imprint.changes(message, sent), own.reshape(images, -1).astype(float)
            candidates = [inversion.quotients(moved, sent)]
            net = site.answer.__self__.site.method.network  # type: ignore[attr-defined]
            candidates.append(
                inversion.matched(net, sent, moved, y, 0.1, steps, shape=(1, 8, 8), mean=scale[0], std=scale[1])
            )
            error = np.min([inversion.errors(own_found, truth, *scale) for own_found in candidates], 0)
        seen.append(float((error < inversion.SEEN).mean()))
        exact.append(float((error < 0.002).mean()))
    return [
        {"what": "fedavg", "how": f"{steps} local steps, no gate", "of": images, "requests": 1, "known": np.mean(seen),
         "exact": np.mean(exact)}
    ]  # fmt: skip


def members(what: str, rows: int, models: int = 32) -> list[Row]:
    """Who was in: area under the curve, and members named where 1 % of others are."""
    if what in CHOSEN:
        x, y = membership.digits(rows)
        how = {"network": "mlp:32", "settings": CHOSEN[what], "rounds": 20, "evaluate_every": 20}
        fitted = membership.network(what, x, y, 6, **how)
    else:
        fitted = membership.effects(membership.patients(rows, 5, 6))
    attack = membership.run(fitted, models, rows)
    return [
        {"what": what, "how": f"{models} models", "of": rows, "requests": 0, "known": attack.auc, "se": attack.se,
         "exact": attack.tpr}
    ]  # fmt: skip


PARTS: dict[str, Callable[[], list[Row]]] = {
    **{
        f"imprinting-{method}-{settings}{'-gate' if gate else ''}": partial(imprinting, method, settings, gate)
        for method in DRAFTED
        for settings in ("default", "drafted")
        for gate in (False, True)
    },
    **{
        f"inversion-{n}-{steps}": partial(gradients, n, steps)
        for n in (1, 2, 4, 8, 16, 32)
        for steps in (1, 5, 20)
    },
    **{
        f"membership-{what}-{rows}": partial(members, what, rows)
        for what in ("fedavg", "pfedvem", "mixed-effects")
        for rows in (120, 600)
    },
}  # fmt: skip


def drawn(table: pd.DataFrame, out: Path) -> None:
    """Three panels: imprinting by request, inversion by images, membership by rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.2), layout="constrained", dpi=110)
    requests, images, rows = figure.subplots(1, 3)
    for name, own in table[table.index.str.startswith("imprinting")].groupby(level=0):
        _, method, settings, *gate = str(name).split("-")
        color, line = "C0" if method == "fedavg" else "C1", "-" if gate else ":"
        label = f"{method}, {settings}{', gate' if gate else ''}"
        width = 2.2 if settings == "drafted" else 1.2
        requests.plot(own.requests, own.known, line, color=color, label=label, linewidth=width)
    requests.set(xlabel="requests", ylabel="images known to the pixel, of 320", ylim=(-10, 320))
    inversion = table[table.index.str.startswith("inversion")]
    for steps in (1, 5, 20):
        own = inversion[inversion.how.str.startswith(f"{steps} ")].sort_values("of")
        images.plot(own["of"], own.known, marker="o", label=f"{steps} local step{'s' if steps > 1 else ''}")
    images.set(xlabel="images at the site", ylabel="share that is seen", xscale="log", ylim=(-0.03, 1.05))
    images.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    images.minorticks_off()
    members = table[table.index.str.startswith("membership")]
    for what, own in members.groupby("what", sort=False):
        own = own.sort_values("of")
        rows.errorbar(own["of"], own.known, 2 * own.se, marker="o", label=str(what))
    rows.axhline(0.5, color="0.6", linewidth=0.8)
    rows.set(xlabel="rows, of which half are members", ylabel="AUC of membership", ylim=(0.45, 0.9))
    for panel in (requests, images, rows):  # below its axis, where it hides no point
        panel.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    figure.savefig(out)


def main(folder: Path, outs: list[Path], names: list[str]) -> None:
    """Parts whose names begin like one of these, or all; then the files."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in PARTS.items():
        if names and not any(name.startswith(start) for start in names):
            continue
        path, began = folder / f"{name}.json", time.process_time()
        if not path.is_file():
            path.write_text(json.dumps(part(), default=float))
            print(f"{name}: {time.process_time() - began:.0f} CPU seconds", flush=True)
    parts = [
        pd.DataFrame(json.loads(path.read_text())).assign(part=path.stem) for path in sorted(folder.glob("*.json"))
    ]
    table = pd.concat(parts).round(4).set_index("part")
    for out in outs:
        if out.suffix == ".csv":
            table.to_csv(out)
        else:
            drawn(table, out)


if __name__ == "__main__":
    files = [Path(word) for word in sys.argv[2:] if word.endswith((".csv", ".png"))]
    if sys.argv[1].endswith(".csv"):
        drawn(pd.read_csv(sys.argv[1], index_col="part"), files[0])
    else:
        main(Path(sys.argv[1]), files, [word for word in sys.argv[2:] if not word.endswith((".csv", ".png"))])
