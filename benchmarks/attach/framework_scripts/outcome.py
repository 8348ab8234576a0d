"""Outcome of a script: a digest of its parameters, and the processor seconds of its training loop."""

from __future__ import annotations

import hashlib
import os
import resource
import threading
import time
from collections.abc import Iterable

import psutil
import torch

torch.set_num_threads(1)
if os.environ.get("SECOND_THREAD"):
    # The C library uses cheaper locks, also to allocate memory, until a process has had a second thread. The thread
    # that samples ends this, as do several threads of torch, a GPU or a progress bar.
    second = threading.Thread(target=time.time)
    second.start()
    second.join()


class Outcome:
    """Prints the outcome of a training loop that starts with the creation of this object. Each rank prints its own."""

    def __init__(self) -> None:
        self.began_s = processor_s()

    def show(self, parameters: Iterable[torch.Tensor]) -> None:
        seconds = processor_s() - self.began_s
        digest = hashlib.sha256(b"".join(each.detach().cpu().numpy().tobytes() for each in parameters)).hexdigest()
        print(f"OUTCOME {digest[:32]} {seconds:.6f}", flush=True)


def processor_s() -> float:
    """Returns the processor time in seconds of this process and its descendants, those that have ended included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    descendants = psutil.Process().children(recursive=True)
    return (
        time.process_time() + ended.ru_utime + ended.ru_stime + sum(sum(each.cpu_times()[:4]) for each in descendants)
    )
