"""Scope: what a checkup looks at: devices, recipes, the folder of the runs. Handed to the checks of every section."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from powerband.doctor.child import Outcome, ask
from powerband.doctor.row import Row

Check = tuple[str, Callable[[], Row | list[Row]]]
"""(name, function): the name is shown while the function measures, and is the row's where it raises."""


@dataclass
class Scope:
    """What a checkup looks at.

    Attributes:
        recipes: Name -> function that imports the recipe.
        run_folder: Where runs are written.
        cuda_start_s: Seconds that CUDA has to start in, in a child: a broken driver can hang for ever.
    """

    recipes: dict[str, Callable[[], Any]] = field(default_factory=dict)
    run_folder: Path = Path("runs")
    cuda_start_s: float = 60.0

    @cached_property
    def cuda(self) -> Outcome | None:
        """How CUDA started in a child process: the number of GPUs; None where there is no driver at all."""
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return None
        return ask("powerband.doctor.accelerator:start_cuda", [], timeout_s=self.cuda_start_s)

    @cached_property
    def devices(self) -> list[Any]:
        """torch devices that can be used: the CPU, then every GPU."""
        import torch

        count = self.cuda.value if self.cuda is not None and self.cuda.value else 0
        return [torch.device("cpu"), *(torch.device("cuda", index) for index in range(count))]
