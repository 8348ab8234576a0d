"""Evaluates policies of libero in the simulator: measures success rates of tasks, prints a table, records videos."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.evaluation_context import evaluation_context
from powerband.core.noise import NoiseSource
from powerband.core.run.checkpoints.checkpoint import resolve_resume
from powerband.core.run.state_registry import restore_learner
from powerband.core.telemetry.console import count_progress_bar
from powerband.data.robot.unified_vector import ACTION_DIM, UNIFIED_DIM, gripper_opening, libero_action, state_vector
from powerband.envs.workers.supervision import Supervision
from powerband.loops.evaluate import Policy, evaluate, mean_interval, wilson_interval
from powerband.recipes.libero.config import Config
from powerband.recipes.libero.env.gymnasium_env import CAMERAS, HZ, LiberoEnv
from powerband.recipes.libero.env.tasks import LiberoTask, benchmark_tasks, find_benchmark, find_task
from powerband.recipes.libero.env.vec_env import make_libero_vec_env, num_simulators
from powerband.recipes.libero.learners import make_evaluation_learner, restorable
from powerband.recipes.libero.rdt import RDTLearner
from powerband.recipes.libero.settings import Evaluation
from powerband.report.evaluation_table import result_path, write_table

STATISTICS_FILE = "statistics.json"
"""File in the run folder with the statistics, the control frequency and the cameras of the demonstrations."""
FILM_STRIP_FRAMES = 6
"""Frames in the image of an episode."""
DEADLINE_S = 300.0
"""Seconds after which a simulator that has not answered is restarted."""


class ChunkActor:
    """Policy for the evaluation loop, which executes the first actions of each chunk that a learner samples.

    Args:
        learner: Learner that samples chunks, which are consecutive actions.
        task: Index of the learner's instruction that all environments follow.
        exec_horizon: Number of actions of each chunk that are executed.
        encode: Frozen image encoder from n images (n, height, width, 3) uint8 to features (n, P patches, D features);
            None if the policy encodes images itself, or observes none.
        hz: Control frequency that the policy observes: that of its demonstrations, in actions per second.
        cameras: Cameras of the demonstrations; the images of others are masked, as they are in training.
    """

    def __init__(
        self,
        learner: RDTLearner,
        task: int,
        exec_horizon: int,
        encode: Callable[[Tensor], Tensor] | None = None,
        hz: float = HZ,
        cameras: Sequence[str] = tuple(CAMERAS),
    ) -> None:
        self.learner, self.task, self.exec_horizon, self.encode = learner, task, exec_horizon, encode
        self.hz, self.camera_mask = hz, torch.tensor([camera in cameras for camera in CAMERAS])

    def __call__(self, obs: dict[str, Tensor], carry: Tensor | None) -> tuple[Tensor, None]:
        """Returns actions (N, exec_horizon, 7) in [-1, 1] for N environments, and None: the policy has no memory.

        `carry` is not used.
        """
        chunk, _, _ = self.learner.act(self.policy_obs(obs), None, explore=False)
        return libero_action(chunk[:, : self.exec_horizon]).cpu(), None

    def policy_obs(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Converts N observations of `LiberoEnv`, name -> tensor (N, ...), to observations of `RDTPolicy`."""
        device, rows = self.learner.device, len(obs["joints"])
        result = {
            "state": state_vector(obs["joints"], gripper_opening(obs["gripper"]), obs["eef_pos"], obs["eef_quat"]),
            "state_mask": self.learner.acting.state_mask.expand(rows, UNIFIED_DIM),
            "task": torch.full((rows,), self.task),
            "hz": torch.full((rows,), self.hz),
        }
        if "images" in obs:
            images = obs["images"]
            age = torch.arange(images.shape[1] - 1, -1, -1)  # in actions; frames from before the episode are masked
            result["images"] = images
            result["image_mask"] = (obs["step_count"] >= age).unsqueeze(-1) & self.camera_mask
        result = {name: value.to(device) for name, value in result.items()}
        if self.encode is not None:
            images = result.pop("images")
            result["features"] = self.encode(images.flatten(0, 2)).unflatten(0, images.shape[:3])
        return result


def demonstrated_view(run_dir: Path) -> tuple[float, tuple[str, ...]]:
    """Returns the control frequency of the demonstrations of a run, in actions per second, and their cameras.

    They are stored with the statistics of the run. Runs of an older version did not store them; for them they are those
    of the simulator, 20 and all cameras.
    """
    path = run_dir / STATISTICS_FILE
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return float(stored.get("hz", HZ)), tuple(stored.get("cameras", CAMERAS))


def random_actions(exec_horizon: int, seed: int) -> Policy:
    """Returns a policy whose actions (N, exec_horizon, 7) for N environments are drawn uniformly from [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)

    def act(obs: dict[str, Tensor], carry: Tensor | None) -> tuple[Tensor, None]:
        return torch.rand(len(obs["joints"]), exec_horizon, ACTION_DIM, generator=generator) * 2 - 1, None

    return act


def evaluate_task(
    config: Config, task: LiberoTask, policy: Policy, exec_horizon: int, options: Evaluation, label: str = ""
) -> dict[str, Any]:
    """Plays episodes of one task, and measures the success rate of a policy.

    Args:
        config: Configuration of the run.
        task: Task to play.
        policy: Policy whose actions for N environments are (N, `exec_horizon`, 7).
        exec_horizon: Number of actions that the policy chooses at once.
        options: Options of the evaluation.
        label: Text of the progress bar; empty shows none.

    Returns:
        A dict with ``task`` and ``benchmark``, their names, and ``episodes``, their number. ``success`` is the success
        rate in 0..1, and ``success_low`` and ``success_high`` are the ends of its 95 % interval. ``steps`` is the mean
        number of actions per episode, with ``steps_low`` and ``steps_high``. ``episodes_per_hour`` excludes the start
        of the simulators.
    """
    workers = num_simulators(options.workers)
    episodes = options.episodes or len(options.seeds) or config.final_episodes
    # The largest number of environments that divides the episodes: each environment plays the same number.
    rows = next(rows for rows in range(min(workers, episodes), 0, -1) if episodes % rows == 0)
    env = make_libero_vec_env(
        [env_kwargs(config, task, exec_horizon, options, row, rows) for row in range(rows)],
        rows if options.workers else 0,
        seed=options.seed,
        supervision=Supervision(deadline_s=DEADLINE_S),
        on_failure=print,
    )
    try:
        start = time.perf_counter()
        with count_progress_bar(label, episodes, "episodes") as on_progress:
            figures = evaluate(env, policy, episodes, options.seed, on_progress=on_progress)
        seconds = time.perf_counter() - start
    finally:
        env.close()
    successes, episodes = float(figures["success"].sum()), len(figures["success"])
    low, high = wilson_interval(successes, episodes)
    steps, steps_low, steps_high = mean_interval(figures["steps"])
    return {
        "task": task.name,
        "benchmark": task.benchmark,
        "episodes": episodes,
        "success": successes / episodes,
        "success_low": low,
        "success_high": high,
        "steps": steps,
        "steps_low": steps_low,
        "steps_high": steps_high,
        "episodes_per_hour": 3600 * episodes / seconds,
    }


def env_kwargs(
    config: Config, task: LiberoTask, exec_horizon: int, options: Evaluation, row: int = 0, rows: int = 1
) -> dict[str, Any]:
    """Returns the keyword arguments of `LiberoEnv` for environment number `row` of `rows` parallel environments."""
    return {
        "benchmark": task.benchmark,
        "task": str(task.index),
        "chunk": exec_horizon,
        "frames": config.frames,
        "pixels": config.pixels if config.use_images else 0,
        "quality": options.quality or config.quality,
        "max_steps": options.max_steps or config.max_steps,
        "starts": "given" if options.seeds else options.starts,
        "seeds": tuple(options.seeds),
        "first_start": row,
        "start_stride": rows,
    }


def selected_tasks(config: Config, options: Evaluation) -> tuple[LiberoTask, ...]:
    """Returns the tasks of an evaluation: those that `options` names, else those of the run or of another benchmark.

    Raises:
        ConfigError: The benchmark or a task is unknown.
        LiberoNotInstalled: LIBERO is not installed.
    """
    benchmark = find_benchmark(options.benchmark or config.benchmark)
    if options.tasks:
        tasks = tuple(find_task(benchmark, name) for name in options.tasks)
    else:
        tasks = config.selected_tasks() if benchmark == config.benchmark else benchmark_tasks(benchmark)
    return tasks[: options.num_tasks or len(tasks)]


def record_video(
    config: Config, task: LiberoTask, policy: Policy, exec_horizon: int, options: Evaluation, folder: Path
) -> Path:
    """Plays one episode and records both cameras.

    Writes the video ``<task>.mp4`` and an image of some frames, ``<task>.png``, to `folder`. Here <task> is the key of
    the task, such as libero_90-03.

    Args:
        config: Configuration of the run.
        task: Task to play.
        policy: Policy whose actions for N environments are (N, `exec_horizon`, 7).
        exec_horizon: Number of actions that the policy chooses at once.
        options: Options of the evaluation.
        folder: Folder of the files.

    Returns:
        The path of the video.
    """
    from powerband.report.media_files import save_image, write_video

    kwargs = env_kwargs(config, task, exec_horizon, options)
    env = LiberoEnv(**{**kwargs, "pixels": config.pixels}, record_frames=True)
    try:
        obs, ended = env.reset(seed=options.seed)[0], False
        while not ended:
            batch = {name: torch.from_numpy(value).unsqueeze(0) for name, value in obs.items()}
            if not kwargs["pixels"]:
                del batch["images"]
            obs, _, terminated, truncated, _ = env.step(policy(batch, None)[0][0].numpy())
            ended = terminated or truncated
        last = len(env.episode_frames) - 1
        strip = [
            env.episode_frames[round(number * last / (FILM_STRIP_FRAMES - 1))] for number in range(FILM_STRIP_FRAMES)
        ]
        rows = [[np.split(frame, len(CAMERAS), 1)[camera] for frame in strip] for camera in range(len(CAMERAS))]
        save_image(folder / f"{task.key}.png", np.concatenate([np.concatenate(row, 1) for row in rows], 0))
        return write_video(env.episode_frames, folder / task.key, fps=HZ)
    finally:
        env.close()


def evaluate_run(config: Config, folder: Path, options: Evaluation) -> list[dict[str, Any]]:
    """Evaluates a run's policy, prints a table and writes ``eval-libero.json``.

    Args:
        config: Configuration of the run.
        folder: Run folder, or a checkpoint in it.
        options: Options of the evaluation.

    Returns:
        One dict per task and policy: ``policy``, ``instruction``, the entries that `evaluate_task` returns and, if a
        video was recorded, its path ``video``.

    Raises:
        ConfigError: A task is unknown, an encoder is missing, or the chunks are shorter than `exec_horizon`.
    """
    context = evaluation_context(options.gpus, options.precision, options.threads)
    config = replace(
        config,
        text_encoder=options.text_encoder or config.text_encoder,
        vision_encoder=options.vision_encoder or config.vision_encoder,
    )
    if options.sample_steps:
        config = replace(config, rdt=replace(config.rdt, sample_steps=options.sample_steps))
    exec_horizon = options.exec_horizon or config.rdt.exec_horizon
    if exec_horizon > config.rdt.horizon:
        raise ConfigError(
            f"exec_horizon={exec_horizon} is more than the {config.rdt.horizon} actions of a chunk. Write "
            f"exec_horizon={config.rdt.horizon} or less."
        )
    tasks = selected_tasks(config, options)
    instructions = [options.instruction or task.instruction for task in tasks]
    checkpoint, _ = resolve_resume(str(folder))
    run_dir = checkpoint.parent.parent
    config = restorable(config, str(checkpoint))
    learner, vision = make_evaluation_learner(config, instructions, run_dir, context)
    restore_learner(checkpoint, learner)
    videos = Path(options.video_output_dir) if options.video_output_dir else result_path(folder, "videos")
    rows: list[dict[str, Any]] = []
    hz, cameras = demonstrated_view(run_dir)
    for number, task in enumerate(tasks):
        actor = ChunkActor(learner, number, exec_horizon, vision, hz, cameras)
        for name in options.policies:
            learner.noise = NoiseSource(options.seed, context.device)  # independent of the rows above
            policy: Policy = actor if name == "policy" else random_actions(exec_horizon, options.seed)
            figures = evaluate_task(config, task, policy, exec_horizon, options, label=f"{task.name} {name}")
            rows.append({"policy": name, "instruction": instructions[number], **figures})
            print(table_line(rows[-1]), flush=True)
            if options.video and name == "policy":
                learner.noise = NoiseSource(options.seed, context.device)
                rows[-1]["video"] = str(record_video(config, task, actor, exec_horizon, options, videos))
                print(f"video: {rows[-1]['video']}")
    if len(tasks) > 1:
        for name in options.policies:
            rates = [row["success"] for row in rows if row["policy"] == name]
            print(f"{name:<8} mean success over {len(rates)} tasks {sum(rates) / len(rates):.3f}")
    return write_table(folder, "libero", options, rows)


def table_line(row: dict[str, Any]) -> str:
    """Formats `row`, one of the dicts that `evaluate_run` returns, as a line of the printed table."""
    return (
        f"{row['policy']:<8} {row['success']:6.1%} [{row['success_low']:.1%}, {row['success_high']:.1%}] of "
        f"{row['episodes']} episodes, {row['steps']:.0f} steps on average, "
        f'{row["episodes_per_hour"]:,.0f} episodes/h   {row["task"]}: "{row["instruction"]}"'
    )
