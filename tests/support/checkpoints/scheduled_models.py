"""Small random models of every kind for the scheduler, opened when first used; each test creates its own sessions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from drafts import save_drafts
from early_exits import save_early_exit
from fixed_engine import FixedEngine
from tiny_decoders import Once

from intaglio.bundle.bundle import Bundle
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.generation.scheduling.scheduler import Scheduler
from intaglio.runtime.generation.scheduling.scheduler_options import SchedulerOptions
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.early_exit import EarlyExitSession, exit_outputs
from intaglio.runtime.sessions.encoder_decoder import EncoderDecoderSession
from intaglio.runtime.sessions.step import whole_outputs

POSITIONS = 128
SIZES: dict[str, Any] = {"max_position_embeddings": POSITIONS}
Made = dict[str, Path]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Models:
    """A pair of models, or one."""

    bundle: Bundle
    sessions: Callable[[int], tuple[DecoderSession, DecoderSession | None]]  # rows -> target, draft
    strategies: tuple[str, ...]

    def scheduler(self, rows: int = 3, **options: int) -> Scheduler:
        """A scheduler with empty caches."""
        target, draft = self.sessions(rows)
        return Scheduler(self.bundle, target, draft, SchedulerOptions(**options))


class Lazy(dict[str, Value]):
    """Values that are made when they are asked for: a worker that tests one model need not open them all."""

    def __init__(self, makers: dict[str, Callable[[], Value]]):
        super().__init__()
        self._makers = makers

    def __missing__(self, name: str) -> Value:
        self[name] = self._makers[name]()
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers


def make_bundles(
    make_decoder: Callable[..., tuple[Path, Path]], make_encoder_decoder: Callable[..., tuple[Path, Path]], once: Once
) -> Made:
    """The bundles, by name; each is made once per run."""

    def llama(**options: int) -> Path:
        return make_decoder("llama", **SIZES, **options)[0]

    def gpt2() -> Path:
        return make_decoder("gpt2", n_layer=4, initializer_range=0.015, n_positions=POSITIONS)[0]

    savers: dict[str, Callable[[Path], Path]] = {
        "small": lambda folder: noisy(llama(), folder),
        "medusa": lambda folder: save_drafts(llama(), folder, "medusa"),
        "hidden-transfer": lambda folder: save_drafts(llama(), folder, "hidden-transfer"),
        "calm": lambda folder: save_early_exit(gpt2(), folder, "every"),
        "exit": lambda folder: save_early_exit(llama(num_hidden_layers=3), folder, 2),
    }

    def exported(name: str) -> Path:
        source = once(f"scheduled/{name}", lambda path: savers[name](path.with_suffix(".unfinished")).rename(path))
        return once(f"scheduled/{name}-bundle", lambda path: export(str(source), path, check=False))

    def t5(layers: int) -> Path:
        return make_encoder_decoder("mt5", num_layers=layers, num_decoder_layers=layers)[1]

    def in_four(name: str) -> Path:
        file = in_four_bits(name).replace(" ", "-")
        return once(f"scheduled/{file}", lambda path: compress(bundles[name], path, "rtn"))

    makers: dict[str, Callable[[], Path]] = {name: partial(exported, name) for name in savers}
    makers |= {"large": lambda: make_decoder("llama", **SIZES)[1], "t5": lambda: t5(2), "small t5": lambda: t5(1)}
    makers |= {in_four_bits(name): partial(in_four, name) for name in makers}
    bundles = Lazy(makers)
    return bundles


def in_four_bits(name: str) -> str:
    """The name of the compressed variant of a bundle or kind."""
    return f"{name} in four bits"


def as_is(name: str) -> str:
    """The name of the uncompressed variant."""
    return name


def noisy(checkpoint: Path, folder: Path) -> Path:
    """A copy of `checkpoint` with slightly different weights, which often gives the same tokens."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint, folder)
    weights, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(1)
    for weight in weights.values():
        if weight.ndim > 1:
            weight += 0.05 * weight.std() * torch.randn(weight.shape, generator=generator)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@contextmanager
def open_models(made: Made) -> Iterator[dict[str, Models]]:
    """The models of the tests, by name."""
    drafting = ("greedy", "sample", "bild", "speculative", "ngram", "auto")
    exiting = ("greedy", "sample", "bild", "speculative")
    alone = {
        **{kind: (kind, "greedy", "sample", "ngram", "auto") for kind in ("medusa", "hidden-transfer")},
        "calm": ("calm", "greedy", "sample", "ngram"),
    }
    with ExitStack() as opened:

        def engine(name: str, **options: Any) -> OnnxRuntimeEngine:
            given = OnnxRuntimeEngine(Bundle.open(made[name]), threads=1, spinning=False, **options)
            return opened.enter_context(given)

        def pair(target: str, draft: str | None, kind: Callable[[Engine], Engine] = lambda engine: engine) -> Any:
            engines = [(engine(name), decoder(made[name])) for name in (target, draft) if name]
            return lambda rows: (
                *(DecoderSession(kind(each), of, rows) for each, of in engines),
                *([] if draft else [None]),
            )

        def fixed(engine: Engine) -> Engine:
            return FixedEngine(engine, 64, 24)

        makers: dict[str, Callable[[], Models]] = {
            "float": lambda: Models(Bundle.open(made["large"]), pair("large", "small"), drafting),
            "four bits": lambda: Models(
                Bundle.open(made[in_four_bits("large")]), pair(in_four_bits("large"), "small"), drafting
            ),
            "fixed": lambda: Models(Bundle.open(made["large"]), pair("large", "small", fixed), drafting),
            "fixed trees": lambda: Models(
                Bundle.open(made["hidden-transfer"]),
                pair("hidden-transfer", None, fixed),
                ("hidden-transfer", "greedy", "sample"),
            ),
        }

        def single(name: str, strategies: tuple[str, ...]) -> Models:
            return Models(Bundle.open(made[name]), pair(name, None), strategies)

        def early_exit(name: str) -> Models:
            return Models(Bundle.open(made[name]), exits(made, name, engine), exiting)

        def pair_of_t5(variant: Callable[[str], str]) -> Models:
            return Models(Bundle.open(made[variant("t5")]), encoder_decoders(made, opened, variant), drafting)

        for variant in (as_is, in_four_bits):
            for kind, strategies in alone.items():
                makers[variant(kind)] = partial(single, variant(kind), strategies)
            makers[variant("exit")] = partial(early_exit, variant("exit"))
            makers[variant("t5")] = partial(pair_of_t5, variant)
        yield Lazy(makers)


def decoder(bundle: Path) -> Any:
    return Bundle.open(bundle).manifest.decoder


def exits(made: Made, name: str, engine: Callable[..., OnnxRuntimeEngine]) -> Any:
    """Sessions of a model and its early exit."""
    of = decoder(made[name])
    first, whole = engine(name, outputs=exit_outputs(of)), engine(name, outputs=whole_outputs(of))

    def sessions(rows: int) -> tuple[DecoderSession, DecoderSession]:
        target = DecoderSession(whole, of, rows)
        return target, EarlyExitSession(first, target)

    return sessions


def encoder_decoders(made: Made, opened: ExitStack, variant: Callable[[str], str]) -> Any:
    """Sessions of two encoder-decoders."""
    parts = []
    for name in ("t5", "small t5"):
        bundle = Bundle.open(made[variant(name)])
        encoder = bundle.manifest.encoder
        assert encoder is not None
        engines = [
            open_engine(bundle, threads=1, spinning=False, graph=graph) for graph in ("model.onnx", encoder.file)
        ]
        parts.append(([opened.enter_context(each) for each in engines], bundle.manifest.decoder, encoder))
    return lambda rows: tuple(
        EncoderDecoderSession(*engines, of, encoder, rows, POSITIONS) for engines, of, encoder in parts
    )
