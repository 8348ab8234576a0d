"""Simplified meshes: the surface stays within the tolerance, corners are original, and seams and borders remain."""

from __future__ import annotations

import numpy as np
import pytest

from powerband.recipes.libero.env.mesh_simplification import LONGEST_M, simplify_mesh


def sheet(count: int, height=lambda x, y: 0.0 * x, side: float = 0.05) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns positions, normals and texture of the corners of a square with 2 * count * count triangles."""
    x, y = np.meshgrid(*[np.linspace(0, side, count + 1)] * 2, indexing="ij")
    points = np.stack([x, y, height(x, y)], -1).reshape(-1, 3)
    slope = [np.gradient(height(x, y), side / count, axis=axis) for axis in (0, 1)]
    normals = np.stack([-slope[0], -slope[1], np.ones_like(x)], -1).reshape(-1, 3)
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    index = np.arange((count + 1) ** 2).reshape(count + 1, count + 1)
    a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
    faces = np.stack([np.stack([a, b, c], -1), np.stack([a, c, d], -1)]).reshape(-1, 3)
    return points[faces], normals[faces], points[faces][..., :2] / side


def ball(count: int, radius: float = 0.1) -> tuple[np.ndarray, np.ndarray, None]:
    """Returns positions and normals of the corners of a closed ball, without texture coordinates."""
    azimuth, polar = np.meshgrid(np.arange(2 * count), np.arange(count + 1), indexing="ij")
    azimuth, polar = azimuth * np.pi / count, polar * np.pi / count
    ring = np.where((polar == 0) | (polar > 3.14159), 0, np.sin(polar))
    points = np.round(np.stack([ring * np.cos(azimuth), ring * np.sin(azimuth), np.cos(polar)], -1), 9)
    next_points = np.roll(points, -1, 0)
    a, b, c, d = points[:, :-1], points[:, 1:], next_points[:, 1:], next_points[:, :-1]
    faces = np.stack([np.stack([a, b, c], -2), np.stack([a, c, d], -2)]).reshape(-1, 3, 3)
    return faces * radius, faces.copy(), None


def areas(positions: np.ndarray) -> np.ndarray:
    return np.cross(positions[:, 1] - positions[:, 0], positions[:, 2] - positions[:, 0]) / 2


def test_a_flat_sheet_needs_few_faces_and_keeps_its_border_and_texture() -> None:
    positions, normals, texture = sheet(30)
    corners = simplify_mesh(positions, normals, texture, 1e-4)
    assert corners.dtype == np.int32 and len(corners) <= 8
    faces = positions.reshape(-1, 3)[corners]
    np.testing.assert_allclose(areas(faces).sum(0), [0, 0, 0.05**2], atol=1e-12)
    assert (areas(faces)[:, 2] > 0).all(), "no face is turned over"
    np.testing.assert_array_equal(texture.reshape(-1, 2)[corners], faces[..., :2] / 0.05)


def test_the_surface_of_a_ball_moves_within_the_tolerance() -> None:
    positions, normals, _ = ball(48)
    counts = []
    for tolerance in (2e-4, 1e-3):
        faces = positions.reshape(-1, 3)[simplify_mesh(positions, normals, None, tolerance)]
        counts.append(len(faces))
        centre_distance = np.linalg.norm(faces.mean(1), axis=1)
        assert 0.1 - centre_distance.min() < 6 * tolerance
        np.testing.assert_allclose(areas(faces).sum(0), 0, atol=1e-9, err_msg="it is closed")
        assert ((areas(faces) * faces.mean(1)).sum(1) > 0).all(), "and all faces look outwards"
    assert counts[1] < counts[0] / 2 < len(positions) / 3


def test_faces_on_both_sides_of_a_seam_keep_their_own_texture() -> None:
    positions, normals, texture = sheet(20)
    right_side = positions.mean(1)[:, 0] > 0.025
    texture[right_side] = texture[right_side] * 0.5 + 3.0
    corners = simplify_mesh(positions, normals, texture, 1e-4)
    faces, uv = positions.reshape(-1, 3)[corners], texture.reshape(-1, 2)[corners]
    assert len(corners) < 40
    right_faces = uv.min((1, 2)) >= 3.0
    assert (right_faces == (faces.mean(1)[:, 0] > 0.025)).all() and right_faces.any() and not right_faces.all()
    np.testing.assert_allclose(uv[right_faces], faces[right_faces][..., :2] * 10 + 3.0)
    np.testing.assert_allclose(uv[~right_faces], faces[~right_faces][..., :2] * 20)


def test_curved_shading_and_texture_keep_faces_of_a_flat_surface() -> None:
    positions, normals, texture = sheet(30)
    curved_normals = normals + 0.6 * np.sin(180 * positions[..., :1]) * np.array([1.0, 0, 0])
    curved_normals /= np.linalg.norm(curved_normals, axis=-1, keepdims=True)
    curved_texture = texture + 0.1 * np.sin(9 * texture[..., ::-1])
    num_flat_faces = len(simplify_mesh(positions, normals, texture, 5e-5))
    assert len(simplify_mesh(positions, curved_normals, texture, 5e-5)) > 5 * num_flat_faces
    assert len(simplify_mesh(positions, normals, curved_texture, 5e-5)) > 5 * num_flat_faces


@pytest.mark.parametrize("broken", ["doubled", "thin"])
def test_duplicate_and_degenerate_faces_are_accepted(broken: str) -> None:
    positions, normals, texture = sheet(6)
    if broken == "doubled":
        positions, normals, texture = (np.concatenate([value] * 3) for value in (positions, normals, texture))
    else:
        positions[::3, 1] = positions[::3, 0]
    corners = simplify_mesh(positions, normals, texture, 1e-3)
    assert corners.shape[1] == 3 and corners.min() >= 0 and corners.max() < 3 * len(positions)


def test_simplification_is_deterministic() -> None:
    mesh = sheet(25, lambda x, y: 0.003 * np.sin(100 * x) * np.cos(80 * y))
    np.testing.assert_array_equal(simplify_mesh(*mesh, 3e-4), simplify_mesh(*mesh, 3e-4))


def test_no_edge_becomes_longer_than_the_limit() -> None:
    positions, normals, texture = sheet(40, side=1.0)
    faces = positions.reshape(-1, 3)[simplify_mesh(positions, normals, texture, 1e-4)]
    assert np.linalg.norm(faces - np.roll(faces, 1, 1), axis=-1).max() <= LONGEST_M + 1e-9
    assert len(faces) < len(positions) / 4
