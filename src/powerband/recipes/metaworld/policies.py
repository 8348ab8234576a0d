"""Policies that an evaluation plays: of a run, of the project folder, Meta-World's scripts, and random actions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from powerband.algos.sac import SAC
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoints.checkpoint import load_checkpoint, resolve_resume
from powerband.core.run.state_registry import load_state
from powerband.data.types import Learner, Tree, VecEnv, tree_map
from powerband.loops.evaluate import Policy
from powerband.recipes.metaworld.algos.expert import build_learner
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.env.encoded import EncodedVecEnv
from powerband.recipes.metaworld.env.gymnasium_env import scripted_policy
from powerband.recipes.metaworld.env.tasks import ACTION, OBS, expand_task
from powerband.recipes.metaworld.nets.collective import shared_state
from powerband.recipes.metaworld.nets.trajectory import TrajectoryEncoder
from powerband.recipes.metaworld.project_folder import REWARD_SCALE, load_encoder_and_collective, load_policy


def greedy_policy(learner: Learner, device: torch.device | str = "cpu") -> Policy:
    """Returns the policy of a learner without exploration: a function (observations, memory) -> (actions, memory).

    `device` is that of the learner; the environments of an evaluation are on the CPU.
    """
    if torch.device(device).type == "cpu":
        return lambda obs, carry: learner.act(obs, carry, explore=False)[::2]

    def act(obs: Tree, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        action, _, carry = learner.act(tree_map(lambda each: each.to(device), obs), carry, explore=False)
        return action.cpu(), carry

    return act


def encoded_env(env: VecEnv, encoder: TrajectoryEncoder, keys: tuple[str, ...]) -> EncodedVecEnv:
    """Wraps environments so that they provide codes, the vectors to which an encoder maps the last steps.

    Args:
        env: Environments of Meta-World.
        encoder: The trained encoder.
        keys: Entries of an observation: ``obs``, the original observation, ``z``, the code, and ``s``, the state that
            all tasks share. `EncodedVecEnv` explains the shapes.
    """
    sizes = encoder.config
    return EncodedVecEnv(env, encoder.encode, shared_state, sizes.code, sizes.length, REWARD_SCALE, keys)


def collective_policy(config: Config) -> tuple[Policy, Callable[[VecEnv], VecEnv]]:
    """Loads the collective policy, the single policy that is distilled from all experts.

    Args:
        config: Names the project folder.

    Returns:
        The policy, and a function that wraps environments so that they provide the observations of this policy.

    Raises:
        MissingStage: The encoder or the collective policy has not been trained.
        ConfigError: The collective policy learned from the codes of another encoder.
    """
    encoder, net = load_encoder_and_collective(config)

    @torch.no_grad()
    def act(obs: Tree, carry: Tensor | None) -> tuple[Tensor, None]:
        return net.policy(obs["z"], obs["s"])[0], None

    return act, lambda env: encoded_env(env, encoder, ("z", "s"))


def scripted_policies(task: str) -> Policy:
    """Returns one policy for all environments, which uses Meta-World's scripted policy of each environment's task.

    With `task` ``mt10``, the first tenth of the environments plays the first task of MT10, the second tenth the second
    task, and so on; with ``mt50`` likewise.
    """
    scripts = [scripted_policy(name) for name in expand_task(task)]

    def act(obs: Tensor, carry: Tensor | None) -> tuple[Tensor, None]:
        own = [scripts[row * len(scripts) // len(obs)] for row in range(len(obs))]
        actions = [script(row) for script, row in zip(own, obs[:, :OBS].numpy(), strict=True)]
        return torch.stack([torch.from_numpy(action).float() for action in actions]), None

    return act


def random_policy(seed: int = 0) -> Policy:
    """Returns a policy whose actions are drawn uniformly from [-1, 1] with this seed."""
    generator = torch.Generator().manual_seed(seed)
    return lambda obs, carry: (torch.rand(len(obs), ACTION, generator=generator) * 2 - 1, None)


def load_run_policy(config: Config, folder: Path, run: Path, stage: str, context: RankContext | None = None) -> SAC:
    """Loads the agent of a run with its exported policy, or with the weights of a checkpoint.

    Args:
        config: Configuration of the run.
        folder: The run folder or one of its checkpoints.
        run: The run folder.
        stage: Stage of the run: ``expert`` or ``student``.
        context: Device and precision of the agent; None is the CPU in fp32.

    Returns:
        The agent. With an exported policy, only its actor is loaded.
    """
    sac, _, _ = build_learner(config, context or RankContext.single())
    if folder == run and (run / "policy").exists():
        _, tensors = load_policy(folder, f"powerband train metaworld {stage} task={config.task}")
        weights = {name: tensor for name, tensor in tensors.items() if name not in ("centre", "scale")}
        load_state(sac.actor, weights, "policy", folder / "policy")
        return sac
    checkpoint, notices = resolve_resume(str(run)) if folder == run else (folder, [])
    print("\n".join([*notices, f"evaluating the policy after {int(checkpoint.name):,} env steps"]), flush=True)
    learner = load_checkpoint(checkpoint, "shared")[0].get("learner") or {}
    load_state(sac, learner.get("sac") if stage == "student" else learner, "learner", checkpoint)
    return sac
