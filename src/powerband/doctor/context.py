"""CheckContext: the devices, recipes and folders that ``powerband doctor`` checks. Every section receives it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerband.doctor.check_result import CheckResult
from powerband.doctor.subprocess_call import SubprocessResult, call_in_subprocess

if TYPE_CHECKING:
    import torch

Check = tuple[str, Callable[[], CheckResult | list[CheckResult]]]
"""One check: (name, function that runs it and returns its results). The name is shown while the function runs, and
becomes the name of the result if it raises."""


@dataclass
class CheckContext:
    """Devices, recipes and folders of one checkup.

    Attributes:
        recipes: Recipe name -> function that imports the recipe.
        run_folder: Folder that holds the run folders.
        cuda_start_s: Seconds after which a start of CUDA counts as hanging.
    """

    recipes: dict[str, Callable[[], Any]] = field(default_factory=dict)
    run_folder: Path = Path("runs")
    cuda_start_s: float = 60.0

    @cached_property
    def cuda(self) -> SubprocessResult | None:
        """Result of starting CUDA in a subprocess, with the number of GPUs as its value; None without a driver."""
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return None
        return call_in_subprocess("powerband.doctor.cuda_start:start_cuda", [], timeout_s=self.cuda_start_s)

    @cached_property
    def devices(self) -> list[torch.device]:
        """Usable torch devices: the CPU, then every GPU."""
        import torch

        count = self.cuda.value if self.cuda is not None and self.cuda.value else 0
        return [torch.device("cpu"), *(torch.device("cuda", index) for index in range(count))]
