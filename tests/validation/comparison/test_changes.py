"""The effect of a bundle's passes, by which validation chooses its bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from intaglio.bundle.bundle import FORMAT, Manifest, PassRecord, Source, TensorSpec
from intaglio.bundle.effect import Effect
from intaglio.graph_passes.pass_table import PASSES
from intaglio.graph_passes.recipes.loading import load_recipe
from intaglio.validation.comparison.changes import changes_between, effect_of


def manifest(
    *names: str | PassRecord,
    dtype: str = "float32",
    output: str = "float32",
    sha: str = "",
    operators: Sequence[str] = (),
) -> Manifest:
    records = [name if isinstance(name, PassRecord) else PassRecord(name) for name in names]
    return Manifest(
        format=FORMAT,
        created_by="test",
        source=Source("local", "model", sha256={"model.safetensors": sha} if sha else {}),
        family="",
        architecture="",
        task="",
        dtype=dtype,
        inputs=[],
        outputs=[TensorSpec("y", output, ("batch",))],
        passes=records,
        custom_operators=list(operators),
    )


def recorded(recipe: str) -> list[PassRecord]:
    return [PassRecord(each.name, dataclasses.asdict(each)) for each in load_recipe(recipe)[1]]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("recipe", "effect"),
    [
        ("canonical", Effect.EXACT),
        ("inlined", Effect.EXACT),
        ("float16", Effect.FLOAT16),
        ("int8-weights", Effect.WEIGHTS_8),
        ("int8-absmax", Effect.WEIGHTS_8),
        ("rtn", Effect.WEIGHTS_4),
        ("lut-sparse", Effect.WEIGHTS_4),
        ("mixed", Effect.WEIGHTS_3),
        ("int8-qdq", Effect.INT8),
        ("int8-only", Effect.INT8),
        ("h-gelu", Effect.REPLACED),
        ("prune-rows", Effect.REPLACED),
    ],
)
def test_recipe_has_the_effect_of_its_passes(recipe: str, effect: Effect) -> None:
    found = changes_between(manifest(*recorded(recipe)), manifest())
    assert found.effect is effect
    assert found.approximate is (effect not in (Effect.EXACT, Effect.FLOAT16))


@pytest.mark.parametrize(
    ("bits", "effect"),
    [(8, "WEIGHTS_8"), (6, "WEIGHTS_4"), (5, "WEIGHTS_4"), (4, "WEIGHTS_4"), (3, "WEIGHTS_3"), (2, "WEIGHTS_3")],
)
def test_bits_determine_the_effect_of_rounding(bits: int, effect: str) -> None:
    assert effect_of(PassRecord("rtn", {"bits": bits})) is Effect[effect]


def test_every_pass_declares_its_effect() -> None:
    required = {"function": "module:function"}  # the option of surgeon without a default
    made = {name: msgspec.convert(required, kind) for name, kind in PASSES.items()}
    assert {name for name, each in made.items() if not isinstance(each.effect, Effect)} == set()


@pytest.mark.parametrize(
    "record",
    [
        PassRecord("train_int8_only"),
        PassRecord("rtn", {"bits": "many"}),
        PassRecord("rtn", {"bits": 7}),
        PassRecord("surgeon", {"function": "a:b", "effect": "none"}),
    ],
)
def test_unknown_pass_has_the_largest_effect(record: PassRecord) -> None:
    assert effect_of(record) is Effect.REPLACED


@pytest.mark.parametrize(("stated", "effect"), [({}, "REPLACED"), ({"effect": "exact"}, "EXACT")])
def test_user_function_has_the_largest_effect_unless_declared(stated: dict[str, str], effect: str) -> None:
    assert effect_of(PassRecord("surgeon", {"function": "a:b", "sha256": "0", **stated})) is Effect[effect]


def test_passes_of_both_models_do_not_count() -> None:
    rounded = PassRecord("rtn", {"bits": 4, "activation_bits": 32})
    assert changes_between(manifest(rounded), manifest(rounded)).effect is Effect.EXACT
    more = changes_between(manifest(rounded, "prune_rows"), manifest(rounded))
    assert (more.effect, more.passes) == (Effect.REPLACED, ("prune_rows",))
    assert changes_between(manifest(), manifest(rounded)).passes == ("rtn",)


def test_codes_of_the_checkpoint_round_the_activations() -> None:
    imported = manifest(operators=["GroupMatMul"])
    for expected in (None, manifest(), imported):
        found = changes_between(imported, expected)
        assert (found.effect, found.precision) == (Effect.FLOAT16, "float16")
    imported.activation_bits = 8
    assert changes_between(imported, imported).effect is Effect.INT8
    exact = PassRecord("rtn", {"bits": 4, "activation_bits": 32})
    compressed = manifest(exact, operators=["GroupMatMul"])
    assert changes_between(compressed, compressed).effect is Effect.EXACT


def test_bounds_of_equal_graphs_follow_their_operators() -> None:
    kept = PassRecord("rtn", {"bits": 4, "activation_bits": 16})
    found = changes_between(manifest(kept), manifest(kept))
    assert (found.effect, found.precision) == (Effect.FLOAT16, "float16")
    shortest = PassRecord("rtn", {"bits": 4, "activation_bits": 8})
    assert changes_between(manifest(shortest), manifest(shortest)).effect is Effect.INT8
    in_steps = changes_between(manifest("quantize_activations"), manifest("quantize_activations"))
    assert in_steps.effect is Effect.INT8
    assert changes_between(manifest(kept, "inline"), manifest(kept)).effect is Effect.INT8
    integers = ["quantize_activations", "integer_linear"]
    assert changes_between(manifest(*integers), manifest(*integers)).effect is Effect.EXACT


@pytest.mark.parametrize(
    ("options", "precision"), [({"dtype": "float16"}, "float16"), ({"output": "bfloat16"}, "bfloat16")]
)
def test_half_precision_is_detected_in_weights_and_outputs(options: dict[str, Any], precision: str) -> None:
    found = changes_between(manifest(**options), manifest())
    assert (found.effect, found.precision) == (Effect.FLOAT16, precision)


def test_other_checkpoint_is_another_model() -> None:
    found = changes_between(manifest(sha="ab"), manifest(sha="cd"))
    assert (found.effect, found.passes) == (Effect.REPLACED, ("another checkpoint",))
    assert changes_between(manifest(sha="ab"), manifest(sha="ab")).effect is Effect.EXACT
    assert changes_between(manifest(sha="ab"), manifest()).effect is Effect.EXACT
