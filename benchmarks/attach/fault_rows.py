"""The 44 rows of `faults.py`: framework, fault, dose, near-miss, and the labels that name the cause.

The list was fixed before the suite was run for judgement. One dose has changed since: the near-miss of slow
environments in skrl slept 0.1 ms in each of them, which is 65 % of the time on an idle machine. The list has only
faults that a user of the framework can have:

- Straggling environments need environments in processes, and a slow loader needs a loader.
- Evaluations, figures and checkpoints are those of the framework's callbacks, options or trainer, where it has them.
- Images are drawn by MuJoCo on Mesa's software renderer in Stable-Baselines3, and by pygame elsewhere.
- ``.item()`` costs nothing on a CPU. A stand-in behind PyTorch's dispatcher gives the answers of a busy device.
"""

from __future__ import annotations

from dataclasses import dataclass

RIGHT = {
    "slow env": "env-bound",
    "straggler env": "env-straggler",
    "slow loader": "data-wait",
    "tiny batch": "small-batch",
    "item": "host-sync",
    "update interval": "update-bound",
    "eval": "eval-blocking",
    "log and figures": "log-blocking",
    "checkpoint": "save-blocking",
    "software rendering": "software-rendering",
    "threads": "thread-oversubscription",
}
"""Fault -> label that names its cause. The first label of the near-miss must be another one."""
PLACE = {
    "straggler env": "env-bound",
    "tiny batch": "update-bound",
    "item": "update-bound",
    "software rendering": "env-bound",
    "threads": "update-bound",
}
"""Fault -> label that only points to the right part of the loop; it does not count as right."""


@dataclass(frozen=True)
class Row:
    """One fault in one framework.

    Attributes:
        framework: Name of the framework.
        script: Name of the script in `fault_scripts`, without suffix.
        fault: Key of `RIGHT`.
        dose, near_miss: Arguments of the script with the fault, and with a healthy dose of the same thing.
    """

    framework: str
    script: str
    fault: str
    dose: str
    near_miss: str

    @property
    def name(self) -> str:
        return f"{self.framework}: {self.fault}"


def _rows(framework: str, script: str, table: dict[str, tuple[str, str]]) -> list[Row]:
    return [Row(framework, script, fault, dose, near_miss) for fault, (dose, near_miss) in table.items()]


ROWS = [
    *_rows(
        "Stable-Baselines3",
        "sb3_sac",
        {
            "slow env": ("--env-ms 40 --train-freq 4", "--env-ms 1"),
            "straggler env": ("--num-envs 4 --first-env-ms 40", "--num-envs 4 --first-env-ms 1"),
            "tiny batch": ("--batch-size 4", "--batch-size 256"),
            "item": ("--reads 20 --answer-ms 2", "--reads 20"),
            "update interval": ("--gradient-steps 8", "--train-freq 16 --env-ms 1"),
            "eval": ("--eval-every 5", "--eval-every 500"),
            "log and figures": ("--figure-every 2", "--figure-every 400"),
            "checkpoint": ("--save-every 2", "--save-every 500"),
            "software rendering": (
                "--env-id InvertedPendulum-v5 --render-every 1 --train-freq 4",
                "--env-id InvertedPendulum-v5 --render-every 200 --train-freq 4",
            ),
            "threads": ("--threads 64", "--threads 2"),
        },
    ),
    *_rows(
        "CleanRL style",
        "cleanrl_dqn",
        {
            "slow env": ("--env-ms 40", "--env-ms 1"),
            "straggler env": ("--num-envs 4 --first-env-ms 40", "--num-envs 4 --first-env-ms 1"),
            "tiny batch": ("--batch-size 4", "--batch-size 256"),
            "item": ("--reads 20 --answer-ms 2", "--reads 20"),
            "update interval": ("--updates 8", "--train-frequency 16 --env-ms 1"),
            "eval": ("--eval-every 10", "--eval-every 2000"),
            "log and figures": ("--figure-every 4", "--figure-every 1000"),
            "checkpoint": ("--save-every 2", "--save-every 1000"),
            "software rendering": (
                "--env-id CartPole-v1 --render-every 1 --train-frequency 4",
                "--env-id CartPole-v1 --render-every 200 --train-frequency 4",
            ),
            "threads": ("--threads 64", "--threads 2"),
        },
    ),
    *_rows(
        "tianshou",
        "tianshou_dqn",
        {
            "slow env": ("--env-ms 40", "--env-ms 1"),
            "straggler env": (
                "--processes --num-envs 4 --updates-per-step 0.25 --first-env-ms 40",
                "--processes --num-envs 4 --updates-per-step 0.25 --first-env-ms 1",
            ),
            "tiny batch": ("--batch-size 4", "--batch-size 256"),
            "update interval": (
                "--updates-per-step 4",
                "--collect-steps 32 --updates-per-step 0.03125 --env-ms 1",
            ),
            "eval": ("--eval-every 20", "--eval-every 4000"),
            "log and figures": ("--figure-every 4", "--figure-every 2000"),
            "checkpoint": ("--save-every 4", "--save-every 4000"),
            "software rendering": (
                "--env-id CartPole-v1 --collect-steps 8 --updates-per-step 0.125 --render-every 1",
                "--env-id CartPole-v1 --collect-steps 8 --updates-per-step 0.125 --render-every 200",
            ),
        },
    ),
    *_rows(
        "skrl",
        "skrl_ppo",
        {
            "slow env": ("--env-ms 10", "--env-ms 0.02"),
            "straggler env": ("--mode async --first-env-ms 20", "--mode async --first-env-ms 0.1"),
            "tiny batch": ("--batch-size 4", "--batch-size 256"),
            "update interval": ("--epochs 100", "--epochs 1"),
            "log and figures": ("--figure-every 2", "--figure-every 2000"),
            "checkpoint": ("--save-every 5", "--save-every 2000"),
        },
    ),
    *_rows(
        "rsl_rl",
        "rsl_rl_ppo",
        {
            "slow env": ("--env-ms 40", "--env-ms 1"),
            "tiny batch": ("--batch-size 4", "--batch-size 256"),
            "update interval": ("--epochs 40", "--epochs 1 --env-ms 2"),
            "checkpoint": ("--rollout 4 --epochs 1 --save-every 1", "--rollout 4 --epochs 1 --save-every 500"),
        },
    ),
    *_rows(
        "Lightning",
        "lightning_module",
        {
            "slow loader": ("--load-ms 10", "--load-ms 0.1"),
            "tiny batch": ("--batch-size 4 --chunk 4", "--batch-size 256"),
            "item": ("--reads 20 --answer-ms 2", "--reads 20"),
            "eval": ("--eval-every 4", "--eval-every 400"),
            "log and figures": ("--figure-every 4", "--figure-every 400"),
            "checkpoint": ("--save-every 2", "--save-every 400"),
        },
    ),
]
