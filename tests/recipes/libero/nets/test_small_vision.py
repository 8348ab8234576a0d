"""Tokens of patches: how many, where they look, and sizes that are refused."""

from __future__ import annotations

import pytest
import torch

from powerband.recipes.libero.nets.small_vision import PatchEncoder


@pytest.mark.parametrize(("subsample", "patch", "tokens"), [(1, 16, 16), (2, 16, 16), (1, 32, 4), (2, 32, 4)])
def test_a_token_a_patch_that_sees_its_patch_first(subsample: int, patch: int, tokens: int) -> None:
    torch.manual_seed(0)
    vision = PatchEncoder(64, subsample, patch)
    picture = torch.randint(256, (1, 64, 64, 3), dtype=torch.uint8)
    changed = picture.clone()
    changed[:, -patch:, -patch:] = 255 - changed[:, -patch:, -patch:]
    before, after = vision(picture), vision(changed)
    assert before.shape == (1, tokens, 64) and vision.patches(64, 64) == tokens
    assert int((after - before)[0].norm(dim=1).argmax()) == tokens - 1, "the last patch, row by row"


def test_colours_and_places_are_told_apart() -> None:
    vision = PatchEncoder(64)
    plain = torch.full((1, 32, 32, 3), 90, dtype=torch.uint8)
    found = vision(plain)[0]
    assert (found[0] - found[-1]).norm() > 1e-3, "the same colours in two places"
    assert (vision(plain + 50) - vision(plain)).norm() > 1e-3


def test_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 32"):
        PatchEncoder(64, patch=32).patches(48, 64)
    with pytest.raises(ValueError, match="patch=8"):
        PatchEncoder(64, patch=8)
    with pytest.raises(ValueError, match="width=100"):
        PatchEncoder(100)
