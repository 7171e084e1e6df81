"""Mutated input: real bundles, recipes, arrays, conversations and checkpoints, damaged by seed, and verbs run on them.

    python tests/support/source/mutations.py MATERIAL FIRST COUNT

runs seeds FIRST to FIRST + COUNT - 1 on the folder MATERIAL of `mutation_material` and prints a JSON line for each seed
with behaviour that no input may cause: a signal, a traceback or a bug, more than `SECONDS` of processor time or more
than `MEMORY`. Each seed runs in a fork of one process that has imported everything, as importing takes longer than
most of them.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from file_damage import damage, rehash

SECONDS = 20
LONGEST = 120  # seconds until it is killed, including other work of the machine
MEMORY = 2 << 30  # resident bytes
ADDRESSES = 12 << 30  # bytes; a process is killed at this size
QUANTISED = ("gptq", "awq", "compressed-tensors")  # methods, each with a folder of a checkpoint


class Scenario(NamedTuple):
    """A file to damage in a folder to copy, and commands, one of which runs; {0} is the copy."""

    folder: str
    file: str
    commands: list[str]


GENERATE = "generate {0} --max-new-tokens 4 --json 'A text'"
CHAT = "generate {0} --max-new-tokens 2 --messages {1}/messages.json"
INSPECT = "inspect {0}"
CANONICAL = "compress {0} -o {1}/out --recipe canonical"
RTN = "compress {0} -o {1}/out --recipe rtn"
BUILD = "build {0} --target ort-cpu"
RUN = "run {0} 'A sentence.' --json"
CUT = "run {0} 'A sentence.' 'Another one, which is longer.' --truncate --json"
AGAINST = "validate {0} --against {1}/{2} --samples 2 --report {1}/report"
PERPLEXITY = "validate {0} --perplexity {1}/text.txt --report {1}/report"
DECODER = [GENERATE, CHAT, INSPECT, CANONICAL, RTN, BUILD, PERPLEXITY]
ENCODER = [RUN, CUT, INSPECT, CANONICAL, BUILD, AGAINST]
CLASSIFIER = [RUN, CUT, INSPECT]
EXPORT = ["export {0} -o {1}/out --no-check", "export {0} -o {1}/out --no-check --dtype float16"]
FEATURES = [*EXPORT, "export {0} -o {1}/out --no-check --features"]
GGUF = ["export {0}/model.gguf -o {1}/out --no-check"]
ADAPTED = [
    "export {1}/llama-checkpoint -o {1}/out --no-check --adapter {0}",
    "generate {1}/llama --adapter mine={0} --max-new-tokens 4 --json 'A text'",
]
SCENARIOS = [
    Scenario("decoder", "bundle.json", DECODER),
    Scenario("decoder", "model.onnx", DECODER),
    Scenario("decoder", "tokenizer.json", [GENERATE, PERPLEXITY]),
    Scenario("decoder", "tokenizer_config.json", [CHAT]),
    Scenario("packed", "bundle.json", DECODER),
    Scenario("packed", "model.onnx", DECODER),
    Scenario("drafting", "bundle.json", [GENERATE, INSPECT]),
    Scenario("encoder", "bundle.json", ENCODER),
    Scenario("encoder", "model.onnx", ENCODER),
    Scenario("encoder", "tokenizer.json", [RUN]),
    Scenario("classifier", "bundle.json", CLASSIFIER),
    Scenario("classifier", "model.onnx", CLASSIFIER),
    Scenario("classifier", "tokenizer.json", [RUN, CUT]),
    Scenario("classifier", "config.json", [RUN, CUT]),
    Scenario("templated", "chat_template.jinja", [CHAT]),
    Scenario("built", "bundle.json", [RUN, INSPECT]),
    Scenario("built", "engines/ort-cpu.onnx", [RUN, INSPECT]),
    Scenario("int8", "bundle.json", ENCODER),
    Scenario("int8", "model.onnx", ENCODER),
    Scenario("both", "bundle.json", [GENERATE, INSPECT, BUILD]),
    Scenario("both", "encoder.onnx", [GENERATE, INSPECT, BUILD]),
    Scenario("files", "arrays.npz", ["validate {1}/encoder --against {1}/int8 --data {0}/arrays.npz --report {1}/r"]),
    Scenario("files", "recipe.yaml", ["compress {1}/decoder -o {1}/out --recipe {0}/recipe.yaml"]),
    Scenario("files", "numbers.sensitivity", ["compress {1}/decoder -o {1}/out --recipe lut-sparse --calibration "
                                              "{0}/text.txt --sensitivity {0}/numbers.sensitivity"]),
    Scenario("files", "messages.json", ["generate {1}/decoder --max-new-tokens 2 --messages {0}/messages.json"]),
    Scenario("files", "prompts.jsonl", ["generate {1}/decoder --max-new-tokens 2 --data {0}/prompts.jsonl --json"]),
    Scenario("files", "text.txt", ["validate {1}/decoder --perplexity {0}/text.txt --report {1}/report",
                                   "run {1}/encoder --input {0}/text.txt --truncate"]),
    Scenario("decoder-checkpoint", "config.json", EXPORT),
    Scenario("decoder-checkpoint", "model.safetensors", EXPORT),
    Scenario("decoder-checkpoint", "tokenizer.json", EXPORT),
    Scenario("llama-checkpoint", "config.json", EXPORT),
    Scenario("encoder-checkpoint", "config.json", EXPORT),
    Scenario("both-checkpoint", "config.json", EXPORT),
    Scenario("speech-checkpoint", "config.json", FEATURES),
    Scenario("speech-checkpoint", "vocabulary.json", FEATURES),
    Scenario("speech-checkpoint", "model.safetensors", FEATURES),
    Scenario("gguf-file", "model.gguf", GGUF),
    *(Scenario(f"{kind}/quantized", "config.json", EXPORT) for kind in QUANTISED),
    *(Scenario(f"{kind}/quantized", "model.safetensors", EXPORT) for kind in QUANTISED),
    Scenario("squeezed", "sq.pt", ["convert {0}/sq.pt --base {0}/float -o {1}/out"]),
    Scenario("squeezed/quantized", "model.safetensors", EXPORT),
    *(Scenario("adapter", file, ADAPTED) for file in ("adapter_config.json", "adapter_model.safetensors")),
    Scenario("speech-files", "recogniser.nemo", ["convert {0}/recogniser.nemo -o {1}/out"]),
    Scenario("speech-files", "recogniser.hama", ["convert {0}/recogniser.hama -o {1}/out"]),
]  # fmt: skip


class Found(NamedTuple):
    """The failure of a seed."""

    seed: int
    wrong: str
    command: str
    file: str
    stderr: str


def attempt(seed: int, material: Path) -> Found | None:
    """Damage a file by `seed`, run a command on it in a fork, and return the failure if there is one."""
    import shlex

    chance = random.Random(seed)
    scenario = chance.choice(SCENARIOS)
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        place = Path(name)
        for other in ("decoder", "encoder", "int8", "packed", "both", "drafting", "llama", "llama-checkpoint"):
            (place / other).symlink_to(material / other)
        (place / "messages.json").symlink_to(material / "files" / "messages.json")
        (place / "text.txt").symlink_to(material / "files" / "text.txt")
        copy = Path(shutil.copytree(material / scenario.folder, place / "damaged"))
        damage(copy / scenario.file, chance)
        if (copy / "bundle.json").exists() and scenario.file != "bundle.json":
            rehash(copy, scenario.file)
        command = chance.choice(scenario.commands).format(copy, place, scenario.folder)
        code, seconds, memory, stderr = _forked(shlex.split(command), place)
    wrong = _wrong(code, seconds, memory, stderr)
    return Found(seed, wrong, command, f"{scenario.folder}/{scenario.file}", stderr[-1500:]) if wrong else None


def _wrong(code: int, seconds: float, memory: int, stderr: str) -> str | None:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    if "bug in intaglio" in stderr or "Traceback" in stderr:
        return "unexpected exception"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if seconds > SECONDS:
        return f"{seconds:.0f} seconds"
    if code == 2 and not stderr.rstrip().splitlines()[-1:]:
        return "no message"
    return f"{memory >> 20} MiB" if memory > MEMORY else None


def _forked(arguments: list[str], place: Path) -> tuple[int, float, int, str]:
    """Exit code (negative: a signal), seconds of processor time, bytes of memory and standard error of a fork."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(arguments, place)
    while True:
        process, status, usage = os.wait4(child, os.WNOHANG)
        if process:
            break
        if time.monotonic() - start > LONGEST:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    stderr = (place / "stderr").read_text(errors="replace") if (place / "stderr").exists() else ""
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10, stderr


def _child(arguments: list[str], place: Path) -> None:
    """The fork: never returns."""
    code = 70
    try:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(place)
        tempfile.tempdir = str(place)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        from intaglio.cli import main

        sys.argv = ["intaglio", *arguments]
        main()
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 70
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def import_everything() -> None:
    """The main costs of a seed."""
    import importlib

    import onnx_ir.passes.common
    import onnxruntime
    import tokenizers
    import transformers

    for name in (
        "cli.compress",
        "cli.generate",
        "cli.inspect",
        "cli.run",
        "cli.validate",
        "cli.build",
        "cli.export",
        "cli.convert",
    ):
        importlib.import_module(f"intaglio.{name}")
    for name in ("graph_passes", "exporters", "exporters.source", "runtime", "validation"):
        importlib.import_module(f"intaglio.{name}")
    _ = (onnx_ir.passes.common, onnxruntime, tokenizers, transformers.AutoConfig)


def main() -> None:
    """Entry point, see the module docstring."""
    material, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads are incompatible with forks
    import_everything()
    for seed in range(first, first + count):
        if found := attempt(seed, material):
            print(json.dumps(found._asdict()), flush=True)  # noqa: T201
    print(json.dumps({"tried": count}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
