"""Our decoders for the benchmarks: lookup tables at 4, 3 and 2 bits in every linear layer, including the head.

Beside them the weights in 16 bits as they come from the checkpoint, and what ONNX Runtime makes of those by itself.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path


def version() -> str:
    """Ours, ONNX Runtime's, and the instruction set of the kernels."""
    from intaglio.plugins import ort

    ours, theirs = (importlib.metadata.version(name) for name in ("intaglio", "onnxruntime"))
    return f"intaglio {ours}, onnxruntime {theirs}: {ort.instruction_set()}"


def missing() -> str:
    """The reason why ours cannot run here, or nothing."""
    from intaglio.plugins import ort

    return "" if ort.library() else "no compiled kernels. Install a C++ compiler, then intaglio again"


def compressed(bits: int, activation_bits: int, checkpoint: Path, folder: Path) -> Path:
    """The bundle of `checkpoint` with tables of `bits`, below `folder`; 8: groups; 16: the export, for the others."""
    from intaglio.graph_passes import compress

    if bits == 16:
        return exported(checkpoint, folder)
    made = folder / (f"intaglio-{bits}" if activation_bits == 16 else f"intaglio-{bits}-{activation_bits}")
    if made.exists():
        return made
    recipe = folder / f"{made.name}.yaml"
    common = f"bits: {bits}, activation_bits: {activation_bits}"
    tables = f"lut: {{{common}, table_bits: 8, unweighted: true, compensate: false}}"
    groups = f"rtn: {{{common}, group_size: 128}}"
    recipe.write_text(f"passes: [{{{groups if bits == 8 else tables}}}]\n", encoding="utf-8")
    compress(exported(checkpoint, folder), made, recipe)
    return made


def exported(checkpoint: Path, folder: Path) -> Path:
    """The bundle that `export` makes of `checkpoint`, below `folder`."""
    from intaglio.exporters import export

    made = folder / "intaglio-16"
    if not made.exists():
        export(checkpoint, made, check=False)
    return made


def with_own_products(bits: int, checkpoint: Path, folder: Path) -> Path:
    """The bundle of `checkpoint` with ONNX Runtime's MatMulNBits of `bits`: groups of 32, activations in INT8."""
    import onnx_ir as ir
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    from intaglio.bundle.bundle import Bundle, create
    from intaglio.bundle.model_file import load, save
    from intaglio.plugins.packed_matmul.narrow_weights import widen_weights

    made = folder / f"onnxruntime-{bits}"
    if made.exists():
        return made
    source = Bundle.open(exported(checkpoint, folder))
    model = ir.external_data.load_to_model(load(source.model_path))
    widen_weights(model)
    quantizer = MatMulNBitsQuantizer(ir.to_proto(model), bits, block_size=32, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    with create(made) as draft:
        save(ir.from_proto(quantizer.model.model), draft.model_path)
        draft.copy_companions(source)
        draft.manifest = source.manifest
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
