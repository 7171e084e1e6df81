"""Our decoders for the benchmarks: lookup tables at 4, 3 and 2 bits in every linear layer, including the head."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

FLOAT = "intaglio-float"


def version() -> str:
    """Ours, ONNX Runtime's, and the instruction set of the kernels."""
    from intaglio.plugins import ort

    ours, theirs = (importlib.metadata.version(name) for name in ("intaglio", "onnxruntime"))
    return f"intaglio {ours}, onnxruntime {theirs}: {ort.instruction_set()}"


def missing() -> str:
    """The reason why ours cannot run here, or nothing."""
    from intaglio.plugins import ort

    return "" if ort.library() else "no compiled kernels. Install a C++ compiler, then intaglio again"


def compressed(bits: int, checkpoint: Path, folder: Path) -> Path:
    """The bundle of `checkpoint` with tables of `bits`, below `folder`; the float bundle is kept for the others."""
    from intaglio.exporters import export
    from intaglio.graph_passes import compress

    made = folder / f"intaglio-{bits}"
    if made.exists():
        return made
    if not (folder / FLOAT).exists():
        export(checkpoint, folder / FLOAT, check=False)
    recipe = folder / f"lut-{bits}.yaml"
    recipe.write_text(
        f"passes: [{{lut: {{bits: {bits}, table_bits: 8, unweighted: true, compensate: false}}}}]\n", encoding="utf-8"
    )
    compress(folder / FLOAT, made, recipe)
    return made


def open_model(bundle: Path, threads: int) -> Callable[[Sequence[int]], Iterator[int]]:
    """Open a bundle; the function returned generates greedily, from an empty cache each time."""
    from intaglio.runtime.sessions.decoder import DecoderSession

    session = DecoderSession.open(bundle, threads=threads)

    def generate(prompt: Sequence[int]) -> Iterator[int]:
        session.rollback(0)
        logits = session.prefill([list(prompt)])[0]
        while True:
            token = int(logits.argmax())
            yield token
            logits = session.step([[token]])[0, 0]

    return generate
