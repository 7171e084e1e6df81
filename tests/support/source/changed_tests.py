"""List the test files that the changed files reach, by the imports of the sources.

    python tests/support/source/changed_tests.py [BASE]

prints the test files that use a file changed since the commit BASE (default: where the branch left `main`), committed
or not, a line each. A test file uses what it imports, what that imports, and so on; the names that it mentions of a
package that imports them on first use; the fixtures that it names and what they use; and the verbs of the command line
that it quotes. A changed file that is no source counts for the sources of its folder and for the tests that name it;
one that every test depends on, such as pyproject.toml, counts for all of them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from import_graph import PACKAGE, STAGES, imports_of, reached

ROOT = Path(__file__).parents[3]
TOP_LEVEL = tuple(  # folders on the path of the tests
    tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]["pythonpath"]
)
EVERY_TEST = ("Makefile", "pyproject.toml", "constraints.txt", "setup.py", "MANIFEST.in")
KERNELS = {".cpp": "plugins/ort", ".h": "plugins/ort", ".cu": "plugins/cuda", ".cuh": "plugins/cuda"}


class Uses:
    """Which file uses which: paths below the root, and "conftest.py::name" for a fixture."""

    def __init__(self, root: Path, files: Iterable[str]):
        self.sources = {file: (root / file).read_text() for file in files if file.endswith(".py")}
        self.trees = {file: ast.parse(source) for file, source in self.sources.items()}
        self.modules = {_module(file): file for file in self.sources}
        self.lazy = {
            name: {each.name.rpartition(".")[2]: each.name for each in imports_of(self.trees[file])}
            for name, file in self.modules.items()
            if file.endswith("__init__.py") and "lazy_names(" in self.sources[file]
        }
        self.tests = sorted(file for file in self.sources if PurePath(file).name.startswith("test_"))
        self.fixtures = {file: _fixtures(tree) for file, tree in self.trees.items() if file.endswith("conftest.py")}
        self.uses = {file: self._imported(file, tree) for file, tree in self.trees.items()}
        for file, fixtures in self.fixtures.items():
            for name, (function, _) in fixtures.items():
                own = self._imported(file, function) | self._of_names(file, function)
                self.uses[f"{file}::{name}"] = own | self._fixtures_of(file, function)
        for test in self.tests:
            self.uses[test] |= self._fixtures_of(test, self.trees[test]) | self._verbs(test)

    def reached(self, changed: Iterable[str]) -> list[str]:
        """The test files that use one of `changed`; all of them for a file that every test depends on."""
        changed = set(changed)
        if changed & {*EVERY_TEST, "tests/conftest.py"}:
            return self.tests
        starts = {start for file in changed for start in self._starts(file)}
        named = {PurePath(file).name for file in changed if not file.endswith(".py")}
        return [
            test
            for test in self.tests
            if starts & {test, *reached(self.uses, test)} or any(name in self.sources[test] for name in named)
        ]

    def _starts(self, file: str) -> Iterator[str]:
        path = PurePath(file)
        if path.name == "conftest.py":
            yield from (test for test in self.tests if PurePath(test).is_relative_to(path.parent))
        elif path.suffix == ".py":
            yield file
        else:
            folders = {str(path.parent), KERNELS.get(path.suffix, str(path.parent))}
            yield from (source for source in self.sources if str(PurePath(source).parent) in folders)

    def _imported(self, file: str, tree: ast.AST) -> set[str]:
        """The files that the imports in `tree` load; of names imported on first use, those that it mentions."""
        if _module(file) in self.lazy:
            return set()
        found: set[str] = set()
        packages: dict[str, str] = {}  # local name -> a package that imports its names on first use
        for each in imports_of(tree):
            found |= self._files_of(each.name)
            if each.name in self.lazy:
                packages[each.name.rpartition(".")[2]] = each.name
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages:
                found |= self._files_of(f"{packages[node.value.id]}.{node.attr}")
        return found - {file}

    def _files_of(self, name: str) -> set[str]:
        """The file of the module `name`, or of the module that has it."""
        if name in self.modules:
            return {self.modules[name]}
        parent, _, last = name.rpartition(".")
        if last in self.lazy.get(parent, {}):
            return {self.modules[parent]} | self._files_of(self.lazy[parent][last])
        return self._files_of(parent) if parent else set()

    def _of_names(self, file: str, function: ast.AST) -> set[str]:
        """What `function` uses of the imports at the top of its file, itself or by another function of the file."""
        tops = {node.name: node for node in ast.iter_child_nodes(self.trees[file]) if isinstance(node, _DEFINITIONS)}
        imported = {each.name.rpartition(".")[2]: each.name for each in imports_of(self.trees[file])}
        found: set[str] = set()
        seen: set[str] = set()
        waiting = [function]
        while waiting:
            names = {node.id for node in ast.walk(waiting.pop()) if isinstance(node, ast.Name)} - seen
            seen |= names
            found |= {path for name in names & imported.keys() for path in self._files_of(imported[name])}
            waiting += [tops[name] for name in names & tops.keys()]
        return found

    def _fixtures_of(self, file: str, tree: ast.AST) -> set[str]:
        """The fixtures that functions in `tree` name as parameters, or that are used without being named."""
        named = {argument.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for argument in _all(node)}
        named |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and _is_text(node.value)}
        return {
            f"{conftest}::{name}"
            for conftest, fixtures in self.fixtures.items()
            if PurePath(file).is_relative_to(PurePath(conftest).parent)
            for name, (_, always) in fixtures.items()
            if name in named or (always and not file.endswith("conftest.py"))
        }

    def _verbs(self, test: str) -> set[str]:
        """The files of the verbs that a test quotes, if it runs the command line."""
        source = self.sources[test]
        if f"{PACKAGE}.cli" not in source and '"-m"' not in source:
            return set()
        quoted = {node.value for node in ast.walk(self.trees[test]) if isinstance(node, ast.Constant)}
        words = {word for text in quoted if isinstance(text, str) for word in text.replace("-", "_").split()[:2]}
        found = {f"cli/{word}.py" for word in words} & self.sources.keys()
        if "train" in words:
            found |= {file for file in self.sources if file.startswith("cli/train/")}
        return found


_DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)


def _module(file: str) -> str:
    """The name that a file is imported by."""
    parts = PurePath(file).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    if parts and parts[0] in STAGES:
        return ".".join((PACKAGE, *parts))
    folder = next((each for each in TOP_LEVEL if file.startswith(f"{each}/")), "")
    return ".".join(parts[len(PurePath(folder).parts) :])


def _fixtures(tree: ast.Module) -> dict[str, tuple[ast.AST, bool]]:
    """Fixture -> its function, and whether it is used without being named."""
    found = {}
    for node in ast.iter_child_nodes(tree):
        for decorator in getattr(node, "decorator_list", ()):
            text = ast.unparse(decorator)
            if "fixture" in text and isinstance(node, _DEFINITIONS):
                found[node.name] = (node, "autouse=True" in text)
    return found


def _all(node: ast.arguments) -> list[ast.arg]:
    return [*node.posonlyargs, *node.args, *node.kwonlyargs]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def main() -> None:
    """See the module's text."""
    base = sys.argv[1] if len(sys.argv) > 1 else _git("merge-base", "HEAD", "main")[0]
    untracked = _git("ls-files", "--others", "--exclude-standard")
    changed = {*_git("diff", "--name-only", base), *untracked}
    files = [file for file in {*_git("ls-files"), *untracked} if (ROOT / file).is_file()]
    uses = Uses(ROOT, files)
    found = uses.reached(changed)
    print(f"{len(changed)} files changed, {len(found)} of {len(uses.tests)} test files reached", file=sys.stderr)  # noqa: T201
    print("\n".join(found))  # noqa: T201


if __name__ == "__main__":
    main()
