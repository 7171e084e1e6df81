"""C++ text that is written line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class SourceWriter:
    """Lines of C++, indented by blocks."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def __call__(self, line: str) -> None:
        """Add a line."""
        self._lines.append("    " * self._depth + line if line else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """A block `head {...}`."""
        self(f"{head} {{".lstrip())
        self._depth += 1
        yield
        self._depth -= 1
        self("}")

    def text(self) -> str:
        """All lines so far."""
        return "\n".join(self._lines) + "\n"


def plus(pointer: str, offset: int) -> str:
    """C++ of `pointer + offset`."""
    return pointer if offset == 0 else f"{pointer} + {offset}"


class RowPointers:
    """A pointer for each plane of each row of x, which all move on together."""

    def __init__(self, emit: SourceWriter, rows: range, planes: range, kind: str) -> None:
        self._emit, self._rows, self._planes = emit, rows, planes
        for row in rows:
            for plane in planes:
                start = "s.digits" if kind == "int8_t" else "s.x"
                start += f" + {row} * s.x_stride" if row else ""
                start += f" + {plane} * s.plane_stride" if plane else ""
                emit(f"const {kind}* {self.at(row, plane)} = {start};")

    def at(self, row: int, plane: int, offset: int = 0) -> str:
        """C++ of an address `offset` values on."""
        name = f"row{row}_plane{plane}" if len(self._planes) > 1 else f"row{row}"
        return plus(name, offset)

    def advance(self, values: int) -> None:
        """Move on."""
        for row in self._rows:
            for plane in self._planes:
                self._emit(f"{self.at(row, plane)} += {values};")
