"""GPU tests: building, running, and comparing with ONNX Runtime."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from device_meter import metered
from devices import build_for_this_gpu

from intaglio.accuracy.metrics import cosine, max_abs
from intaglio.bundle.bundle import Bundle
from intaglio.errors import EngineError
from intaglio.exporters import export
from intaglio.runtime.engines import gpus
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.targets import TARGETS

ENGINES = [name for name, target in TARGETS.items() if not target.runs_files]

pytestmark = pytest.mark.usefixtures("cuda_device")

MakeEncoder = Callable[..., Path]


@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_engine_matches_onnxruntime_at_changing_shapes(
    make_encoder: MakeEncoder, feeds: dict[str, np.ndarray], target: str, dtype: str
) -> None:
    device = gpus.present()
    if dtype == "float32" and device is not None and device.sm == 75:
        pytest.skip("TensorRT-RTX has no float32 products on SM75")
    path = make_encoder(dtype)
    build_for_this_gpu(path, target)
    short = {name: array[:1, :3] for name, array in feeds.items()}  # not contiguous
    long = {name: np.tile(array, (4, 8)) for name, array in feeds.items()}
    with open_engine(path) as cpu, open_engine(path, target) as gpu:
        for batch in (feeds, short, long, feeds):  # the buffers grow, stay, and are not read beyond the batch
            expected, found = cpu.run(batch)["out"], gpu.run(batch)["out"]
            assert found.dtype == expected.dtype
            assert found.shape == expected.shape
            assert cosine(found, expected) > 0.999
            # float16: 10 bits of mantissa through 6 products of widths up to 128; float32 may run as TF32, alike.
            assert max_abs(found, expected) < 2e-2 * float(np.abs(expected).max())


@pytest.mark.parametrize("target", ENGINES)
def test_lengths_outside_the_profile_are_rejected(
    make_encoder: MakeEncoder, feeds: dict[str, np.ndarray], target: str
) -> None:
    path = make_encoder()
    build_for_this_gpu(path, target)
    with open_engine(path, target) as engine, pytest.raises(EngineError, match="batch is 33, expected 1 to 32"):
        engine.run({name: np.tile(array, (11, 1)) for name, array in feeds.items()})


@pytest.mark.parametrize("target", ENGINES)
def test_damaged_engine_is_a_one_line_error(make_encoder: MakeEncoder, target: str) -> None:
    path = make_encoder()
    build_for_this_gpu(path, target)
    bundle = Bundle.open(path)
    [record] = bundle.manifest.engines
    bundle.add_files({record.path: b"not an engine"}, [record])
    with pytest.raises(EngineError, match=r"TensorRT failed at opening .*Re-build the engine"):
        open_engine(path, target)


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("target", ENGINES)
def test_decoder_cache_is_updated_in_place(
    make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path, target: str, bits: int | None
) -> None:
    checkpoint, _ = make_decoder("llama")
    export(str(checkpoint), tmp_path / "bundle", dtype="float16", check=False)
    build_for_this_gpu(tmp_path / "bundle", target, cache_bits=bits)
    found = []
    for where in ("ort-cpu", target):
        with DecoderSession.open(tmp_path / "bundle", where, batch=2, cache_bits=bits) as session:
            logits = [session.prefill([[1, 2, 3, 4, 5], [6, 7]])]
            logits += [session.step([[token], [token + 1]])[:, 0] for token in range(8, 16)]
            found.append(np.stack(logits))
    assert cosine(found[1], found[0]) > 0.999


@pytest.mark.parametrize("target", ENGINES)
def test_step_traffic_is_independent_of_capacity(
    make_decoder: Callable[..., tuple[Path, Path]],
    tmp_path: Path,
    target: str,
) -> None:
    """See `tests/runtime/sessions/test_device_traffic.py`, which emulates the GPU."""
    checkpoint, _ = make_decoder("llama", max_position_embeddings=1024)
    found = []
    for capacity in ("64", "640"):
        path = tmp_path / capacity
        export(str(checkpoint), path, dtype="float16", check=False)
        build_for_this_gpu(path, target, {"capacity": capacity})
        with metered() as traffic, DecoderSession.open(path, target, batch=2) as session:
            session.prefill([[1, 2, 3, 4, 5], [6, 7]])
            for token in range(8, 16):
                session.step([[token], [token + 1]])
            session.append([[], [1, 2, 3]], [0, 3], trees=[(), (-1, 0, 0)])
            session.keep(1, 10, [0, 2])
            session.copy(1, 0, 11)
            session.step([[1], [2]])
        found.append([(step.up, step.down) for step in traffic.steps])
    assert found[0] == found[1]
