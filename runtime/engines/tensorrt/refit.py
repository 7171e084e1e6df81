"""Give an engine without weights those of the bundle's graph that it was built from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from intaglio.bundle.bundle import Bundle, EngineRecord
from intaglio.errors import EngineError
from intaglio.runtime.engines import profiles
from intaglio.runtime.engines.tensorrt.library import STDERR, STDOUT, Log, silent
from intaglio.runtime.engines.tensorrt.operators import with_weights

SHOWN = 3  # missing weights that an error names


def refit(trt: Any, engine: Any, bundle: Bundle, record: EngineRecord, log: Log) -> None:
    """Set the weights of `engine`, an `ICudaEngine` of the module `trt` that was built with `strip_weights`.

    They are found by name in the graph that the engine was built from, which is made from the bundle's again. Raises
    `EngineError` with the names of weights that are missing, or that do not fit.
    """
    limits = profiles.limits(bundle.graph(record.graph).inputs, record.profiles)
    capacity = limits["capacity"].maximum if "capacity" in limits else None
    fixed = {} if capacity is None else {"capacity": capacity}
    try:
        refitter = trt.Refitter(engine, log)
    except TypeError:  # the bindings' way of saying that the library made none
        raise _failure(record, "it cannot be refitted", log.errors) from None
    parser = trt.OnnxParserRefitter(refitter, log)  # owns the weights until the engine has copied them
    assert record.sm is not None
    source, bits = bundle.path / record.graph, record.cache_bits
    with with_weights(source, record.sm, fixed, record.plugins, bits) as model, silent(STDOUT, STDERR):
        found = parser.refit_from_file(str(model)) and refitter.refit_cuda_engine()
    if not found:
        told = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        missing = refitter.get_missing_weights()
        more = f" ({len(missing) - SHOWN} more)" if len(missing) > SHOWN else ""
        names = f": {', '.join(missing[:SHOWN])}{more} missing" if missing else ""
        raise _failure(record, f"{record.graph} does not have all of them{names}", [*log.errors, *told])


def _failure(record: EngineRecord, what: str, reasons: Sequence[str]) -> EngineError:
    reason = " ".join(reasons[-1].split()).rstrip(".") if reasons else "The library gave no reason"
    return EngineError(
        f"engine {record.path}: was built without weights, and {what}. {reason}. Re-build it with --force."
    )
