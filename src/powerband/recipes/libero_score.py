"""Scores of libero: success of a policy of chunks on tasks in the simulator, a table, films."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from powerband.core.checkpoint import load_checkpoint, resolve_resume
from powerband.core.config import ConfigError
from powerband.core.console import count_shown
from powerband.core.device import cores
from powerband.core.flags import at_least
from powerband.data.unified import UNIFIED, action_of, gripper_opening, state_vector
from powerband.envs.libero.env import libero_envs
from powerband.envs.libero.single import ACTION, CAMERAS, HZ, LiberoEnv
from powerband.envs.libero.tasks import LiberoTask, benchmark_named, task_named, tasks_of
from powerband.envs.supervision import Supervision
from powerband.loops.evaluate import Policy, evaluate, mean_interval, wilson

if TYPE_CHECKING:
    from powerband.algos.rdt import RDTLearner
    from powerband.recipes.libero import Config


STRIP = 6
"""Frames of an episode in its picture."""


@dataclass(frozen=True)
class Evaluation:
    """What `powerband eval` can be told about a run of libero."""

    benchmark: str = ""
    """Benchmark; empty is the run's."""
    tasks: tuple[str, ...] = ()
    """Tasks by number, name or instruction; empty is the run's, or of another benchmark all."""
    num_tasks: int = 0
    """The first so many of them; 0 is all."""
    episodes: int = 20
    """Episodes of each task."""
    starts: Literal["published", "drawn"] = "published"
    """LIBERO's own initial states in turn, or drawn ones by seed; demonstrations are of drawn ones."""
    seeds: tuple[int, ...] = ()
    """Begin where demonstrations began: their `start`, instead of `starts`."""
    seed: int = 1_000
    """Of drawn starts and of the policy's noise."""
    max_steps: int = 0
    """Actions of an episode at most; 0 is as the run has it."""
    exec_horizon: int = 0
    """Actions of a chunk that are taken before the next is made; 0 is as the policy was trained."""
    sample_steps: int = 0
    """Steps of the sampler; 0 is as the policy was trained."""
    quality: Literal["", "coarse", "plain", "full"] = ""
    """How frames are rendered; empty is as the run has it."""
    instruction: str = ""
    """Say this to the policy instead of each task's own instruction."""
    policies: tuple[Literal["policy", "random"], ...] = ("policy",)
    """Who acts: the run's policy, or actions drawn at random."""
    num_workers: int = -1
    """Simulators side by side, a process each; -1 is one a core."""
    record_video: bool = False
    """Film the first episode of each task."""
    video_output_dir: str = ""
    """Where films go; empty is ``videos`` in the run folder."""
    text_encoder: str = ""
    """Folder of the text encoder, where it has moved since training."""
    vision_encoder: str = ""
    """Folder of the vision encoder, where it has moved since training."""
    threads: int = 0
    """CPU threads of the policy; 0 is as torch decides."""

    def __post_init__(self) -> None:
        at_least(self, num_tasks=0, episodes=1, max_steps=0, exec_horizon=0, sample_steps=0, num_workers=-1, threads=0)


class ChunkActor:
    """A policy of chunks as the evaluation loop wants it.

    Args:
        learner: Makes chunks of unified actions.
        task: Row of its table of instructions, for all rows of the environment.
        execute: Actions that are taken of each chunk.
        see: (n, H, W, 3) uint8 -> features, where the policy looks through a frozen encoder.
    """

    def __init__(
        self, learner: RDTLearner, task: int, execute: int, see: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.learner, self.task, self.execute, self.see = learner, task, execute, see

    def __call__(self, obs: dict[str, Tensor], carry: None) -> tuple[Tensor, None]:
        """(N, execute, 7) actions in [-1, 1]."""
        chunk, _, _ = self.learner.act(self.seen(obs), None, explore=False)
        return action_of(chunk[:, : self.execute]).cpu(), None

    def seen(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the policy is shown, from what `LiberoEnv` gives."""
        device, rows = self.learner.device, len(obs["joints"])
        state = state_vector(obs["joints"], gripper_opening(obs["gripper"]), obs["eef_pos"], obs["eef_quat"])
        shown = {
            "state": state,
            "state_there": self.learner.acting.state_there.expand(rows, UNIFIED),
            "task": torch.full((rows,), self.task),
            "hz": torch.full((rows,), HZ),
        }
        if "pictures" in obs:
            pictures = obs["pictures"]
            age = torch.arange(pictures.shape[1] - 1, -1, -1)
            there = (obs["made"] >= age).unsqueeze(-1).expand(pictures.shape[:3])
            shown |= {"pictures": pictures, "pictures_there": there}
        shown = {name: value.to(device) for name, value in shown.items()}
        if self.see is not None:
            flat = shown.pop("pictures")
            shown["features"] = self.see(flat.flatten(0, 2)).unflatten(0, flat.shape[:3])
        return shown


def random_actions(execute: int, seed: int) -> Policy:
    """Uniform in [-1, 1]."""
    generator = torch.Generator().manual_seed(seed)
    return lambda obs, carry: (torch.rand(len(obs["joints"]), execute, ACTION, generator=generator) * 2 - 1, None)


def score(
    config: Config, task: LiberoTask, policy: Policy, execute: int, options: Evaluation, shown: str = ""
) -> dict[str, Any]:
    """Plays `options.episodes` episodes of a task; figures by name, success with its Wilson interval.

    `shown` names it on a bar. ``episodes_per_hour`` is without the simulators' start.
    """
    workers = cores() if options.num_workers < 0 else max(1, options.num_workers)
    rows = next(rows for rows in range(min(workers, options.episodes), 0, -1) if options.episodes % rows == 0)
    env = libero_envs(
        [words_of(config, task, execute, options, row, rows) for row in range(rows)],
        rows if options.num_workers else 0,
        seed=options.seed,
        supervision=Supervision(deadline_s=300.0),
        tell=lambda fault: print(fault),
    )
    try:
        start = time.perf_counter()
        with count_shown(shown, options.episodes, "episodes") as tell:
            figures = evaluate(env, policy, options.episodes, options.seed, tell=tell)
        seconds = time.perf_counter() - start
    finally:
        env.close()
    won, trials = float(figures["success"].sum()), len(figures["success"])
    low, high = wilson(won, trials)
    steps, steps_low, steps_high = mean_interval(figures["steps"])
    return {
        "task": task.name,
        "benchmark": task.benchmark,
        "episodes": trials,
        "success": won / trials,
        "success_low": low,
        "success_high": high,
        "steps": steps,
        "steps_low": steps_low,
        "steps_high": steps_high,
        "episodes_per_hour": 3600 * trials / seconds,
    }


def words_of(
    config: Config, task: LiberoTask, execute: int, options: Evaluation, row: int = 0, rows: int = 1
) -> dict[str, Any]:
    """Words of `LiberoEnv` for one of `rows` environments."""
    return {
        "benchmark": task.benchmark,
        "task": str(task.index),
        "chunk": execute,
        "frames": config.frames,
        "pixels": config.pixels if config.use_pictures else 0,
        "quality": options.quality or config.quality,
        "max_steps": options.max_steps or config.max_steps,
        "starts": "given" if options.seeds else options.starts,
        "seeds": tuple(options.seeds),
        "first_start": row,
        "start_stride": rows,
    }


def chosen(config: Config, options: Evaluation) -> tuple[LiberoTask, ...]:
    """The tasks of an evaluation."""
    benchmark = benchmark_named(options.benchmark or config.benchmark)
    if options.tasks:
        tasks = tuple(task_named(benchmark, word) for word in options.tasks)
    else:
        tasks = config.chosen() if benchmark == config.benchmark else tasks_of(benchmark)
    return tasks[: options.num_tasks or len(tasks)]


def film(config: Config, task: LiberoTask, policy: Policy, execute: int, options: Evaluation, folder: Path) -> Path:
    """Both cameras through the first episode, as ``<task>.mp4``, and some of its frames as ``<task>.png``."""
    from powerband.report.film import save_picture, write_video

    words = words_of(config, task, execute, options)
    env = LiberoEnv(**{**words, "pixels": config.pixels}, keep_frames=True)
    try:
        obs, ended = env.reset(seed=options.seed)[0], False
        while not ended:
            rows = {name: torch.from_numpy(value).unsqueeze(0) for name, value in obs.items()}
            if not words["pixels"]:
                del rows["pictures"]
            obs, _, solved, late, _ = env.step(policy(rows, None)[0][0].numpy())
            ended = solved or late
        chosen = [env.film[round(number * (len(env.film) - 1) / (STRIP - 1))] for number in range(STRIP)]
        cameras = [[np.split(frame, len(CAMERAS), 1)[camera] for frame in chosen] for camera in range(len(CAMERAS))]
        save_picture(folder / f"{task.key}.png", np.concatenate([np.concatenate(row, 1) for row in cameras], 0))
        return write_video(env.film, folder / task.key, fps=HZ)
    finally:
        env.close()


def evaluate_run(config: Config, folder: Path, options: Evaluation, build: Callable[..., Any]) -> list[dict]:
    """Plays, prints the table and writes ``eval-libero.json``.

    Args:
        config: Of the run.
        folder: Its folder, or a checkpoint in it.
        options: What to play.
        build: (config, instructions, folder) -> (learner, frozen encoder or None).
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.text_encoder or options.vision_encoder:
        moved = {name: getattr(options, name) or getattr(config, name) for name in ("text_encoder", "vision_encoder")}
        config = replace(config, **moved)
    if options.sample_steps:
        config = replace(config, rdt=replace(config.rdt, sample_steps=options.sample_steps))
    execute = options.exec_horizon or config.rdt.execute
    if execute > config.rdt.horizon:
        raise ConfigError(f"exec_horizon={execute} is more than the {config.rdt.horizon} actions of a chunk.")
    tasks = chosen(config, options)
    said = [options.instruction or task.instruction for task in tasks]
    path, _ = resolve_resume(str(folder))
    learner, see = build(config, said, path.parent.parent)
    learner.load_state_dict(load_checkpoint(path, "shared")[0]["learner"])
    films = Path(options.video_output_dir) if options.video_output_dir else folder / "videos"
    rows = []
    for number, task in enumerate(tasks):
        for name in options.policies:
            policy = ChunkActor(learner, number, execute, see) if name == "policy" else None
            policy = policy or random_actions(execute, options.seed)
            figures = score(config, task, policy, execute, options, shown=f"{task.name} {name}")
            rows.append({"policy": name, "instruction": said[number], **figures})
            print(line_of(rows[-1]), flush=True)
        if options.record_video:
            policy = ChunkActor(learner, number, execute, see)
            rows[-1]["video"] = str(film(config, task, policy, execute, options, films))
            print(f"film: {rows[-1]['video']}")
    if len(tasks) > 1:
        for name in options.policies:
            mean = [row["success"] for row in rows if row["policy"] == name]
            print(f"{name:<8} mean success over {len(mean)} tasks {sum(mean) / len(mean):.3f}")
    (folder / "eval-libero.json").write_text(json.dumps({"options": vars(options), "rows": rows}, indent=2))
    return rows


def line_of(row: dict) -> str:
    """A row of the table."""
    return (
        f"{row['policy']:<8} {row['success']:6.1%} [{row['success_low']:.1%}, {row['success_high']:.1%}] of "
        f"{row['episodes']} episodes, {row['steps']:.0f} steps on average, "
        f'{row["episodes_per_hour"]:,.0f} episodes/h   {row["task"]}: "{row["instruction"]}"'
    )
