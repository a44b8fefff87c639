"""The Python interface in golden runs: what it returns is kept in npz files."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from golden_installed import attribute, found, new_setting, settings
from golden_names import HOMES

from hierfl.errors import UserError

SUBCLASS = """from hierfl.models import FedAvg
class Middle(FedAvg): pass
class Mine(Middle):
    name = "mine"
"""


def run(words: str) -> None:
    """ "NAME ARGUMENTS" of a case."""
    name, *arguments = words.split()
    KINDS[name](*arguments)


def copy_method_file(name: str, target: Path) -> None:
    """A method in a file of one's own: the tutorial's, from the checkout that is installed, or a subclass.

    Raises:
        LookupError: if hierfl is not installed from a checkout.
    """
    if name == "subclass.py":
        target.write_text(SUBCLASS)
        return
    root = Path(str(import_module("hierfl").__file__)).parent.parent
    there = list((root / "docs").rglob(name))
    if len(there) != 1:
        raise LookupError(f"{root / 'docs'} has {len(there)} files called {name}; install the checkout with -e")
    target.write_bytes(there[0].read_bytes())


def _method(name: str, network: Any, given: dict[str, Any]) -> Any:
    methods, module = found("METHODS"), import_module(HOMES["METHODS"][0])
    known = settings(name)
    return getattr(module, methods[name].cls)(network, **dict(new_setting(name, k, v, known) for k, v in given.items()))


def _federation(file: str, **more: Any) -> Any:
    a = np.load(Path("../../_data") / file)
    return found("Federation").from_arrays(
        a["x_train"], a["y_train"], a["client_train"], x_test=a["x_test"], y_test=a["y_test"],
        client_test=a["client_test"], **more,
    )  # fmt: skip


def _keep(name: str, run: Any, x: np.ndarray, given: Any, classes: bool) -> None:
    """Everything that a run of some rounds says, under old names."""
    arrays: dict[str, np.ndarray] = {}
    for part in ("shared", "personal"):
        arrays |= {f"{part}/{k}": v.cpu().numpy() for k, v in attribute(run, part).items()}
    copies = attribute(attribute(run, "fitted"), "copies")
    arrays |= {f"copies/{k}": v.cpu().numpy() for k, v in copies.items()}
    for frame in ("metrics", "clients", "history", "participation"):
        arrays |= _columns(frame, attribute(run, frame))
    client = str(attribute(run, "clients")["client"].iloc[2])
    asked: dict[str, Callable[[], Any]] = {
        "predict": lambda: run.predict(x, client=client),
        "predict-draws": lambda: run.predict(x, client=client, draws=5),
        "new": lambda: attribute(run, "predict_new_client")(x, draws=7),
        "new-mean": lambda: attribute(run, "predict_new_client")(x, draws=0),
        "new-given": lambda: attribute(run, "predict_new_client")(x, draws=7, given=given),
        "new-given-rounds": lambda: attribute(run, "predict_new_client")(x, draws=0, given=given, rounds=2),
    }
    if classes:
        asked["entropies"] = lambda: np.concatenate(attribute(run, "entropies")(x))
        asked["entropies-draws"] = lambda: np.concatenate(attribute(run, "entropies")(None, 3))
        asked["reliability"] = lambda: attribute(run, "reliability")()
        asked["reliability-draws"] = lambda: attribute(run, "reliability")(averaged=True)
    for key, ask in asked.items():
        try:
            arrays[key] = np.asarray(ask())
        except (UserError, KeyError, RuntimeError) as error:  # (the two others: faults of 5d27eda; see EXEMPT)
            arrays[key] = np.array(f"refused: {type(error).__name__}")
    np.savez(f"{name}.npz", **arrays)
    run.posterior().to_netcdf(f"{name}-posterior.nc", engine="h5netcdf")
    run.posterior(6, [client], float32=True, observed=False).to_netcdf(f"{name}-one-posterior.nc", engine="h5netcdf")


def _columns(name: str, frame: Any) -> dict[str, np.ndarray]:
    return {
        f"{name}.{column}": np.array([str(v) for v in frame[column]])
        if frame[column].dtype == object or str(frame[column].dtype) in ("str", "string")
        else frame[column].to_numpy()
        for column in frame.columns
        if column != "seconds"
    }


def fit_classes(method: str, *pairs: str) -> None:
    """Double precision, half of the clients in a round; three rounds at once, and stopped after each of them."""
    import torch

    if method == "fedbn":
        federation = _federation("pictures.npz", validation=0.2)
        spec = "bncnn:2,3:4"
    else:
        federation, spec = _federation("blobs.npz", validation=0.2), "mlp:5"
    methods = found("METHODS")
    cls = getattr(import_module(HOMES["METHODS"][0]), methods[method].cls)
    network = found("architecture")(spec, federation, latent=attribute(cls, "latent"))
    short = {"final_steps": 40, "final_keep": 10} if method == "fedpop" else {}
    made = _method(method, network, {**short, **dict(pair.split("=") for pair in pairs)})
    data = np.load(Path("../../_data") / ("pictures.npz" if method == "fedbn" else "blobs.npz"))
    shape = attribute(federation, "event_shape")  # (of pictures channels, too)
    x = data["x_test"][:5].reshape(-1, *shape)
    given = (data["x_train"][:12].reshape(-1, *shape), data["y_train"][:12])
    how = {"participation": 0.6, "seed": 3, "dtype": torch.float64, "progress": False, "draws": 4}
    _keep("whole", found("fit")(made, federation, rounds=3, **how), x, given, True)
    for stop in (1, 2):
        folder = Path(f"stopped-{stop}")
        found("fit")(made, federation, rounds=stop, folder=folder, **how)
        again = found("fit")(made, federation, rounds=3, folder=folder, resume=True, **how)
        parts = {f"shared/{k}": v.numpy() for k, v in attribute(again, "shared").items()}
        np.savez(
            f"resumed-{stop}.npz",
            **parts,
            **{f"personal/{k}": v.numpy() for k, v in attribute(again, "personal").items()},
        )


def fit_regression(method: str) -> None:
    """Single precision, responses."""
    federation = _federation("lines.npz", task="regression")
    cls = getattr(import_module(HOMES["METHODS"][0]), found("METHODS")[method].cls)
    network = found("architecture")("mlp:3", federation, 0.5, attribute(cls, "latent"))
    short = {"final_steps": 40, "final_keep": 10} if method == "fedpop" else {}
    run = found("fit")(_method(method, network, short), federation, rounds=3, participation=0.6, seed=4, progress=False)
    data = np.load("../../_data/lines.npz")
    _keep("whole", run, data["x_test"][:5], (data["x_train"][:6], data["y_train"][:6]), False)


def fit_mixed(family: str, table: str) -> None:
    """A mixed model of a table; predictions from a table."""
    import torch

    frame = found("read_table")(f"../../_data/{table}.csv", text=["site"])
    federation, design = found("from_formula")(frame, "y ~ 1 + x + (1 | site)", family=family, test=0.2)
    how = {"draws": 5, "chains": 2}
    run = found("fit")(
        _method("mixed-effects", design, how), federation, rounds=4, dtype=torch.float64, progress=False, seed=1
    )
    x = frame.iloc[:6]
    given = (frame.iloc[:7], frame["y"].to_numpy()[:7])
    _keep("whole", run, x, given, False)


#: by name
KINDS: dict[str, Callable[..., None]] = {"fit": fit_classes, "regression": fit_regression, "mixed": fit_mixed}
