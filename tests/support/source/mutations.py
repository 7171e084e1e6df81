"""Mutated input: real bundles, recipes, arrays, conversations and checkpoints, damaged by seed, and verbs run on them.

    python tests/support/source/mutations.py MATERIAL FIRST COUNT

runs seeds FIRST to FIRST + COUNT - 1 on the folder MATERIAL of `write_material` and prints a JSON line for each seed
with behaviour that no input may cause: a signal, a traceback or a bug, more than `SECONDS` of processor time or more
than `MEMORY`. Each seed runs in a fork of one process that has imported everything, as importing takes longer than
most of them.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 20
LONGEST = 120  # seconds until it is killed, including other work of the machine
MEMORY = 2 << 30  # resident bytes
ADDRESSES = 12 << 30  # bytes; a process is killed at this size

PROMPT = "A text to go on with"
ODD_NUMBERS = [0, -1, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, -(2**31), 2**62, 10**12, -(10**12), 2**63 - 1]
ODD_VALUES: list[Any] = [
    *ODD_NUMBERS, None, True, 1.5, -0.0, 1e308, "", "x", "\0", "../..", "x" * 5000, [], {}, [[]], [None], {"": {}},
    2**70, "\ud800",
]  # fmt: skip
NESTED = "[" * 100_000 + "]" * 100_000  # deeper than any parser supports
YAML_SNIPPETS = [
    "!!int ''", "!!float ''", "!!timestamp 0", "!!binary x", "&a [*a]", "<<: [{}, {}]", "1:1:1:1", ".nan", ".inf", "0x",
    "!!python/object:os.system x", "[" * 500, "{" * 500, "- " * 300, "? x", "!!set {a, b}", "2026-13-45", "~", "1e999",
]  # fmt: skip


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
    Scenario("speech-files", "recogniser.nemo", ["convert {0}/recogniser.nemo -o {1}/out"]),
    Scenario("speech-files", "recogniser.hama", ["convert {0}/recogniser.hama -o {1}/out"]),
]  # fmt: skip


READ = ("truncation", "labels", "activation", "task", "axes", "pad_token_id")  # among many that are only shown


# --- damage -----------------------------------------------------------------------------------------------------------


def damage(path: Path, chance: random.Random) -> None:
    """Change a file in one to three places, mostly according to its format, sometimes any byte."""
    by_suffix: dict[str, Callable[[bytes, random.Random], bytes]] = {
        ".json": _json, ".jsonl": _json_lines, ".onnx": _onnx, ".yaml": _yaml, ".npz": _npz,
        ".safetensors": _safetensors, ".sensitivity": _safetensors, ".nemo": _nemo, ".hama": _hama,
    }  # fmt: skip
    for _ in range(chance.choice([1, 1, 2, 3])):
        data = path.read_bytes()
        change = by_suffix.get(path.suffix, _bytes) if chance.random() < 0.8 else _bytes
        try:
            path.write_bytes(change(data, chance))
        except Exception:  # an earlier change made the rest unparsable
            path.write_bytes(_bytes(data, chance))


def _bytes(data: bytes, chance: random.Random) -> bytes:
    place, length = chance.randrange(len(data) + 1), chance.choice([1, 1, 4, 8, 100, 5000])
    twice = data[place : place + length] * 2
    new = chance.choice([b"", bytes(length), b"\xff" * length, chance.randbytes(length), twice, b"9" * length])
    if chance.random() < 0.1:
        return data[:place]
    return data[:place] + new + data[place + (len(new) if chance.random() < 0.7 else length) :]


def _json(data: bytes, chance: random.Random) -> bytes:
    document = json.loads(data)
    named = [name for name in READ if isinstance(document, dict) and name in document]
    if named and chance.random() < 0.2:
        document[chance.choice(named)] = chance.choice(ODD_VALUES)
    else:
        _odd(document, chance)
    changed = json.dumps(document)
    if chance.random() < 0.05 and (keys := list(re.finditer(r'"\w+": ', changed))):
        key = chance.choice(keys)
        changed = f"{changed[: key.start()]}{key[0]}{json.dumps(chance.choice(ODD_VALUES))}, {changed[key.start() :]}"
    if changed.endswith("}") and len(document) and chance.random() < 0.02:
        changed = f'{changed[:-1]}, "nested": {NESTED}}}'
    return changed.encode()


def _json_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines()
    place = chance.randrange(len(lines))
    lines[place] = _json(lines[place], chance)
    return b"\n".join(lines)


def _odd(document: Any, chance: random.Random) -> None:
    """Replace, remove or add something somewhere in a JSON document."""
    node, depth = document, 0
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = chance.choice(keys)
        inside = node[key]
        if not isinstance(inside, dict | list) or not inside or (depth > 0 and chance.random() < 0.2):
            break
        node, depth = inside, depth + 1
    how = chance.random()
    if how < 0.1:
        del node[key]
    elif how < 0.2 and isinstance(node, list):
        node.append(inside)
    elif isinstance(inside, int) and how < 0.7:
        node[key] = chance.choice([*ODD_NUMBERS, inside + 1, inside - 1, inside * 2, -inside])
    else:
        node[key] = chance.choice(ODD_VALUES)


def _yaml(data: bytes, chance: random.Random) -> bytes:
    lines = data.decode().splitlines()
    place = chance.randrange(len(lines))
    snippet = chance.choice(YAML_SNIPPETS)
    lines[place] = chance.choice(
        [snippet, f"{lines[place].split(':')[0]}: {snippet}", f"  - {snippet}", f"{lines[place]} {snippet}"]
    )
    return "\n".join(lines).encode()


def _npz(data: bytes, chance: random.Random) -> bytes:
    import io
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", chance.choice([0, 8])) as new:
        for name in old.namelist():
            content = old.read(name)
            if chance.random() < 0.5:
                header = content[10:128]
                change = chance.choice([
                    (b"(", b"(10**3,"), (b"(", b"(999999999999,"), (b"'<i8'", b"'|O'"), (b"'<i8'", b"'<U9'"),
                    (b"False", b"True"), (b"(", b"(-1,"), (b"<i8", b"<f4"), (b"{", b"{" * 60), (b"shape", b"shame"),
                ])  # fmt: skip
                content = content[:10] + header.replace(*change, 1)[:118].ljust(118) + content[128:]
            new.writestr(name if chance.random() < 0.9 else "../x.npy", content)
    return out.getvalue()


def _safetensors(data: bytes, chance: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = _json(data[8 : 8 + length], chance)
    stated = len(header) if chance.random() < 0.9 else chance.choice([0, 2**40, 2**63])
    return stated.to_bytes(8, "little") + header + data[8 + length :]


def _nemo(data: bytes, chance: random.Random) -> bytes:
    """Change the configuration of an archive, or the pickle of its weights."""
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as new:
        for member in old:
            file = old.extractfile(member)
            content = file.read() if file else b""
            if member.name.endswith(".yaml") and chance.random() < 0.6:
                content = _yaml(content, chance)
            elif member.name.endswith(".ckpt") and chance.random() < 0.4:
                content = _pickle_of(content, chance)
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return out.getvalue()


def _pickle_of(data: bytes, chance: random.Random) -> bytes:
    """Change the pickle in a file of torch: a length, a name, or any byte."""
    import io
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("data.pkl"):
                names = [b"weight", b"FloatStorage", b"_rebuild_tensor_v2", b"cpu", b"encoder"]
                change = chance.choice(names)
                if chance.random() < 0.5:
                    content = content.replace(change, chance.choice([b"x" * len(change), change[::-1]]), 1)
                else:
                    content = _bytes(content, chance)
            new.writestr(name, content)
    return out.getvalue()


def _hama(data: bytes, chance: random.Random) -> bytes:
    """Change the header with the locations and sizes of the tensors."""
    table = 1 << 14
    return _bytes(data[:table], chance) + data[table:]


def _onnx(data: bytes, chance: random.Random) -> bytes:
    import onnx

    model = onnx.ModelProto.FromString(data)
    graph = model.graph
    node = chance.choice(graph.node)
    how = chance.randrange(12)
    if how < 4:
        mine = [each for each in graph.node if each.domain] or graph.node
        node = chance.choice([chance.choice(mine), node])
        attribute = chance.choice(node.attribute) if node.attribute else node.attribute.add(name="axis", type=2)
        attribute.i = chance.choice(ODD_NUMBERS)
        attribute.f = chance.choice([0.0, -1.0, 1e-40, 3e38, float("nan"), float("inf")])
        if attribute.ints:
            attribute.ints[0] = chance.choice(ODD_NUMBERS)
    elif how < 6 and graph.initializer:
        tensor = chance.choice(graph.initializer)
        if tensor.dims and chance.random() < 0.6:
            tensor.dims[chance.randrange(len(tensor.dims))] = chance.choice(ODD_NUMBERS)
        elif chance.random() < 0.5:
            tensor.data_type = chance.randrange(25)
        else:
            tensor.raw_data = tensor.raw_data[: chance.randrange(len(tensor.raw_data) + 1)]
    elif how == 6:
        node.op_type = chance.choice(["MatMul", "LutMatMul", "Reshape", "If", "Loop", "", "IntAttention"])
    elif how == 7 and node.input:
        node.input[chance.randrange(len(node.input))] = chance.choice(["", "nowhere", graph.node[-1].output[0]])
    elif how == 8:
        graph.node.remove(node)
    elif how == 9:
        graph.node.insert(chance.randrange(len(graph.node)), node)
    elif how == 10:
        value = chance.choice([*graph.input, *graph.output])
        for axis in value.type.tensor_type.shape.dim:
            axis.dim_value = chance.choice(ODD_NUMBERS)
    else:
        model.opset_import[0].version = chance.choice([*ODD_NUMBERS, 24, 9])
    return model.SerializeToString()


def rehash(bundle: Path, file: str) -> None:
    """Update the hash in the manifest, so that only later checks can find the damage."""
    import hashlib

    try:
        manifest = json.loads((bundle / "bundle.json").read_bytes())
        data = (bundle / file).read_bytes()
        manifest["files"][file] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    except (ValueError, KeyError, TypeError, OSError):
        return
    (bundle / "bundle.json").write_text(json.dumps(manifest))


# --- material ---------------------------------------------------------------------------------------------------------


def write_material(folder: Path, encoder: Path, encoder_checkpoint: Path, int8: Path) -> None:
    """Everything that `SCENARIOS` names, made of small random models; those of the encoder are given."""
    import numpy as np
    from drafts import save_drafts
    from tiny_decoders import CHAT, save_decoder, write_byte_tokenizer
    from tiny_encoder_decoders import save_encoder_decoder

    from intaglio.exporters import export
    from intaglio.graph_passes import compress
    from intaglio.training.gradients.sensitivity import sensitivity

    checkpoints = {name: folder / f"{name}-checkpoint" for name in ("decoder", "llama", "both", "drafting", "encoder")}
    for name, family in (("decoder", "gpt2"), ("llama", "llama")):
        save_decoder(checkpoints[name], family)
        write_byte_tokenizer(checkpoints[name], CHAT)
    save_encoder_decoder(checkpoints["both"], "t5")
    save_drafts(checkpoints["decoder"], checkpoints["drafting"], "medusa", (0, 0))
    shutil.copytree(encoder_checkpoint, checkpoints["encoder"])
    for name in ("decoder", "both", "drafting"):
        export(str(checkpoints[name]), folder / name, check=False)
    shutil.copytree(encoder, folder / "encoder")
    shutil.copytree(int8, folder / "int8")
    write_variants(folder, encoder_checkpoint, CHAT)
    write_speech(folder)
    files = folder / "files"
    files.mkdir()
    (files / "text.txt").write_text("Some text, of a few words, and a line. It goes on, and on.\n" * 40)
    numbers = files / "numbers.sensitivity"
    sensitivity(folder / "decoder", numbers, files / "text.txt", samples=2)
    compress(folder / "decoder", folder / "packed", "lut-sparse", calibration=files / "text.txt", sensitivity=numbers)
    ids = np.arange(24, dtype=np.int64).reshape(3, 8) % 60
    np.savez(files / "arrays.npz", input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids))
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"}]
    (files / "messages.json").write_text(json.dumps(messages))
    prompts = [{"prompt": f"Text {number}", "reference": "goes on"} for number in range(3)]
    (files / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (files / "recipe.yaml").write_text(
        "passes:\n  - fold_constants\n  - canonicalize\n  - rtn: {bits: 4, group_size: 32}\n"
        "  - float16: {keep: [Softmax]}\n"
    )


def write_variants(folder: Path, encoder_checkpoint: Path, template: str) -> None:
    """Bundles with files or fields that the others lack: a classifier, a template, an engine."""
    import transformers

    from intaglio.bundle.bundle import Bundle
    from intaglio.exporters import export
    from intaglio.runtime import build

    checkpoint = folder / "classifier-checkpoint"
    shutil.copytree(encoder_checkpoint, checkpoint, ignore=shutil.ignore_patterns("modules.json", "1_Pooling"))
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(checkpoint)
    export(str(checkpoint), folder / "classifier", check=False)
    Bundle.open(folder / "classifier").add_files({"config.json": b'{"pad_token_id": 0}'})
    shutil.copytree(folder / "decoder", folder / "templated")
    Bundle.open(folder / "templated").add_files({"chat_template.jinja": template.encode()})
    shutil.copytree(folder / "encoder", folder / "built")
    build(folder / "built", "ort-cpu")


def write_speech(folder: Path) -> None:
    """A recogniser as a checkpoint, as a NeMo archive, and as a container of hama."""
    from importlib import resources

    from tiny_speech import save_recogniser

    save_recogniser(folder / "speech-checkpoint")
    files = folder / "speech-files"
    files.mkdir()
    archive = Path(__file__).parents[2] / "exporters" / "speech" / "nemo" / "squeezeformer.nemo"
    shutil.copy(archive, files / "recogniser.nemo")
    shutil.copy(str(resources.files("hama").joinpath("assets", "asr_waveform.hama")), files / "recogniser.hama")


# --- running ----------------------------------------------------------------------------------------------------------


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
        for other in ("decoder", "encoder", "int8", "packed", "both", "drafting"):
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
