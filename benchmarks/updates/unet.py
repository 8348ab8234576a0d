"""Seconds of a forward and backward pass of the chunk U-Net, with powerband's and with PyTorch's convolutions.

Both networks have the same weights and alternate. The seconds are CPU seconds of one thread, medians over the repeats.

    python benchmarks/updates/unet.py --json benchmarks/results/unet.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from torch import nn

from powerband.core.machine.device import host_facts
from powerband.nets.chunks import unet
from powerband.nets.chunks.unet import ChunkUNet

WIDTHS, HORIZONS, ROWS = ((32, 64), (64, 128, 256), (256, 512, 1024)), (4, 8, 16), (1, 32, 256)
NUMBERS, CONDITION, REPEATS = 2, 256, 3


def built(widths: tuple[int, ...]) -> dict[str, nn.Module]:
    """Builds the U-Net with each library's convolutions and equal weights."""
    own = ChunkUNet(NUMBERS, CONDITION, widths)
    with mock.patch.multiple(unet, ShortConv1d=nn.Conv1d, ShortConvTranspose1d=nn.ConvTranspose1d):
        torchs = ChunkUNet(NUMBERS, CONDITION, widths)
    torchs.load_state_dict(own.state_dict())
    return {"powerband": own, "torch": torchs}


def cpu_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def row(nets: dict[str, nn.Module], widths: tuple[int, ...], horizon: int, rows: int) -> dict[str, object]:
    """Measures the passes of both networks in alternation, after one unmeasured pass of each."""
    chunk, condition = torch.randn(rows, horizon, NUMBERS), torch.randn(rows, CONDITION)
    step = torch.randint(0, 1000, (rows,))
    seconds: dict[str, list[float]] = {}

    def forward(net: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return net(chunk, step, condition)

    def both(net: nn.Module) -> None:
        net(chunk, step, condition).square().mean().backward()

    difference = float((forward(nets["powerband"]) - forward(nets["torch"])).abs().max())
    for repeat in range(REPEATS + 1):
        for name, net in nets.items():
            for kind, call in (("forward", forward), ("update", both)):
                spent = cpu_seconds(lambda call=call, net=net: call(net))
                if repeat:
                    seconds.setdefault(f"{name}_{kind}_s", []).append(spent)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    ratios = {kind: medians[f"torch_{kind}_s"] / medians[f"powerband_{kind}_s"] for kind in ("forward", "update")}
    return {"widths": widths, "horizon": horizon, "rows": rows, **medians, "ratio": ratios, "difference": difference}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for widths in WIDTHS:
        nets = built(widths)
        for horizon in HORIZONS:
            for count in ROWS:
                rows.append(row(nets, widths, horizon, count))
                ratio = rows[-1]["ratio"]
                print(f"{widths}, {horizon} actions, {count} rows: {ratio} times as fast as PyTorch's", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"host": host_facts(), "threads": 1, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
