"""Maps old option names to those of sketchnav: names in the code of its guide, and in earlier powerband versions."""

from __future__ import annotations

from typing import Any

GUIDE: dict[str, Any] = {
    "model_dir": ("run.run_dir", "one folder per run; nothing in it is overwritten"),
    "resume_from": ("run.resume", "a run folder or a checkpoint"),
    "exp_config": (None, "Write --config FILE.yaml; its sections are those of powerband show sketchnav."),
    "run_type": (None, "Write powerband train sketchnav, or powerband eval RUN."),
    "eval_best": (None, "Write powerband eval RUN for the newest checkpoint, or name a folder of RUN/checkpoints."),
    "NUM_PROCESSES": ("on_policy.num_envs", "over all ranks; environments are rows of one batch, not processes"),
    "CHECKPOINT_INTERVAL": ("run.save_interval", "environment steps between two checkpoints, not updates"),
    "USE_SYNC_VECENV": (
        None,
        "Environments are rows of one batch in this process; no process is started. num_envs=1 is one environment.",
    ),
    "DEBUG": (None, "Write log_interval_s=1 to log more often, detect_anomaly=true to find the operation that fails."),
    "GPU_IDS": "run.gpus",
    "TORCH_GPU_ID": (None, "Write gpus=0,2: one rank per GPU, and each renders on its own GPU."),
    "SIMULATOR_GPU_ID": (None, "Write gpus=0,2: one rank per GPU, and each renders on its own GPU."),
    "DATASET.DATA_PATH": ("episode_file", "a file that `powerband train sketchnav episodes` has written"),
    "DATASET.SCENES_DIR": (None, "Plans are generated, not read: scenes.plans, scenes.min_size_m, scenes.max_size_m."),
    "RL.DIFFUSION.lr": "chunks.lr",
    "RL.PPO.num_steps": "on_policy.num_steps",
    "RL.PPO.num_mini_batch": ("on_policy.minibatches", "of complete sequences"),
    "RL.PPO.ppo_epoch": "on_policy.epochs",
    "RL.PPO.clip_param": "ppo.clip",
    "RL.PPO.lr": "ppo.lr",
    "RL.PPO.entropy_coef": "ppo.entropy_coef",
    "RL.PPO.value_loss_coef": "ppo.value_coef",
    "RL.PPO.max_grad_norm": "ppo.max_grad_norm",
    "RL.PPO.gamma": "on_policy.gamma",
    "RL.PPO.tau": "on_policy.gae_lambda",
}
"""Option in the code of the guide -> option of sketchnav, or (option, note); (None, note) refuses it with the note."""

RENAMED_SCENES = {
    "least_m": "min_size_m",
    "most_m": "max_size_m",
    "least_way_m": "min_path_m",
    "most_way_m": "max_path_m",
    "least_ratio": "min_path_ratio",
}
"""Old field of `EpisodeConfig` -> new field; recordings of demonstrations store the old ones, too."""
RENAMED_NET = {
    "pictures": "image_encoder",
    "around_m": "crop_m",
    "around_px": "crop_px",
    "learn_size": "learn_page_size",
}
RENAMED_CHUNKS = {"execute": "exec_horizon"}


def both_forms(section: str, renamed: dict[str, str]) -> dict[str, str]:
    """Maps the old option names of a section, with and without the prefix ``section.``, to the new option names.

    Args:
        section: Name of a section of the configuration, such as ``net``.
        renamed: Old field name -> new field name.

    Returns:
        Old option -> new option; for example both ``around_m`` and ``net.around_m`` -> ``net.crop_m``.
    """
    return {old_name: f"{section}.{new}" for old, new in renamed.items() for old_name in (old, f"{section}.{old}")}


OLD_NAMES: dict[str, Any] = {
    **GUIDE,
    "keep_episodes": "cache_episodes",
    **both_forms("scenes", RENAMED_SCENES),
    **both_forms("net", RENAMED_NET),
    **both_forms("chunks", RENAMED_CHUNKS),
}
