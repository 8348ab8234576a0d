"""Script profile: runs a training script that does not know powerband, and shows where its time goes.

The ledger and the causes are those of ``powerband profile RECIPE``. The advice is bounded and not predicted, because
nothing of the script is run a second time; `attach.trial` does that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerband.attach.processes.launch import TOOL, switched_off
from powerband.attach.processes.script_run import ScriptOptions, run_script

if TYPE_CHECKING:
    from powerband.attach.findings import ScriptProfile


def profile_script(command: Sequence[str], options: ScriptOptions) -> tuple[ScriptProfile | None, int]:
    """Runs a script, and diagnoses the window.

    Returns:
        (profile, or None if no process has reported enough; exit status).
    """
    run = run_script(command, options, lambda text: print(f"powerband: {text}", file=sys.stderr, flush=True))
    from powerband.attach.findings import script_profile  # imports torch, which would disturb the script

    result = script_profile(command, run)
    if result is None:
        names = [f"{each.pid} ({each.command[:120]})" for each in run.silent]
        reason = "no Python process of the command ran long enough"
        if switched_off():
            reason = f"{TOOL} is empty, which switches the instrumentation off"
        elif names:
            reason = f"these Python processes never reported: {', '.join(names)}. "
            reason += "The flags -I, -E and -S switch reporting off"
        print(f"powerband: nothing was measured: {reason}.", file=sys.stderr)
    return result, run.status
