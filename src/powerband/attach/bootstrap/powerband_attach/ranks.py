"""Ranks: records the rank of this process in ``torch.distributed``.

The variable RANK, with which the record of a process begins, is that of torchrun. Processes of
``torch.multiprocessing.spawn`` and of Lightning have none.
"""

from __future__ import annotations

import functools
from typing import Any

from powerband_attach import record
from powerband_attach.imports import when_imported
from powerband_attach.safely import safely


def watch() -> None:
    """Wraps ``init_process_group`` when its module is imported."""
    when_imported("torch.distributed.distributed_c10d", _wrap)


def _wrap(module: Any) -> None:
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        safely(_record)(module)
        return result

    module.init_process_group = init_process_group


def _record(module: Any) -> None:
    if module.is_initialized():
        record.write("rank", rank=module.get_rank(), world_size=module.get_world_size())
