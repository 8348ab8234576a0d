"""Steps and seconds of SAC experts of Meta-World to 80 % success with two values of one option.

The option is the noise of the actions, white or pink, or layer norms in the critics. Both values have the same other
settings (`variant=cpu-narrow`) and seeds. Two runs train at the same time, with one thread each, so the seconds hold
for a machine with two cores that does nothing else.

    python benchmarks/learning/metaworld_options.py --work ~/noise
        --json benchmarks/results/learning/metaworld_noise.json
    python benchmarks/learning/metaworld_options.py --hidden 128,128 --work ~/noise --json ~/noise/wide.json
    python benchmarks/learning/metaworld_options.py --option layer_norm --hidden 128,128 --work ~/norm \
        --json benchmarks/results/learning/metaworld_norm.json
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from metaworld_transfer import STEPS, TARGET, student_curve
from powerband.core.machine.device import host_facts

OPTIONS = {"noise": ("sac.action_noise", ("white", "pink")), "layer_norm": ("sac.layer_norm", ("false", "true"))}
"""Name in the result -> (option of the command, its two values)."""
TASKS = ("reach", "drawer-close", "button-press-topdown", "window-close")
EVERY = 5_000
"""Environment steps between two evaluations of 20 episodes."""
SETTINGS = "gpus=none threads=1 num_workers=1 variant=cpu-narrow tensorboard=false".split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs, outside of the checkout")
    parser.add_argument("--tasks", nargs="+", choices=STEPS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--option", choices=OPTIONS, default="noise")
    parser.add_argument("--hidden", default="64,64", help="widths of the hidden layers")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    work = options.work.expanduser().absolute()
    settings = [*SETTINGS, f"sac.hidden={options.hidden}"]
    result: dict[str, Any] = {"host": host_facts(), "settings": settings, "target": TARGET, "rows": []}
    name, values = OPTIONS[options.option]
    jobs = [(seed, task, value) for seed in options.seeds for task in options.tasks for value in values]

    def run(job: tuple[int, str, str]) -> None:
        seed, task, value = job
        arguments = [*settings, f"{name}={value}"]
        curve = student_curve(work, work / "no-project", "scratch", task, seed, arguments, EVERY)
        row = {"task": task, options.option: value, "seed": seed, "budget": STEPS[task], "curve": curve}
        result["rows"].append(row)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
        print(task, value, seed, curve[-1:], flush=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, jobs))


if __name__ == "__main__":
    main()
