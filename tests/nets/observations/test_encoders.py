"""Encoders of images, categories and trees of them."""

from __future__ import annotations

import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.data.types import TensorSpec
from powerband.nets.observations.encoders import ObsEncoder, image_layout, needs_encoder

BYTES = torch.uint8


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((84, 84, 3), BYTES, (3, 84, 84)),
        ((3, 84, 84), BYTES, (3, 84, 84)),
        ((4, 84, 84), BYTES, (4, 84, 84)),
        ((4, 96, 96, 3), BYTES, (12, 96, 96)),
        ((4, 3, 64, 48), BYTES, (12, 64, 48)),
        ((10, 10, 6), torch.bool, (6, 10, 10)),
        ((84, 84), BYTES, (1, 84, 84)),
        ((64, 64, 1), torch.float32, (1, 64, 64)),
    ],
)
def test_axes_of_an_image_are_found(shape, dtype, expected):
    layout = image_layout(TensorSpec(shape, dtype))
    assert (layout.channels, layout.height, layout.width) == expected


@pytest.mark.parametrize(
    "spec", [TensorSpec((5,)), TensorSpec((4, 4)), TensorSpec((128,), BYTES), TensorSpec((), torch.int64, (6,))]
)
def test_vectors_and_categories_are_no_images(spec):
    assert image_layout(spec) is None


def test_plain_vectors_need_no_encoder():
    assert not needs_encoder({"a": TensorSpec((3,)), "action_mask": TensorSpec((4,), torch.bool, (2, 2))})
    assert needs_encoder({"a": TensorSpec((3,)), "b": TensorSpec((), torch.int64, (4,))})


@pytest.mark.parametrize(
    ("spec", "needed"),
    [
        (TensorSpec((8, 9), BYTES), False),
        (TensorSpec((2, 4, 4)), False),
        (TensorSpec((3, 36, 36), BYTES), True),
        (TensorSpec((3, 4, 36, 36, 3), BYTES), True),
    ],
)
def test_the_agent_axis_is_no_axis_of_an_image(spec, needed):
    agents = spec.shape[0]
    assert needs_encoder(spec, agents) == needed == bool(ObsEncoder(spec, agents).layouts)


def test_the_same_image_gives_the_same_features_in_both_layouts():
    last, first = (ObsEncoder(TensorSpec(shape, BYTES, high=255.0)) for shape in ((40, 44, 3), (3, 40, 44)))
    first.load_state_dict(last.state_dict())
    image = torch.randint(0, 256, (2, 40, 44, 3), dtype=BYTES)
    assert torch.allclose(last(image), first(image.permute(0, 3, 1, 2).contiguous()), atol=1e-6)


def test_bytes_are_scaled_and_stacked_frames_joined():
    encoder = ObsEncoder(TensorSpec((2, 10, 10, 3), BYTES, high=255.0))
    network_inputs = []
    encoder.images["image"].convolutions.register_forward_hook(
        lambda module, inputs, output: network_inputs.append(inputs[0])
    )
    image = torch.randint(0, 256, (5, 2, 10, 10, 3), dtype=BYTES)
    assert encoder(image).shape == (5, encoder.width)
    expected = image.permute(0, 1, 4, 2, 3).reshape(5, 6, 10, 10).float() / 255
    assert torch.allclose(network_inputs[0], expected)


def test_a_tree_is_joined_with_categories_as_one_hot_vectors():
    obs = {
        "camera": TensorSpec((36, 36, 3), BYTES, high=255.0),
        "gear": TensorSpec((), torch.int64, (5,)),
        "pair": TensorSpec((2,), torch.int64, (2, 3)),
        "state": TensorSpec((9,)),
        "joints": TensorSpec((7,)),
    }
    encoder = ObsEncoder(obs)
    assert encoder.width == 512 + 5 + 5 + 7
    rows = {
        "camera": torch.zeros(3, 36, 36, 3, dtype=BYTES),
        "gear": torch.tensor([0, 4, 2]),
        "pair": torch.tensor([[0, 0], [1, 2], [0, 1]]),
        "state": torch.full((3, 9), float("nan")),
        "joints": torch.arange(21.0).view(3, 7),
    }
    features = encoder(rows)
    assert features.isfinite().all(), "the reserved entry `state` is not read"
    assert features[1, 512:522].tolist() == [0, 0, 0, 0, 1, 0, 1, 0, 0, 1]
    assert torch.equal(features[:, 522:], rows["joints"])


def test_agents_share_one_network():
    encoder = ObsEncoder(TensorSpec((3, 36, 36, 1), BYTES, high=255.0), num_agents=3)
    assert encoder(torch.zeros(6, 36, 36, 1, dtype=BYTES)).shape == (6, 512)


@pytest.mark.parametrize("kind", ["nature", "impala"])
def test_images_that_are_too_small_are_refused(kind):
    with pytest.raises(ConfigError, match="image_net=small"):
        ObsEncoder(TensorSpec((10, 10, 4), torch.bool), image_net=kind)


def test_every_network_has_the_width_that_it_declares():
    for kind, width in {"nature": 512, "impala": 256, "small": 128, "flat": 40 * 40 * 3}.items():
        encoder = ObsEncoder(TensorSpec((40, 40, 3), BYTES, high=255.0), image_net=kind)
        assert encoder.width == width
        assert encoder(torch.zeros(2, 40, 40, 3, dtype=BYTES)).shape == (2, width)
