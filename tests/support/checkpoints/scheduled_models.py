"""Small random models of every kind for the scheduler, opened once; each test creates its own sessions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
COMPRESSED = (
    "medusa",
    "hidden-transfer",
    "calm",
    "exit",
    "t5",
    "small t5",
)  # bundles that are also compressed to four bits
Made = dict[str, Path]


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


def make_bundles(
    make_decoder: Callable[..., tuple[Path, Path]], make_encoder_decoder: Callable[..., tuple[Path, Path]], once: Once
) -> Made:
    """The bundles, by name; each is made once per run."""
    checkpoint, target = make_decoder("llama", **SIZES)
    calm, _ = make_decoder("gpt2", n_layer=4, initializer_range=0.015, n_positions=POSITIONS)
    exiting, _ = make_decoder("llama", **SIZES, num_hidden_layers=3)
    savers: dict[str, Callable[[Path], Path]] = {
        "small": lambda folder: noisy(checkpoint, folder),
        "medusa": lambda folder: save_drafts(checkpoint, folder, "medusa"),
        "hidden-transfer": lambda folder: save_drafts(checkpoint, folder, "hidden-transfer"),
        "calm": lambda folder: save_early_exit(calm, folder, "every"),
        "exit": lambda folder: save_early_exit(exiting, folder, 2),
    }

    def exported(name: str, save: Callable[[Path], Path]) -> Path:
        source = once(f"scheduled/{name}", lambda path: save(path.with_suffix(".unfinished")).rename(path))
        return once(f"scheduled/{name}-bundle", lambda path: export(str(source), path, check=False))

    def in_four(bundle: Path, name: str) -> Path:
        return once(f"scheduled/{name}", lambda path: compress(bundle, path, "rtn"))

    # Workers begin with different ones, where each would wait for the others to make the next.
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) * 2 % len(savers)
    bundles = {name: exported(name, savers[name]) for name in [*savers][own:] + [*savers][:own]}
    bundles |= {"large": target, "four": in_four(target, "four-bits")}
    for name, layers in ("t5", 2), ("small t5", 1):
        bundles[name] = make_encoder_decoder("mt5", num_layers=layers, num_decoder_layers=layers)[1]
    for name in COMPRESSED:
        bundles[in_four_bits(name)] = in_four(bundles[name], in_four_bits(name).replace(" ", "-"))
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

        yield {
            "float": Models(Bundle.open(made["large"]), pair("large", "small"), drafting),
            "four bits": Models(Bundle.open(made["four"]), pair("four", "small"), drafting),
            "fixed": Models(
                Bundle.open(made["large"]), pair("large", "small", lambda each: FixedEngine(each, 64, 24)), drafting
            ),
            "fixed trees": Models(
                Bundle.open(made["hidden-transfer"]),
                pair("hidden-transfer", None, lambda each: FixedEngine(each, 64, 24)),
                ("hidden-transfer", "greedy", "sample"),
            ),
            **{
                name(kind): Models(Bundle.open(made[name(kind)]), pair(name(kind), None), strategies)
                for kind, strategies in alone.items()
                for name in (as_is, in_four_bits)
            },
            **{
                name("exit"): Models(Bundle.open(made[name("exit")]), exits(made, name("exit"), engine), exiting)
                for name in (as_is, in_four_bits)
            },
            **{
                name("t5"): Models(Bundle.open(made[name("t5")]), encoder_decoders(made, opened, name), drafting)
                for name in (as_is, in_four_bits)
            },
        }


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
