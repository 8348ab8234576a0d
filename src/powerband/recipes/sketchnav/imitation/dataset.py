"""Dataset of demonstrations: reads recorded episodes as pairs of an observation and the next chunk of actions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.telemetry.console import Console
from powerband.data.recorded.recording import read_facts, read_recording
from powerband.data.types import Tree, tree_map
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.env.world import STOP
from powerband.recipes.sketchnav.old_names import RENAMED_SCENES
from powerband.recipes.sketchnav.plans.episodes.episodes import OBSERVED, Episodes
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes
from powerband.recipes.sketchnav.settings import Sensors


class Demonstrations:
    """Recorded steps as rows of a dataset; the steps of an episode are consecutive rows.

    Calling this object with row numbers returns a batch.

    The label of a row is the follower's action. A chunk of labels is valid up to the first step at which a random move
    replaced this action: what the follower did later is the reaction to a move that the observation cannot predict.

    Args:
        fields: Name -> tensor (rows, ...), among them ``action`` (rows,) and ``episode`` (rows,) int64. An optional
            field ``replaced`` (rows,) is 1 if another action was executed; without it, no action was replaced.
        image_fields: Fields of which the newest `frames` images are stacked along the channels, oldest first.
        frames: Images per observation. Before the start of an episode its first image is repeated.
        horizon: Actions of a chunk. After the end of an episode its last action is repeated; this is valid for STOP
            only, because the follower would continue an episode that reached the limit of steps.

    Attributes:
        rows: Number of rows.
        num_episodes: Number of episodes.

    Raises:
        ConfigError: The rows of an episode are not contiguous.
    """

    def __init__(self, fields: dict[str, Tensor], image_fields: tuple[str, ...], frames: int, horizon: int) -> None:
        episode = fields["episode"]
        is_first = torch.cat([torch.ones(1, dtype=torch.bool), episode[1:] != episode[:-1]])
        first = is_first.nonzero()[:, 0]
        self.rows, self.num_episodes = len(episode), len(first)
        if self.num_episodes != len(episode.unique()):
            raise ConfigError(
                "The steps of an episode are not contiguous. Remove this recording, and run the stage demos again."
            )
        index = is_first.cumsum(0) - 1
        self.first = first[index]
        self.last = torch.cat([first[1:] - 1, torch.tensor([len(episode) - 1])])[index]
        self.fields, self.image_fields = fields, image_fields
        replaced = fields.get("replaced", torch.zeros_like(episode)).long()
        self.replaced_before = replaced.cumsum(0) - replaced
        self.past, self.future = torch.arange(1 - frames, 1), torch.arange(horizon)

    def __call__(self, rows: Tensor) -> dict[str, Tree]:
        """Returns the batch of R row numbers (R,) int64.

        Returns:
            ``obs``: name -> tensor (R, ...), with the images (R, frames x channels, S, S) of S x S pixels; ``action``:
            actions (R, horizon) int64 from each row onwards; ``valid`` (R, horizon) bool, the actions that are labels.
        """
        past = torch.maximum(rows.unsqueeze(1) + self.past, self.first[rows].unsqueeze(1))
        later, last = rows.unsqueeze(1) + self.future, self.last[rows].unsqueeze(1)
        future = torch.minimum(later, last)
        valid = self.replaced_before[future] == self.replaced_before[rows].unsqueeze(1)
        valid &= (later <= last) | (self.fields["action"][last] == STOP)
        labels = ("action", "replaced", *self.image_fields)
        obs: Tree = {name: value[rows] for name, value in self.fields.items() if name not in labels}
        for name in self.image_fields:
            obs[name] = self.fields[name][past].flatten(1, 2)
        return {"obs": obs, "action": self.fields["action"][future].long(), "valid": valid}


class DemonstrationSequences:
    """Sequences of recorded steps, for a policy with memory. Calling this object with sequence numbers gives a batch.

    Each episode is cut into blocks of half a sequence, and two neighbouring blocks are a sequence. The second block has
    the labels, and the first one fills the memory; only the first sequence of an episode has labels in both. So each
    step is a label once per epoch, and the memory has seen its past, or half a sequence of it.

    Args:
        steps: Recorded steps.
        length: L, steps of a sequence, even.
        gru: H, width of the policy's memory.

    Attributes:
        rows: Number of sequences.
    """

    def __init__(self, steps: Demonstrations, length: int, gru: int) -> None:
        self.steps, self.gru, self.half = steps, gru, length // 2
        self.offsets = torch.arange(length).unsqueeze(1)
        first = steps.first.unique()
        blocks = (steps.last[first] - first) // self.half + 1
        count = (blocks - 1).clamp(min=1)
        number = torch.arange(int(count.sum())) - (count.cumsum(0) - count).repeat_interleave(count)
        self.begin = first.repeat_interleave(count) + self.half * number
        self.rows = len(self.begin)

    def __call__(self, numbers: Tensor) -> dict[str, Tree]:
        """Returns the batch of S sequences of L steps by their numbers (S,) int64.

        Returns:
            The entries of `Demonstrations` with the axes (L, S) in place of (R,), ``carry``, zeros (S, H), and
            ``starts`` (L, S) bool, True at the first step of an episode. After its end an episode has no valid labels.
        """
        begin = self.begin[numbers]
        first, last = self.steps.first[begin], self.steps.last[begin]
        rows = begin + self.offsets
        batch = self.steps(torch.minimum(rows, last).flatten())
        sequences = tree_map(lambda leaf: leaf.unflatten(0, rows.shape), batch)
        labels = (rows <= last) & ((self.offsets >= self.half) | (begin == first))
        return {
            **sequences,
            "valid": sequences["valid"] & labels.unsqueeze(-1),
            "carry": torch.zeros(len(numbers), self.gru),
            "starts": rows == first,
        }


def load_demonstrations(config: Config, console: Console | None = None) -> tuple[Demonstrations, Episodes]:
    """Loads the demonstrations in the folder ``config.demos_dir``, and the training episodes of the run.

    Args:
        config: Configuration of the run.
        console: Console that shows what is read or generated; None shows nothing.

    Returns:
        The demonstrations, and the episodes that their field ``episode`` counts.

    Raises:
        ConfigError: There is no recording, or its episodes, rules, sensors or images differ from those of the run.
    """
    if not config.demos_dir:
        raise ConfigError(
            f"algo={config.algo} learns from demonstrations. Record them with `powerband train sketchnav demos "
            f"demos_dir=demos`, then write demos_dir=demos here too."
        )
    folder = Path(config.demos_dir)
    names = (*config.camera_keys, "gps", "compass", "action", "episode")
    if "replaced" in read_facts(folder).get("fields", ()):  # older recordings do not say which actions were replaced
        names = (*names, "replaced")
    fields, facts = read_recording(folder, names)
    recorded = {"sensors": asdict(Sensors()), "plans_dir": "", **facts}  # early recordings have neither of the two
    expected: dict[str, Any] = {
        "pixels": config.pixels,
        "scenes": asdict(config.scenes),
        "rules": asdict(config.rules),
        "sensors": asdict(config.sensors),
        "seed": config.episode_seed,
    }
    if "episodes" not in facts:  # early recordings have no digest of their episodes
        expected["plans_dir"] = config.plans_dir
    for name, value in expected.items():
        recorded_value = recorded[name]
        if name == "scenes":
            value, recorded_value = _without_sketches(value), _without_sketches(recorded_value)
        if value != recorded_value:
            option, value, recorded_value = _first_difference(name, value, recorded_value)
            raise ConfigError(
                f"demos_dir={config.demos_dir} was recorded with {option}={recorded_value}, but this run has {value}. "
                f"Write {option}={recorded_value}, or record again with another demos_dir=."
            )
    episodes = load_episodes(config, "train", console)
    if facts.get("episodes", "") not in ("", episodes.digest(OBSERVED)):
        raise ConfigError(
            f"demos_dir={config.demos_dir} was recorded on other episodes than those of this run: their plans, starts "
            f"or goals differ. Write the episode_file, plans_dir and metres_per_pixel of the recording, or record "
            f"again with another demos_dir=."
        )
    return Demonstrations(fields, config.camera_keys, config.chunks.frames, config.chunks.horizon), episodes


def _first_difference(name: str, here: Any, recorded: Any) -> tuple[str, Any, Any]:
    """Returns the option, the value of this run and the recorded value of the first setting that differs.

    Args:
        name: Name of the setting, or of a section of settings.
        here: Value of this run; a dict for a section.
        recorded: Recorded value.
    """
    if not isinstance(here, dict):
        return "scene_seed" if name == "seed" else name, here, recorded
    field = next(field for field in {**here, **recorded} if here.get(field) != recorded.get(field))
    return f"{name}.{field}", here.get(field), recorded.get(field)


def _without_sketches(scenes: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of `EpisodeConfig` by their present names, without the fields of sketches.

    Sketches change neither the paths nor the camera images of a recording.

    Args:
        scenes: Fields of `EpisodeConfig`, by their present or old names.
    """
    return {RENAMED_SCENES.get(name, name): v for name, v in scenes.items() if not name.startswith("sketch")}
