"""Simplified meshes: the surface stays, corners are the original ones, seams and borders hold."""

from __future__ import annotations

import numpy as np
import pytest

from powerband.recipes.libero.env.mesh_simplification import LONGEST_M, simplify_mesh


def sheet(count: int, height=lambda x, y: 0.0 * x, side: float = 0.05) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places, normals and texture of the corners of a square, of 2 * count * count triangles."""
    x, y = np.meshgrid(*[np.linspace(0, side, count + 1)] * 2, indexing="ij")
    points = np.stack([x, y, height(x, y)], -1).reshape(-1, 3)
    slope = [np.gradient(height(x, y), side / count, axis=axis) for axis in (0, 1)]
    normals = np.stack([-slope[0], -slope[1], np.ones_like(x)], -1).reshape(-1, 3)
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    place = np.arange((count + 1) ** 2).reshape(count + 1, count + 1)
    a, b, c, d = place[:-1, :-1], place[1:, :-1], place[1:, 1:], place[:-1, 1:]
    faces = np.stack([np.stack([a, b, c], -1), np.stack([a, c, d], -1)]).reshape(-1, 3)
    return points[faces], normals[faces], points[faces][..., :2] / side


def ball(count: int, radius: float = 0.1) -> tuple[np.ndarray, np.ndarray, None]:
    """A closed ball, without texture."""
    turn, rise = np.meshgrid(np.arange(2 * count), np.arange(count + 1), indexing="ij")
    turn, rise = turn * np.pi / count, rise * np.pi / count
    flat = np.where((rise == 0) | (rise > 3.14159), 0, np.sin(rise))
    points = np.round(np.stack([flat * np.cos(turn), flat * np.sin(turn), np.cos(rise)], -1), 9)
    following = np.roll(points, -1, 0)
    a, b, c, d = points[:, :-1], points[:, 1:], following[:, 1:], following[:, :-1]
    faces = np.stack([np.stack([a, b, c], -2), np.stack([a, c, d], -2)]).reshape(-1, 3, 3)
    return faces * radius, faces.copy(), None


def areas(places: np.ndarray) -> np.ndarray:
    return np.cross(places[:, 1] - places[:, 0], places[:, 2] - places[:, 0]) / 2


def test_a_flat_sheet_needs_few_faces_and_keeps_its_border_and_texture() -> None:
    places, normals, texture = sheet(30)
    left = simplify_mesh(places, normals, texture, 1e-4)
    assert left.dtype == np.int32 and len(left) <= 8
    found = places.reshape(-1, 3)[left]
    np.testing.assert_allclose(areas(found).sum(0), [0, 0, 0.05**2], atol=1e-12)
    assert (areas(found)[:, 2] > 0).all(), "no face is turned over"
    np.testing.assert_array_equal(texture.reshape(-1, 2)[left], found[..., :2] / 0.05)


def test_a_balls_surface_moves_by_less_than_was_allowed() -> None:
    places, normals, _ = ball(48)
    counts = []
    for tolerance in (2e-4, 1e-3):
        found = places.reshape(-1, 3)[simplify_mesh(places, normals, None, tolerance)]
        counts.append(len(found))
        middle = np.linalg.norm(found.mean(1), axis=1)
        assert 0.1 - middle.min() < 6 * tolerance
        np.testing.assert_allclose(areas(found).sum(0), 0, atol=1e-9, err_msg="it is closed")
        assert ((areas(found) * found.mean(1)).sum(1) > 0).all(), "and all faces look outwards"
    assert counts[1] < counts[0] / 2 < len(places) / 3


def test_faces_on_both_sides_of_a_seam_keep_their_own_texture() -> None:
    places, normals, texture = sheet(20)
    other = places.mean(1)[:, 0] > 0.025
    texture[other] = texture[other] * 0.5 + 3.0
    left = simplify_mesh(places, normals, texture, 1e-4)
    found, drawn = places.reshape(-1, 3)[left], texture.reshape(-1, 2)[left]
    assert len(left) < 40
    beyond = drawn.min((1, 2)) >= 3.0
    assert (beyond == (found.mean(1)[:, 0] > 0.025)).all() and beyond.any() and not beyond.all()
    np.testing.assert_allclose(drawn[beyond], found[beyond][..., :2] * 10 + 3.0)
    np.testing.assert_allclose(drawn[~beyond], found[~beyond][..., :2] * 20)


def test_shading_and_texture_that_bend_keep_faces_where_the_surface_is_flat() -> None:
    places, normals, texture = sheet(30)
    turned = normals + 0.6 * np.sin(180 * places[..., :1]) * np.array([1.0, 0, 0])
    turned /= np.linalg.norm(turned, axis=-1, keepdims=True)
    bent = texture + 0.1 * np.sin(9 * texture[..., ::-1])
    plain = len(simplify_mesh(places, normals, texture, 5e-5))
    assert len(simplify_mesh(places, turned, texture, 5e-5)) > 5 * plain
    assert len(simplify_mesh(places, normals, bent, 5e-5)) > 5 * plain


@pytest.mark.parametrize("broken", ["doubled", "thin"])
def test_broken_faces_do_no_harm(broken: str) -> None:
    places, normals, texture = sheet(6)
    if broken == "doubled":
        places, normals, texture = (np.concatenate([value] * 3) for value in (places, normals, texture))
    else:
        places[::3, 1] = places[::3, 0]
    left = simplify_mesh(places, normals, texture, 1e-3)
    assert left.shape[1] == 3 and left.min() >= 0 and left.max() < 3 * len(places)


def test_the_same_mesh_is_simplified_alike() -> None:
    mesh = sheet(25, lambda x, y: 0.003 * np.sin(100 * x) * np.cos(80 * y))
    np.testing.assert_array_equal(simplify_mesh(*mesh, 3e-4), simplify_mesh(*mesh, 3e-4))


def test_no_edge_grows_longer_than_light_allows() -> None:
    places, normals, texture = sheet(40, side=1.0)
    found = places.reshape(-1, 3)[simplify_mesh(places, normals, texture, 1e-4)]
    assert np.linalg.norm(found - np.roll(found, 1, 1), axis=-1).max() <= LONGEST_M + 1e-9
    assert len(found) < len(places) / 4
