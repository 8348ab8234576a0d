"""The U-Net over action chunks and the encoder of frames: shapes, what reaches the output, and that it denoises."""

import pytest
import torch

from powerband.nets.chunk_unet import ChunkUNet
from powerband.nets.mbconv import FrameNet


def small(**words) -> ChunkUNet:
    torch.manual_seed(0)
    return ChunkUNet(**{"action": 3, "condition": 5, "widths": (16, 32), "time_width": 16, **words})


@pytest.mark.parametrize("widths", [(16,), (16, 32), (16, 24, 32)])
def test_chunks_keep_their_shape_and_all_weights_are_trained(widths: tuple[int, ...]) -> None:
    net = small(widths=widths)
    out = net(torch.randn(4, 16, 3), torch.randint(0, 1000, (4,)), torch.randn(4, 5))
    assert out.shape == (4, 16, 3) and out.dtype == torch.float32
    out.square().sum().backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in net.parameters())


def test_time_and_observation_reach_every_step() -> None:
    net, chunk, time, seen = small(), torch.randn(2, 8, 3), torch.tensor([5, 5]), torch.randn(2, 5)
    out = net(chunk, time, seen)
    assert bool((net(chunk, time + 300, seen) != out).any(-1).all())
    assert bool((net(chunk, time, seen + 1) != out).any(-1).all())
    assert torch.allclose(net(chunk[:1], time[:1], seen[:1]), out[:1], atol=1e-5), "rows do not see each other"


def test_it_learns_the_noise_of_chunks_that_depend_on_what_is_seen() -> None:
    net, generator = small(), torch.Generator().manual_seed(0)
    adam = torch.optim.Adam(net.parameters(), 3e-3)
    losses = []
    for _ in range(250):
        seen = torch.randn(64, 5, generator=generator)
        clean = seen[:, None, :3].sign().expand(-1, 8, -1)
        time = torch.randint(0, 1000, (64,), generator=generator)
        keep = (1 - time / 1000).view(-1, 1, 1).sqrt()
        noise = torch.randn(64, 8, 3, generator=generator)
        loss = (net(keep * clean + (1 - keep**2).sqrt() * noise, time, seen) - noise).square().mean()
        adam.zero_grad(), loss.backward(), adam.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-20:]) < 0.35 * sum(losses[:20])


def test_frames_become_features_that_depend_on_every_pixel() -> None:
    torch.manual_seed(0)
    net = FrameNet(3, 32, factor=0.25)
    frames = torch.rand(2, 3, 64, 64, requires_grad=True)
    out = net(frames)
    assert out.shape == (2, 32) and bool((out >= 0).all())
    out.sum().backward()
    assert float((frames.grad != 0).float().mean()) > 0.9
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert torch.allclose(net(frames[:1]), out[:1], atol=1e-5), "group norm: rows do not see each other"


def test_full_size_is_an_efficientnet_b0() -> None:
    count = sum(parameter.numel() for parameter in FrameNet(3, 512).parameters())
    assert 4.0e6 < count - 1280 * 512 - 512 < 4.1e6, "5.3 M less the 1.3 M of its classes"


def test_bad_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 8"):
        small(widths=(12, 24))
