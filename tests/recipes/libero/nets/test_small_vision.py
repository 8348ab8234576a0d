"""PatchEncoder: the number of its tokens, the patch that each depends on, and unsupported sizes."""

from __future__ import annotations

import pytest
import torch

from powerband.recipes.libero.nets.small_vision import PatchEncoder


@pytest.mark.parametrize(("subsample", "patch", "tokens"), [(1, 16, 16), (2, 16, 16), (1, 32, 4), (2, 32, 4)])
def test_each_token_depends_most_on_its_patch(subsample: int, patch: int, tokens: int) -> None:
    torch.manual_seed(0)
    vision = PatchEncoder(64, subsample, patch)
    image = torch.randint(256, (1, 64, 64, 3), dtype=torch.uint8)
    changed = image.clone()
    changed[:, -patch:, -patch:] = 255 - changed[:, -patch:, -patch:]
    before, after = vision(image), vision(changed)
    assert before.shape == (1, tokens, 64) and vision.patches(64, 64) == tokens
    assert int((after - before)[0].norm(dim=1).argmax()) == tokens - 1, "the last patch, row by row"


def test_colours_and_positions_are_distinguished() -> None:
    vision = PatchEncoder(64)
    uniform = torch.full((1, 32, 32, 3), 90, dtype=torch.uint8)
    tokens = vision(uniform)[0]
    assert (tokens[0] - tokens[-1]).norm() > 1e-3, "the same colours in two places"
    assert (vision(uniform + 50) - vision(uniform)).norm() > 1e-3


def test_unsupported_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 32"):
        PatchEncoder(64, patch=32).patches(48, 64)
    with pytest.raises(ValueError, match="patch=8"):
        PatchEncoder(64, patch=8)
    with pytest.raises(ValueError, match="width=100"):
        PatchEncoder(100)
