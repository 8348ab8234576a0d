"""Variants of metaworld: named sets of settings for a machine or a purpose."""

from __future__ import annotations

from typing import Any

from powerband.recipes.metaworld.env.tasks import MT10

CPU_TRAINING = {
    "run.gpus": "none",
    "run.threads": 1,
    "run.precision": "auto",
    "off_policy.anneal_from": 0.5,
    "sac.policy_interval": 1,
    "sac.target_interval": 1,
    "sac.obs_scale": 5.0,
    "sac.gamma": 0.95,
}
"""Settings of SAC on a CPU, for one task and for ten."""
MT10_TRAINING = {
    "task": MT10,
    "stop_after_successes": 0,
    "off_policy.num_envs": 10,
    "off_policy.global_batch_size": 1280,
    "off_policy.replay_size": 1_000_000,
    "off_policy.update_interval": 10,
    "off_policy.updates_per_interval": 1,
    "off_policy.learning_starts": 10_000,
    "off_policy.random_steps": 10_000,
    "sac.hidden": (400, 400, 400),
    "collect.interval": 0,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "single": {  # with the defaults: the column of the guide for one GPU
        "collect.size": 2_000_000,
        "run.eval_interval": 4_000,
        "run.save_interval": 20_000,
    },
    "cpu": {  # half the rows of `single` per update and half its updates, in bf16 if that is faster: 1/5 of the time
        **CPU_TRAINING,
        "off_policy.num_envs": 4,
        "off_policy.global_batch_size": 256,
        "off_policy.update_interval": 4,
        "off_policy.updates_per_interval": 2,
        "sac.critic_lr": 1e-3,
        # Annealing needs the whole budget: 80 successes with exploration noise are not yet 80 without.
        "stop_after_successes": 0,
        "represent_updates": 1_000,
        # The published bonus of 1 for 4,000 steps ends before the random actions do.
        "student.bonus": 10.0,
        "student.hold_steps": 20_000,
    },
    "cpu-narrow": {  # for easy tasks: narrow layers, whose updates are compiled functions
        **CPU_TRAINING,
        "run.precision": "fp32",
        "off_policy.num_envs": 8,
        "off_policy.global_batch_size": 128,
        "off_policy.update_interval": 8,
        "off_policy.updates_per_interval": 8,
        "off_policy.learning_starts": 2_000,
        "off_policy.random_steps": 2_000,
        "sac.hidden": (64, 64),
        "sac.actor_lr": 1e-3,
        "sac.critic_lr": 1e-3,
        "expert_steps": 40_000,
        "stop_after_successes": 0,
    },
    "gpu-server": {
        "off_policy.num_envs": 16,
        "off_policy.global_batch_size": 2048,
        "off_policy.replay_size": 500_000,
        "off_policy.update_interval": 16,
        "offline.global_batch_size": 2048,
        "collect.interval": 5_000,
        "collect.samples": 1_600,
        "collect.size": 5_000_000,
        "sac.actor_lr": 1e-3,
        "sac.critic_lr": 1e-3,
        "sac.policy_interval": 1,
        "sac.target_interval": 1,
        "run.eval_interval": 2_000,
        "run.save_interval": 10_000,
        "run.precision": "bf16",
    },
    "mt10": MT10_TRAINING,
    "mt10-cpu": {  # 64 rows of each task per update, one update for ten environment steps
        **MT10_TRAINING,
        **CPU_TRAINING,
        "expert_steps": 600_000,
        "off_policy.global_batch_size": 640,
    },
    "smoke": {
        "tasks": ("reach", "drawer-close"),
        "run.threads": 1,
        "horizon": 50,
        "final_episodes": 4,
        "stop_after_successes": 0,
        "expert_steps": 1_200,
        "online_steps": 800,
        "imitate.teacher_start_step": 500,
        "represent_updates": 30,
        "represent.net.length": 6,
        "represent.net.width": 16,
        "represent.net.layers": 1,
        "represent.net.heads": 4,
        "offline.global_batch_size": 64,
        "student_steps": 600,
        "off_policy.num_envs": 2,
        "off_policy.global_batch_size": 64,
        "off_policy.replay_size": 4_000,
        "off_policy.learning_starts": 200,
        "off_policy.random_steps": 200,
        "collect.interval": 200,
        "collect.samples": 100,
        "distill.actor_updates": 100,
        "distill.critic_updates": 50,
        "student.hold_steps": 200,
        "student.fade_steps": 200,
    },
}
