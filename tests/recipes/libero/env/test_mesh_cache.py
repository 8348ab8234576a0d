"""The cache of simplified meshes: file names and damaged files. The cache itself is tested in core/machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from powerband.recipes.libero.env import mesh_cache as mesh_cache_module
from powerband.recipes.libero.env import mesh_simplification as mesh_simplification_module
from powerband.recipes.libero.env.mesh_cache import cached_mesh_corners

MESH = np.random.default_rng(0).uniform(size=(40, 3, 3)), np.ones((40, 3, 3)) / 3**0.5, None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "powerband" / "meshes"


@pytest.fixture
def simplified_tolerances(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns a list to which each simplification of a mesh adds its tolerance."""
    calls: list[float] = []

    def record_tolerance(positions, normals, texture, tolerance):
        calls.append(tolerance)
        return np.arange(3 * len(positions) - 6, dtype=np.int32).reshape(-1, 3)

    monkeypatch.setattr(mesh_simplification_module, "simplify_mesh", record_tolerance)
    return calls


def test_a_second_call_reads_the_mesh_from_the_cache(folder: Path, simplified_tolerances: list) -> None:
    first, again = cached_mesh_corners(*MESH, 0.01), cached_mesh_corners(*MESH, 0.01)
    assert simplified_tolerances == [0.01] and [path.suffix for path in folder.iterdir()] == [".safetensors"]
    np.testing.assert_array_equal(first, again)
    assert again.dtype == np.int32


def test_another_mesh_tolerance_or_version_uses_another_file(
    folder: Path, simplified_tolerances: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions, normals, _ = MESH
    cached_mesh_corners(*MESH, 0.01)
    cached_mesh_corners(*MESH, 0.02)
    cached_mesh_corners(positions + 1, normals, None, 0.01)
    cached_mesh_corners(positions, -normals, None, 0.01)
    cached_mesh_corners(positions, normals, np.zeros((40, 3, 2)), 0.01)
    monkeypatch.setattr(mesh_cache_module, "_source_code", lambda: b"another version")
    cached_mesh_corners(*MESH, 0.01)
    assert len(simplified_tolerances) == 6 == len(list(folder.iterdir()))


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "other"])
def test_a_damaged_file_is_replaced(folder: Path, simplified_tolerances: list, damage: str) -> None:
    first = cached_mesh_corners(*MESH, 0.01)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    changed = bytearray(whole)
    changed[-3] ^= 1
    other = b"no safetensors at all, but long enough to have a header"
    file.write_bytes({"cut": whole[:-40], "empty": b"", "flipped": bytes(changed), "other": other}[damage])
    with pytest.warns(UserWarning, match="cached mesh is invalid"):
        simplified_again = cached_mesh_corners(*MESH, 0.01)
    np.testing.assert_array_equal(simplified_again, first)
    assert len(simplified_tolerances) == 2 and file.read_bytes() == whole
