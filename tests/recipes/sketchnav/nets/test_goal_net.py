"""The goal predictor: boxes, keypoints and rays against plain references; it learns where a drawn goal is."""

import math

import pytest
import torch

from powerband.recipes.sketchnav.nets.goal_net import (
    DIRECTIONS,
    KEYPOINTS,
    REACH_M,
    SIDE,
    STEPS,
    GoalNet,
    bounding_box,
    keypoint_grid,
    polar_features,
    ray_distances,
)

G = 32


def test_boxes_and_keypoints() -> None:
    inside = torch.zeros(2, G, G, dtype=torch.bool)
    inside[0, 4:9, 10:30] = True
    low, high = bounding_box(inside)
    assert low.tolist() == [[10, 4], [0, 0]] and high.tolist() == [[30, 9], [G, G]]
    points = keypoint_grid(low, high)
    assert points.shape == (2, KEYPOINTS, 2)
    assert (
        points[0, 0].tolist() == [12, 4.5]
        and points[0, SIDE].tolist() == [12, 5.5]
        and points[0, -1].tolist() == [28, 8.5]
    )


def test_ray_distances_match_a_plain_ray_march() -> None:
    generator = torch.Generator().manual_seed(0)
    stands = torch.rand(3, G, G, generator=generator) < 0.1
    points, scale = torch.rand(3, KEYPOINTS, 2, generator=generator) * G, torch.tensor([[4.0], [2.0], [6.0]])
    found = ray_distances(stands, points, scale)
    for row in range(3):
        for point in range(KEYPOINTS):
            for direction in range(DIRECTIONS):
                angle, length = direction * 2 * math.pi / DIRECTIONS, STEPS
                for step in range(STEPS):
                    reach = (step + 1) * REACH_M / STEPS * float(scale[row])
                    x = float(points[row, point, 0]) + math.cos(angle) * reach
                    y = float(points[row, point, 1]) + math.sin(angle) * reach
                    column, line = (min(max(math.floor(at + 1e-5), 0), G - 1) for at in (x, y))
                    near = [min(max(math.floor(at - 1e-5), 0), G - 1) for at in (x, y)]
                    if stands[row, line, column] or stands[row, near[1], near[0]]:
                        length = step
                        break
                assert abs(float(found[row, point, direction]) * STEPS - length) < 1e-4 or (
                    float(found[row, point, direction]) * STEPS > length  # on an edge of two squares
                )


@pytest.mark.slow
def test_it_learns_where_the_goal_is() -> None:
    torch.manual_seed(0)
    net = GoalNet()
    adam = torch.optim.Adam(net.parameters(), 3e-4)
    explored = torch.full((32, 1, G, G), 127, dtype=torch.uint8)
    ink, where = torch.zeros(1, 3, G, G), torch.zeros(32, dtype=torch.int64)
    ink[:, :, 2, 2:30] = ink[:, :, 29, 2:30] = 1
    starts, page_m = torch.full((32, 2), 0.5), torch.full((32, 1), 8.0)
    losses = []
    for _ in range(120):
        goals = 0.2 + 0.6 * torch.rand(32, 2)
        wanted = (goals - starts) * page_m
        loss = (
            (net(explored, 0.25, ink, where, starts, goals, page_m.unsqueeze(2) * torch.eye(2)) - wanted)
            .square()
            .mean()
        )
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) / 10 < 0.25 * losses[0], (losses[0], losses[-1])


def test_polar() -> None:
    features = polar_features(torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 0.0]]), torch.tensor([[math.pi / 2]]))
    assert torch.allclose(features, torch.tensor([[0.4, 0.0, 1.0]]), atol=1e-6)
