"""Layout of a run's files: fresh folders, numbered folders, their locks."""

from __future__ import annotations

import errno
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hierfl.errors import UserError
from hierfl.file_lock import locked
from hierfl.files import PART_SUFFIX, is_leftover, make_folder, sync_folder
from hierfl.inference.tracking.to_tensorboard import EVENTS

from ..config import Configuration
from .config_file import write_config

FILES = (
    "config.toml", "metrics.csv", "clients.csv", "history.csv", "participation.csv", "influence.csv", "without.csv",
    "effects.csv", "globals.csv", "trace.csv", "estimates.csv", "protocols.csv", "posterior.nc", "summary.json",
    "report.html", "track.csv", "track-parameters.json", "tracking.json",
    "network-weights.safetensors", "network-weights.pt",
)  # fmt: skip
FOLDERS = ("checkpoint", "figures", "model", "wandb")


def check_out(out: Path | None, overwrite: bool, mark: str = "config.toml", what: str = "run") -> None:
    """Refuses an ``--out`` that exists, unless it is a run's folder, or what a start that failed has left of one.

    Args:
        out: the folder.
        overwrite: whether it may be overwritten.
        mark: the file by which a folder of this kind is known.
        what: the kind, in words.

    Raises:
        UserError: see above.
    """
    if out is not None and out.is_symlink() and not out.exists():
        raise UserError(f"{out} is a symbolic link to nothing; choose another --out")
    if out is None or not out.exists():
        return
    if not overwrite:
        raise UserError(f"{out} exists; choose another --out, or say --overwrite")
    if not out.is_dir() or not ((out / mark).is_file() or all(map(is_leftover, out.iterdir()))):
        raise UserError(f"{out} is not the folder of a {what}; --overwrite replaces only those")


@contextmanager
def create_run_folder(
    out: Path | None, overwrite: bool, label: str, config: Configuration, root: Path = Path("runs")
) -> Iterator[Path]:
    """A fresh folder that holds its configuration, and is this process's alone.

    A new folder appears with its configuration in it. Of an old one the configuration is replaced last: whenever a
    process is killed, what is there can be resumed, or overwritten.

    Args:
        out: the folder; None for the next numbered one under ``root``.
        overwrite: whether a run that is there may be replaced.
        label: of a numbered folder.
        config: what is run.
        root: where numbered folders are.

    Raises:
        UserError: see :func:`check_out`.
        Busy: if another process is running there.
    """
    check_out(out, overwrite)
    if out is not None and out.exists():
        with lock_run_folder(out):
            check_out(out, overwrite)  # another process may have been faster
            _empty(out)
            write_config(out, config)
            yield out
        return
    with _appearing(out, re.sub(r"[^\w.-]", "-", label), root) as (part, appear), lock_run_folder(part):
        write_config(part, config)
        yield appear()


@contextmanager
def _appearing(out: Path | None, label: str, root: Path) -> Iterator[tuple[Path, Callable[[], Path]]]:
    """A folder under a hidden name, and what gives it the name of a new run."""
    parent = root if out is None else out.parent
    make_folder(parent)
    part = parent / f".{label if out is None else out.name}.{secrets.token_hex(4)}{PART_SUFFIX}"
    part.mkdir()

    def appear() -> Path:
        while True:
            folder = _numbered(root, label) if out is None else out
            try:
                part.rename(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                if out is not None:
                    raise UserError(f"{out} exists; choose another --out, or say --overwrite") from error
                continue  # another run took the number a moment ago
            sync_folder(parent)
            return folder

    try:
        yield part, appear
    finally:
        shutil.rmtree(part, ignore_errors=True)  # where it has not appeared


def _numbered(root: Path, label: str) -> Path:
    """The next numbered folder's name."""
    taken = [int(m[1]) for p in root.iterdir() if (m := re.match(r"(\d+)-", p.name))]
    return root / f"{max(taken, default=0) + 1:04d}-{label}"


def make_numbered_folder(label: str, root: Path = Path("runs")) -> Path:
    """A fresh numbered folder, empty."""
    root.mkdir(parents=True, exist_ok=True)
    while True:
        folder = _numbered(root, label)
        try:
            folder.mkdir()
        except FileExistsError:
            continue  # another run took the number a moment ago
        return folder


def _empty(out: Path) -> None:
    """Deletes a run's files but for its configuration; what says that it has finished or begun goes first."""
    for name in ("summary.json", "metrics.csv", "checkpoint/checkpoint.json", *FILES):
        if name != "config.toml":
            (out / name).unlink(missing_ok=True)
    for name in FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)
    for path in out.glob(EVENTS):
        path.unlink()
    for path in out.iterdir():
        if is_leftover(path) and path.name != ".lock":
            path.unlink()


def lock_run_folder(folder: Path) -> AbstractContextManager[None]:
    """Holds a run's folder for this process.

    Raises:
        Busy: if another one has it.
        UserError: where parts of it are elsewhere: what is written and deleted in it would be, too.
    """
    for name in FOLDERS:
        if (folder / name).is_symlink():
            raise UserError(f"{folder / name} is a symbolic link, and a run's folder holds its own")
    return locked(folder / ".lock", f"another process is running in {folder}")
