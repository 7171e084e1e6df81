"""Launches of one node that TensorRT chooses from by measuring them."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from operator_cases import Case
from plugin_cases import case_of, check, created, fields_for, given_to, with_rows
from plugin_library import PluginLibrary

from intaglio.plugins.cuda.packed_weights.geometry import STEP


def takes_few(case: Case) -> bool:
    """Whether a product has blocks of few rows."""
    x = case.inputs[0]
    assert x is not None
    return x.dtype == np.int8 or (x.dtype == np.float16 and x.shape[-1] % STEP == 0)


@pytest.mark.parametrize("operator", ["LutMatMul", "GroupMatMul", "IntLinear"])
def test_tactics_make_other_blocks_and_the_same_product(
    plugins: PluginLibrary, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, operator: str
) -> None:
    """With as many rows as lie between their limits; the default is TensorRT's tactic 0, and our first."""
    for module in ("cuda.packed_weights.geometry", "int_linear.launch"):  # ours are too many for the emulator
        monkeypatch.setattr(f"intaglio.plugins.{module}.limits_around", lambda limit: iter((64, 8)))
    cases = (case_of(operator, seed) for seed in range(999))
    case = next(each for each in cases if each.inputs[0].ndim == 2 and takes_few(each))
    x, *others = case.inputs
    assert x is not None
    plugin = created(plugins, fields_for(case))
    assert plugin.tactics() == [1, 2, 3]
    sizes = set()
    for rows in (4, 20, 100):
        longer = Case(operator, (np.resize(x, (rows, x.shape[1])), *others), case.attributes)
        for tactic in (0, 1, 3, 2):
            assert plugin.set_tactic(tactic)
            check(longer, plugin.run(given_to(longer)))
            sizes.add((rows, driver.sizes[-1]))
    assert len(sizes) > 3  # both shapes of blocks for some of the rows, even where two make as many blocks


def test_tactic_goes_with_clones_and_one_that_is_none_is_refused(
    plugins: PluginLibrary, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intaglio.plugins.int_linear.launch.limits_around", lambda limit: iter((64, 8)))
    case = with_rows("IntLinear", 100)
    plugin = created(plugins, fields_for(case))
    given, made = given_to(case), []
    for tactic in (1, 3):
        assert plugin.set_tactic(tactic)
        for each in (plugin, plugin.clone(), plugin.attach()):
            assert each is not None
            check(case, each.run(given))
            made.append(driver.sizes[-1])
    assert len(set(made[:3])) == len(set(made[3:])) == 1 and made[0] != made[3]
    for wrong in (4, -1):
        assert not plugin.set_tactic(wrong)
        assert f"tactic {wrong}: there is none" in plugins.logged()
    assert created(plugins, fields_for(case_of("IntGelu"))).tactics() == []


def test_alternatives_for_other_inputs_are_refused(plugins: PluginLibrary) -> None:
    fields, other = fields_for(case_of("IntGelu")), fields_for(case_of("IntAdd"))
    fields["launch"] = fields["launch"].rstrip(b"\0") + b" | " + other["launch"]
    assert plugins.create(fields) is None
    assert "launch: " in plugins.logged()
