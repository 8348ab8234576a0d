"""Stage demos of sketchnav: records what the shortest-path follower observes and does on the training episodes.

Random moves or a trained policy may act in its place, while its actions are recorded; or a trained policy is recorded
in place of the follower.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.core.ranks.ranks import refuse_several
from powerband.core.run.run import Run
from powerband.core.telemetry.console import count_progress_bar
from powerband.data.recorded.recording import Recording
from powerband.data.types import broadcast_rows
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.env.world import FORWARD, NUM_ACTIONS, STOP
from powerband.recipes.sketchnav.evaluation.episodes import spread_episodes
from powerband.recipes.sketchnav.plans.episodes.episodes import OBSERVED, VERSION, Episodes
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes
from powerband.recipes.sketchnav.policies import NavigationLearner, as_policy
from powerband.recipes.sketchnav.settings import Sensors
from powerband.recipes.sketchnav.trained import trained_learner, trained_run

NUM_ENVS = 32
"""Episodes that are recorded at a time."""
POLICY_SHARE = 0.5
"""Share of the episodes in which the policy of `demo_policy` acts, if the actions of the follower are recorded."""


@dataclass(frozen=True)
class ActingPolicy:
    """Trained policy that moves the agents of a recording.

    Attributes:
        config: Configuration of its run.
        learner: Its learner.
        demonstrates: True if its actions are recorded in place of the follower's.
    """

    config: Config
    learner: NavigationLearner
    demonstrates: bool


def record_demonstrations(config: Config, run: Run) -> None:
    """Stage demos: records observations and actions of an expert that follows the shortest path of each episode."""
    refuse_several(run.ranks, "demos")
    run.console.note(f"The recording is finished: {record(config, run)}")


def record(config: Config, run: Run) -> Path:
    """Records demonstrations of an expert that follows the shortest path; continues an earlier recording in the folder.

    A recorded step has the fields ``rgb`` and ``depth`` if the policy observes them, ``gps`` and ``compass`` as in
    `SketchNavEnv`, ``action`` (uint8) of the expert, and ``episode``. With `demo_noise` or `demo_policy`, ``replaced``
    (uint8) is 1 if another action was executed. The steps of an episode are contiguous. Its last action is STOP, unless
    it reached the limit of steps.

    With ``demo_actions=policy`` the actions are those of `demo_policy`, and episodes in which it fails are left out. A
    command that continues the recording tries them again.

    Args:
        config: Configuration of the run.
        run: Run; its folder receives the recording if `demos_dir` is empty.

    Returns:
        The folder of the recording.

    Raises:
        ConfigError: The policy that demonstrates succeeds in no episode.
    """
    folder = Path(config.demos_dir) if config.demos_dir else run.dir / "demos"
    episodes = load_episodes(config, "train", run.console)
    field_names = [*config.camera_keys, "gps", "compass"]
    facts: dict[str, Any] = {
        "version": VERSION,
        "seed": config.episode_seed,
        "pixels": config.pixels,
        "scenes": json.loads(json.dumps(asdict(config.scenes))),
        "rules": asdict(config.rules),
        "noise": config.demo_noise,
    }
    if config.sensors != Sensors():  # recordings of an older version have no entry for sensors without noise
        facts["sensors"] = asdict(config.sensors)
    facts["episodes"] = episodes.digest(OBSERVED)
    policy = _acting_policy(config) if config.demo_policy else None
    corrected = policy is not None and not policy.demonstrates
    if policy is not None:
        facts["policy"] = _digest(policy.learner)
        if policy.demonstrates:  # recordings of an older version have no entry for the actions of the follower
            facts["actions"] = config.demo_actions
    facts["fields"] = [*field_names, *(["replaced"] if config.demo_noise or corrected else [])]
    recording = Recording(folder, facts)
    recorded = set(recording.numbers)
    count = min(config.demo_episodes or len(episodes), len(episodes))
    spread = spread_episodes(count, len(episodes))
    wanted = range(len(episodes)) if spread is None else spread.tolist()
    missing = torch.tensor([number for number in wanted if number not in recorded], dtype=torch.int64)
    run.console.note(f"{count - len(missing):,} of {count:,} episodes are recorded in {folder}")
    if len(missing):
        failed = _record_episodes(config, episodes, missing, recording, policy)
        if failed:
            run.console.note(f"{failed:,} episodes in which the policy did not find the goal are left out.")
        if failed and not recording.numbers:
            raise ConfigError(
                f"the policy of demo_policy={shortened(config.demo_policy)} found the goal in none of {failed:,} "
                f"episodes, and demo_actions=policy records only those in which it does. Name a policy that has "
                "learned more, or write demo_actions=follower."
            )
    return recording.pack()


def _acting_policy(config: Config) -> ActingPolicy:
    """Loads the policy of the run ``config.demo_policy``.

    Raises:
        ConfigError: It observes other images or sketches than those of `config`.
    """
    trained, folder, context = trained_run(config.demo_policy, "demo_policy", config.run)
    for option, value, needed in (
        ("pixels", config.pixels, trained.pixels),
        ("scenes.sketch_px", config.scenes.sketch_px, trained.scenes.sketch_px),
    ):
        if value != needed:
            raise ConfigError(
                f"{option}={value}, but the images of demo_policy={shortened(config.demo_policy)} have {needed}. Write "
                f"{option}={needed}."
            )
    return ActingPolicy(trained, trained_learner(trained, folder, context), config.demo_actions == "policy")


def _digest(learner: NavigationLearner) -> str:
    """Returns a digest of the weights of a policy, so that a recording has one policy only."""
    digest = hashlib.sha256()
    for name, value in sorted(learner.policy_state().items()):
        digest.update(name.encode() + value.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _record_episodes(
    config: Config, episodes: Episodes, missing: Tensor, recording: Recording, policy: ActingPolicy | None
) -> int:
    """Plays episodes and adds their steps to a recording.

    The recorded action is that of the shortest-path follower, or of a policy that demonstrates, even if another action
    is executed in its place.

    Args:
        config: Configuration of the run.
        episodes: Episodes of the split train.
        missing: Numbers (n,) int64 of the n episodes to play.
        recording: Recording that receives the episodes.
        policy: Policy that acts; None leaves all actions to the follower.

    Returns:
        Number of episodes that are left out, because a policy that demonstrates did not find the goal.
    """
    seed, noise, fields = (recording.facts[name] for name in ("seed", "noise", "fields"))
    observations = [name for name in fields if name != "replaced"]
    num_envs = min(NUM_ENVS, len(missing))
    env = SketchNavEnv(
        num_envs,
        episodes,
        config.rules,
        pixels=config.pixels,
        explored=0 if policy is None else policy.config.map_squares,
        sequential=True,
        order=missing,
        seed=seed,
        sensors=config.sensors,
    )
    demonstrates = policy is not None and policy.demonstrates
    act = None if policy is None else as_policy(policy.learner, episodes)
    carry = policy.learner.initial_carry(num_envs) if policy is not None else None
    live: list[list[dict[str, Tensor]]] = [[] for _ in range(num_envs)]
    waiting, done, failed, obs = set(missing.tolist()), 0, 0, env.observe()
    with count_progress_bar("recording", len(missing), "episodes") as show_progress:
        while waiting:
            if act is not None:
                chosen, carry = act(env, obs, carry)
            action = chosen if demonstrates else env.expert()
            executed = _disturb(action, env, noise, seed)
            if act is not None and not demonstrates:
                executed = _driven(executed, action, chosen, env, seed)
            for row in range(num_envs):
                observed = {name: obs[name][row].clone() for name in observations}
                observed["action"] = action[row].to(torch.uint8)
                if "replaced" in fields:
                    observed["replaced"] = (executed[row] != action[row]).to(torch.uint8)
                live[row].append(observed)
            numbers = obs["episode"].tolist()
            step = env.step(executed)
            for row in step.ended.nonzero()[:, 0].tolist():
                if numbers[row] in waiting:
                    if demonstrates and not step.episode["success"][row]:
                        failed += 1
                    else:
                        steps = {name: torch.stack([each[name] for each in live[row]]) for name in live[row][0]}
                        recording.add(numbers[row], steps)
                    waiting.remove(numbers[row])
                    done += 1
                    show_progress(done)
                live[row] = []
            if carry is not None:
                carry = carry * broadcast_rows((~step.ended).to(carry.device), carry)
            obs = step.obs
    return failed


def _disturb(action: Tensor, env: SketchNavEnv, share: float, seed: int) -> Tensor:
    """Returns the actions (N,) of N agents with a share of them replaced by random moves; STOP is never replaced.

    After a random move the demonstrations show how to recover, which an undisturbed follower never does. The random
    numbers depend on episode and step only, so that a continued recording is the same. Source: Laskey et al. 2017.

    Args:
        action: Actions (N,) int64 that are recorded.
        env: Environment that the agents are in.
        share: Probability, 0 to 1, that an action is replaced.
        seed: Seed of the random moves.
    """
    if share <= 0:
        return action
    executed = action.clone()
    for row, (episode, made) in enumerate(zip(env.agents.episode.tolist(), env.agents.made.tolist(), strict=True)):
        rng = np.random.default_rng([seed, 0, episode, made])  # no stream of `_driven` has a 0 in this place
        if executed[row] != STOP and rng.random() < share:
            executed[row] = int(rng.integers(FORWARD, NUM_ACTIONS))
    return executed


def _driven(executed: Tensor, action: Tensor, chosen: Tensor, env: SketchNavEnv, seed: int) -> Tensor:
    """Replaces the actions of agents by those of a policy, in a share of the episodes; STOP is never replaced or added.

    The follower thus shows how to continue from states into which the policy brings itself. Source: Ross et al. 2011
    (DAgger).

    Args:
        executed: Actions (N,) int64 without the policy.
        action: Actions (N,) int64 of the follower.
        chosen: Actions (N,) int64 of the policy.
        env: Environment that the agents are in.
        seed: Seed of the choice of episodes.
    """
    numbers = env.agents.episode.tolist()
    driven = torch.tensor([np.random.default_rng([seed, 1, number]).random() < POLICY_SHARE for number in numbers])
    return torch.where(driven & (action != STOP) & (chosen != STOP), chosen, executed)
