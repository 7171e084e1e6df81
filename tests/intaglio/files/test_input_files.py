"""Every input file is read in the same way: UTF-8, in bounded memory, without endless waiting."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
import pytest
from small_tokenizers import byte_tokenizer

from intaglio.bundle.manifest_reading import read_manifest
from intaglio.cli import cli, generate
from intaglio.cli.options.text_lines import lines
from intaglio.errors import IntaglioError, SourceError, UsageError
from intaglio.files import input_files
from intaglio.files.input_files import check_folder, read_bytes, read_text
from intaglio.files.json_object import read_json
from intaglio.graph_passes.recipes.loading import load_recipe
from intaglio.runtime.agents.loops.examples import read_examples as read_plans
from intaglio.runtime.agents.reports.trace import read_trace
from intaglio.runtime.agents.tools.from_function import tool
from intaglio.runtime.generation.requests.chat import read_messages
from intaglio.runtime.generation.requests.prompts import read_examples, read_texts
from intaglio.runtime.speech.arpa import read_arpa
from intaglio.runtime.speech.ngram_estimate import estimate
from intaglio.runtime.speech.recording_list import recordings_of
from intaglio.runtime.speech.vocabulary import read_vocabulary
from intaglio.runtime.text import inputs
from intaglio.runtime.text.chunks import read_tokens
from intaglio.runtime.text.tokenizer_config import read_small
from intaglio.serve.models.agent_description import read_description
from intaglio.serve.options import read_keys
from intaglio.validation.bench.bench import read_result
from intaglio.validation.bench.prompts import read as read_bench_prompts


class Reader(NamedTuple):
    """Reading the file of an option: a small file, and the function of the verb."""

    content: str  # contains é if the format has free text
    read: Callable[[Path], Any]
    separators: str = "\u2028\u0085"  # text to insert into a line in place of "@"
    suffix: str = ""


@tool
def search(query: str) -> str:
    """Search.

    Args:
        query: the words.
    """
    return query


def tokens(path: Path) -> Any:
    byte_tokenizer().save(str(path.with_name("tokenizer.json")))
    bundle: Any = SimpleNamespace(path=path.parent, manifest=SimpleNamespace(files={"tokenizer.json": None}))
    return read_tokens(bundle, path, "--perplexity").tolist()


def estimated(path: Path) -> str:
    estimate(path, path.with_name("model.arpa"), 1, force=True)
    return path.with_name("model.arpa").read_text(encoding="utf-8")


def manifest(path: Path) -> Any:
    return read_manifest(path.rename(path.with_name("bundle.json")).parent)


LINES = "caf\u00e9 @ one\n\ntwo\n"
PROMPTS = '{"prompt": "caf\u00e9 @ one", "reference": "x"}\n\n{"prompt": "two", "reference": "y"}\n'
RECORDED = '{"audio_filepath": "a.wav", "text": "caf\u00e9 @"}\n{"audio_filepath": "b.wav", "text": "two"}\n'
ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1\tcaf\u00e9@\n-1\t<s>\n-1\t</s>\n\n\\end\\\n"
PLAN = 'Question: caf\u00e9 @?\n1. search("a")\n2. join()\n###\n'
SIDE = '{"subject": "caf\u00e9 @", "kind": "decoder", "rows": []}\n'
MANIFEST = (
    '{"format": 1, "created_by": "caf\u00e9 @", "source": {"kind": "onnx", "location": ""}, "family": "", '
    '"architecture": "", "task": "", "dtype": "float32", "inputs": [], "outputs": []}\n'
)


def run_input(path: Path) -> list[str]:
    """The texts that `run --input` reads."""
    with click.Context(click.Command("run")):
        return list(lines(path))


READERS: dict[str, Reader] = {
    "run --input": Reader(LINES, run_input),
    "generate --file": Reader(LINES, generate.read_prompt),
    "generate --data": Reader(PROMPTS, lambda path: read_examples(path, "--data")),
    "generate --messages": Reader(
        '[{"role": "user",\n"content": "caf\u00e9 @"}]\n', lambda path: read_messages(path, "--messages")
    ),
    "generate --schema": Reader('{"const": "caf\u00e9 @"}\n', lambda path: read_text(path, "--schema")),
    "validate --data": Reader(LINES, lambda path: inputs._lines(path, "--data")),
    "validate --perplexity": Reader(LINES, tokens),
    "validate --wer": Reader(
        "a.wav\tcaf\u00e9 @\nb.wav\ttwo\n", lambda path: recordings_of(path, "--wer"), suffix=".tsv"
    ),
    "validate --wer of JSON lines": Reader(RECORDED, lambda path: recordings_of(path, "--wer"), suffix=".jsonl"),
    "train speech --corpus": Reader(RECORDED, lambda path: recordings_of(path, "corpus"), suffix=".jsonl"),
    "run --language-model": Reader(ARPA, lambda path: sorted(read_arpa(path)[0])),
    "train prune --data": Reader(LINES, lambda path: read_texts(path, "--data")),
    "train prune --data of JSON lines": Reader(PROMPTS, lambda path: read_texts(path, "--data")),
    "train ngram TEXT": Reader(LINES, estimated),
    "agent --examples": Reader(PLAN, lambda path: read_plans(path, {"search": search}, "--examples")),
    "serve --agent": Reader("name: caf\u00e9\nmodel: m@\ntools:\n  - calculate\n", read_description, "\u00a0"),
    "serve --api-key-file": Reader("one\ntwo\n", read_keys),
    "bench --data": Reader(LINES, lambda path: read_bench_prompts(path, "--data")),
    "bench --data of JSON lines": Reader(PROMPTS, lambda path: read_bench_prompts(path, "--data")),
    "bench --baseline": Reader("{}", lambda path: read_result(path, ())),
    "compress --recipe": Reader(
        "# caf\u00e9 @\npasses:\n  - canonicalize\n", lambda path: load_recipe(path)[1], "\u00a0", ".yaml"
    ),
    "a trace of an agent": Reader(
        '{"type": "ModelCalled", "seconds": 1.0}\n', lambda path: [type(each) for each in read_trace(path)]
    ),
    "a speech vocabulary": Reader(
        '{"tokens": ["a", "\u00e9@"], "blank": 0,\n"word_mark": " "}\n',
        lambda path: read_vocabulary(path).tokens,
        "\u00a0",
    ),
    "a tokenizer's settings": Reader('{"a": "caf\u00e9 @"}\n', read_small),
    "config.json": Reader('{"a":\n"caf\u00e9 @"}\n', read_json),
    "bundle.json": Reader(MANIFEST, manifest),
}
OTHERS = {
    "a bundle or a checkpoint": {"bundle", "bundles", "source", "draft", "teacher", "start", "adapter", "base"},
    "recordings": {"recordings"},
    "binary": {"image", "sensitivity", "tls_cert", "tls_key"},
    "written": {"output", "report", "timeline", "trace", "picture", "plot", "corpora"},
}


def test_every_file_option_is_in_the_table() -> None:
    """A new option must use `intaglio.files.input_files` and have an entry above."""
    verbs = {name.split()[0] for name in READERS}
    known = {name.split("--")[-1].split()[0].replace("-", "_") for name in READERS if "--" in name}
    known |= {"calibration", "text", "file", "files", "agents", "grammar", "data"}  # read by the same functions
    others = set().union(*OTHERS.values())
    assert {"run", "generate", "validate", "train", "agent", "serve", "bench", "compress"} <= verbs
    unknown = [f"{verb} {name}" for verb, name in _path_options(cli, "") if name not in known | others]
    assert not unknown, "add the option to READERS, or to OTHERS with what it is"


def _path_options(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from _path_options(found, f"{name} {each}".strip())
    for parameter in command.params:
        if isinstance(parameter.type, click.Path) and parameter.name is not None:
            yield name, parameter.name


@pytest.fixture
def outcome(tmp_path: Path) -> Callable[..., Any]:
    """The result of the option's reader for bytes, or the error that it raises."""

    def get(option: str, data: bytes) -> Any:
        path = tmp_path / f"file{READERS[option].suffix}"
        path.write_bytes(data)
        try:
            return READERS[option].read(path)
        except IntaglioError as error:
            return str(error).replace(f"{path} ", "")

    return get


@pytest.mark.parametrize("option", READERS)
def test_byte_order_mark_and_windows_line_ends_are_ignored(option: str, outcome: Any) -> None:
    plain = READERS[option].content.replace("@", READERS[option].separators)
    expected = outcome(option, plain.encode())
    assert outcome(option, b"\xef\xbb\xbf" + plain.encode()) == expected
    assert outcome(option, plain.replace("\n", "\r\n").encode()) == expected
    if "\n" in plain:
        assert "\ufeff" not in repr(expected) and "\r" not in repr(expected)
        assert not isinstance(expected, str) or not expected.startswith("--"), expected


@pytest.mark.parametrize("option", [name for name in READERS if "@" in READERS[name].content])
def test_separators_other_than_line_feeds_are_part_of_a_line(option: str, outcome: Any) -> None:
    content = READERS[option].content
    plain, found = (outcome(option, content.replace("@", each).encode()) for each in ("x", READERS[option].separators))
    assert type(found) is type(plain)
    if isinstance(plain, list) and "perplexity" not in option:
        assert len(found) == len(plain)


@pytest.mark.parametrize(
    ("encode", "reason"),
    [
        (lambda text: text.replace("a", "a\0", 1).encode(), "is NUL"),
        (lambda text: text.encode("utf-16"), "not UTF-8 text but UTF-16. Convert it: iconv -f UTF-16 -t UTF-8"),
        (lambda text: text.encode("utf-32"), "not UTF-8 text but UTF-32"),
        (lambda text: text.encode("utf-16-le"), "is NUL"),
        (lambda text: text.replace("a", "a\u00e9", 1).encode("latin-1"), "is 0xe9"),
    ],
    ids=["NUL", "UTF-16", "UTF-32", "UTF-16 without a mark", "Latin-1"],
)
@pytest.mark.parametrize("option", READERS)
def test_non_utf8_input_is_refused_with_the_fix(
    option: str, encode: Callable[[str], bytes], reason: str, tmp_path: Path
) -> None:
    text = READERS[option].content.replace("@", "").replace("{}", '{"a": 1}').replace("one\ntwo", "a\ntwo")
    path = tmp_path / f"file{READERS[option].suffix}"
    path.write_bytes(encode(text))
    with pytest.raises(IntaglioError) as refused:
        READERS[option].read(path)
    message = str(refused.value)
    assert "\n" not in message and str(tmp_path) in message
    if (option, reason) != ("run --language-model", "is 0xe9"):  # with a damaged header then
        assert "iconv -f" in message and reason in message


@pytest.mark.parametrize("kind", ["folder", "device", "pipe"])
@pytest.mark.parametrize("option", READERS)
def test_endless_input_is_refused_immediately(option: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"file{READERS[option].suffix}"
    make = {"folder": path.mkdir, "device": lambda: path.symlink_to("/dev/zero"), "pipe": lambda: os.mkfifo(path)}
    make[kind]()
    start = time.monotonic()
    with pytest.raises(IntaglioError, match=r"is a folder|is a device|is a pipe|no bundle\.json|has no recordings"):
        READERS[option].read(path)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("option", [name for name in READERS if name not in ("bundle.json", "validate --wer")])
def test_pipe_with_a_writer_is_read_like_a_file(option: str, outcome: Any, tmp_path: Path) -> None:
    data = READERS[option].content.replace("@", "").encode()
    expected = outcome(option, data)
    path = tmp_path / f"file{READERS[option].suffix}"
    path.unlink()
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    time.sleep(0.01)
    try:
        found = READERS[option].read(path)
    except IntaglioError as error:
        found = str(error).replace(f"{path} ", "")
    writer.join()
    assert found == expected


def test_shell_pipe_is_read_twice_with_the_same_content(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from intaglio.files.input_files import read_bytes; "
        "path = Path(sys.argv[1]); print(read_bytes(path) == read_bytes(path) == b'abc\\n')"
    )
    command = f'"{sys.executable}" -c "{code}" <(sleep 0.2; echo abc)'
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "True", found.stderr


def test_silent_pipe_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(input_files, "SILENCE", 0.05)
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(UsageError, match="is a pipe without data for 0 seconds"):
        read_text(tmp_path / "pipe", "--file")
    os.close(writer)


def test_file_beyond_the_size_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="1099511627776 bytes, expected at most 1000"):
        read_bytes(tmp_path / "sparse", 1000)
    with pytest.raises(UsageError, match="line 1 is longer than"):
        run_input(tmp_path / "sparse")


def test_pipes_devices_and_byte_order_marks_of_checkpoints_are_refused(tmp_path: Path) -> None:
    (tmp_path / "fine.json").write_text("{}")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    check_folder(tmp_path)
    for name, make in (("vocab.txt", lambda path: path.symlink_to("/dev/zero")), ("merges.txt", os.mkfifo)):
        make(tmp_path / name)
        with pytest.raises(SourceError, match=f"{name}: is a pipe or a device"):
            check_folder(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "vocab.txt").write_bytes(b"\xef\xbb\xbf[PAD]\n")
    with pytest.raises(SourceError, match=r"vocab\.txt: begins with a byte order mark") as refused:
        check_folder(tmp_path)
    subprocess.run(["bash", "-c", str(refused.value).rpartition("for example: ")[2]], check=True)
    check_folder(tmp_path)
    assert (tmp_path / "vocab.txt").read_bytes() == b"[PAD]\n"


def test_standard_input_is_read_like_a_file(tiny_bundle: Path, intaglio: Any) -> None:
    code, out, err = intaglio("run", tiny_bundle, "--json", stdin="\ufeffa\u2028b\r\nc\r\n")
    assert code == 0 and out.count("\n") == 2 and r"\ufeff" not in ascii(out), err
    code, _, err = intaglio("run", tiny_bundle, stdin="a\0b\n")
    assert code == 2 and "standard input: line 1 is not UTF-8 text (byte 1 is NUL)" in err
