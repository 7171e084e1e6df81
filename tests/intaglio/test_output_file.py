"""An output file that cannot or must not be created is refused in one line before the work."""

from pathlib import Path

import pytest

from intaglio.errors import UsageError
from intaglio.files.atomic import check_output_file


@pytest.mark.parametrize(
    ("name", "force", "message"),
    [
        ("there.svg", False, "exists already. Add --force"),
        ("none/new.svg", True, "does not exist. Create it first"),
        ("folder", True, "exists already and is not a file"),
    ],
)
def test_uncreatable_file_is_refused(name: str, force: bool, message: str, tmp_path: Path) -> None:
    (tmp_path / "there.svg").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=f"--picture .*{message}"):
        check_output_file(tmp_path / name, force, "--picture")


def test_creatable_file_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "there.svg").write_text("mine")
    check_output_file(tmp_path / "there.svg", True, "--picture")
    check_output_file(tmp_path / "new.svg", False, "--picture")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("there.svg", "mine")]
