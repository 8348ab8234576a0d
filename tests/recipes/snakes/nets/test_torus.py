"""Convolution on a torus sees no edge."""

import torch

from powerband.recipes.snakes.nets.torus import TorusConv


def test_a_shift_of_the_board_by_the_stride_shifts_the_features():
    net = TorusConv(8, 12, 20)
    planes = torch.rand(3, 8, 12, 20)
    here = net(planes).view(3, -1, 3, 5)
    there = net(planes.roll((4, 8), (2, 3))).view(3, -1, 3, 5)
    torch.testing.assert_close(there, here.roll((1, 2), (2, 3)))


def test_its_width_is_what_it_returns():
    net = TorusConv(8, 10, 20)
    assert net(torch.rand(2, 8, 10, 20)).shape == (2, net.width)
