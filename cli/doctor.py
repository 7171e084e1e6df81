"""`intaglio doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.cli.printing.results import json_option, print_json, print_table, say, size, style
from intaglio.cli.running.command import verb

if TYPE_CHECKING:
    from intaglio.validation.doctor.doctor import Doctor

SHOWN = 7  # missing packages of an extra
EPILOG = """\b
Examples:
  intaglio doctor
  intaglio doctor --json > report.json
"""


@verb("doctor", epilog=EPILOG)
@json_option
def doctor_command(as_json: bool) -> int:
    """Show what is installed and what this machine offers, and find what is broken.

    It lists packages, extras, the kernels for this processor, GPUs and caches. The exit code is 1 if something is
    broken. Paths begin with ~ instead of your home directory, so that the output can be sent with a report of a fault.
    """
    return examine(as_json)


def examine(as_json: bool = False) -> int:
    """Print the findings; return the exit code."""
    from intaglio.validation.doctor.doctor import doctor

    found = doctor()
    if as_json:
        print_json(found)
    else:
        _show(found)
    return 0 if found.healthy else 1


def _show(found: Doctor) -> None:
    kernels, gpus = found.kernels, found.gpus
    sets = ", ".join(kernels.instruction_sets)
    facts = [
        ("intaglio", f"{found.version}, {found.location}"),
        ("python", found.system.python),
        ("system", found.system.system),
        ("processor", f"{found.system.processor}, {found.system.processors} usable, {size(found.system.memory_bytes)}"),
        ("CPU kernels", kernels.library or "none"),
        ("instruction set", f"{kernels.chosen} of {sets}" if kernels.chosen else "none"),
        ("micro-kernels", f"{len(kernels.micro_kernels)} for {kernels.processor}: {kernels.table}"),
        ("NVIDIA driver", f"{gpus.driver or 'of unknown version'}, CUDA {gpus.cuda}" if gpus.cuda else "none"),
        *(("GPU", device) for device in gpus.devices),
        *(("cache", f"{each.path}, {size(each.bytes)}") for each in found.caches),
        *((name, value) for name, value in found.system.environment.items()),
    ]
    print_table("Installation", ["", ""], facts)
    packages = [(each.name, each.version, each.required) for each in found.packages]
    print_table("Packages", ["package", "version", "required"], packages)
    extras = [(each.name, each.purpose, not each.missing, _some(each.missing)) for each in found.extras]
    print_table("Extras", ["extra", "for", "installed", "missing"], extras, may_drop=["missing"])
    for line in found.notices:
        say(f"notice: {line}")
    for line in found.problems:
        say(style(f"broken: {line}", fg="red"))
    if found.healthy:
        say(style("Nothing is broken.", fg="green"))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
