"""The tests that a changed file affects: by imports, deferred imports, fixtures and verbs."""

from __future__ import annotations

from pathlib import Path

import pytest
from changed_tests import Uses

FILES = {
    "intaglio/__init__.py": (
        "from intaglio.lazy_names import lazy_names\n"
        "if TYPE_CHECKING:\n"
        "    from intaglio.runtime.run import run\n    from intaglio.exporters.export import export\n"
        '__getattr__ = lazy_names(__name__, {"run": "", "export": ""})\n'
    ),
    "intaglio/lazy_names.py": "",
    "cli/export.py": "from intaglio.exporters.export import export\n",
    "runtime/run.py": "from intaglio.plugins.gelu import gelu\n",
    "exporters/export.py": "def export():\n    from intaglio.exporters.trace import trace\n",
    "exporters/trace.py": "",
    "plugins/gelu.py": "",
    "plugins/gelu.cpp": "",
    "tests/support/models.py": "from intaglio.exporters.trace import trace\n",
    "tests/conftest.py": (
        "import pytest\nfrom models import model\nfrom intaglio.plugins import gelu\n"
        "def make():\n    return model()\n"
        "@pytest.fixture\ndef small():\n    return make()\n@pytest.fixture\ndef other(small):\n    return gelu\n"
    ),
    "tests/test_runs.py": "import intaglio\ndef test_it():\n    intaglio.run()\n",
    "tests/test_exports.py": "from intaglio import export\n",
    "tests/test_fixture.py": "def test_it(small): ...\n",
    "tests/test_fixture_of_fixture.py": "def test_it(other): ...\n",
    "tests/test_verb.py": 'from intaglio.cli import main\nmain(["export"])\n',
    "tests/test_page.py": 'PAGE = "page.md"\n',
    "docs/page.md": "",
    "pyproject.toml": "",
}
REACHED = {
    "plugins/gelu.py": {"runs", "fixture_of_fixture"},
    "plugins/gelu.cpp": {"runs", "fixture_of_fixture"},
    "exporters/trace.py": {"exports", "fixture", "fixture_of_fixture", "verb"},
    "runtime/run.py": {"runs"},
    "cli/export.py": {"verb"},
    "tests/support/models.py": {"fixture", "fixture_of_fixture"},
    "tests/test_page.py": {"page"},
    "docs/page.md": {"page"},
    "pyproject.toml": {"runs", "exports", "fixture", "fixture_of_fixture", "verb", "page"},
}


@pytest.mark.parametrize("changed", REACHED)
def test_changed_file_selects_its_tests(changed: str, tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    found = Uses(tmp_path, FILES).reached([changed])
    assert set(found) == {f"tests/test_{name}.py" for name in REACHED[changed]}
