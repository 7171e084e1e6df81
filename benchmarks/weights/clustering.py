"""Is the exact weighted k-means of one row faster than scikit-learn's, and how much lower is its error?

    pip install scikit-learn ckwrap        or the extra `peers`
    python -m benchmarks.weights.clustering [rows of each size]

The rows imitate a linear layer of a language model: weights of a Student distribution with 5 degrees of freedom,
sensitivities of a squared one, both in float32. scikit-learn is called as SqueezeLLM calls it (quantization/nuq.py):
KMeans(n_clusters=2**bits, random_state=0, n_init="auto", max_iter=50).fit(column, sample_weight=sensitivities).
All on one thread, ours and the peers' in turns; times are CPU times per row.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from intaglio.plugins import ort
from intaglio.plugins.native.clustering import assign, cluster

ROUNDS = 3

Floats = npt.NDArray[np.float32]


def ours(values: Floats, weights: Floats, count: int) -> Floats:
    """The exact optimum, by the compiled kernel."""
    return cluster(values, weights, count, threads=1).centroids


def scikit_learn(values: Floats, weights: Floats, count: int) -> Floats:
    """k-means++ and Lloyd's iterations."""
    from sklearn.cluster import KMeans

    model = KMeans(count, random_state=0, n_init="auto", max_iter=50)
    rows = zip(values, weights, strict=True)
    return np.stack([np.sort(model.fit(v[:, None], sample_weight=w).cluster_centers_[:, 0]) for v, w in rows])


def ckwrap(values: Floats, weights: Floats, count: int) -> Floats:
    """Ckmeans.1d.dp: exact and weighted."""
    import ckwrap as package

    rows = zip(values.astype(np.float64), weights.astype(np.float64), strict=True)
    return np.stack([np.sort(package.ckmeans(v, count, w).centers) for v, w in rows]).astype(np.float32)


def errors(values: Floats, weights: Floats, centroids: Floats) -> npt.NDArray[np.float64]:
    """[rows], Σ weight·(value - nearest centroid)² of each."""
    nearest = np.take_along_axis(centroids, assign(values, centroids).astype(np.int64), axis=1).astype(np.float64)
    return (weights.astype(np.float64) * (values - nearest) ** 2).sum(axis=1)


def main() -> None:
    """Measure and print."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    contestants: dict[str, Callable[[Floats, Floats, int], Floats]] = {
        "ours": ours, "scikit-learn": scikit_learn, "ckwrap": ckwrap,
    }  # fmt: skip
    print(f"kernels: {ort.instruction_set()}; {rows} rows of each size, one thread, the minimum of {ROUNDS} rounds")
    for length in (4096, 11008):
        for bits in (2, 3, 4):
            random = np.random.default_rng(length + bits)
            values = (0.02 * random.standard_t(5, (rows, length))).astype(np.float32)
            weights = (1e-6 * random.standard_normal((rows, length)) ** 2).astype(np.float32)
            times = dict.fromkeys(contestants, math.inf)
            found: dict[str, npt.NDArray[np.float64]] = {}
            for _ in range(ROUNDS):
                for name, contestant in contestants.items():
                    started = time.process_time()
                    centroids = contestant(values, weights, 2**bits)
                    times[name] = min(times[name], (time.process_time() - started) / rows)
                    found[name] = errors(values, weights, centroids)
            print(f"{length} values, {2**bits:2} clusters: ours {times['ours'] * 1e3:.3f} ms per row")
            for name in ("scikit-learn", "ckwrap"):
                excess = found[name] / found["ours"] - 1
                print(
                    f"    {name:12} {times[name] * 1e3:7.3f} ms = {times[name] / times['ours']:5.2f} x ours; its error "
                    f"above ours: mean {excess.mean():.2%}, least {excess.min():.2%}, most {excess.max():.2%}"
                )


if __name__ == "__main__":
    main()
