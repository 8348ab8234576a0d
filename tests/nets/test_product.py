"""Tests of the compiled matrix product against NumPy, and of its independence from tiles."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numba import TypingError

from powerband.nets.compiled.product import INNER, LANES, ROWS, add_product

SIZES = [(1, 1, 1), (ROWS, 3, LANES), (ROWS + 1, 5, LANES + 1), (3 * ROWS - 1, 17, 2 * LANES - 1), (2, INNER + 3, 40)]
TESTED_VERSIONS = ("0.61", "0.66", "0.68")


def test_the_version_of_numba_is_one_that_was_tested() -> None:
    installed = ".".join(numba.__version__.split(".")[:2])
    assert installed in TESTED_VERSIONS, (
        f"numba {numba.__version__}: check nets/compiled/product.py, which uses numba.core.cgutils, then add "
        f"{installed} to TESTED_VERSIONS."
    )


def matrix(*shape: int, transposed: bool = False) -> np.ndarray:
    numbers = np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)
    return np.asfortranarray(numbers) if transposed else numbers


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_it_adds_the_product(size: tuple[int, int, int], transposed: tuple[bool, bool]) -> None:
    rows, inner, columns = size
    a, b = matrix(rows, inner, transposed=transposed[0]), matrix(inner, columns, transposed=transposed[1])
    c = matrix(rows, columns)
    expected = c.astype(np.float64) + a.astype(np.float64) @ b
    add_product(c, a, b)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)


def test_it_writes_nothing_outside_of_c() -> None:
    around = np.zeros((ROWS + 3, LANES + 5), np.float32)
    flat = around.reshape(-1)
    c = flat[: ROWS * (LANES + 5)].reshape(ROWS, LANES + 5)
    add_product(c, np.ones((ROWS, 2), np.float32), np.ones((2, LANES + 5), np.float32))
    assert (around[:ROWS] == 2).all() and (around[ROWS:] == 0).all()


def test_views_of_larger_arrays_are_supported() -> None:
    a, b, c = matrix(9, 40)[:, 3:20], matrix(40, 50)[5:22, 7:30], np.zeros((9, 23), np.float32)
    add_product(c, a, b)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def test_an_entry_does_not_depend_on_the_tile_that_contains_it() -> None:
    a, b = matrix(3 * ROWS + 2, 300), matrix(300, 3 * LANES + 5)
    whole = np.zeros((len(a), b.shape[1]), np.float32)
    add_product(whole, a, b)
    for rows, columns in ((slice(1, 2), slice(0, 20)), (slice(5, 2 * ROWS + 7), slice(9, 9 + LANES))):
        part = np.zeros((len(a[rows]), b[:, columns].shape[1]), np.float32)
        add_product(part, a[rows], b[:, columns])
        assert np.array_equal(part, whole[rows, columns])


def test_nan_and_infinity_are_kept() -> None:
    a, b, c = np.ones((2, 2), np.float32), np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    a[0, 1], b[0, 2] = np.nan, np.inf
    add_product(c, a, b)
    assert np.isnan(c[0]).all() and np.array_equal(c[1], [2, 2, np.inf])


def test_arrays_of_another_type_are_refused() -> None:
    double, single = np.ones((2, 2)), np.ones((2, 2), np.float32)
    with pytest.raises(TypingError, match="add_product needs float32 arrays"):
        add_product(double, single, single)
    with pytest.raises(TypingError, match="C-ordered"):
        add_product(np.asfortranarray(np.ones((2, 3), np.float32)), single, np.ones((2, 3), np.float32))
