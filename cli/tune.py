"""`intaglio tune`."""

from __future__ import annotations

import click

from intaglio.cli.printing.results import json_option, print_json, print_table, say
from intaglio.cli.running.command import verb
from intaglio.plugins.group_matmul.signature import LARGEST_GROUP

EPILOG = """\b
Examples:
  intaglio tune
  intaglio tune --quick --json
  INTAGLIO_ISA=avx2 intaglio tune
"""


@verb("tune", epilog=EPILOG)
@click.option("--quick", is_flag=True, help="Measure one small shape a few times: takes seconds, but is less reliable.")
@json_option
def tune_command(quick: bool, as_json: bool) -> None:
    """Measure the CPU kernels for compressed weights on this machine, and store which ones are fastest.

    Models that run on this machine afterwards use them. The table is in the cache directory; delete it to return to the
    defaults.
    """
    from intaglio.plugins.micro_kernels.tune import tune

    found = tune(quick)
    if as_json:
        print_json(found)
        return
    columns = [
        "operator", "bits", "bytes of x", "rows of x", "default", "default Gproducts/s", "best", "best Gproducts/s",
        "gain", "prefetch",
    ]  # fmt: skip
    rows = [
        (
            case.operator, case.bits, case.planes or "float32", case.rows, _steps(case.default), case.default_speed,
            _steps(case.best), case.best_speed, f"{case.best_speed / case.default_speed - 1:.0%}",
            _prefetch(case.prefetch),
        )
        for case in found.cases
    ]  # fmt: skip
    print_table(
        f"Micro-kernels for {found.instruction_set} on {found.cpu}",
        columns,
        rows,
        may_drop=["default Gproducts/s", "default", "gain", "bytes of x", "rows of x"],
    )
    say(f"stored in {found.table}")


def _prefetch(largest: int) -> str:
    return "no" if largest == 0 else "yes" if largest == LARGEST_GROUP else f"groups ≤{largest}"


def _steps(pair: tuple[int, int]) -> str:
    return f"m_u={pair[0]} t_u={pair[1]}"
