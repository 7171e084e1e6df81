"""`intaglio gpu-check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from intaglio.cli.options.choices import PATH
from intaglio.cli.printing.results import (
    force_option,
    json_option,
    number_of,
    print_json,
    print_table,
    say,
    size,
    verdict,
)  # fmt: skip
from intaglio.cli.running.command import OUTPUT, section, verb

if TYPE_CHECKING:
    from intaglio.validation.gpu_check.results import GpuCheck, KernelCheck

EPILOG = """\b
Examples:
  intaglio gpu-check
  intaglio gpu-check -o report.json
  intaglio gpu-check --report reports/
  intaglio gpu-check --bundle minilm-int8 --bundle lm-lut
"""


@verb("gpu-check", epilog=EPILOG)
@click.option(
    "--bundle",
    "bundles",
    multiple=True,
    type=PATH,
    help="Bundle to build for every target of this GPU, to compare with the CPU, and to time. Can be repeated.",
)
@section(OUTPUT)
@click.option("-o", "--output", type=PATH, help="Write the report to this JSON file.")
@click.option("--report", type=PATH, help="Directory for the JSON and HTML reports.")
@force_option
@json_option
def gpu_check_command(
    bundles: tuple[Path, ...], output: Path | None, report: Path | None, force: bool, as_json: bool
) -> int:
    """Check on this machine's GPU that every CUDA kernel computes what it should, and measure its time.

    Each operator runs in a process of its own, so that one that fails does not end the others. It takes at most 10
    minutes; bundles take as long as building and measuring them does. Exit code 1 if a kernel or a bundle fails.
    --report writes a JSON and an HTML report, and replaces those of before.
    """
    from intaglio.validation.gpu_check.gpu_check import gpu_check
    from intaglio.validation.gpu_check.report_page import REPORT, why_not

    result = gpu_check(output, force, report, bundles)
    if as_json:
        print_json(result)
        return 0 if result.passed else 1
    print_table(_title(result), ["operator", "form", "kernels", "cases", "seconds", "passed"], _rows(result))
    speeds = [
        (
            each.kernel,
            size(each.bytes),
            each.warm_us,
            each.cold_us,
            each.gigabytes_per_second,
            each.of_copy,
            each.of_cublas,
        )
        for part in result.kernels
        for each in part.speeds
    ]
    if speeds:
        columns = ["kernel", "bytes", "warm us", "cold us", "GB/s", "of a copy", "of cuBLAS"]
        print_table("Times, as PTX", columns, speeds, may_drop=["bytes", "warm us"])
    if result.bundles:
        rows = [
            (
                each.bundle,
                each.target,
                f"{each.throughput.unit} a second" if each.throughput else "",
                each.throughput.on_target if each.throughput else "",
                each.throughput.on_cpu if each.throughput else "",
                each.seconds,
                "" if each.passed is None else each.passed,
            )
            for each in result.bundles
        ]
        print_table("Bundles", ["bundle", "target", "unit", "on the GPU", "on the CPU", "seconds", "passed"], rows)
    for part in result.kernels:
        for line in _failures(part):
            say(line)
    for each in result.bundles:
        if not each.passed:
            say(f"{each.bundle} on {each.target}: {why_not(each)}")
    written = [path for path in (output, report and report / REPORT) if path is not None]
    say(verdict(result.passed) + (f". Report: {', '.join(map(str, written))}" if written else ""))
    return 0 if result.passed else 1


def _title(result: GpuCheck) -> str:
    machine = result.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items() if version)
    gpu = f"{machine.gpu}, sm_{machine.sm}, {size(machine.memory_bytes)}"
    return f"{gpu}, driver for CUDA {machine.driver_cuda}; {versions}"


def _rows(result: GpuCheck) -> list[tuple[object, ...]]:
    return [
        (part.operator, part.image, len(part.kernels), part.cases, part.seconds, part.passed) for part in result.kernels
    ]


def _failures(part: KernelCheck) -> list[str]:
    """The first failure of a part, and how many more there are."""
    if not part.failures:
        return []
    first, *others = part.failures
    more = f" ({number_of(len(others), 'failures')} more)" if others else ""
    where = f" in {first.case}" if first.case else ""
    return [f"{part.operator} as {part.image}: {first.kind}{where}: {first.message}{more}"]
