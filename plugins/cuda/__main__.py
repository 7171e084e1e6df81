"""Print the resource usage of every kernel on every GPU: registers and spills per thread, shared memory per block."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from intaglio.plugins.cuda.compiler import SMS, resources
from intaglio.plugins.cuda.launching.launches import kernel_folders


def main() -> None:
    """Compile everything and print one table."""
    table = Table("kernel", "sm", "registers", "spilled bytes", "stack bytes", "shared bytes", title="CUDA kernels")
    for folder in kernel_folders():
        for sm in SMS:
            for entry, used in resources(folder, sm).items():
                numbers = (used.registers, used.spilled_bytes, used.stack_bytes, used.shared_bytes)
                table.add_row(entry, str(sm), *map(str, numbers))
    Console(width=max(Console().width, 110)).print(table)  # so that names are not truncated, also in a file


if __name__ == "__main__":
    main()
