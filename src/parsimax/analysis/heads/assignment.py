"""The best way to pair the rows of a square table with its columns."""

from __future__ import annotations

import math
from collections.abc import Sequence


def assign(cost: Sequence[Sequence[float]]) -> list[int]:
    """The column of each row in the pairing of least total cost.

    The Hungarian method in its O(n³) form: rows enter one by one, each along the cheapest
    alternating path under prices (u of rows, v of columns) that keep every reduced cost >= 0.

    Args:
        cost: as many columns as rows.

    >>> assign([[4, 1, 3], [2, 0, 5], [3, 2, 2]])
    [1, 0, 2]
    """
    size = len(cost)
    if any(len(row) != size for row in cost):
        raise ValueError(f"cost: expected {size} columns in each of {size} rows")
    u, v = [0.0] * size, [0.0] * (size + 1)
    row_of = [-1] * (size + 1)  # of each column; the column behind the last is where a row starts
    for row in range(size):
        row_of[size] = row
        column = size
        least = [math.inf] * size
        came_from = [size] * size
        reached = [False] * (size + 1)
        while row_of[column] != -1:
            reached[column] = True
            here, step, nearest = row_of[column], math.inf, -1
            for other in range(size):
                if reached[other]:
                    continue
                reduced = cost[here][other] - u[here] - v[other]
                if reduced < least[other]:
                    least[other], came_from[other] = reduced, column
                if least[other] < step:
                    step, nearest = least[other], other
            for other in range(size + 1):
                if reached[other]:
                    u[row_of[other]] += step
                    v[other] -= step
                elif other < size:
                    least[other] -= step
            column = nearest
        while column != size:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    columns = [0] * size
    for column in range(size):
        columns[row_of[column]] = column
    return columns
