"""llama.cpp computes with a file what we compute with it: probabilities, texts, tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from urllib.request import Request, urlopen

import gguf
import pytest
from gguf_files import options, write_gguf
from small_tokenizers import byte_tokenizer
from tiny_families import save_family

from intaglio.exporters import export
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.gguf.architectures import ARCHITECTURES
from intaglio.exporters.kinds import find_kind
from intaglio.exporters.reference.source_model import build_model
from intaglio.graph_passes import compress
from intaglio.networks.blocks import blocks_path

pytestmark = pytest.mark.proof
pytest.importorskip("xllamacpp", reason="pip install 'intaglio[peers]'")

SERVER = """
import sys, xllamacpp as library
given = library.CommonParams()
given.model.path, given.n_ctx, given.n_parallel, given.warmup = sys.argv[1], 64, 1, False
given.cache_type_k = given.cache_type_v = library.ggml_type.GGML_TYPE_F32
given.flash_attn_type = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # which rounds to float16
server = library.Server(given)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
PROMPT = [5, 6, 7, 200, 9, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50]
GELU = ("gemma", "gemma2", "gemma3", "starcoder2")  # llama.cpp reads it from a table in float16
WHAT_IT_TAKES = {"olmoe": {"num_key_value_heads": 4}, "phi3": {"sliding_window": None}}  # it ignores that window
TEXTS = ["Hello wo", " leading", "two  spaces\n\n\tand 12345", "naïve 世界 😀", "don't I'LL", "<|end|>a", ""]


@contextmanager
def served(path: Path) -> Iterator[str]:
    """The address of llama.cpp's server for a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield next(line.strip() for line in process.stdout if line.startswith("http"))
    finally:
        process.stdin.close()
        process.terminate()
        process.wait()
        process.stdout.close()


def ask(address: str, path: str, **fields: Any) -> Any:
    """An answer of the server."""
    request = Request(address + path, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        return json.load(answer)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_llama_cpp_computes_the_same(architecture: str, tmp_path: Path) -> None:
    checkpoint = save_family(
        tmp_path / "float",
        ARCHITECTURES[architecture].model_type,
        **options(architecture) | WHAT_IT_TAKES.get(architecture, {}),
    )
    path = write_gguf(checkpoint, tmp_path / "model.gguf", architecture)
    check_the_same(path, 2e-2 if architecture in GELU else 1e-3)


@pytest.mark.parametrize(
    ("model_type", "given"),
    [("llama", {"tie_word_embeddings": True, "attention_bias": True}), ("qwen2", {}), ("mixtral", {})],
)
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_llama_cpp_computes_the_same_with_what_is_written(
    model_type: str, given: dict[str, Any], bits: int | None, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "sliding_window": None, "eos_token_id": 262}
    checkpoint = save_family(tmp_path / "checkpoint", model_type, **sizes | given)
    byte_tokenizer().save(str(checkpoint / "tokenizer.json"))
    export(checkpoint, tmp_path / "bundle")
    source = tmp_path / "bundle"
    if bits:
        recipe = {"bits": bits, "group_size": 32, "symmetric": bits == 8, "scale_dtype": "float16"}
        (tmp_path / "recipe.yaml").write_text(json.dumps({"passes": [{"rtn": recipe}]}))
        source = tmp_path / "quantised"
        compress(tmp_path / "bundle", source, tmp_path / "recipe.yaml")
    path = tmp_path / "written.gguf"
    assert export(source, path, format="gguf").passed
    check_the_same(decoded(path, tmp_path / "decoded.gguf") if bits else path, 1e-3)


def decoded(path: Path, output: Path) -> Path:
    """The file with its blocks decoded by the library: llama.cpp rounds activations before it multiplies by blocks."""
    read = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(output, read.fields["general.architecture"].contents())
    for key, field in read.fields.items():
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        elif not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in read.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return output


def check_the_same(path: Path, tolerance: float) -> None:
    """Compare tokens, and the log-probabilities of a text, of llama.cpp with ours."""
    import torch
    from tokenizers import Tokenizer

    opened = Checkpoint.open(str(path), check=find_kind)
    model = build_model(opened, opened.parameters(), opened.config["architectures"][0], blocks_path).eval()
    tokenizer = Tokenizer.from_file(str(opened.folder / "tokenizer.json"))
    with served(path) as address:
        asked = {"n_predict": 20, "temperature": 0, "n_probs": 200, "samplers": ["temperature"], "return_tokens": True}
        found = ask(address, "/completion", prompt=PROMPT, cache_prompt=False, **asked)
        for text in TEXTS:
            tokens = ask(address, "/tokenize", content=text, add_special=True, parse_special=True)["tokens"]
            assert tokens == tokenizer.encode(text).ids
    tokens = found["tokens"]
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 :].log_softmax(-1)
    assert expected[: len(tokens)].argmax(-1).tolist() == tokens
    assert len(tokens) == 20 or opened.config["eos_token_id"] in (tokens[-1], expected[len(tokens)].argmax())
    steps, compared = iter(enumerate(tokens)), 0
    for entry in found["completion_probabilities"]:  # of bytes that are no whole character the server leaves some out
        own = entry["id"], entry["logprob"]
        step = next(step for step, id_ in steps if id_ == own[0] and abs(expected[step, id_] - own[1]) < tolerance)
        for each in entry["top_logprobs"]:
            assert abs(expected[step, each["id"]].item() - each["logprob"]) < tolerance
            compared += 1
    assert compared >= 200


@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "phi3", "gemma2"])
def test_pieces_of_sentencepiece_are_found_as_by_llama_cpp(architecture: str, spaced: bool, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    words = topics["assert"].replace(" ", "▁")
    parts = Counter(words[start : start + length] for length in (2, 3, 4, 5) for start in range(len(words) - length))
    pieces = [part for part, _ in parts.most_common(400) if "\n" not in part]
    characters = sorted(set(words) - {"\n"})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *characters]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    checkpoint = save_family(
        tmp_path / "float",
        ARCHITECTURES[architecture].model_type,
        **options(architecture) | {"vocab_size": len(tokens)},
    )
    values = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [float(-index) for index in range(len(tokens) - 259)],
        "token_type": kinds,
        "merges": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": None,
        "add_space_prefix": spaced,
    }
    named = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    path = write_gguf(checkpoint, tmp_path / "model.gguf", architecture, values=named)
    tokenizer = Tokenizer.from_file(str(Checkpoint.open(str(path)).folder / "tokenizer.json"))
    with served(path) as address:
        for text in [*TEXTS, topics["assert"], topics["lambda"], "<s>hi", "   "]:
            tokens = ask(address, "/tokenize", content=text, add_special=True, parse_special=True)["tokens"]
            assert tokens == tokenizer.encode(text).ids
