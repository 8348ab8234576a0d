"""Words of the older project's command line and configuration, and what they are in `sketchnav`."""

from __future__ import annotations

RENAMED = {
    "model_dir": ("run.run_dir", "one folder a run; nothing in it is overwritten"),
    "resume_from": ("run.resume", "a run folder or a checkpoint"),
    "exp_config": (None, "Write --config FILE.yaml; its sections are those of powerband show sketchnav."),
    "run_type": (None, "Write powerband train sketchnav, or powerband eval RUN."),
    "eval_best": (None, "Write powerband eval RUN: the newest checkpoint, or name one of RUN/checkpoints."),
    "NUM_PROCESSES": ("on_policy.num_envs", "over all ranks; they are rows of one batch, not processes"),
    "CHECKPOINT_INTERVAL": ("run.save_interval", "environment steps between two checkpoints, not updates"),
    "USE_SYNC_VECENV": (
        None,
        "Agents are rows of one batch in this process: nothing is sent between processes, and num_envs=1 is one agent.",
    ),
    "DEBUG": (
        None,
        "Write log_interval_s=1 to be told more often, detect_anomaly=true to be told which operation fails.",
    ),
    "GPU_IDS": "run.gpus",
    "TORCH_GPU_ID": (None, "Write gpus=0,2: one rank a GPU, and each renders on its own."),
    "SIMULATOR_GPU_ID": (None, "Write gpus=0,2: one rank a GPU, and each renders on its own."),
    "DATASET.DATA_PATH": ("episode_file", "a file that `powerband train sketchnav episodes` has written"),
    "DATASET.SCENES_DIR": (None, "Plans are drawn, not read: scenes.plans, scenes.least_m, scenes.most_m."),
    "RL.DIFFUSION.lr": "chunks.lr",
    "RL.PPO.num_steps": "on_policy.num_steps",
    "RL.PPO.num_mini_batch": ("on_policy.minibatches", "of whole sequences"),
    "RL.PPO.ppo_epoch": "on_policy.epochs",
    "RL.PPO.clip_param": "ppo.clip",
    "RL.PPO.lr": "ppo.lr",
    "RL.PPO.entropy_coef": "ppo.entropy_coef",
    "RL.PPO.value_loss_coef": "ppo.value_coef",
    "RL.PPO.max_grad_norm": "ppo.max_grad_norm",
    "RL.PPO.gamma": "on_policy.gamma",
    "RL.PPO.tau": "on_policy.gae_lambda",
}
