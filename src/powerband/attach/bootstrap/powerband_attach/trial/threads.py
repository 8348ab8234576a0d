"""Threads: the number of threads of torch. Environment variables set those of OpenMP and BLAS before the start."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from powerband_attach.imports import when_imported
from powerband_attach.trial import settings
from powerband_attach.trial.replace import replace
from powerband_attach.user_code import is_own_file, is_user_file


def install() -> None:
    """Sets the threads when torch is imported, and ignores later calls of the script, if the change is ``threads``."""
    number = settings.change("threads")
    if number is None:
        return
    when_imported("torch", lambda torch: _set(torch, number))
    replace("torch", "set_num_threads", _ignoring)


def _set(torch: Any, number: int) -> None:
    settings.made("threads")
    if torch.get_num_threads() != number:  # the script has set the variable itself
        torch.set_num_threads(number)


def _ignoring(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_num_threads(number: int) -> None:
        frame: Any = sys._getframe(1)
        while is_own_file(frame.f_code.co_filename):
            frame = frame.f_back
        if not is_user_file(frame.f_code.co_filename):  # workers of a batch loader use one thread
            original(number)

    return set_num_threads
