"""safely: keeps errors of the instrumentation away from the script."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

from powerband_attach import record


def safely(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `fn` with each exception written to the record and replaced by the result None."""

    @functools.wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception:
            record.write("failure", text=traceback.format_exc()[-4000:])
            return None

    return guarded
