"""Subprocess call: runs one function in a separate process, because the function may crash, hang or print.

Simulators and drivers do all three when they are imported. The subprocess writes its result to a file, so its printed
output does not interfere. After a time limit, it is killed together with all processes that it started.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from powerband.core.ranks.subprocesses import describe_exit, kill_session


@dataclass(frozen=True)
class SubprocessResult:
    """Outcome of a call in a subprocess.

    Attributes:
        value: Return value of the function, a JSON value; None if the call failed.
        problem: Description of the failure; empty if the call succeeded.
        kind: Kind of the failure: ``error`` if the function raised, ``crash`` or ``hang``; empty if the call succeeded.
        output: Last 4,000 characters that the subprocess printed.
    """

    value: Any = None
    problem: str = ""
    kind: Literal["", "error", "crash", "hang"] = ""
    output: str = ""


def call_in_subprocess(
    function: str, arguments: list[Any], *, timeout_s: float, environment: Mapping[str, str | None] | None = None
) -> SubprocessResult:
    """Calls a function in a new process.

    Args:
        function: The function as ``module:name``; its return value must be a JSON value.
        arguments: Positional arguments, JSON values.
        timeout_s: Seconds after which the subprocess is killed.
        environment: Environment variables to change in the subprocess; None removes a variable.
    """
    changes = environment or {}
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    for name, value in changes.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    with tempfile.TemporaryDirectory() as folder:
        result_file, output_file = Path(folder) / "result.json", Path(folder) / "output"
        with output_file.open("wb") as sink:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    "from powerband.doctor.subprocess_call import main; main()",
                    function,
                    json.dumps(arguments),
                    str(result_file),
                ],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=variables,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                kill_session(process)
        output = output_file.read_text(errors="replace")[-4000:]
        if result_file.exists():
            result = json.loads(result_file.read_text())
            kind: Literal["", "error"] = "error" if "error" in result else ""
            return SubprocessResult(result.get("value"), result.get("error", ""), kind, output)
    if status is None:
        return SubprocessResult(
            problem=f"gave no answer within {timeout_s:g} s and was ended", kind="hang", output=output
        )
    return SubprocessResult(problem=describe_exit(status), kind="crash", output=output)


def describe(error: BaseException) -> str:
    """Returns the type and text of an error on one line, even if ``str(error)`` raises.

    ``str()`` of PyOpenGL's EGLError imports a module to look up its code. If that import fails, Python prints
    ``<exception str() failed>``. This function reads the code from the attributes of the error instead.
    """
    try:
        text = " ".join(str(error).split())
    except Exception:
        from powerband.core.machine.egl import ERRORS

        code = error.__dict__.get("err", 0)
        text = ERRORS.get(code, f"EGL error {code!r}")
        operation = getattr(error.__dict__.get("baseOperation"), "__name__", "")
        text += f" in {operation}" if operation else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def main() -> None:
    """Entry point of the subprocess: calls the function and writes its result to a file.

    The command line has ``module:name``, a JSON list of arguments, and the file.
    """
    function, arguments, result_file = sys.argv[1:4]
    module, name = function.split(":")
    try:
        result = {"value": getattr(importlib.import_module(module), name)(*json.loads(arguments))}
    except BaseException as error:
        result = {"error": describe(error)}
    partial_file = Path(f"{result_file}.part")
    partial_file.write_text(json.dumps(result))
    partial_file.rename(result_file)
    sys.stdout.flush()
    os._exit(0)  # simulators and drivers may crash while the interpreter exits, and the result is already written
