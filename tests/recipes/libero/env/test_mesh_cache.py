"""The cache of simplified meshes: file names and damaged files. The cache itself is tested in core/machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from powerband.recipes.libero.env import mesh_cache as kept_meshes
from powerband.recipes.libero.env import mesh_simplification as simplifier
from powerband.recipes.libero.env.mesh_cache import cached_mesh_corners

MESH = np.random.default_rng(0).uniform(size=(40, 3, 3)), np.ones((40, 3, 3)) / 3**0.5, None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "powerband" / "meshes"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Tolerance of each mesh that was simplified."""
    calls: list[float] = []

    def counted(places, normals, texture, tolerance):
        calls.append(tolerance)
        return np.arange(3 * len(places) - 6, dtype=np.int32).reshape(-1, 3)

    monkeypatch.setattr(simplifier, "simplify_mesh", counted)
    return calls


def test_the_next_start_reads_what_this_one_computed(folder: Path, computed: list) -> None:
    first, again = cached_mesh_corners(*MESH, 0.01), cached_mesh_corners(*MESH, 0.01)
    assert computed == [0.01] and [path.suffix for path in folder.iterdir()] == [".safetensors"]
    np.testing.assert_array_equal(first, again)
    assert again.dtype == np.int32


def test_another_mesh_tolerance_or_version_is_another_file(
    folder: Path, computed: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, normals, _ = MESH
    cached_mesh_corners(*MESH, 0.01)
    cached_mesh_corners(*MESH, 0.02)
    cached_mesh_corners(places + 1, normals, None, 0.01)
    cached_mesh_corners(places, -normals, None, 0.01)
    cached_mesh_corners(places, normals, np.zeros((40, 3, 2)), 0.01)
    monkeypatch.setattr(kept_meshes, "_source_code", lambda: b"another version")
    cached_mesh_corners(*MESH, 0.01)
    assert len(computed) == 6 == len(list(folder.iterdir()))


@pytest.mark.parametrize("harm", ["cut", "empty", "flipped", "other"])
def test_a_damaged_file_is_made_anew(folder: Path, computed: list, harm: str) -> None:
    first = cached_mesh_corners(*MESH, 0.01)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    changed = bytearray(whole)
    changed[-3] ^= 1
    other = b"no safetensors at all, but long enough to have a header"
    file.write_bytes({"cut": whole[:-40], "empty": b"", "flipped": bytes(changed), "other": other}[harm])
    with pytest.warns(UserWarning, match="cached mesh is invalid"):
        found = cached_mesh_corners(*MESH, 0.01)
    np.testing.assert_array_equal(found, first)
    assert len(computed) == 2 and file.read_bytes() == whole
