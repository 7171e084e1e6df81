"""The clusters are optimal, and every value is assigned to the nearest."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kernel_backends import use_backend

from intaglio.errors import GraphError
from intaglio.plugins.native import clustering
from intaglio.plugins.native.clustering import Clusters, assign, cluster, reference

EXACT = 1e-11  # of the scatter: prefix sums are rounded to 53 bits

finite = st.floats(-1e4, 1e4, width=32)
positive = st.one_of(st.just(0.0), st.floats(2.0**-20, 2.0**10, width=32))


@pytest.fixture(params=["numpy", "portable", "avx2", "avx512"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use_backend(request.param, monkeypatch, clustering, "_library")
    return str(request.param)


def error(values: np.ndarray, weights: np.ndarray, centroids: np.ndarray) -> float:
    """Σ weight·(value - nearest centroid)², by comparing with all centroids."""
    distances = np.abs(values.astype(np.float64)[:, None] - centroids.astype(np.float64)).min(axis=1)
    return float(weights.astype(np.float64) @ distances**2)


def scatter(values: np.ndarray, weights: np.ndarray) -> float:
    if not weights.any():
        return 0.0
    mean = np.average(values.astype(np.float64), weights=weights.astype(np.float64))
    return float(weights.astype(np.float64) @ (values.astype(np.float64) - mean) ** 2)


def least_error(values: np.ndarray, weights: np.ndarray, count: int) -> float:
    """The error of the best partition of the sorted values into `count` pieces."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order].astype(np.float64), weights[order].astype(np.float64)
    errors = []
    for cuts in itertools.combinations_with_replacement(range(len(values) + 1), count - 1):
        pieces = zip([0, *cuts], [*cuts, len(values)], strict=True)
        errors.append(sum(scatter(values[slice(*piece)], weights[slice(*piece)]) for piece in pieces))
    return min(errors)


def one(values: np.ndarray, weights: np.ndarray, count: int) -> Clusters:
    made = cluster(values[None], weights[None], count)
    return Clusters(made.centroids[0], made.masses[0])


@settings(max_examples=examples(60))
@given(data=st.data(), count=st.integers(1, 4), length=st.integers(1, 9))
@pytest.mark.parametrize("exponent", [0, -20])
def test_clustering_is_optimal(exponent: int, data: st.DataObject, count: int, length: int) -> None:
    values = np.ldexp(data.draw(hnp.arrays(np.float32, length, elements=finite)), exponent)
    weights = data.draw(hnp.arrays(np.float32, length, elements=positive))
    used = weights if weights.any() else np.ones_like(weights)
    made = one(values, weights, count)
    half_step = max(2.0**-24 * float(np.abs(values).max()), 2.0**-150)  # of a centroid; below 2**-126 steps are equal
    rounding = EXACT * scatter(values, used) + float(used.sum()) * half_step**2
    assert error(values, used, made.centroids) <= least_error(values, used, count) * (1 + 1e-9) + 4 * rounding


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 16, 256])
def test_all_backends_agree(backend: str, count: int) -> None:
    for length in (1, 2, 7, 8, 9, 16, 17, 100, *([1000] if count < 256 else [])):
        check_cluster(length, count)


@pytest.mark.proof
def test_all_backends_agree_on_many_clusters_of_long_rows(backend: str) -> None:
    check_cluster(1000, 256)


def check_cluster(length: int, count: int) -> None:
    """Compare the backend with the reference on rows with zero weights and without."""
    random = np.random.default_rng(length * 1000 + count)
    values = random.standard_normal((3, length)).astype(np.float16).astype(np.float32)
    weights = (random.standard_normal((3, length)) ** 4).astype(np.float32)
    weights[1] = 0
    weights[2, ::2] = 0
    made = cluster(values, weights, count)
    indices = assign(values, made.centroids)
    for row in range(3):
        centroids, masses = reference.cluster(values[row], weights[row], count)
        np.testing.assert_allclose(made.centroids[row], centroids, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(made.masses[row], masses, rtol=1e-9)
        np.testing.assert_array_equal(indices[row], reference.assign(values[row], made.centroids[row]))


def test_each_value_is_assigned_to_its_nearest_centroid(backend: str) -> None:
    random = np.random.default_rng(5)
    values = random.standard_normal((2, 333)).astype(np.float32)
    centroids = np.sort(random.standard_normal((2, 7)).astype(np.float32), axis=1)
    values[:, :6] = (centroids[:, :-1] + centroids[:, 1:]) / 2  # the largest float below two
    chosen = np.take_along_axis(centroids, assign(values, centroids).astype(np.int64), axis=1)
    distances = np.abs(values[:, :, None].astype(np.float64) - centroids[:, None].astype(np.float64))
    np.testing.assert_array_equal(np.abs(values.astype(np.float64) - chosen), distances.min(axis=2))


def test_fewer_distinct_values_than_clusters_repeat_the_last_centroid(backend: str) -> None:
    values = np.array([[3, -1, 3, 3, -1, 0, -0.0]], np.float32)
    made = cluster(values, np.ones_like(values), 5)
    np.testing.assert_array_equal(made.centroids, [[-1, 0, 3, 3, 3]])
    np.testing.assert_array_equal(made.masses, [[2, 2, 3, 0, 0]])


def test_values_of_zero_weight_do_not_move_centroids(backend: str) -> None:
    values = np.array([[-1, 1, 1000]], np.float32)
    made = cluster(values, np.array([[1, 1, 0]], np.float32), 2)
    np.testing.assert_array_equal(made.centroids, [[-1, 1]])


def test_row_of_zero_weights_counts_as_unweighted(backend: str) -> None:
    values = np.array([[0, 1, 10, 11]], np.float32)
    made = cluster(values, np.zeros_like(values), 2)
    np.testing.assert_array_equal(made.centroids, [[0.5, 10.5]])
    np.testing.assert_array_equal(made.masses, [[2, 2]])


def test_weights_of_thirty_orders_of_magnitude_give_no_nan(backend: str) -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal((4, 500)).astype(np.float32)
    weights = (10.0 ** random.uniform(-30, 0, (4, 500))).astype(np.float32)
    made = cluster(values, weights, 16)
    assert np.isfinite(made.centroids).all()
    assert (np.diff(made.centroids) >= 0).all()


def test_nearly_equal_values_leave_no_cluster_empty(backend: str) -> None:
    close = 1000 + np.arange(40, dtype=np.float32)[None] * np.float32(2.0**-14)
    values = np.concatenate([close, -close], axis=1)
    made = cluster(values, np.ones_like(values), 60)
    assert np.isfinite(made.centroids).all()
    assert made.masses.min() >= 1
    assert (np.diff(made.centroids) > 0).all()


def test_large_offset_causes_no_cancellation(backend: str) -> None:
    random = np.random.default_rng(1)
    values = (4096 + random.standard_normal((1, 300))).astype(np.float32)
    weights = random.uniform(0.1, 1, (1, 300)).astype(np.float32)
    centred = (values - 4096).astype(np.float32)
    far, near = cluster(values, weights, 8), cluster(centred, weights, 8)
    np.testing.assert_allclose(far.centroids - 4096, near.centroids, atol=5e-4)


def test_result_is_independent_of_the_number_of_threads() -> None:
    random = np.random.default_rng(2)
    values = random.standard_normal((50, 64)).astype(np.float32)
    weights = random.random((50, 64), np.float32)
    made = [cluster(values, weights, 8, threads=threads).centroids for threads in (1, 5)]
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["values", "weights"])
def test_non_finite_values_are_refused(bad: float, where: str) -> None:
    arrays = {"values": np.ones((2, 3), np.float32), "weights": np.ones((2, 3), np.float32)}
    arrays[where][1, 1] = bad
    with pytest.raises(GraphError, match=r"NaN or infinity .* expected finite"):
        cluster(**arrays, count=2)


def test_negative_weights_and_wrong_shapes_are_refused() -> None:
    values = np.ones((2, 3), np.float32)
    with pytest.raises(GraphError, match="a weight of -1"):
        cluster(values, -values, 2)
    for weights, count in ((values[:1], 2), (values, 0), (values, 257)):
        with pytest.raises(GraphError, match="expected two equal matrices"):
            cluster(values, weights, count)


def test_too_many_centroids_and_unequal_rows_are_refused() -> None:
    """The kernel has space for 256 centroids, and reads the same number of rows of both."""
    values = np.ones((2, 3), np.float32)
    for shape in ((2, 257), (2, 0), (1, 4), (4,)):
        with pytest.raises(GraphError, match="1 to 256 centroids"):
            assign(values, np.zeros(shape, np.float32))


@pytest.mark.parametrize("count", [4, 8, 16])
def test_error_never_exceeds_scikit_learn(count: int) -> None:
    sklearn = pytest.importorskip("sklearn.cluster")
    random = np.random.default_rng(3)
    for _ in range(10):
        values = random.standard_t(4, 512).astype(np.float32)
        weights = (random.standard_normal(512) ** 4).astype(np.float32)
        theirs = sklearn.KMeans(count, random_state=0, n_init="auto", max_iter=50)
        theirs.fit(values[:, None], sample_weight=weights)
        ours = error(values, weights, one(values, weights, count).centroids)
        assert ours <= error(values, weights, theirs.cluster_centers_.reshape(-1)) * (1 + 1e-6)
