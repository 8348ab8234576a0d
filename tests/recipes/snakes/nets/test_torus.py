"""Convolutions on a torus have no edges."""

import torch

from powerband.cli.catalogue import configure
from powerband.core.rank_context import RankContext
from powerband.recipes.snakes.learners import build_learner
from powerband.recipes.snakes.nets.torus import TorusConv


def test_a_shift_of_the_board_by_the_stride_shifts_the_features():
    net = TorusConv(8, 12, 20)
    planes = torch.rand(3, 8, 12, 20)
    original = net(planes).view(3, -1, 3, 5)
    shifted = net(planes.roll((4, 8), (2, 3))).view(3, -1, 3, 5)
    torch.testing.assert_close(shifted, original.roll((1, 2), (2, 3)))


def test_the_width_equals_the_output():
    net = TorusConv(8, 10, 20)
    assert net(torch.rand(2, 8, 10, 20)).shape == (2, net.width)


def test_an_encoder_of_the_planes_has_the_channels_of_the_option():
    config = configure("snakes", ["observation=planes", "plane_channels=8", "gpus=none"])[2].config
    learner, _, _ = build_learner(config, RankContext.single())
    assert learner.encoder.layers[0].out_channels == 8
