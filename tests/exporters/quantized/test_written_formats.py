"""Weights that are written in a format are read from it again to the bit, and refused where it does not hold them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_checkpoints import PACKED, mapped, quantized, random_weight

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized import awq
from intaglio.exporters.checkpoints.quantized.formats import SECTION, WRITERS, joined
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, Groups
from intaglio.plugins.bit_packing import pack

BITS = {"gptq": (2, 3, 4, 8), "gptq_v2": (2, 3, 4, 8), "awq": (4,), "compressed-tensors": (2, 3, 4, 8)}


def weight_of(
    bits: int = 4, rows: int = 32, inputs: int = 64, group_size: int = 32, seed: int = 0, **given: Any
) -> Any:
    """A weight with random codes; `zeros`, `scales`, `minimums`, `order` replace what it has."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 2**bits, (rows, inputs), np.uint8)
    shape = rows, inputs // group_size
    scales = given.get("scales", random.standard_normal(shape).astype(np.float16).astype(np.float32))
    zeros = given.get("zeros", np.full(shape, 2 ** (bits - 1), np.uint8))
    minimums = given.get("minimums")
    groups = Groups(pack(codes, bits), scales, zeros, minimums)
    return GroupedWeight((rows, inputs), bits, group_size, lambda: groups, given.get("order"), minimums is not None)


def read_again(form: str, weight: GroupedWeight) -> Any:
    """The weight that is read from what is written."""
    settings_ = WRITERS[form].settings({"layer": weight}, ["other"])
    return joined(mapped(WRITERS[form].stored("layer", weight)), {SECTION: settings_})["layer.weight"]


@settings(max_examples=examples(40))
@given(st.data())
def test_codes_are_read_again_to_the_bit(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(list(WRITERS)))
    bits, group_size = data.draw(st.sampled_from(BITS[form])), data.draw(st.sampled_from([32, 64, 128]))
    inputs = group_size * data.draw(st.integers(1, 3))
    rows = 32 * data.draw(st.integers(1, 3)) if form.startswith("gptq") else 8 * data.draw(st.integers(1, 9))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    shape = rows, inputs // group_size
    given_: dict[str, Any] = {}
    if data.draw(st.booleans()):
        given_["zeros"] = random.integers(form == "gptq", 2**bits, shape, np.uint8)
    if form != "awq" and data.draw(st.booleans()):  # as readers make it: ascending within each group
        index = random.permutation(np.arange(inputs) // group_size)
        given_["order"] = np.argsort(index, kind="stable")
    if form == "compressed-tensors":
        given_["scales"] = random.standard_normal(shape).astype(np.float32)
    weight = weight_of(bits, rows, inputs, group_size, int(random.integers(99)), **given_)
    found, expected = read_again(form, weight), weight.read()
    assert (found.shape, found.bits, found.group_size) == (weight.shape, bits, group_size)
    for one, other in zip(found.read(), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    orders = (np.arange(inputs) if each.order is None else each.order for each in (found, weight))
    np.testing.assert_array_equal(*orders)
    np.testing.assert_array_equal(found.tensor.numpy(), weight.tensor.numpy())


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_parts_equal_what_the_tools_of_the_format_write(form: str, symmetric: bool) -> None:
    for bits in BITS[form]:
        each = quantized(random_weight(64, 128), bits, 64, symmetric)
        named = {"version": form} if form.startswith("gptq") else {}
        expected = PACKED["gptq" if named else form](each, **named)
        zeros, scales = each.zeros.astype(np.uint8), each.scales.astype(np.float32)
        groups = Groups(pack(each.codes.astype(np.uint8), bits), scales, zeros)
        found = WRITERS[form].stored("layer", GroupedWeight((64, 128), bits, 64, lambda groups=groups: groups))  # type: ignore[misc]
        assert found.keys() == expected.keys()
        for part, array in expected.items():
            np.testing.assert_array_equal(found[part], array, part)


@pytest.mark.parametrize("form", WRITERS)
def test_what_a_format_lacks_is_refused_by_name(form: str) -> None:
    halves = np.ones((32, 2), np.float32)
    refused = [({"minimums": halves}, "minimums"), ({"zeros": np.full((32, 2), 16, np.uint8)}, "zero point of 16")]
    if form != "compressed-tensors":
        refused.append(({"scales": halves / 3}, "64 of 64 scales change in float16"))
    if form == "gptq":
        refused.append(({"zeros": np.zeros((32, 2), np.uint8)}, "gptq_v2"))
    if form == "awq":
        refused += [({"order": np.arange(64)[::-1]}, "desc_act"), ({"rows": 12, "scales": halves[:12]}, "12 outputs")]
        refused.append(({"bits": 3}, "3 bits, and AWQ has 4"))
    if form.startswith("gptq"):
        refused.append(({"rows": 12, "scales": halves[:12]}, "12 outputs"))
    for given_, reason in refused:
        with pytest.raises(SourceError, match=rf"^layer: .*{reason}"):
            WRITERS[form].stored("layer", weight_of(**given_))
    levels = np.arange(16, dtype=np.float32) ** 2
    with pytest.raises(SourceError, match=r"^layer: its codes stand for levels, such as those of FP8.* equal steps"):
        WRITERS[form].stored("layer", replace(weight_of(), levels=levels))


@pytest.mark.parametrize("form", ["gptq", "gptq_v2", "awq"])
def test_one_group_size_is_stated_for_all(form: str) -> None:
    whole = {"a": weight_of(inputs=64, group_size=64), "b": weight_of(inputs=128, group_size=128)}
    assert WRITERS[form].settings(whole, [])["group_size"] == -1
    one_group = {"a": weight_of(inputs=64, group_size=64), "b": weight_of(inputs=128, group_size=64)}
    assert WRITERS[form].settings(one_group, [])["group_size"] == 64
    with pytest.raises(SourceError, match=r"^b: 4 bits in groups of 64, and a has 4 bits in groups of 32"):
        WRITERS[form].settings({"a": weight_of(), "b": weight_of(inputs=128, group_size=64)}, [])


def test_compressed_tensors_lists_the_layers_of_each_scheme() -> None:
    zeros = np.zeros((32, 2), np.uint8)
    weights = {"a": weight_of(), "b": weight_of(8), "c": weight_of(zeros=zeros), "d": weight_of(group_size=64)}
    found = WRITERS["compressed-tensors"].settings(weights, ["lm_head"])
    groups = [(each["targets"], each["weights"]) for each in found["config_groups"].values()]
    assert [names for names, _ in groups] == [["a"], ["b"], ["c"], ["d"]]
    assert [each["num_bits"] for _, each in groups] == [4, 8, 4, 4]
    assert [each["symmetric"] for _, each in groups] == [True, True, False, True]
    assert groups[3][1]["strategy"] == "channel" and found["ignore"] == ["lm_head"]
    assert WRITERS["compressed-tensors"].settings({"a": weight_of()}, [])["config_groups"]["group_0"]["targets"] == [
        "Linear"
    ]


def test_a_head_with_codes_is_refused_for_awq() -> None:
    with pytest.raises(SourceError, match=r"^lm_head: quantised"):
        awq.settings({"lm_head": weight_of()}, [])


def test_layers_in_floating_point_are_named() -> None:
    left = WRITERS["gptq"].settings({"a": weight_of()}, ["model.layers.0.mlp.gate", "lm_head"])
    assert list(left["dynamic"]) == [r"-:^model\.layers\.0\.mlp\.gate$"] and left["lm_head"] is False
    assert WRITERS["awq"].settings({"a": weight_of()}, ["lm_head"])["modules_to_not_convert"] == ["lm_head"]
