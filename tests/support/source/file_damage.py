"""Damage to files by seed: wrong bytes, and wrong values in the formats that the project reads."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
READ = ("truncation", "labels", "activation", "task", "axes", "pad_token_id")  # among many that are only shown


def damage(path: Path, chance: random.Random) -> None:
    """Change a file in one to three places, mostly according to its format, sometimes any byte."""
    by_suffix: dict[str, Callable[[bytes, random.Random], bytes]] = {
        ".json": _json, ".jsonl": _json_lines, ".onnx": _onnx, ".yaml": _yaml, ".npz": _npz,
        ".safetensors": _safetensors, ".sensitivity": _safetensors, ".nemo": _nemo, ".hama": _hama, ".gguf": _gguf,
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


def _gguf(data: bytes, chance: random.Random) -> bytes:
    """Put another number, a count, a length or a type, in what stands before the weights."""
    form = chance.choice(["<I", "<Q"])
    size = struct.calcsize(form)
    place = chance.choice([8, 16, chance.randrange(4, data.rindex(b"weight") + 60)])  # 8, 16: the counts
    number = chance.choice([*ODD_NUMBERS, chance.randrange(50)]) % (1 << 8 * size)
    return data[:place] + struct.pack(form, number) + data[place + size :]


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
