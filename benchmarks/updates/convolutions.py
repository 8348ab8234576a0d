"""Forward and backward passes of the chunk U-Net and of uav's map network, compared with plain PyTorch convolutions.

Both networks of a pair have the same weights and alternate. The seconds are CPU seconds of one thread, medians over the
repeats; an update is a forward and a backward pass.

    python benchmarks/updates/convolutions.py --json benchmarks/results/updates/convolutions.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from powerband.core.machine.device import host_facts
from powerband.nets.chunks import unet
from powerband.nets.chunks.unet import ChunkUNet
from powerband.recipes.uav.map_net import MapNet

UNETS, HORIZONS, UNET_ROWS = ((32, 64), (64, 128, 256), (256, 512, 1024)), (4, 8, 16), (1, 32, 256)
MAP_WIDTHS, MAP_ROWS = (64, 256), (60, 128, 480)
NUMBERS, CONDITION, MAPS, ACTIONS, REPEATS = 2, 256, 12, 6, 3
KINDS = ("forward", "update")


class PlainMapNet(MapNet):
    """The map network with convolutions only, in the memory format of its input."""

    def forward(self, x_RCHW: Tensor) -> Tensor:
        x = x_RCHW
        for conv in self.convs:
            x = torch.relu(conv(x))
        return self.output(torch.relu(self.hidden(x.flatten(1))))


def cases() -> Iterator[tuple[dict[str, Any], nn.Module, nn.Module, tuple[Tensor, ...]]]:
    """Yields the description of a case, powerband's and the plain network with equal weights, and their inputs."""
    for widths in UNETS:
        own = ChunkUNet(NUMBERS, CONDITION, widths)
        with mock.patch.multiple(unet, ShortConv1d=nn.Conv1d, ShortConvTranspose1d=nn.ConvTranspose1d):
            plain = ChunkUNet(NUMBERS, CONDITION, widths)
        plain.load_state_dict(own.state_dict())
        for horizon in HORIZONS:
            for rows in UNET_ROWS:
                step = torch.randint(0, 1000, (rows,))
                inputs = torch.randn(rows, horizon, NUMBERS), step, torch.randn(rows, CONDITION)
                yield {"network": "ChunkUNet", "widths": widths, "horizon": horizon, "rows": rows}, own, plain, inputs
    for width in MAP_WIDTHS:
        own, plain = MapNet(MAPS, ACTIONS, width), PlainMapNet(MAPS, ACTIONS, width)
        plain.load_state_dict(deepcopy(own.state_dict()))
        for rows in MAP_ROWS:
            inputs = (torch.randn(rows, MAPS, 11, 11),)
            yield {"network": "MapNet", "widths": (width,), "rows": rows}, own, plain, inputs


def measured(own: nn.Module, plain: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    """Measures the passes of both networks in alternation, after one unmeasured pass of each."""

    def forward(net: nn.Module) -> Tensor:
        with torch.no_grad():
            return net(*inputs)

    def update(net: nn.Module) -> None:
        net(*inputs).square().mean().backward()

    seconds: dict[str, list[float]] = {}
    for repeat in range(REPEATS + 1):
        for name, net in (("powerband", own), ("torch", plain)):
            for call in (forward, update):
                spent = cpu_seconds(call, net)
                if repeat:
                    seconds.setdefault(f"{name}_{call.__name__}_s", []).append(spent)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    ratios = {f"{kind}_ratio": medians[f"torch_{kind}_s"] / medians[f"powerband_{kind}_s"] for kind in KINDS}
    return {**medians, **ratios, "difference": float((forward(own) - forward(plain)).abs().max())}


def cpu_seconds(call: Callable[[nn.Module], object], net: nn.Module) -> float:
    """Returns the CPU seconds of ``call(net)``."""
    start = time.process_time()
    call(net)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for case, own, plain, inputs in cases():
        rows.append({**case, **measured(own, plain, inputs)})
        ratios = " and ".join(f"{rows[-1][f'{kind}_ratio']:.2f} ({kind})" for kind in KINDS)
        print(f"{case}: {ratios} times as fast as plain convolutions", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"host": host_facts(), "threads": 1, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
