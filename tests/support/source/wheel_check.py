"""Install a wheel in an empty environment, as a user does, and generate text there with a compressed bundle.

    python tests/support/source/wheel_check.py WHEEL [--python python3.12 | --emulated build/aarch64/python]

The environment has no compiler on its PATH, no checkout and no torch. The bundle and the expected text come from the
environment that runs this program. Prints each command with its time. `--emulated`: a Python of another processor, as
aarch64_environment.sh writes it, which has the libraries already.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from documentation import printed_extras

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "examples" / "language_models" / "small"
GENERATE = ("The import statement", "--max-new-tokens", "16", "--json")
KERNELS = "from intaglio.plugins import ort; print(ort.instruction_set(), *ort.operators())"
KEPT = (
    "HOME",
    "LANG",
    "SSL_CERT_FILE",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)  # and PIP_*, which say where packages are


class CheckError(Exception):
    """The wheel does not do what a user expects."""


def run(command: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command; raises `CheckError` with its output if it fails."""
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CheckError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def processor_seconds() -> float:
    """The processor time of the commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def make_bundle(folder: Path) -> str:
    """Write a compressed bundle to `folder`/bundle, and return the text that it generates here."""
    ours = [sys.executable, "-m", "intaglio"]
    run([*ours, "export", str(MODEL), "-o", "whole"], dict(os.environ), folder)
    run([*ours, "compress", "whole", "-o", "bundle", "--recipe", "rtn"], dict(os.environ), folder)
    expected = json.loads(run([*ours, "generate", "bundle", *GENERATE], dict(os.environ), folder).stdout)
    operators = json.loads(run([*ours, "inspect", "bundle", "--json"], dict(os.environ), folder).stdout)["operators"]
    if "intaglio.GroupMatMul" not in operators:
        raise CheckError(f"the bundle has no operator of ours: {operators}")
    return str(expected["text"])


def check_text(done: subprocess.CompletedProcess[str], expected: str) -> None:
    """Raises `CheckError` unless the command generated this text, with the kernels."""
    if "standard ONNX operators" in done.stderr:
        raise CheckError(f"the kernels did not run: {done.stderr}")
    if (text := json.loads(done.stdout)["text"]) != expected:
        raise CheckError(f"generated {text!r}, expected {expected!r} as in the checkout")


def check_emulated(wheel: Path, python: Path, folder: Path) -> None:
    """Raises `CheckError` unless the wheel's kernels generate the same text there as here."""
    expected, installed = make_bundle(folder), folder / "installed"
    platforms = [f"--platform={each}" for each in wheel.stem.rpartition("-")[2].split(".")]
    target = ["--target", str(installed), "--only-binary=:all:", *platforms]
    run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *target, str(wheel)], dict(os.environ), folder)
    environment = os.environ | {"INTAGLIO_INSTALLED": str(installed)}
    begin = time.perf_counter()
    check_text(run([str(python), "-m", "intaglio", "generate", "bundle", *GENERATE], environment, folder), expected)
    sys.stdout.write(f"{time.perf_counter() - begin:6.1f} s  generate, emulated\n")
    facts = "import platform, intaglio; print(platform.machine(), intaglio.__file__)"
    machine, place = run([str(python), "-c", facts], environment, folder).stdout.split()
    if not wheel.stem.endswith(machine) or not Path(place).is_relative_to(installed):
        raise CheckError(f"ran on {machine} with {place}, expected the wheel below {installed}")
    sys.stdout.write(f"{'':10}kernels: {run([str(python), '-c', KERNELS], environment, folder).stdout}")


def check(wheel: Path, python: str, folder: Path) -> None:
    """Raises `CheckError` unless the wheel's kernels run in a new environment and generate the same text as here."""
    expected = make_bundle(folder)
    new = folder / "environment"
    environment = {name: os.environ[name] for name in os.environ if name in KEPT or name.startswith("PIP_")}
    environment["PATH"] = str(new / "bin")
    if compiler := shutil.which("c++", path=environment["PATH"]):
        raise CheckError(f"{compiler} is in the new environment")
    install = [str(new / "bin" / "pip"), "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    seconds, processor = 0.0, processor_seconds()
    for command in (
        [python, "-m", "venv", str(new)],
        [*install, f"{wheel.resolve()}[cpu]"],
        [str(new / "bin" / "intaglio"), "generate", "bundle", *GENERATE],
    ):
        begin = time.perf_counter()
        done = run(command, environment, folder)
        seconds += time.perf_counter() - begin
        sys.stdout.write(f"{time.perf_counter() - begin:6.1f} s  {shlex.join(command)}\n")
        if "generate" in command:
            check_text(done, expected)
    processor = processor_seconds() - processor
    sys.stdout.write(f"{seconds:6.1f} s  from the wheel to its first text; {processor:.1f} s of processor time\n")

    offered = "import importlib.metadata as m; print(*m.metadata('intaglio').get_all('Provides-Extra'))"
    extras = run([str(new / "bin" / "python"), "-c", offered], environment, folder).stdout.split()
    if absent := {extra: page for extra, page in printed_extras().items() if extra not in extras}:
        raise CheckError(f"extras that are printed and not in the wheel: {absent}")
    diagnosis = run([str(new / "bin" / "intaglio"), "doctor", "--json"], environment, folder).stdout
    if problems := json.loads(diagnosis)["problems"]:
        raise CheckError(f"intaglio doctor: {problems}")

    facts = "import importlib.util as u, intaglio; print(u.find_spec('torch'), intaglio.__file__)"
    torch, place = run([str(new / "bin" / "python"), "-c", facts], environment, folder).stdout.split()
    if torch != "None" or not Path(place).is_relative_to(new):
        raise CheckError(f"torch: {torch}; intaglio: {place}, expected below {new}")
    sys.stdout.write(f"{'':10}kernels: {run([str(new / 'bin' / 'python'), '-c', KERNELS], environment, folder).stdout}")


def main() -> None:
    """Check the wheel that the command line names."""
    parser = argparse.ArgumentParser(description="Generate text with a wheel in an empty environment.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the Python of the new environment")
    parser.add_argument("--emulated", type=Path, help="a program that starts the Python of another processor")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            if given.emulated is not None:
                check_emulated(given.wheel.resolve(), given.emulated.resolve(), Path(folder))
                return
            # The program itself: its name may lead to a script, which needs a shell.
            named = [given.python, "-c", "import sys; print(sys.executable)"]
            python = subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()
            check(given.wheel, python, Path(folder))
        except CheckError as error:
            sys.exit(f"{given.wheel.name}: {error}")


if __name__ == "__main__":
    main()
