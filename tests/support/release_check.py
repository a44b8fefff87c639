"""What a release must pass, as a command.

    python -P tests/support/release_check.py             # all of it, with dependencies from the package index
    python -P tests/support/release_check.py --shared    # the wheel in an environment that sees this one's packages
    python -P tests/support/release_check.py --pages https://example.org/hierfl/  # where README's pictures lie

It builds sdist and wheel of what git holds, looks into both, checks their metadata (by twine, where it is installed),
and that versions agree. It installs the wheel into a new environment, and runs README's program and command there, in
an empty folder. It uploads nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: places of relative links in Markdown
RELATIVE = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)")
#: Setuptools changes sys.argv.
BUILD = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_sdist(out); b.build_wheel(out)"


class Failed(Exception):
    """Why there is no release."""


def run(*command: object, cwd: Path, **more: str) -> str:
    """What a command prints.

    Raises:
        Failed: with the end of that, where it fails.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command[:4]))} ...: {done.stdout[-2000:]}")
    return done.stdout


def copied(target: Path) -> Path:
    """The files that git holds, as they are now."""
    names = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def built(folder: Path, pages: str) -> tuple[Path, Path]:
    """Sdist and wheel."""
    source, out = copied(folder / "source"), folder / "dist"
    out.mkdir()
    run(sys.executable, "-c", BUILD, out, cwd=source, HIERFL_PAGES=pages)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def metadata(wheel: Path) -> Message:
    """A wheel's."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def check_contents(sdist: Path, wheel: Path) -> None:
    """Tests and documents are in the sdist alone; committed results are in no wheel."""
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "docs/index.md", "tests/conftest.py"):
        if name not in inside:
            raise Failed(f"the sdist lacks {name}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    if strange := [n for n in names if not n.startswith(("hierfl/", "hierfl-")) or "/results/" in n]:
        raise Failed(f"the wheel holds {strange[0]}")
    for name in ("hierfl/py.typed", "hierfl/models/settings/pfedvem.toml"):
        if name not in names:
            raise Failed(f"the wheel lacks {name}")


def check_metadata(sdist: Path, wheel: Path, *, pages: bool) -> None:
    """What an index page shows."""
    headers = metadata(wheel)
    text = str(headers.get_payload())
    for name in ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Description-Content-Type"):
        if not headers.get(name):
            raise Failed(f"the metadata lack {name}")
    if pages and (link := RELATIVE.search(text)):
        raise Failed(f"README's link to {link[1]} is relative, and an index page would not show it")
    if not pages:
        print("   README's pictures are relative links: say --pages URL for an index page that shows them")
    if importlib.util.find_spec("twine") is None:
        print("   twine is not installed: pip install twine")
    else:
        run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel, cwd=wheel.parent)


def check_versions(wheel: Path) -> None:
    """The package's, the changelog's and the citation's."""
    version = metadata(wheel)["Version"]
    headings = re.findall(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if version not in headings:
        print(f"   CHANGELOG.md has no heading {version}: its newest is {headings[0]}; name it before a release")
    citation = ROOT / "CITATION.cff"
    if citation.is_file():
        cited = re.search(r"^version:\s*[\"']?([\w.]+)", citation.read_text(encoding="utf-8"), re.MULTILINE)
        if cited is None or cited[1] != version:
            raise Failed(f"CITATION.cff has the version {cited[1] if cited else 'nothing'}, and the package {version}")


def check_installed(wheel: Path, base: Path, *, shared: bool) -> None:
    """README's program and command, from the wheel alone."""
    home, empty = base / "environment", base / "empty"
    empty.mkdir()
    run(sys.executable, "-m", "venv", home, cwd=base)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    if shared:
        (site,) = [*home.glob("lib/python*/site-packages"), *home.glob("Lib/site-packages")]
        places = [sysconfig.get_path("purelib"), *[p for p in sys.path if p.endswith("site-packages")]]
        (site / "shared.pth").write_text("\n".join(dict.fromkeys(places)) + "\n")
    run(
        scripts / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        *(["--no-deps", "--ignore-installed"] * shared),
        wheel,
        cwd=empty,
    )
    location = (
        run(scripts / "python", "-c", "import hierfl; print(hierfl.__file__)", cwd=empty).strip().splitlines()[-1]
    )
    if not Path(location).is_relative_to(home):
        raise Failed(f"hierfl is imported from {location}, not from the wheel")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    (base / "readme.py").write_text(program, encoding="utf-8")
    run(scripts / "python", base / "readme.py", cwd=empty)
    first = re.findall(r"^```sh\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)[0]
    command = first.strip().rpartition("&&")[2].split()
    run(scripts / command[0], *command[1:], cwd=empty)
    (folder,) = (empty / "runs").iterdir()
    run(scripts / "hierfl", "report", folder, "--no-features", cwd=empty)
    run(scripts / "hierfl", "runs", "--json", cwd=empty)


def main() -> None:
    """All checks; exit status 1 where one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", action="store_true", help="see this environment's packages; install none")
    parser.add_argument("--pages", default="", metavar="URL", help="where README's relative links lie, ends with /")
    parser.add_argument("--files", action="store_true", help="look at the files alone; install nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hierfl-release-") as folder:
        release_folder = Path(folder)
        try:
            print("== sdist and wheel", flush=True)
            sdist, wheel = built(release_folder, options.pages)
            print(
                f"   {sdist.name} {sdist.stat().st_size / 1e6:.1f} MB, {wheel.name} {wheel.stat().st_size / 1e6:.1f} MB"
            )
            check_contents(sdist, wheel)
            print("== metadata", flush=True)
            check_metadata(sdist, wheel, pages=bool(options.pages))
            print("== versions", flush=True)
            check_versions(wheel)
            if options.files:
                print("the files are sound; nothing was installed")
                return
            print("== README in a new environment", flush=True)
            check_installed(wheel, release_folder, shared=options.shared)
        except Failed as error:
            sys.exit(f"no release: {error}")
    print("all of it holds")


if __name__ == "__main__":
    main()
