"""Options of plans that are refused: unknown ones in a manifest, and two that do not go together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorrt_plans import full_tensorrt_with_a_gpu

from intaglio.bundle.bundle import Bundle, EngineRecord
from intaglio.bundle.plan_record import PlanOptions
from intaglio.errors import BundleError, UsageError
from intaglio.runtime.engines.build import build

MakeEncoder = Callable[..., Path]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"plan": PlanOptions(hardware_compatibility="any")},
            r"engine's hardware_compatibility is 'any', expected one of none, ampere\+",
        ),
        ({"plan": PlanOptions(optimization_level=9)}, r"optimization_level 9, expected one of 0, 1, 2, 3, 4, 5\."),
        ({"cache_bits": 5}, r"engine engines/a\.engine: cache_bits 5, expected one of 8, 4\."),
    ],
)
def test_manifest_with_unknown_options_is_refused(
    make_encoder: MakeEncoder, settings: dict[str, Any], message: str
) -> None:
    bundle = Bundle.open(make_encoder())
    made = EngineRecord("engines/a.engine", "tensorrt", "tensorrt 11.4", 3, "a100", 80, **settings)
    bundle.add_files({made.path: b"abc"}, [made])
    with pytest.raises(BundleError, match=message):
        Bundle.open(bundle.path)


@pytest.mark.parametrize("other", ["refit", "strip_weights"])
def test_lean_runtime_sets_no_weights(make_encoder: MakeEncoder, other: str) -> None:
    option = f"--{other.replace('_', '-')}"
    with full_tensorrt_with_a_gpu(), pytest.raises(UsageError, match=f"cannot set weights. Leave out {option}"):
        build(make_encoder("float32"), "tensorrt", version_compatible=True, **{other: True})
