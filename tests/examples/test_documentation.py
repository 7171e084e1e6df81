"""Every command and every Python block of README.md and docs/ works as printed, page after page, in one folder."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from documentation import PAGES, REASON, ROOT, Block, blocks

from intaglio.cli import cli

BLOCKS = [block for page in PAGES for block in blocks(page)]
SHELL = [block for block in BLOCKS if block.language == "shell"]
PYTHON = [block for block in BLOCKS if block.language == "python"]
COMMANDS = [(block, command) for block in SHELL for command in block.commands if command.startswith("intaglio ")]
# What blocks that are indented begin with, and the languages of fences that are shown and not run.
PROGRAMS = (
    "cat", "curl", "cut", "docker", "export", "git", "head", "intaglio", "make", "openssl", "pip", "polygraphy",
    "printf", "python", "ray", "serve", "source",
)  # fmt: skip
COMMAND = re.compile(rf"({'|'.join(PROGRAMS)}|arecord -q .* \| intaglio|for [a-z]+ in [a-z ]+;)\s|[A-Z]+=\S")
SHOWN = ("console", "cpp", "diff", "json", "nginx", "text", "yaml")
ELSEWHERE = re.compile(r"tests/\S+\.py|make \S+-test")  # of a reason: what runs the block
SERVERS = ("serve", "serve-tools")
# Commands this environment replaces: the installation, and packages that `make test` may or may not install.
INSTALLED = (
    "git ", "make ", "pip install 'intaglio[", "pip install --constraint ", 'pip install "$(ls dist/', "source ",
)  # fmt: skip
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
ON_A_GPU = ("docs/gpu.md", "docs/tutorials/encoder-on-a-t4.md")
SECONDS = 1800  # for a block, on a busy machine


def named(block: Block) -> str:
    return f"{block.page}:{block.line}"


def test_pages_have_commands_and_few_are_skipped() -> None:
    assert len(COMMANDS) > 120 and len(PYTHON) > 20
    for kind in (SHELL, PYTHON):
        reasons = {named(block): block.reason for block in kind if block.reason and block.page not in ON_A_GPU}
        left_out = [place for place, reason in reasons.items() if not ELSEWHERE.search(reason)]
        assert len(left_out) < 0.3 * len(kind), left_out


@pytest.mark.parametrize("block", BLOCKS, ids=named)
def test_blocks_are_commands_or_name_their_language(block: Block) -> None:
    """Commands are indented, and run. All else stands in a fence with its language, so that no command is missed."""
    if block.language != "shell":
        assert block.language in ("python", *SHOWN), "Indent commands; other text needs a fence with its language."
        assert not (block.language in SHOWN and block.reason), "nothing would run this"
    for command in block.commands if block.language == "shell" else ():
        assert COMMAND.match(command), f"{command}: no command of PROGRAMS. Put text into a fence with its language."


def test_reasons_belong_to_blocks_and_name_files_that_exist() -> None:
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    stated = [reason for text in texts for reason in REASON.findall(text)]
    assert stated == [block.reason for block in BLOCKS if block.reason]
    assert stated and all((ROOT / path).is_file() for reason in stated for path in re.findall(r"tests/\S+\.py", reason))


def test_outputs_of_the_pages_do_not_collide() -> None:
    """The pages are read in one folder: a second command with the same output replaces it, or adds a version."""
    first: dict[str, str] = {}
    for block in SHELL:
        for command in () if block.reason else block.commands:
            words = words_of(command)
            outputs = [words[place + 1] for place, word in enumerate(words) if word == "-o" and words[0] == "intaglio"]
            for output in outputs:
                again = "--force" in words or "--model-version" in words
                assert output not in first or again, f"{named(block)}: {output} exists ({first[output]})"
                first.setdefault(output, named(block))
    assert len(first) > 25


def test_servers_are_the_last_command_of_their_block() -> None:
    """A reader copies a block as a whole, and what follows a server would wait until it ends."""
    for block in SHELL:
        for command in block.commands[:-1]:
            assert words_of(command)[1:2] not in [[name] for name in SERVERS], f"{named(block)}: {command}"


def test_files_that_commands_name_by_the_session_exist(tmp_path: Path) -> None:
    text = "\n".join(command for block in SHELL for command in block.commands)
    paths = sorted(set(re.findall(r"\$(?:CHECKOUT|EXAMPLES|MINILM|RECORDINGS|TEXT)[\w./-]*", text)))
    assert len(paths) > 15
    quoted = " ".join(f'"{path}"' for path in paths)
    script = f'''source "{ROOT}/examples/session.sh" "{tmp_path / "folder"}"
        for path in {quoted}; do [ -e "$path" ] || echo "$path"; done'''
    done = subprocess.run(["bash", "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("block", "command"), COMMANDS, ids=lambda value: named(value) if isinstance(value, Block) else ""
)
def test_printed_commands_use_existing_options(block: Block, command: str) -> None:
    verb: click.Command = cli
    words = list(first_command(words_of(command)[1:]))
    context = click.Context(cli)
    while isinstance(verb, click.Group):
        name, *words = words
        verb = verb.get_command(context, name) or pytest.fail(f"{named(block)}: no verb {name}")
    known = {
        option for parameter in verb.get_params(context) for option in (*parameter.opts, *parameter.secondary_opts)
    }
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= known, f"{named(block)}: {used - known}"


def words_of(command: str) -> list[str]:
    """The words of a command without its comment and its here-document."""
    return shlex.split(command.partition(" <<")[0].replace("\\\n", " "), comments=True)


def first_command(words: list[str]) -> Iterator[str]:
    """The words of the first command of a line."""
    for word in words:
        if word in ("|", "<", ">", "&&", ";"):
            return
        yield word


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all pages are read, one after the other, after `make quickstart`."""
    pytest.importorskip("tensorrt_rtx")
    folder = tmp_path_factory.mktemp("read") / "quickstart"
    run(f'bash examples/quickstart.sh "{folder}"', ENVIRONMENT, ROOT, "README.md: make quickstart")
    return folder


@pytest.mark.proof
@pytest.mark.parametrize("page", PAGES)
def test_readers_can_copy_every_command(page: str, read: Path) -> None:
    walk(page, read, ENVIRONMENT)


def walk(page: str, folder: Path, environment: dict[str, str]) -> None:
    """Run the blocks of a page; a server of one block runs until the next server or the end of the page."""
    start = f'source "{ROOT}/examples/session.sh" "{folder}"'
    server = None
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: stop(server))
        python = stack.enter_context(interpreter(start, environment, folder))
        for block in blocks(page):
            if block.reason or block.language in SHOWN:
                continue
            if block.language == "python":
                python(block)
                continue
            commands = [command for command in block.commands if not command.startswith(INSTALLED)]
            serving = bool(commands) and shlex.split(commands[-1], comments=True)[1:2] in [[name] for name in SERVERS]
            before = commands[:-1] if serving else commands
            run("\n".join([start, "set -euo pipefail", *before]), environment, folder, named(block))
            if serving:
                stop(server)
                server = serve(f"{start}\nexec {commands[-1]}", environment, folder, named(block))


# Runs each line, the source of a block as a literal, in one namespace, and answers with the error, if any.
INTERPRETER = """
import ast, asyncio, contextlib, inspect, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    error = ""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            code = compile(ast.literal_eval(line), "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if inspect.iscoroutine(running := eval(code, names)):
                asyncio.run(running)
        except BaseException:
            error = traceback.format_exc()
    print(ascii(error), flush=True)
"""


@contextlib.contextmanager
def interpreter(start: str, environment: dict[str, str], folder: Path) -> Iterator[Callable[[Block], None]]:
    """A function that runs a Python block as the reader of a page would: with the names of the blocks before it."""
    script = f"{start}\nexec python -c {shlex.quote(INTERPRETER)}"
    process = subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin and process.stdout

    def execute(block: Block) -> None:
        assert process.stdin and process.stdout
        print(ascii(block.text), file=process.stdin, flush=True)
        assert select.select([process.stdout], [], [], SECONDS)[0], f"{named(block)}: it does not end"
        assert (error := process.stdout.readline()) == "''\n", f"{named(block)}\n{ast.literal_eval(error or '0')}"

    try:
        yield execute
    finally:
        process.stdin.close()
        process.stdout.close()
        assert process.wait(60) == 0


def run(script: str, environment: dict[str, str], folder: Path, where: str) -> None:
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{where}\n{script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def serve(script: str, environment: dict[str, str], folder: Path, where: str) -> subprocess.Popen[bytes] | None:
    """Start a server; return once its port is open. A server on standard input and output ends with its input."""
    over_http = "serve-tools" not in script or "--port" in script
    server = subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while over_http and not is_open(8000):
        assert server.poll() is None, f"{where}: the server has ended with {server.returncode}"
        assert time.monotonic() < deadline, f"{where}: the port is closed"
        time.sleep(0.2)
    if not over_http:
        assert server.wait(60) == 0, where
        return None
    return server


def is_open(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def stop(server: subprocess.Popen[bytes] | None) -> None:
    if server is not None and server.poll() is None:
        server.send_signal(signal.SIGINT)
        server.wait(60)


def test_reference_lists_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8").partition("## Install")[2]
    assert extras.keys() == set(re.findall(r"^\| `([a-z]+)` \|", table.partition("\n## ")[0], re.M))
