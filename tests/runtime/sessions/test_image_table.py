"""Images by the ids of their tokens: never shared by two images, and the same for one."""

from __future__ import annotations

import numpy as np
import pytest

from intaglio.errors import EngineError, UsageError
from intaglio.runtime.sessions import image_table
from intaglio.runtime.sessions.image_table import ImageTable

VOCABULARY, WIDTH = 100, 4


def rows(number: int, tokens: int = 3) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.full((tokens, WIDTH), number, np.float32) + np.arange(tokens, dtype=np.float32)[:, None] / 10


def test_ids_are_of_one_image_alone_and_beyond_the_vocabulary() -> None:
    table = ImageTable(VOCABULARY, WIDTH)
    first, other = table.add(b"a", rows(1)), table.add(b"b", rows(2))
    assert min(first.ids) >= VOCABULARY and not set(first.ids) & set(other.ids)
    assert table.find(b"a") is first and table.add(b"a", rows(1)) is first
    assert table.find(b"c") is None


def test_step_takes_the_rows_of_its_image_tokens_in_order() -> None:
    table = ImageTable(VOCABULARY, WIDTH)
    first, other = table.add(b"a", rows(1)), table.add(b"b", rows(2))
    placed, embeddings = table.place([[7, *first.ids[:2], 8], [], [other.ids[2], 9, first.ids[0]]])
    assert placed == [[7, 100, 101, 8], [], [102, 9, 103]]
    np.testing.assert_array_equal(embeddings, np.stack([*rows(1)[:2], rows(2)[2], rows(1)[0]]))
    assert table.place([[7, 8], []]) == ([[7, 8], []], table.none) and table.none.shape == (1, WIDTH)


def test_table_of_a_graph_without_images_changes_nothing() -> None:
    table = ImageTable(VOCABULARY, 0)
    tokens = [[VOCABULARY + 1]]  # which the session refuses
    assert table.place(tokens)[0] is tokens and table.none.shape == (0, 0)


@pytest.mark.parametrize("beyond", [0, 3, 5 << 20])
def test_id_of_no_image_is_refused(beyond: int) -> None:
    table = ImageTable(VOCABULARY, WIDTH)
    if beyond:
        held = table.add(b"a", rows(1))
        assert beyond not in held.ids
    with pytest.raises(UsageError, match=rf"token id {VOCABULARY + beyond}: expected 0 to 99, or the id of an image"):
        table.place([[VOCABULARY + beyond]])


@pytest.mark.parametrize("shape", [(3, WIDTH + 1), (0, WIDTH)])
def test_embeddings_of_another_shape_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(EngineError, match=r"image embeddings \[\d, \d\]: expected \[tokens, 4\]"):
        ImageTable(VOCABULARY, WIDTH).add(b"a", np.zeros(shape, np.float32))


def test_released_image_keeps_its_ids_and_frees_its_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys and values may still be in a cache."""
    monkeypatch.setattr(image_table, "KEPT_BYTES", 3 * WIDTH * 4)  # one image
    table = ImageTable(VOCABULARY, WIDTH)
    ids = table.add(b"a", rows(1)).ids
    assert table.find(b"a") is not None
    table.add(b"b", rows(2))
    assert table.find(b"a") is None
    assert table.add(b"a", rows(1)).ids == ids


def test_image_forgotten_for_too_many_others_gets_new_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_table, "KNOWN", 2)
    table = ImageTable(VOCABULARY, WIDTH)
    held = [table.add(bytes([number]), rows(number)) for number in range(3)]
    assert table.find(b"\0") is None and table.find(b"\1") is held[1]
    again = table.add(b"\0", rows(0))
    assert not any(set(again.ids) & set(each.ids) for each in held)
