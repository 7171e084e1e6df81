"""The manifest: what bundle.json records of a model, its graphs, passes, engines and files."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from intaglio.bundle.graph_records import Axis as Axis
from intaglio.bundle.graph_records import Graph as Graph
from intaglio.bundle.graph_records import TensorSpec as TensorSpec
from intaglio.bundle.image_records import Image as Image
from intaglio.bundle.image_records import ImageEncoder as ImageEncoder
from intaglio.bundle.image_records import TextTower as TextTower
from intaglio.bundle.modality_record import ModalityRecord
from intaglio.bundle.plan_record import DEFAULT_PLAN, PlanOptions
from intaglio.bundle.text_records import PairTemplate, TokenVectors
from intaglio.bundle.text_records import Prompt as Prompt

FORMAT = 1  # raised when an older program could misread the manifest
MANIFEST = "bundle.json"
MODEL = "model.onnx"
LONGEST = (1 << 31) - 1  # of an axis, and upper limit of a decoder's numbers
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")  # of embeddings
MAX_DRAFTS = 64  # tokens that a graph drafts after each token
DTYPES = (
    "float32", "float16", "float64", "bfloat16", "bool", "str", "object",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)  # fmt: skip
MAX_MANIFEST_BYTES = 8 << 20  # a manifest is small; parsing a larger file would take 70 times its size in memory


class AdapterSource(msgspec.Struct, forbid_unknown_fields=True):
    """The origin of an adapter that was merged into the weights."""

    location: str  # name of its folder (`recorded_name`)
    sha256: dict[str, str] = {}  # file that affects the computation -> SHA-256


class Source(msgspec.Struct, forbid_unknown_fields=True):
    """The origin of the weights."""

    kind: str  # "local", "hub" or "onnx"
    location: str  # hub id, or name of the folder or file (`recorded_name`)
    revision: str | None = None  # the hub's commit
    sha256: dict[str, str] = {}  # file that affects the computation (weights, configuration) -> SHA-256
    adapter: AdapterSource | msgspec.UnsetType = msgspec.UNSET  # merged into the weights; left out without one
    route: str | msgspec.UnsetType = msgspec.UNSET  # of a Router of sentence-transformers; left out without one


class LayerCache(msgspec.Struct, frozen=True):
    """The KV cache of one layer."""

    heads: int
    key_dim: int  # of one head
    value_dim: int
    window: int | None = None  # tokens that a token attends to in this layer, including itself; None: all before it


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
    image_width: int = 0  # of the embeddings that take the places of images in a prompt; 0: it reads none
    context: str = ""  # "short" or "long": texts for which a rotary embedding with two sets of frequencies is exact
    caches: tuple[LayerCache, ...] = ()  # of each layer that has one, if they are not all alike; else empty

    @property
    def layer_caches(self) -> tuple[LayerCache, ...]:
        """The cache of each layer that has one; layers may share the cache of one before them."""
        alike = LayerCache(self.kv_heads, self.head_dim, self.head_dim, self.sliding_window)
        return self.caches or (alike,) * self.layers


class Encoder(msgspec.Struct, frozen=True):
    """The encoder of an encoder-decoder: a separate graph that runs once per source sequence.

    Its outputs are inputs of the decoder with the same names.
    """

    file: str  # next to model.onnx
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    decoder_start_token_id: int  # first token of the decoder's sequence
    pad_token_id: int  # pads shorter source sequences, and is masked
    forced_bos_token_id: int | None = None  # always the next one, such as that of the language to translate into
    suppressed_tokens: tuple[int, ...] = ()  # never chosen
    languages: dict[str, int] = {}  # code -> token, of a model that translates between several
    axes: dict[str, Axis] = {}
    layers: dict[str, str] = {}  # as in the manifest, for this graph

    @property
    def start(self) -> tuple[int, ...]:
        """The tokens that the decoder's sequence begins with."""
        forced = self.forced_bos_token_id
        return (self.decoder_start_token_id,) if forced is None else (self.decoder_start_token_id, forced)


class Audio(ModalityRecord, frozen=True):
    """Inputs and outputs of a speech recogniser; its vocabulary is in vocabulary.json."""

    modality: ClassVar[str] = "audio"
    items: ClassVar[str] = "recordings"
    sample_rate: int  # Hz, of one channel
    frame_samples: int  # between two output frames
    features: int = 0  # 0: the graph takes samples; else the bands of the features that it takes
    precision: str = "float32"  # dtype that the features are rounded to
    blank: int = 0  # the token of CTC that is none

    @property
    def processed_elsewhere(self) -> bool:
        """See `ModalityRecord`."""
        return self.features > 0


class Transcriber(ModalityRecord, frozen=True):
    """An encoder-decoder for recordings: the graph of its front end, and the tokens that its texts begin with.

    A text begins with the start token, the token of its language, that of its task, and without times `no_timestamps`.
    The tokens of times follow `no_timestamps`.
    """

    modality: ClassVar[str] = "audio"
    items: ClassVar[str] = "recordings"
    file: str  # of the front end, next to model.onnx: samples to log-mel features
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sample_rate: int  # Hz, of one channel
    hop: int  # samples from one frame of features to the next
    window: int  # samples of a frame
    frames: int  # of features that the encoder reads at once
    no_timestamps: int  # token
    no_speech: int  # token whose probability after the start token is that of silence
    begin_suppressed: tuple[int, ...] = ()  # tokens that are never the first
    max_initial_timestamp: int | None = None  # of the first time, in tokens of time
    # "transcribe", "translate" -> token; empty: only the first, without a token
    tasks: dict[str, int] = msgspec.field(default_factory=dict)
    task: str = "transcribe"  # by default
    language: str | None = None  # by default; None: it is detected
    previous_start: int | None = None  # token before a prompt, and before the text of earlier windows
    condition_on_prev_tokens: bool = False  # by default, a window follows the text of earlier ones
    alignment_heads: tuple[tuple[int, int], ...] = ()  # layer and head; the graph's output for times of words
    median_filter: int = 7  # positions of the encoder, over which their weights are filtered
    axes: dict[str, Axis] = msgspec.field(default_factory=dict)


class PassRecord(msgspec.Struct):
    """One applied graph pass: its options, its rewrites (name -> number), and the reasons for skipped candidates."""

    name: str
    options: dict[str, Any] = {}
    counts: dict[str, int] = {}
    reasons: list[str] = []
    layers: dict[str, dict[str, float]] = {}  # layer -> measurements by name
    graph: str = "model.onnx"  # that it rewrote


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
    plan: PlanOptions = DEFAULT_PLAN  # of TensorRT
    plugins: bool = True  # of TensorRT for our operators; else their bodies in standard ones
    cache_bits: int | None = None  # of a decoder's cached keys and values; None: as the graph has them


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
    task: str  # "embed", "embed-tokens", "classify", "generate", "text-to-text", "transcribe"; "": other graphs
    dtype: str  # of the weights: "float32", "float16"
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    axes: dict[str, Axis] = {}
    parameters: int = 0  # weights of the exported model, before any pass; 0: not counted
    layers: dict[str, str] = {}  # module path -> the graph value that it returns, in execution order
    labels: list[str] = []  # class names, for classification
    activation: str = "softmax"  # function from a classifier's logits to scores: "softmax", "sigmoid" or "identity"
    decoder: Decoder | None = None  # for the tasks "generate" and "text-to-text", and a `transcriber`
    encoder: Encoder | None = None  # for the task "text-to-text", and a `transcriber`; model.onnx is then the decoder
    audio: Audio | None = None  # for the task "transcribe", of a recogniser with a CTC head
    transcriber: Transcriber | None = None  # for the task "transcribe", of an encoder-decoder
    image: Image | None = None  # for graphs that take images
    text: TextTower | None = None  # of a model that compares images with texts; model.onnx is then for images
    image_encoder: ImageEncoder | None = None  # of a decoder that reads images in its prompts
    truncation: int | None = None  # maximum tokens of a text, if the model defines one beside its axis
    prompts: dict[str, Prompt] = {}  # name -> prompt, for models of sentence-transformers
    default_prompt: str | None = None  # name of the prompt that is used unless another is chosen
    pair: PairTemplate | None = None  # of a model that reads pairs as one text, with its default prompt if it has one
    max_active_dims: Annotated[int, msgspec.Meta(ge=1)] | None = None  # weights of a text, for the task "embed-sparse"
    vectors: TokenVectors | None = None  # for the task "embed-tokens"
    similarity: str = SIMILARITIES[0]  # of embeddings, for the task "embed"
    passes: list[PassRecord] = []
    custom_operators: list[str] = []
    activation_bits: int | None = (
        None  # that the export chose for products with a checkpoint's codes; None: the default
    )
    calibration: Calibration = Calibration()
    engines: list[EngineRecord] = []
    files: dict[str, FileRecord] = {}

    @property
    def modality_record(self) -> ModalityRecord | None:
        """What is recorded of inputs that are not texts; None for texts."""
        values = (getattr(self, name) for name in self.__struct_fields__)
        return next((value for value in values if isinstance(value, ModalityRecord)), None)

    @property
    def modality(self) -> str:
        """The modality of the bundle's input, a row of `intaglio.runtime.modalities.table`."""
        return "text" if self.modality_record is None else self.modality_record.modality

    @property
    def generates(self) -> bool:
        """Whether it writes texts for texts: a decoder, or an encoder-decoder that reads no recordings."""
        return self.decoder is not None and self.transcriber is None

    @property
    def graphs(self) -> list[Graph]:
        """The graphs of the bundle's ONNX files: model.onnx first, then those of its further parts."""
        parts = (self.encoder, self.transcriber, self.text, self.image_encoder)
        further = [Graph(part.file, part.inputs, part.outputs, part.axes) for part in parts if part is not None]
        return [Graph(MODEL, self.inputs, self.outputs, self.axes), *further]


def encode(manifest: Manifest) -> bytes:
    """The manifest as the bytes of `bundle.json`: indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
