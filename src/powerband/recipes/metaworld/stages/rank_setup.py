"""Creates what each rank of a stage needs: its training environments, and SAC settings scaled by ``lr_scale``."""

from __future__ import annotations

from functools import partial

from powerband.algos.settings import SACConfig
from powerband.core.config.sizes import per_rank, scaled_lr
from powerband.core.run.run import Run
from powerband.data.types import VecEnv
from powerband.envs.workers.supervision import Supervision
from powerband.loops.support.env_failures import report_env_failure
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.env.tasks import MT10_TASKS, expand_task
from powerband.recipes.metaworld.env.vec_env import make_metaworld_vec_env

SIMULATOR_LINES = {
    "threads": "MuJoCo in threads",
    "envpool": "EnvPool",
    "workers": "metaworld in worker processes",
}
"""Backend -> its description in the start banner."""


def make_training_env(config: Config, run: Run) -> VecEnv:
    """Creates the training environments of this rank (process of the run); the seed of the run draws their goals."""
    ranks, tasks = run.ranks, config.simulated_tasks()
    num_envs = per_rank("num_envs", config.off_policy.num_envs, ranks.world_size)
    run.describe({"simulator": SIMULATOR_LINES[tasks.resolved_backend]})
    translated = set(expand_task(tasks.task)) - set(MT10_TASKS)
    if translated and tasks.resolved_backend == "threads":
        run.console.note(
            f"Creating the environments. The first start on a machine compiles the rewards of {len(translated)} "
            f"task(s), which takes some seconds for each."
        )
    return make_metaworld_vec_env(
        tasks,
        num_envs,
        config.num_workers,
        run.device,
        config.run.seed,
        ranks.rank * num_envs,
        supervision=Supervision(),
        on_failure=partial(report_env_failure, run),
    )


def scaled_sac_settings(config: Config, run: Run) -> SACConfig:
    """Returns the settings of SAC, with learning rates scaled to the number of ranks by the option ``lr_scale``.

    A rank is one process of the run. The text that is printed at the start of the run states the scaled rates.
    """
    settings, line = scaled_lr(config.sac, config.run.lr_scale, run.ranks.world_size)
    ratio = config.off_policy.global_batch_size / 512
    if ratio != 1:
        line += f"; sqrt rule for batch {ratio * 512:g} relative to 512: {3e-4 * ratio**0.5:.2g}"
    run.describe({"learning rates": line})
    return settings
