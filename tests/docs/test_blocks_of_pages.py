"""Every program in the pages is run by a test, or says why not; every ``hierfl`` command is one that exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer.main
from support.page_blocks import PROGRAMS, blocks, commands, pages
from support.page_setups import SETUPS

from hierfl.errors import UserError
from hierfl.experiments import cli

#: pages whose blocks other tests run
ELSEWHERE = {
    "README": "test_readme.py", "mixed-tutorial": "test_tutorial.py", "mixed-after": "test_tutorial.py",
    "own-model": "test_executed_pages.py", "sites": "test_sites.py",
}  # fmt: skip
PAGES = pages()
#: an option that a diff of a page adds
NEW = "--evaluate-from"
#: pages whose blocks are run here, one after the other in one folder
RUN = [
    name
    for name, text in PAGES.items()
    if name not in ELSEWHERE
    and not name.startswith("gallery/")
    and any(block.language in PROGRAMS and not block.reason for block in blocks(text))
]


def test_programs_that_are_not_run_say_why() -> None:
    for name in RUN:
        languages = {block.language for block in blocks(PAGES[name]) if not block.reason}
        assert not languages & {"pycon", "bash"}, name
    reasons = [block.reason for text in PAGES.values() for block in blocks(text) if block.reason]
    assert all(len(reason.split()) > 4 for reason in reasons)
    assert set(SETUPS) <= set(RUN)


def problem(arguments: list[str]) -> str | None:
    """What is wrong with a command of a page; nothing of it is done. ``...`` is what the page leaves out."""
    short, arguments = "..." in arguments, [argument for argument in arguments if argument != "..."]
    command: click.Command = typer.main.get_command(cli.app)
    while isinstance(command, click.Group) and arguments:
        name, *arguments = arguments
        subcommand = command.get_command(click.Context(command), name)
        if subcommand is None:
            return name if not name.startswith("--") else None
        command = subcommand
    try:
        command.make_context("hierfl", list(arguments))
    except click.exceptions.Exit:
        return None
    except click.MissingParameter as error:
        return None if short else error.format_message()
    except click.ClickException as error:
        return error.format_message()
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if any(commands(text))])
def test_commands_of_a_page_have_options_that_exist(name: str) -> None:
    named = [arguments for arguments in commands(PAGES[name]) if NEW not in arguments]
    wrong = {" ".join(arguments): problem(arguments) for arguments in named}
    assert {line: why for line, why in wrong.items() if why} == {}


def test_a_wrong_option_is_noticed() -> None:
    assert "No such option" in str(problem(["run", "pfedvem", "--round", "3"]))
    assert problem(["runn"]) == "runn"
    assert problem(["run", "pfedvem", "--rounds", "3"]) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_blocks_of_a_page_run(name: str, tmp_path: Path) -> None:
    """Blocks of Python in one process; those of the shell between them, in the same folder."""
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
        "HIERFL_STATE": str(tmp_path / "state"),
    }  # fmt: skip
    for path in ("docs", "experiments"):
        (tmp_path / path).symlink_to(Path(__file__).parents[2] / path)
    program = [f"import subprocess\n{SETUPS.get(name, '')}"]
    for block in blocks(PAGES[name]):
        if block.language == "toml" and name == "start-researcher":
            program.append(f"open('mine.toml', 'w').write({block.text!r})")
        if block.reason or block.language not in PROGRAMS:
            continue
        shell = f"subprocess.run(['bash', '-euo', 'pipefail', '-c', {block.text!r}], check=True)"
        program.append(block.text if block.language == "python" else shell)
    (tmp_path / "page.py").write_text("\n".join(program), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
