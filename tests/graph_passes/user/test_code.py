"""User functions are found only beside their recipe, and errors in them print one line."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from intaglio.errors import GraphError, UsageError
from intaglio.graph_passes.recipes.loading import load_recipe
from intaglio.graph_passes.user.code import UserCode
from intaglio.graph_passes.user.surgeon import Surgeon

DOUBLE = "def double(number):\n    return 2 * number\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipe").mkdir()
    return tmp_path / "recipe"


def test_module_beside_the_recipe_takes_precedence(folder: Path) -> None:
    (folder / "json.py").write_text(DOUBLE)
    found = UserCode(folder).function("json:double")
    assert (found(4), found.file) == (8, folder / "json.py")
    assert found.sha256 == hashlib.sha256(DOUBLE.encode()).hexdigest()
    import json

    assert json.loads("1") == 1 and sys.modules["json"] is json, "the recipe's module took another's place"
    assert [path.name for path in folder.iterdir()] == ["json.py"], "a compiled copy was left beside the recipe"


def test_modules_in_subfolders_and_on_the_python_path_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "more.py").write_text(DOUBLE)
    assert UserCode(folder).function("below.more:double")(3) == 6
    (folder.parent / "on_the_path_of_a_test.py").write_text(DOUBLE)
    with pytest.raises(UsageError, match=r"no module on_the_path_of_a_test on the Python path\. Put it there"):
        UserCode(folder).function("on_the_path_of_a_test:double")
    monkeypatch.syspath_prepend(folder.parent)
    found = UserCode(folder).function("on_the_path_of_a_test:double")
    assert (found(5), found.sha256) == (10, hashlib.sha256(DOUBLE.encode()).hexdigest())


def test_module_is_executed_once(folder: Path) -> None:
    (folder / "counting.py").write_text(
        "from pathlib import Path\nruns = Path(__file__).with_suffix('.txt')\n"
        "runs.write_text(runs.read_text() + 'x' if runs.exists() else 'x')\n"
        "def one(x): return x\ndef two(x): return x\n"
    )
    code = UserCode(folder)
    for name in ("counting:one", "counting:two", "counting:one"):
        code.function(name)
    assert (folder / "counting.txt").read_text() == "x"


@pytest.mark.parametrize(
    "name",
    [
        "..up:double",
        "../up:double",
        "/up:double",
        "up",
        "up:",
        ":double",
        "a.b",
        "up:double()",
        "a b:c",
        "if:double",
    ],
)
def test_invalid_function_names_are_refused_in_the_recipe(folder: Path, name: str) -> None:
    (folder / "recipe.yaml").write_text(f"passes: [{{surgeon: '{name}'}}]")
    with pytest.raises(GraphError, match="expected module:function, such as my_changes:rewrite") as raised:
        load_recipe(folder / "recipe.yaml")
    assert "\n" not in str(raised.value)


def test_link_out_of_the_recipe_folder_is_refused(folder: Path) -> None:
    (folder.parent / "outside.py").write_text(DOUBLE)
    (folder / "linked.py").symlink_to(folder.parent / "outside.py")
    with pytest.raises(UsageError, match=r"linked:double: .* leads to .*outside\.py, expected a file in the recipe's"):
        UserCode(folder).function("linked:double")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(x):\n    y = 1\n    return y // 0\n", "own:f: ZeroDivisionError in line 3 of own.py: "),
        ("import sys\ndef f(x):\n    sys.exit(3)\n", "own:f: SystemExit in line 3 of own.py: 3. Fix the function."),
        ("def f(x):\n    import json\n    json.loads('[')\n", "own:f: JSONDecodeError in line 3 of own.py: "),
        ("def f(x):\n    raise ValueError('two\\nlines')\n", "ValueError in line 2 of own.py: two lines. Fix the func"),
        ("def f(x):\n    raise ValueError\n", "own:f: ValueError in line 2 of own.py. Fix the function."),
        ("x = 1\nraise KeyError('k')\n", "own:f: KeyError in line 2 of own.py: 'k'. Fix the function."),
        ("def f(x):\n    return (\n", "own:f: SyntaxError in line 2 of own.py: "),
        ("import not_there_at_all\n", "own:f: ModuleNotFoundError in line 1 of own.py: No module named"),
        ("def g(x): pass\n", "has no function f. Correct the name in the recipe."),
        ("f = 3\n", "has no function f. Correct the name in the recipe."),
    ],
)
def test_error_in_user_code_prints_one_line_with_its_location(folder: Path, source: str, message: str) -> None:
    (folder / "own.py").write_text(source)
    with pytest.raises(UsageError) as raised:
        UserCode(folder).function("own:f")(1)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["sys:exit", "math:floor"])
def test_module_without_source_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"has no source file to record"):
        UserCode(folder).function(name)


def test_prints_of_user_code_do_not_reach_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.py").write_text("print('loaded')\ndef f(x):\n    print('called')\n")
    UserCode(folder).function("own:f")(1)
    assert capsys.readouterr() == ("", "loaded\ncalled\n")


def test_module_may_define_dataclasses(folder: Path) -> None:
    source = "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
    source += "@dataclass\nclass A:\n    kept: ClassVar[int] = 2\n    x: int = 1\ndef f(y):\n    return A(y)\n"
    (folder / "own.py").write_text(source)
    assert UserCode(folder).function("own:f")(3).x == 3


def test_recipe_names_a_function_with_or_without_its_effect(folder: Path) -> None:
    from intaglio.bundle.effect import Effect

    path = folder / "recipe.yaml"
    path.write_text("passes: [{surgeon: own:f}, {surgeon: {function: own:f, effect: float16}}]")
    assert load_recipe(path)[1] == [Surgeon("own:f"), Surgeon("own:f", Effect.FLOAT16)]
    path.write_text("passes: [{surgeon: {function: own:f, effect: none}}]")
    with pytest.raises(GraphError, match=r"`effect`\. Expected one of: exact, float16, weights-8, .*, replaced\."):
        load_recipe(path)
    path.write_text("passes: [surgeon]")
    with pytest.raises(GraphError, match=r"pass 1: surgeon: .*missing required field `function`"):
        load_recipe(path)
