"""Tells two objects of a picture apart by where their pixels heap up."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FAINT = 0.25  # of full cover, what an outline fades to before it counts as ground
LEAST_PIXELS = 12  # of an object that can be read


def split(cover: Floats, count: int) -> list[Floats]:
    """The cover (F, H, W) of each object: of two, pixels go to the nearer of two means.

    The means of a frame start at those of the one before, so that each object keeps its place in
    the list while they circle each other.
    """
    if count == 1:
        return [cover]
    parts = [np.zeros_like(cover), np.zeros_like(cover)]
    means: Floats | None = None
    for number, frame in enumerate(cover):
        y, x = np.nonzero(frame > FAINT)
        places = np.stack((x, y), axis=-1).astype(np.float64)
        strong = frame[y, x] > 0.5
        if strong.sum() < 2 * LEAST_PIXELS:
            continue
        means = _two_means(places[strong], means)
        second = _distances(places, means).argmin(axis=1) == 1
        for part, chosen in zip(parts, (~second, second), strict=True):
            part[number, y[chosen], x[chosen]] = frame[y[chosen], x[chosen]]
    return parts


def _two_means(places: Floats, means: Floats | None) -> Floats:
    """The centres (2, 2) of two heaps of pixels (N, 2); without earlier ones, top or left first."""
    if means is None:
        apart = places - places.mean(axis=0)
        order = apart @ np.linalg.eigh(apart.T @ apart)[1][:, -1]
        means = places[[order.argmin(), order.argmax()]]
        steep = abs(means[0, 1] - means[1, 1]) > abs(means[0, 0] - means[1, 0])
        means = means[np.argsort(means[:, 1 if steep else 0])]
    for _ in range(6):
        nearest = _distances(places, means).argmin(axis=1)
        means = np.stack(
            [
                places[nearest == each].mean(axis=0) if (nearest == each).any() else means[each]
                for each in (0, 1)
            ]
        )
    return means


def _distances(places: Floats, means: Floats) -> Floats:
    distances: Floats = np.linalg.norm(places[:, None] - means, axis=-1)
    return distances
