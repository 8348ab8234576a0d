"""Runs one row of the learning suite and writes its result. `run_rows.py` starts it.

python one_row.py ROW RUN_FOLDER RESULT.json
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import powerband
from powerband.core.machine.device import host_facts
from rows import Row, find_row, powerband_settings


def run(row: Row, folder: Path) -> dict[str, Any]:
    """Trains and evaluates a row; powerband's run folder is `folder`, without what an interrupted run left there."""
    task = row.task
    if row.system.startswith("powerband"):
        from powerband_row import train_powerband

        shutil.rmtree(folder, ignore_errors=True)
        return train_powerband(task.env_id, task.algo, task.steps, row.seed, powerband_settings(row), folder)
    from sb3_row import train_sb3, zoo

    settings = zoo()[task.algo][task.name] if row.system == "sb3-zoo" else {}
    return train_sb3(task.env_id, task.algo, task.steps, row.seed, settings)


def commit() -> str:
    """Returns the commit of the package; "" outside of a repository."""
    command = ["git", "-C", str(Path(powerband.__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def main() -> None:
    name, folder, result_path = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    row, began = find_row(name), time.perf_counter()
    head = {"task": row.task.name, "algo": row.task.algo, "system": row.system, "seed": row.seed}
    result = {**head, "steps": row.task.steps, **run(row, folder)}
    times = os.times()
    result["row_wall_s"] = round(time.perf_counter() - began, 1)
    result["row_cpu_s"] = round(times.user + times.system + times.children_user + times.children_system, 1)
    result["load"] = round(os.getloadavg()[2], 1)  # of the last quarter of an hour: others disturb the times
    host = host_facts()
    result["host"] = {key: host[key] for key in ("cpu", "cores", "python", "torch")}
    packages = ("gymnasium", "stable_baselines3", "numpy")
    result["versions"] = {package: version(package) for package in packages} | {"powerband_commit": commit()}
    unfinished = result_path.with_suffix(".part")
    unfinished.write_text(json.dumps(result) + "\n")
    unfinished.rename(result_path)


if __name__ == "__main__":
    main()
