import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.bundle.bundle import Audio, Axis, TensorSpec
from intaglio.errors import UsageError
from intaglio.runtime.engines.profiles import LARGEST, Range, default, limits, listening, parse, ranges, shapes

lengths = st.integers(1, LARGEST)
ordered = st.lists(lengths, min_size=3, max_size=3).map(lambda found: Range(*sorted(found)))
axis = st.builds(
    lambda minimum, more: Axis(minimum, None if more is None else max(minimum, 1) + more),
    st.integers(0, 5000),
    st.none() | st.integers(0, 100_000),
)


@given(ordered)
def test_min_opt_max_is_parsed(wanted: Range) -> None:
    assert parse(":".join(map(str, wanted)), "--batch") == wanted


@given(lengths)
def test_single_number_sets_all_three(length: int) -> None:
    assert parse(str(length), "--batch") == Range(length, length, length)


@given(st.lists(lengths, min_size=3, max_size=3).filter(lambda found: found != sorted(found)))
def test_lengths_out_of_order_are_rejected(found: list[int]) -> None:
    with pytest.raises(UsageError, match=r"^--sequence \d+:\d+:\d+: expected 0 < MIN <= OPT <= MAX"):
        parse(":".join(map(str, found)), "--sequence")


@given(st.text() | st.from_regex(r"-?\d{0,12}(:\d{0,12}){0,4}", fullmatch=True))
def test_any_text_is_a_valid_range_or_a_one_line_error(text: str) -> None:
    try:
        found = parse(text, "--batch")
    except UsageError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert 0 < found.minimum <= found.optimum <= found.maximum <= LARGEST


@pytest.mark.parametrize("text", ["", "0", "-1", "1:2", "1:2:3:4", "1:8:", "²", "1 :2:3", "9" * 5000, "0:1:2"])
def test_malformed_lengths_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="--batch"):
        parse(text, "--batch")


@given(st.sampled_from(["batch", "sequence", "capacity"]), axis)
def test_default_is_ordered_and_within_the_axis(name: str, found: Axis) -> None:
    lowest, best, highest = default(name, found)
    assert 1 <= lowest <= best <= highest
    assert lowest >= found.minimum
    assert found.maximum is None or highest <= found.maximum


def test_defaults_match_the_documentation() -> None:
    assert default("batch", Axis()) == (1, 8, 32)
    assert default("sequence", Axis(1, 8192)) == (1, 128, 8192)
    assert default("sequence", Axis()) == (1, 128, 512)
    assert default("sequence", Axis(1, 64)) == (1, 64, 64)


INPUTS = [TensorSpec("ids", "int64", ("batch", "sequence")), TensorSpec("past", "float16", ("batch", 4, "past", 64))]


def test_length_beyond_the_axis_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"axis sequence: got 1:128:513, but the model accepts 1 to 512\."):
        ranges(INPUTS, {"sequence": Axis(1, 512)}, {"sequence": Range(1, 128, 513)})
    with pytest.raises(UsageError, match=r"axis past: got 1:1:1, but the model accepts at least 2\."):
        ranges(INPUTS, {"past": Axis(2)}, {"past": Range(1, 1, 1)})


def test_unknown_axis_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"axis frames: the bundle's inputs have batch, sequence, past\."):
        ranges(INPUTS, {}, {"frames": Range(1, 1, 1)})


@given(st.fixed_dictionaries(dict.fromkeys(("batch", "sequence", "past"), ordered)))
def test_profile_returns_the_limits_of_every_axis(asked: dict[str, Range]) -> None:
    profile = shapes(INPUTS, ranges(INPUTS, {}, asked))
    assert profile["past"]["opt"] == [asked["batch"].optimum, 4, asked["past"].optimum, 64]
    assert limits(INPUTS, profile) == {name: Axis(found.minimum, found.maximum) for name, found in asked.items()}


def test_default_audio_profile_accepts_a_window_of_a_long_recording() -> None:
    axes = {"batch": Axis(), "samples": Axis(400)}
    found = listening(Audio(16000, 640), axes, {})
    assert found == {"batch": Range(1, 1, 8), "samples": Range(400, 160_000, 480_000)}
    asked = {"samples": Range(400, 800, 1600)}
    assert listening(Audio(16000, 640), axes, asked)["samples"] == asked["samples"]
    assert listening(Audio(16000, 640, features=80), {}, {})["feature_frames"] == Range(1, 1000, 3000)
