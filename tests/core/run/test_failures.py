"""Failures of other ranks: one sentence for the user, and the traceback in a file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.core.ranks.ranks import Ranks
from powerband.core.run.failures import final_error


@pytest.mark.parametrize(
    ("error", "part"),
    [
        ("[unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation to complete", "not answered"),
        ("[pair.cc:547] Connection closed by peer [127.0.0.1]:2387", "another rank failed"),
    ],
)
def test_a_failed_collective_operation_is_one_sentence_and_its_traceback_a_file(
    tmp_path: Path, error: str, part: str
) -> None:
    run: Any = SimpleNamespace(
        dir=tmp_path, ranks=Ranks(rank=1, world_size=2), guard=SimpleNamespace(check=lambda: False)
    )
    try:
        raise RuntimeError(error)
    except RuntimeError as raised:
        final = final_error(run, raised)
    file = tmp_path / "stacks" / "rank1-error.txt"
    assert isinstance(final, SystemExit) and "\n" not in str(final)
    assert part in str(final) and "rank 1" in str(final) and str(file) in str(final)
    assert error in file.read_text() and "Traceback" in file.read_text()
