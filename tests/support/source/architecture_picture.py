"""Draw the house from its imports: python tests/support/source/architecture_picture.py > docs/pictures/architecture.svg

A floor is a layer of stages; what stands higher may import what stands lower. The rooms of a stage are its folders, in
an order in which each imports only those before it, where there is one.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from import_graph import PACKAGE, STAGES, ImportGraph

from intaglio.display.charts import bar, svg, text
from intaglio.display.markup import Markup

ROOT = Path(__file__).parents[3]
WIDTH, GAP, LINE, TITLE = 960, 12, 17, 24
CHARACTER = 7.2  # pixels of the rooms' font


def stages_imported(graph: ImportGraph) -> dict[str, set[str]]:
    """Stage -> the other stages that its files import, the shared part left out."""
    found: dict[str, set[str]] = {stage: set() for stage in (PACKAGE, *STAGES)}
    for name, modules in graph.edges().items():
        stage = graph.files[name].parts[0]
        found[stage] |= {graph.files[module].parts[0] for module in modules} - {stage}
    return found


def rooms_imported(graph: ImportGraph, stage: str) -> dict[str, set[str]]:
    """Room -> the other rooms of the same stage that its files import; files beside the rooms are left out."""
    inside = {name: path.parts for name, path in graph.files.items() if path.parts[0] == stage}
    rooms = {name: parts[1] for name, parts in inside.items() if len(parts) > 2}
    found: dict[str, set[str]] = {room: set() for room in rooms.values()}
    for name, modules in graph.edges().items():
        if name in rooms:
            found[rooms[name]] |= {rooms[module] for module in modules if module in rooms} - {rooms[name]}
    return found


def ordered(imported: Mapping[str, set[str]]) -> list[str]:
    """The rooms, each after those that it imports; by name where there is no such order."""
    try:
        return list(TopologicalSorter({room: sorted(imported[room]) for room in sorted(imported)}).static_order())
    except CycleError:
        return sorted(imported)


def floors(imported: Mapping[str, set[str]]) -> list[list[str]]:
    """The stages by layer, the highest first: a stage stands on the highest one that it imports."""
    heights: dict[str, int] = {}
    for stage in TopologicalSorter({stage: imported[stage] - {PACKAGE} for stage in STAGES}).static_order():
        heights[stage] = 1 + max((heights[below] for below in imported[stage] - {PACKAGE}), default=0)
    heights[PACKAGE] = 0
    levels = sorted({*heights.values()}, reverse=True)
    return [sorted(stage for stage in heights if heights[stage] == level) for level in levels]


@cache
def imports(root: Path) -> ImportGraph:
    """The imports among all stages of the sources in `root`."""
    return ImportGraph(root, (PACKAGE, *STAGES))


def picture(root: Path = ROOT) -> str:
    """The SVG file."""
    graph = imports(root)
    # The façade and the verb that needs two stages import those above them when they are used.
    imported = {stage: set() if stage == PACKAGE else used for stage, used in stages_imported(graph).items()}
    parts: list[Markup] = []
    top = GAP
    for floor in floors(imported):
        width = (WIDTH - GAP * (len(floor) + 1)) / len(floor)
        texts = {}
        for stage in floor:
            rooms = " · ".join(ordered(rooms_imported(graph, stage)))
            below = [other for other in STAGES if other in imported[stage]]
            used = f"imports {', '.join(below)}" if below else ""
            wrap = int((width - 2 * GAP) / CHARACTER)
            texts[stage] = [*textwrap.wrap(rooms, wrap), *textwrap.wrap(used, wrap)]
        height = TITLE + LINE * max(map(len, texts.values())) + GAP
        for place, stage in enumerate(floor):
            x = GAP + place * (width + GAP)
            parts.append(bar("card", x, top, width, height))
            parts.append(text(x + GAP, top + 19, stage, "title"))
            parts += [text(x + GAP, top + 19 + LINE * row, line) for row, line in enumerate(texts[stage], 1)]
        top += height + GAP
    return svg("Layers of stages", WIDTH, top, parts, file=True)


if __name__ == "__main__":
    sys.stdout.write(picture())
