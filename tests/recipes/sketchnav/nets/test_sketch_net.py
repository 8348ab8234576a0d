"""The navigator's encoder: each sketch is encoded once per episode and cached until weights change; it is trained."""

import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.nets.efficient_net import EfficientNet
from powerband.recipes.sketchnav.nets.sketch_net import ConvEncoder, SketchNet, SketchNetConfig
from powerband.recipes.sketchnav.plans.sketch import GOAL_RGB, START_RGB

ROWS = 6


def net_and_observations(**settings) -> tuple[SketchNet, dict]:
    torch.manual_seed(0)
    sketches = torch.randint(0, 256, (5, 3, 36, 36), dtype=torch.uint8)
    obs = {
        "rgb": torch.randint(0, 256, (ROWS, 3, 40, 40), dtype=torch.uint8),
        "depth": torch.randint(0, 256, (ROWS, 1, 40, 40), dtype=torch.uint8),
        "gps": torch.randn(ROWS, 2),
        "compass": torch.randn(ROWS, 1),
        "episode": torch.tensor([3, 0, 3, 3, 4, 0]),
    }
    return SketchNet(sketches, 40, SketchNetConfig(width=8, **settings)), obs


def test_rows_of_one_episode_share_a_code_that_is_computed_once() -> None:
    net, obs = net_and_observations()
    batch_sizes = []
    net.sketch.net.register_forward_pre_hook(lambda module, inputs: batch_sizes.append(len(inputs[0])))
    with torch.no_grad():
        first, again = net(obs), net(obs)
        moved = net({**obs, "episode": torch.tensor([3, 0, 3, 3, 4, 1])})
    assert batch_sizes == [3, 4] and torch.equal(first, again)
    assert torch.equal(first[0, :8], first[2, :8]) and not torch.equal(first[0, :8], first[1, :8])
    assert torch.allclose(moved[:5], first[:5], atol=1e-5) and not torch.allclose(moved[5], first[5], atol=1e-3)
    one = net.sketch.net(1 - net.sketch.sketches[4:5].float() / 255)
    assert torch.allclose(first[4, :8], one[0], atol=1e-6)


def test_codes_are_recomputed_after_an_update_and_after_loading() -> None:
    net, obs = net_and_observations()
    with torch.no_grad():
        before = net(obs)
    net(obs).sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * parameter.grad)
        after = net(obs)
    assert not torch.equal(before[:, :8], after[:, :8])
    other, _ = net_and_observations()
    with torch.no_grad():
        assert torch.equal(other(obs), before)
        other.load_state_dict(net.state_dict())
        assert torch.equal(other(obs), after)


def test_another_set_of_sketches_can_be_shown() -> None:
    net, obs = net_and_observations()
    with torch.no_grad():
        before = net(obs)
        net.sketch.set_sketches(net.sketch.sketches.flip(0))
        after = net({**obs, "episode": 4 - obs["episode"]})
    assert torch.allclose(before, after, atol=1e-5)


def test_every_sense_reaches_the_features_and_can_be_switched_off() -> None:
    net, obs = net_and_observations()
    assert net.width == 4 * 8 + 32
    out = net(obs)
    for name in ("rgb", "depth", "gps", "compass", "episode"):
        changed = {**obs, name: torch.roll(obs[name], 1, 0)}
        assert not torch.equal(net(changed), out), name
    blind, _ = net_and_observations(use_rgb=False, use_pose=False, crop_m=0.0)
    assert blind.width == 2 * 8
    out = blind(obs)
    for name in ("rgb", "gps", "compass"):
        assert torch.equal(blind({**obs, name: torch.roll(obs[name], 1, 0)}), out)


def test_every_weight_is_trained() -> None:
    net, obs = net_and_observations()
    net(obs).square().sum().backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in net.parameters())


def test_the_predicted_goal_is_a_feature_with_an_auxiliary_loss() -> None:
    net, obs = net_and_observations(goal=True)
    obs |= {"explored": torch.randint(0, 3, (ROWS, 1, 32, 32)).mul(127).to(torch.uint8), "goal": torch.randn(ROWS, 2)}
    out = net(obs)
    assert out.shape == (ROWS, net.width) and net.width == 4 * 8 + 32 + 3
    loss = net.auxiliary(obs)["goal"]
    loss.backward()
    assert bool(net.goal.weigh[0].weight.grad.any()) and net.depth.linear.weight.grad is None
    with pytest.raises(ValueError, match="crop_m=8"):
        SketchNetConfig(goal=True, crop_m=0)


def test_true_goals_teach_the_frames_of_pages_and_the_policy_does_not() -> None:
    net, obs = net_and_observations(align_page=True, drawn_goal=True)
    obs |= {"goal": torch.randn(ROWS, 2)}
    net(obs).square().sum().backward()
    assert net.surroundings.larger.weight.shape == (4, 8) and net.surroundings.larger.weight.grad is None
    net(obs)
    net.auxiliary(obs)["frame"].backward()
    assert bool(net.surroundings.larger.weight.grad.any())
    with pytest.raises(ValueError, match="crop_m=8"):
        SketchNetConfig(align_page=True, crop_m=0)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="20 pixels is too small"):
        ConvEncoder(3, 20, 8)
    with pytest.raises(ValueError, match="channels=0"):
        SketchNetConfig(channels=0)
    with pytest.raises(ValueError, match="Write net.crop_m=0 if net.use_pose is false"):
        SketchNetConfig(use_pose=False)
    with pytest.raises(ValueError, match="blocks=0"):
        SketchNetConfig(blocks=0)
    with pytest.raises(ValueError, match="channels=0.05"):
        EfficientNet(3, 8, 0.05)


@pytest.mark.parametrize("blocks", [0.25, 1.0])
def test_efficient_net_encodes_positions_and_has_bounded_gradients_for_an_empty_page(blocks: float) -> None:
    torch.manual_seed(0)
    net = EfficientNet(1, 8, 0.25, blocks)
    pages = torch.zeros(3, 1, 36, 36)
    pages[1, 0, 8:11, 8:11] = pages[2, 0, 24:27, 8:11] = 1
    out = net(pages)
    assert out.shape == (3, 8) and float((out[1] - out[2]).detach().norm()) > 1e-3
    out.square().sum().backward()
    largest = max(float(parameter.grad.abs().max()) for parameter in net.parameters())
    assert 0 < largest < 1e3, largest


@pytest.mark.parametrize("crop_m", (8.0, 0.0))
def test_the_dots_of_the_sketch_give_distance_and_bearing_of_the_goal(crop_m: float) -> None:
    net, obs = net_and_observations(drawn_goal=True, learn_page_size=False, crop_m=crop_m)
    assert net.width == (4 if crop_m else 3) * 8 + 32 + 3
    pages = torch.full((5, 3, 36, 36), 255, dtype=torch.uint8)
    for colour, x in ((START_RGB, 5), (GOAL_RGB, 23)):
        pages[:, :, 18:21, x : x + 3] = torch.tensor(colour, dtype=torch.uint8)[:, None, None]
    net.sketch.set_sketches(pages)
    obs["gps"], obs["compass"] = torch.zeros(ROWS, 2), torch.full((ROWS, 1), torch.pi / 2)
    with torch.no_grad():
        distance, sine, cosine = net(obs)[:, 8:11].unbind(1)
    assert torch.allclose(distance, torch.full((ROWS,), 0.5 * net.page_m / 10))  # in tens of metres
    assert torch.allclose(sine, torch.full((ROWS,), -1.0)) and torch.allclose(cosine, torch.zeros(ROWS), atol=1e-6)


def test_the_drawn_goal_needs_the_pose() -> None:
    with pytest.raises(ConfigError, match="use_pose=true"):
        SketchNetConfig(drawn_goal=True, use_pose=False, crop_m=0.0)
