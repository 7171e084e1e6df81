"""The result of `gpu-check` as a page: the machine, both tables, and every failure."""

from __future__ import annotations

from intaglio.display.markup import Markup, fill, join
from intaglio.validation.gpu_check.results import BundleCheck, GpuCheck, Machine
from intaglio.validation.reports.page import cell, number, page, pairs, section, table

REPORT = "gpu-check.html"  # the file's name
NUMBERS = {
    "kernels",
    "cases",
    "seconds",
    "on the GPU",
    "on the CPU",
    "MB",
    "warm us",
    "cold us",
    "GB/s",
    "of a copy",
    "of cuBLAS",
}


def to_html(result: GpuCheck, written: str) -> str:
    """The page; `written`: when, as text."""
    machine, parts = result.machine, [*result.kernels, *result.bundles]
    passed = sum(each.passed for each in result.kernels) + sum(each.passed is not False for each in result.bundles)
    return page(
        "PASSED" if result.passed else "FAILED",
        title=f"gpu-check on {machine.gpu}",
        heading=f"CUDA kernels on {machine.gpu}",
        comparison="compared with their NumPy references",
        summary=f"{passed} of {len(parts)} passed · {result.seconds:.0f} seconds · {written}",
        sections=[
            _failures(result),
            _kernels(result),
            _bundles(result),
            _times(result),
            section("Machine", pairs(_machine(machine))),
        ],
    )


def _kernels(result: GpuCheck) -> Markup:
    rows = [
        [
            cell(each.operator, "code"),
            cell(each.image, ""),
            cell(str(len(each.kernels)), "number"),
            cell(str(each.cases), "number"),
            cell(f"{each.seconds:.1f}", "number"),
            cell("passed" if each.passed else "failed", "passed" if each.passed else "failed"),
        ]
        for each in result.kernels
    ]
    head = ["operator", "form", "kernels", "cases", "seconds", "verdict"]
    return section("Operators", table(head, rows, NUMBERS))


def _bundles(result: GpuCheck) -> Markup:
    rows = [
        [
            cell(each.bundle, "code"),
            cell(each.target, ""),
            cell("" if each.throughput is None else each.throughput.unit, ""),
            *map(number, (each.throughput.on_target, each.throughput.on_cpu) if each.throughput else ()),
            *([cell("–", "number")] * 2 if each.throughput is None else []),
            cell(f"{each.seconds:.1f}", "number"),
            cell(*_verdict(each)),
            cell(why_not(each), ""),
        ]
        for each in result.bundles
    ]
    head = ["bundle", "target", "a second", "on the GPU", "on the CPU", "seconds", "verdict", "why"]
    return section("Bundles", table(head, rows, NUMBERS)) if rows else Markup("")


def _verdict(bundle: BundleCheck) -> tuple[str, str]:
    """The text and the class of its cell."""
    if bundle.passed is None:
        return "not supported", ""
    return ("passed", "passed") if bundle.passed else ("failed", "failed")


def why_not(bundle: BundleCheck) -> str:
    """What failed of a bundle, or beyond which bounds it is; empty if it passed."""
    if bundle.failure is not None:
        return f"{bundle.failure.kind}: {bundle.failure.message}"
    if bundle.compared is None or bundle.compared.passed:
        return ""
    return "beyond the bounds: " + ", ".join(bundle.compared.beyond)


def _times(result: GpuCheck) -> Markup:
    rows = [
        [
            fill('<td class="code" title="$case">$kernel</td>', case=each.case, kernel=each.kernel),
            *map(number, (each.bytes / 1e6, each.warm_us, each.cold_us, each.gigabytes_per_second, each.of_copy)),
            cell("–", "number") if each.of_cublas is None else number(each.of_cublas),
        ]
        for part in result.kernels
        for each in part.speeds
    ]
    if not rows:
        return Markup("")
    head = ["kernel", "MB", "warm us", "cold us", "GB/s", "of a copy", "of cuBLAS"]
    note = (
        "Of PTX, in the case with the most bytes. Warm: the arrays stay in the L2 cache if they fit; cold: none is "
        "there. GB/s, and the ratios to a copy of as many bytes and to the product of cuBLAS, are of the cold time."
    )
    return section("Times", join([table(head, rows, NUMBERS), fill('<p class="soft">$note</p>', note=note)]))


def _failures(result: GpuCheck) -> Markup:
    rows = [
        [
            cell(part.operator, "code"),
            cell(part.image, ""),
            cell(each.kind, "failed"),
            cell(each.case, "code"),
            cell(each.message, ""),
        ]
        for part in result.kernels
        for each in part.failures
    ]
    head = ["operator", "form", "failure", "case", "message"]
    return section("Failures", table(head, rows, NUMBERS)) if rows else Markup("")


def _machine(machine: Machine) -> dict[str, str]:
    clocks = {"clock": machine.clock_mhz, "memory clock": machine.memory_clock_mhz}
    return {
        "GPU": machine.gpu,
        "compute capability": f"{machine.sm // 10}.{machine.sm % 10}",
        "memory": f"{machine.memory_bytes / 1e9:.1f} GB, {'with' if machine.ecc else 'without'} ECC",
        "multiprocessors": str(machine.multiprocessors),
        "L2 cache": f"{machine.cache_bytes / 1e6:.1f} MB",
        **{name: "unknown" if clock is None else f"{clock:g} MHz" for name, clock in clocks.items()},
        "driver": f"for CUDA {machine.driver_cuda}",
        **{name: version or "missing" for name, version in machine.versions.items()},
    }
