"""The bundle: the format in which stages pass models to each other.

A bundle is a directory with `bundle.json` (the manifest), the ONNX file and its external data, the tokenizer's
files, `engines/` and `reports/`. A stage reads a bundle and writes a new one, or adds files to it; both are atomic, so
that no reader ever sees half of it. The manifest holds the SHA-256 of every file.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from intaglio.errors import BundleError, GraphError, one_line, storage_errors
from intaglio.files import atomic_directory, atomic_file, atomic_write, copy_file, inside, locked, restore, sha256
from intaglio.model_file import external_data_files, outline

if TYPE_CHECKING:
    import onnx_ir as ir

FORMAT = 1  # raised when an older program could misread the manifest
MANIFEST = "bundle.json"
MODEL = "model.onnx"
LONGEST = (1 << 31) - 1  # of an axis, and upper limit of a decoder's numbers
MAX_DRAFTS = 64  # tokens that a graph drafts after each token
DTYPES = (
    "float32", "float16", "float64", "bfloat16", "bool", "str", "object",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)  # fmt: skip
MAX_MANIFEST_BYTES = 8 << 20  # a manifest is small; parsing a larger file would take 70 times its size in memory


class Source(msgspec.Struct, forbid_unknown_fields=True):
    """The origin of the weights."""

    kind: str  # "local", "hub" or "onnx"
    location: str  # folder, hub id or file, as the user gave it
    revision: str | None = None  # the hub's commit
    sha256: dict[str, str] = {}  # file that affects the computation (weights, configuration) -> SHA-256


class TensorSpec(msgspec.Struct, frozen=True):
    """A named input or output: NumPy dtype name, and per axis a length or the name of a symbolic axis."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Axis(msgspec.Struct, frozen=True):
    """The allowed lengths of a symbolic axis; `maximum` None means unbounded."""

    minimum: int = 1
    maximum: int | None = None


class Graph(NamedTuple):
    """One graph of a bundle: its file, inputs and outputs, and the lengths of its symbolic axes."""

    file: str
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    axes: Mapping[str, Axis]


class Decoder(msgspec.Struct, frozen=True):
    """The properties of a decoder that generation needs."""

    layers: int
    heads: int
    kv_heads: int  # key/value heads; each serves heads / kv_heads query heads
    head_dim: int
    vocab_size: int  # the width of the logits, which may exceed the tokenizer's number of tokens
    max_positions: int  # tokens of prompt and completion together
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # any of them ends a sequence
    sliding_window: int | None = None  # tokens that a token attends to, including itself; None: all before it
    drafts: int = 0  # tokens that the graph drafts after a token, in addition to the one that it predicts
    draft_kind: str = ""  # "hidden-transfer" or "medusa"; "": no drafts
    exit_layer: int = 0  # blocks before the early exit, whose logits are also an output; 0: no early exit
    saturation_exits: bool = False  # the graph stops computing a token whose state hardly changes


class Encoder(msgspec.Struct, frozen=True):
    """The encoder of an encoder-decoder: a separate graph that runs once per source sequence.

    Its outputs are inputs of the decoder with the same names.
    """

    file: str  # next to model.onnx
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    decoder_start_token_id: int  # first token of the decoder's sequence
    pad_token_id: int  # pads shorter source sequences, and is masked
    axes: dict[str, Axis] = {}
    layers: dict[str, str] = {}  # as in the manifest, for this graph


class PassRecord(msgspec.Struct):
    """One applied graph pass: its options, its rewrites (name -> number), and the reasons for what it skipped."""

    name: str
    options: dict[str, Any] = {}
    counts: dict[str, int] = {}
    reasons: list[str] = []
    layers: dict[str, dict[str, float]] = {}  # layer -> measurements by name


class Calibration(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data that activations were observed on, and the largest magnitude that 8 bits represent of each."""

    file: str = ""  # name without folder
    sha256: str = ""
    samples: int = 0  # sequences, or rows of arrays; 0 without calibration
    tokens: int = 0  # without padding; 0 for a model without attention mask
    method: str = ""
    thresholds: dict[str, float] = {}  # graph value -> threshold


class EngineRecord(msgspec.Struct):
    """One built engine: a file of the bundle, for one GPU, or for the CPU (`gpu` and `sm` are None)."""

    path: str
    target: str
    library: str  # "tensorrt_rtx 1.7.1.116"
    bytes: int
    gpu: str | None = None
    sm: int | None = None
    profiles: dict[str, dict[str, list[int]]] = {}  # input -> {"min", "opt", "max"} -> shape
    graph: str = MODEL  # the bundle's ONNX file that it was built from


class FileRecord(msgspec.Struct):
    """The expected size and hash of a file of the bundle."""

    sha256: str
    bytes: int


class Manifest(msgspec.Struct):
    """The content of `bundle.json`."""

    format: int
    created_by: str
    source: Source
    family: str  # "bert"; "" for a graph written by another tool
    architecture: str  # "BertModel"
    task: str  # "embed", "classify", "fill-mask", "encode", "generate", "text-to-text"; "" for other graphs
    dtype: str  # of the weights: "float32", "float16"
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    axes: dict[str, Axis] = {}
    parameters: int = 0  # weights of the exported model, before any pass; 0: not counted
    layers: dict[str, str] = {}  # module path -> the graph value that it returns, in execution order
    labels: list[str] = []  # class names, for classification
    activation: str = "softmax"  # function from a classifier's logits to scores: "softmax", "sigmoid" or "identity"
    decoder: Decoder | None = None  # for the tasks "generate" and "text-to-text"
    encoder: Encoder | None = None  # for the task "text-to-text"; model.onnx is then the decoder
    truncation: int | None = None  # length to truncate to on request, if the model defines one
    passes: list[PassRecord] = []
    custom_operators: list[str] = []
    calibration: Calibration = Calibration()
    engines: list[EngineRecord] = []
    files: dict[str, FileRecord] = {}

    @property
    def graphs(self) -> list[Graph]:
        """The graphs of the bundle's ONNX files: model.onnx first, then the encoder if any."""
        graphs = [Graph(MODEL, self.inputs, self.outputs, self.axes)]
        if (encoder := self.encoder) is not None:
            graphs.append(Graph(encoder.file, encoder.inputs, encoder.outputs, encoder.axes))
        return graphs


class Bundle:
    """An opened, verified bundle: its directory and manifest."""

    def __init__(self, path: Path, manifest: Manifest):
        self.path = path
        self.manifest = manifest

    @property
    def model_path(self) -> Path:
        """The ONNX file."""
        return self.path / MODEL

    @property
    def graph_paths(self) -> list[Path]:
        """The ONNX file, and the encoder's if any."""
        return [self.path / graph.file for graph in self.manifest.graphs]

    def graph(self, file: str = MODEL) -> Graph:
        """The graph in `file`, one of the bundle's ONNX files."""
        return next(graph for graph in self.manifest.graphs if graph.file == file)

    @property
    def encoder_data(self) -> list[str]:
        """The weight files of the encoder; the model may use them too."""
        return [name for path in self.graph_paths[1:] for name in external_data_files(outline(path))]

    @classmethod
    def open(cls, path: str | Path) -> Bundle:
        """Read and verify the bundle at `path`: format version, paths, sizes, hashes, external data.

        Raises `BundleError` with one line: what is wrong and how to fix it.
        """
        path = Path(path)
        restore(path)
        manifest = _read_manifest(path)
        _verify_files(path, manifest)
        for graph in manifest.graphs:
            _verify_graph(path, manifest, graph)
        _verify_axes(path, manifest)
        if manifest.decoder is not None:
            _verify_decoder(path, manifest, manifest.decoder)
        return cls(path, manifest)

    def add_files(self, files: Mapping[str, bytes | Path], engines: list[EngineRecord] | None = None) -> None:
        """Add or replace files (relative path -> content, or a file to copy), and engine records by path.

        A reader sees the bundle either before or after: the manifest is replaced last, and a file that is about to be
        replaced is removed from the manifest first.
        """
        targets = {relative: inside(self.path, relative, "added file") for relative in files}
        with locked(self.path):
            self.manifest = self._add_files(targets, files, engines or [])

    def _add_files(
        self, targets: Mapping[str, Path], files: Mapping[str, bytes | Path], engines: list[EngineRecord]
    ) -> Manifest:
        manifest = _read_manifest(self.path)  # read again: another process may have added files since
        if any(relative in manifest.files for relative in files):
            manifest.files = {name: record for name, record in manifest.files.items() if name not in files}
            manifest.engines = [engine for engine in manifest.engines if engine.path not in files]
            self._write_manifest(manifest)
        for relative, content in files.items():
            target = targets[relative]
            with storage_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(target) as partial:
                if isinstance(content, Path):
                    shutil.copyfile(content, partial)
                else:
                    partial.write_bytes(content)
            manifest.files[relative] = FileRecord(sha256(target), target.stat().st_size)
        manifest.engines = [*manifest.engines, *engines]
        self._write_manifest(manifest)
        return manifest

    def _write_manifest(self, manifest: Manifest) -> None:
        atomic_write(self.path / MANIFEST, encode(manifest))


@contextmanager
def create(target: str | Path, force: bool = False) -> Iterator[Draft]:
    """Yield a `Draft` to fill; if the block succeeds, it atomically becomes the bundle at `target`."""
    with atomic_directory(Path(target), force) as directory:
        draft = Draft(directory)
        yield draft
        if draft.manifest is None:
            raise AssertionError("a bundle was created without a manifest")
        draft.manifest.files = {
            str(path.relative_to(directory)): FileRecord(sha256(path), path.stat().st_size)
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        }
        (directory / MANIFEST).write_bytes(encode(draft.manifest))


class Draft:
    """A bundle being written. Set `manifest` (its `files` are filled in) and write the files under `path`."""

    def __init__(self, path: Path):
        self.path = path
        self.manifest: Manifest | None = None

    @property
    def model_path(self) -> Path:
        """The path to write the ONNX file to."""
        return self.path / MODEL

    def copy_companions(self, bundle: Bundle) -> None:
        """Copy all files of `bundle` except its model, engines and reports; an encoder is copied too."""
        weights = {MODEL, *external_data_files(outline(bundle.model_path))} - set(bundle.encoder_data)
        for relative in bundle.manifest.files:
            if relative not in weights and relative.split("/")[0] not in {"engines", "reports"}:
                copy_file(bundle.path / relative, self.path / relative)


def tensor_spec(value: ir.Value) -> TensorSpec:
    """A graph's input or output as the manifest records it; an axis without a name is named after its index."""
    if value.dtype is None or value.shape is None:
        raise GraphError(f"{value.name}: the graph does not state its dtype and rank. Run ONNX shape inference on it.")
    lengths = [length if isinstance(length, int) else length.value for length in value.shape]
    shape = tuple(f"{value.name}_{axis}" if length is None else length for axis, length in enumerate(lengths))
    return TensorSpec(str(value.name), value.dtype.numpy().name, shape)


def encode(manifest: Manifest) -> bytes:
    """The manifest as the bytes of `bundle.json`: indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


class _Versioned(msgspec.Struct):
    """The part of a manifest that is read before its format is known."""

    format: Any = None


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    if not path.is_dir():
        raise BundleError(f"bundle {path}: no such directory. Create it with: intaglio export SOURCE -o {path}")
    if not file.is_file():
        raise BundleError(f"bundle {path}: no {MANIFEST} in it. Create a bundle with: intaglio export SOURCE -o BUNDLE")
    if file.stat().st_size > MAX_MANIFEST_BYTES:
        raise BundleError(f"{file}: {file.stat().st_size} bytes, expected at most {MAX_MANIFEST_BYTES}. Re-create it.")
    data = file.read_bytes()
    try:
        version = msgspec.json.decode(data, type=_Versioned).format
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise BundleError(f"{file}: damaged manifest (format {version!r}). Re-create the bundle.")
        if version > FORMAT:
            raise BundleError(
                f"{file}: format {version}, this version of intaglio reads up to {FORMAT}. "
                "Update with: pip install --upgrade intaglio"
            )
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{file}: damaged manifest ({one_line(error, 200)}). Re-export the bundle.") from error


def _verify_files(path: Path, manifest: Manifest) -> None:
    for name in (graph.file for graph in manifest.graphs):
        if name not in manifest.files:
            raise BundleError(f"{path / MANIFEST}: {name} is not listed. Re-create the bundle.")
    for engine in manifest.engines:
        if engine.path not in manifest.files:
            raise BundleError(f"{path / MANIFEST}: the engine {engine.path} is not listed among the files. Rebuild it.")
    for relative, expected in manifest.files.items():
        file = inside(path, relative, str(path / MANIFEST))
        if not file.is_file():
            raise BundleError(f"{file}: listed in {MANIFEST} but missing. Copy the whole bundle, or re-create it.")
        size = file.stat().st_size
        if size != expected.bytes:
            raise BundleError(
                f"{file}: {size} bytes, expected {expected.bytes}. Copy the whole bundle again, or re-create it."
            )
        if (actual := sha256(file)) != expected.sha256:
            raise BundleError(
                f"{file}: SHA-256 {actual[:12]}…, expected {expected.sha256[:12]}…. "
                "The file was changed after it was written; re-create the bundle."
            )


def _verify_graph(path: Path, manifest: Manifest, graph: Graph) -> None:
    """Reject a graph whose inputs or outputs differ from the manifest, or whose external data is outside the bundle."""
    file = graph.file
    model = outline(path / file)
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in initializers]
    outputs = [value.name for value in model.graph.output]
    for what, named, found in (("inputs", graph.inputs, inputs), ("outputs", graph.outputs, outputs)):
        if [spec.name for spec in named] != found:
            raise BundleError(
                f"{path / MANIFEST}: lists the {what} {', '.join(spec.name for spec in named)}, {file} has "
                f"{', '.join(found)}. Re-create the bundle."
            )
    for relative in external_data_files(model):
        inside(path, relative, f"{path / file}: external data")
        if relative not in manifest.files:
            raise BundleError(
                f"{path / file}: its external data {relative} is not listed in {MANIFEST}. "
                "The bundle was changed after it was written; re-create it."
            )


def _verify_axes(path: Path, manifest: Manifest) -> None:
    """Reject impossible axes and unknown dtypes."""
    specs = [spec for graph in manifest.graphs for spec in (*graph.inputs, *graph.outputs)]
    axes = [axis for graph in manifest.graphs for axis in graph.axes.values()]
    lengths = [length for spec in specs for length in spec.shape if isinstance(length, int)]
    bad_axis = any(axis.minimum < 0 or (axis.maximum or axis.minimum) < axis.minimum for axis in axes)
    if bad_axis or any(not 0 <= length <= LONGEST for length in lengths):
        raise BundleError(f"{path / MANIFEST}: an axis has an impossible length. Re-export the bundle.")
    if strange := [spec for spec in specs if spec.dtype not in DTYPES]:
        raise BundleError(
            f"{path / MANIFEST}: {strange[0].name} has dtype {strange[0].dtype[:40]!r}, expected one of "
            f"{', '.join(DTYPES)}. Re-export the bundle."
        )


def _verify_decoder(path: Path, manifest: Manifest, decoder: Decoder) -> None:
    """Reject a decoder with impossible numbers, or numbers that contradict its graph."""

    def check(name: str, value: int | None, low: int, high: int) -> None:
        if value is not None and not low <= value <= high:
            raise BundleError(
                f"{path / MANIFEST}: the decoder's {name} is {value}, expected {low} to {high}. Re-export the bundle."
            )

    for name in ("layers", "heads", "kv_heads", "head_dim", "vocab_size", "max_positions", "sliding_window"):
        check(name, getattr(decoder, name), 1, LONGEST)
    check("drafts", decoder.drafts, 0, MAX_DRAFTS)
    check("exit_layer", decoder.exit_layer, 0, decoder.layers)
    encoder = manifest.encoder
    ends = {f"eos_token_ids[{index}]": token for index, token in enumerate(decoder.eos_token_ids)}
    if encoder is not None:
        ends |= {"start token": encoder.decoder_start_token_id, "padding token": encoder.pad_token_id}
    for name, token in {"bos_token_id": decoder.bos_token_id, **ends}.items():
        check(name, token, 0, decoder.vocab_size - 1)
    caches = {spec.name: spec.shape[1::2] for spec in manifest.inputs if spec.name.startswith("past_")}
    expected = [f"past_{kind}_{index}" for index in range(len(caches) // 2) for kind in ("key", "value")]
    shape = (decoder.kv_heads, decoder.head_dim)
    if len(caches) != 2 * decoder.layers or list(caches) != expected or any(each != shape for each in caches.values()):
        raise BundleError(
            f"{path / MANIFEST}: the decoder has {decoder.layers} layers with {shape[0]} heads of {shape[1]} in the "
            f"cache, but the {len(caches)} caches of its graph have other names or shapes. Re-export the bundle."
        )
    widths = [spec.shape[-1] for spec in manifest.outputs if spec.name == "logits" and spec.shape]
    if widths and isinstance(widths[0], int):
        check("vocab_size", decoder.vocab_size, widths[0], widths[0])
