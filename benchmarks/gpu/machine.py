"""Facts about the machine: hardware, driver, versions of packages, and the rate of a large matrix product.

python benchmarks/gpu/machine.py --json FILE
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from powerband.core.machine.device import host_facts
from powerband.core.optim.precision import peak

PACKAGES = (
    *"torch numpy numba numba-cuda cuda-bindings triton cupy-cuda13x rich pyyaml gymnasium safetensors".split(),
    *"pillow diffusers accelerate pytest".split(),
)
"""Distributions whose versions are recorded; None stands for one that is not installed."""
QUERY = "name,driver_version,power.limit,clocks.max.sm,memory.used,utilization.gpu"


def versions() -> dict[str, str | None]:
    """Returns the installed version of each of `PACKAGES`."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def nvidia_smi() -> list[str]:
    """Returns a line per GPU with the values of `QUERY`; empty without the program."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    result: dict[str, Any] = {"host": host_facts(), "cuda_available": torch.cuda.is_available()}
    result |= {"executable": sys.executable, "packages": versions(), "nvidia_smi": {QUERY: nvidia_smi()}}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    result["bf16_flops_s"] = peak(torch.device("cuda" if torch.cuda.is_available() else "cpu"), "bf16")
    options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
