"""RobotChunks: rows of recorded episodes as what a policy of action chunks learns from, gathered without a loop."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.core.flags import ConfigError
from powerband.data.features import FeatureCache
from powerband.data.frames import FrameCache
from powerband.data.robot_episodes import CAMERAS, RobotEpisodes
from powerband.data.statistics import Statistics, statistics_of
from powerband.data.types import Tree
from powerband.data.unified import ACTION_SLOTS, SLOT_NAMES, UNIFIED, action_vector, slots_there


class RobotChunks:
    """Makes batches for `data.feed.Feed`; keeps what slots hold and no empty ones.

    Args:
        episodes: N rows.
        frames: Their pictures.
        features: What a frozen encoder makes of their pictures, in place of them. Neither: proprioception only.
        horizon: Actions T of a chunk; after an episode's end its last action stands for them, and is not valid.
        history: Frames F of a camera, the last of them of the row itself.

    Raises:
        ConfigError: The frames or features are of other episodes.
        ValueError: The rows of an episode do not follow one another.
    """

    def __init__(
        self,
        episodes: RobotEpisodes,
        frames: FrameCache | None,
        features: FeatureCache | None,
        horizon: int,
        history: int = 2,
    ) -> None:
        for cache, name in ((frames, "frames"), (features, "features")):
            if cache is not None and (cache.source, cache.rows) != (episodes.fingerprint, episodes.rows):
                raise ConfigError(
                    f"these {name} are of {cache.rows:,} rows of other episodes than these {episodes.rows:,}: build "
                    "them for these episodes."
                )
        episode = episodes.episode
        begins = torch.cat([torch.ones(1, dtype=torch.bool), episode[1:] != episode[:-1]])
        first = begins.nonzero()[:, 0]
        if len(first) != len(episode.unique()):
            raise ValueError("the rows of an episode do not follow one another: record these episodes again.")
        turn = begins.cumsum(0) - 1
        self.first = first[turn]
        self.last = torch.cat([first[1:] - 1, torch.tensor([len(episode) - 1])])[turn]
        self.episodes, self.frames, self.features = episodes, frames, features
        self.past, self.future = torch.arange(1 - history, 1), torch.arange(horizon)
        self.state = episodes.state()
        self.action = torch.cat([action_vector(part)[:, list(ACTION_SLOTS)] for part in episodes.action.split(4096)])
        self._state_slots, self._action_slots = torch.tensor(episodes.slots), torch.tensor(ACTION_SLOTS)
        self._state_there, self._action_there = episodes.state_there, slots_there(ACTION_SLOTS)
        cache = frames if features is None else features
        self._camera_there = torch.tensor([cache is not None and camera in cache.cameras for camera in CAMERAS])

    @property
    def rows(self) -> int:
        return len(self.first)

    def __call__(self, rows: Tensor) -> dict[str, Tree]:
        """The batch of `rows` (R,) int64, C cameras of `CAMERAS`, oldest frame first.

        Returns:
            ``obs``: ``pictures`` (R, F, C, H, W, 3) uint8 or ``features`` (R, F, C, tokens, width), neither where there
            is no cache; ``pictures_there`` (R, F, C) bool, False before the episode's start and where there is no such
            camera; ``state`` (R, 128) raw, ``state_there`` (R, 128) bool, ``task`` (R,) int64, ``hz`` (R,).
            ``action`` (R, T, 128) raw, of which number t was done t steps after the row was seen; ``action_there``
            (R, 128) bool; ``valid`` (R, T) bool, False after the episode's end.
        """
        count, column = len(rows), rows.unsqueeze(1)
        first, last = self.first[rows].unsqueeze(1), self.last[rows].unsqueeze(1)
        earlier, later = column + self.past, column + self.future
        obs: Tree = {
            "pictures_there": (earlier >= first).unsqueeze(2) & self._camera_there,
            "state": self._spread(self.state[rows], self._state_slots),
            "state_there": self._state_there.repeat(count, 1),
            "task": self.episodes.task[rows],
            "hz": torch.full((count,), self.episodes.hz),
        }
        if self.features is not None:
            obs["features"] = self._features(torch.maximum(earlier, first))
        elif self.frames is not None:
            obs["pictures"] = self._pictures(torch.maximum(earlier, first))
        return {
            "obs": obs,
            "action": self._spread(self.action[torch.minimum(later, last)], self._action_slots),
            "action_there": self._action_there.repeat(count, 1),
            "valid": later <= last,
        }

    def statistics(self, task_set: str) -> dict[str, Statistics]:
        """``state`` and ``action``: statistics of the slots that they fill, which are called `SLOT_NAMES`."""
        return {
            "state": statistics_of(self.state, [SLOT_NAMES[slot] for slot in self.episodes.slots], task_set),
            "action": statistics_of(self.action, [SLOT_NAMES[slot] for slot in ACTION_SLOTS], task_set),
        }

    def _pictures(self, seen: Tensor) -> Tensor:
        """(R, F, C, H, W, 3) of rows (R, F); cameras lie outermost in memory, as they do on disk."""
        frames = self.frames
        out = torch.empty(len(CAMERAS), *seen.shape, frames.height, frames.width, 3, dtype=torch.uint8)
        for number, camera in enumerate(CAMERAS):
            if camera in frames.cameras:
                frames.gather(camera, seen, out[number])
            else:
                out[number].zero_()
        return out.movedim(0, 2)

    def _features(self, seen: Tensor) -> Tensor:
        """(R, F, C, tokens, width) of rows (R, F)."""
        found = self.features.gather(seen)
        if self.features.cameras == CAMERAS:
            return found
        out = found.new_zeros(*seen.shape, len(CAMERAS), *found.shape[3:])
        out[:, :, [CAMERAS.index(camera) for camera in self.features.cameras]] = found
        return out

    @staticmethod
    def _spread(values: Tensor, slots: Tensor) -> Tensor:
        """What slots hold (..., D) -> the unified vector (..., 128)."""
        return torch.zeros(*values.shape[:-1], UNIFIED).index_copy_(-1, slots, values)
