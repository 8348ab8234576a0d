"""Maps old option names to those of metaworld: names in the code of its guide, and in earlier powerband versions."""

from __future__ import annotations

from typing import Any

_RANDOM_STEPS = ("off_policy.random_steps", "set off_policy.learning_starts separately")
_LEARNING_STARTS = "off_policy.learning_starts"

OLD_NAMES: dict[str, Any] = {
    "env.benchmark.env_name": "task",
    "env_name": "task",
    "worker.multitask.num_envs": ("off_policy.num_envs", "number of simulations, over all ranks"),
    "experiment.num_train_steps": ("run.env_steps", "environment steps, over all ranks"),
    "experiment.num_student_online_trainsteps2": "student_steps",
    "experiment.init_steps_stu2": _RANDOM_STEPS,
    "experiment.init_steps": _RANDOM_STEPS,
    "experiment.num_actor_train_step": "distill.actor_updates",
    "experiment.num_critic_train_step": "distill.critic_updates",
    "experiment.col_sampling_freq": "collect.interval",
    "experiment.save_freq": ("run.save_interval", "environment steps"),
    "experiment.eval_freq": ("run.eval_interval", "environment steps"),
    "replay_buffer.batch_size": ("off_policy.global_batch_size", "over all ranks"),
    "replay_buffer.capacity": "off_policy.replay_size",
    "col_replay_buffer.batch_size": ("offline.global_batch_size", "over all ranks"),
    "col_replay_buffer.capacity": "collect.size",
    "agent.builder.actor_update_freq": "sac.policy_interval",
    "worker.builder.actor_update_freq": "sac.policy_interval",
    "agent.builder.critic_target_update_freq": "sac.target_interval",
    "worker.builder.critic_target_update_freq": "sac.target_interval",
    "student.builder.actor_update_freq": "sac.policy_interval",
    "student.builder.critic_target_update_freq": "sac.target_interval",
    "transformer_collective_network.builder.actor_update_freq": (
        None,
        "Distillation trains the policy first, then the critics, and has no target networks. Write "
        "distill.actor_updates and distill.critic_updates, or leave this option at 1.",
    ),
    "transformer_collective_network.builder.critic_target_update_freq": (
        None,
        "Distillation has no target critics: its targets are the values of the experts. Leave this option out.",
    ),
    "gpu_optimizations.compile_model": "sac.compile",
    "gpu_optimization.compile_model": "sac.compile",
    "gpu_optimizations.gradient_checkpointing": "represent.net.gradient_checkpointing",
    "gpu_optimizations.gradient_clipping": "distill.max_grad_norm",
    "gpu_optimizations.num_workers": "offline.loader_threads",
    "distributed.world_size": ("run.nproc", "ranks on this machine; with GPUs write gpus=all, one rank each"),
    "distributed.rank": (
        None,
        "One command starts all ranks and numbers them. Write gpus=0,1 or nproc=2 without a rank, or use torchrun.",
    ),
    "distributed.backend": ("", "NCCL connects GPUs and gloo connects CPU ranks"),
    "warmup": _LEARNING_STARTS,
    "off_policy.warmup": _LEARNING_STARTS,
    "stop_after": "stop_after_successes",
    "teacher_from": "imitate.teacher_start_step",
    "imitate.teacher_from": "imitate.teacher_start_step",
    "spread": "distill.log_std_coef",
    "distill.spread": "distill.log_std_coef",
    "mask": "represent.mask_ratio",
    "represent.mask": "represent.mask_ratio",
}
"""Old option -> option of metaworld, or (option, note for the user). (None, note) refuses the option with the note."""

COMPILE = "sac.compile=true represent.compile=true distill.compile=true"
OLD_ARGUMENTS: dict[str, Any] = {
    "config-name=gpu_server_collective_config": "variant=gpu-server",
    "setup=gpu_server_metaworld": "variant=gpu-server",
    "env=metaworld-mt1": "",
    "gpu_optimizations.use_amp=true": "precision=bf16",
    "gpu_optimizations.use_amp=false": "precision=fp32",
    "gpu_optimization.use_amp=true": "precision=bf16",
    "gpu_optimization.use_amp=false": "precision=fp32",
    "gpu_optimizations.compile_model=true": COMPILE,
    "gpu_optimization.compile_model=true": COMPILE,
    "distributed.rank=0": ("", "one command starts all ranks and numbers them"),
    "transformer_collective_network.builder.actor_update_freq=1": ("", "distillation updates the policy at every step"),
    "transformer_collective_network.builder.critic_target_update_freq=1": (
        "",
        "the targets of distillation are the values of the experts, which do not change",
    ),
    "experiment.mode=train_worker": "expert",
    "experiment.mode=online_distill_collective_transformer": "online_distill",
    "experiment.mode=train_representation_transformer": "represent",
    "experiment.mode=distill_collective_transformer": "distill",
    "experiment.mode=evaluate_collective_transformer": "evaluate",
    "experiment.mode=train_student": "student",
}
"""``name=value`` of the guide -> stage or ``name=value`` of metaworld, or (one of these, note); "" if obsolete."""
