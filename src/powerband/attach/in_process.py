"""In-process profile: ``powerband.attach()`` as the first line of a script or notebook."""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from powerband.attach.findings import ScriptProfile, script_profile
from powerband.attach.processes.launch import BOOTSTRAP, FOLDER, TOOL, switched_off
from powerband.attach.processes.records import read_records
from powerband.attach.processes.script_run import ScriptRun, window_start
from powerband.attach.processes.temporary_folder import temporary_folder
from powerband.core.config.command_line import check_writable, print_or_write
from powerband.core.errors import ConfigError

OWNER = "POWERBAND_ATTACH_OWNER"
"""Environment variable that `attach` sets: its process id and the folder of records."""


class InProcessProfile:
    """The running measurement of this process."""

    def __init__(self, folder: Path, write: Callable[[], None]) -> None:
        self.folder, self._write = folder, write
        self.began_ns = time.perf_counter_ns()

    def profile(self) -> ScriptProfile | None:
        """Returns the profile of all time since the first updates; None if there is none yet."""
        self._write()
        now = time.perf_counter_ns()
        records = read_records(self.folder)
        remark = "there were fewer than three updates"
        start, note = window_start(records, now, float("inf")) or (self.began_ns, remark)
        notes = [note] if note else []
        run = ScriptRun(records, [], 0, start, now, (start - self.began_ns) * 1e-9, notes)
        return script_profile([sys.executable, *sys.argv], run)


def attach(report: bool = True, json: str = "") -> InProcessProfile:
    """Starts to measure this process and the processes that it starts.

    Call it before the script imports torch and its environments, because functions are timed when they are imported.

    Args:
        report: Print the report to stderr when the process ends.
        json: File that gets the profile as JSON when the process ends; "" writes none.

    Returns:
        The measurement; its method `profile` returns the profile so far, for notebooks. In a process that spawn has
        started, which imports the script again, it is the measurement of the parent, and there is no second report.
        With an empty environment variable ``POWERBAND_ATTACH`` nothing is measured, and `profile` returns None.

    Raises:
        ConfigError: This process is measured already, or the JSON file or the folder for temporary files is not
            writable.
    """
    if "powerband_attach" in sys.modules:
        if (parent := _of_parent()) is not None:
            return parent
        raise ConfigError("This process is measured already. Call powerband.attach() once, without powerband profile.")
    check_writable(json, "json=")
    if switched_off():
        return InProcessProfile(Path(os.devnull), lambda: None)
    folder = temporary_folder("powerband-attach-")
    paths = [str(BOOTSTRAP), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    os.environ |= {TOOL: "profile", FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(paths)}
    os.environ[OWNER] = f"{os.getpid()} {folder}"
    instrumentation: Any = _instrumentation()
    owner, ended = os.getpid(), False

    def end() -> None:
        nonlocal ended
        if ended or os.getpid() != owner:
            return
        ended = True
        try:
            result = attached.profile()
            if result is not None and report:
                print(f"\n{result}", file=sys.stderr, flush=True)
            if result is not None and json:
                print_or_write(result.to_dict(), json)
        except ConfigError as error:
            print(f"powerband: {error}", file=sys.stderr)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)  # before the instrumentation's own function, so it runs after that one
    instrumentation.start()
    instrumentation.process.before_exit.append(end)  # `os._exit` runs no function of `atexit`
    attached = InProcessProfile(folder, _write())
    return attached


def _of_parent() -> InProcessProfile | None:
    """Returns the measurement that a parent of this process has started by `attach`; None if there is none."""
    pid, _, folder = os.environ.get(OWNER, "").partition(" ")
    if not folder or folder != os.environ.get(FOLDER) or pid == str(os.getpid()):
        return None
    return InProcessProfile(Path(folder), _write())


def _write() -> Callable[[], None]:
    """Returns the function that writes the times of this process to its record."""
    sampler: Any = importlib.import_module("powerband_attach.profile.sampler")
    write: Callable[[], None] = sampler.sampler.write
    return write


def _instrumentation() -> Any:
    """Imports the package of `BOOTSTRAP` without a change of ``sys.path``."""
    package = BOOTSTRAP / "powerband_attach"
    spec = importlib.util.spec_from_file_location(
        "powerband_attach", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["powerband_attach"] = module
    spec.loader.exec_module(module)
    return module
