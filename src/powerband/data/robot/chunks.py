"""RobotChunks: gathers batches of action chunks and their observations from recorded episodes, without a loop."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.robot.encoder_features import FeatureCache
from powerband.data.robot.episodes import CAMERAS, RobotEpisodes
from powerband.data.robot.frames import FrameCache
from powerband.data.robot.keyframes import next_keyframes
from powerband.data.robot.statistics import Statistics, statistics_of
from powerband.data.robot.unified_vector import ACTION_SLOTS, SLOT_NAMES, UNIFIED_DIM, action_vector, slot_mask
from powerband.data.types import Tree


class RobotChunks:
    """Gathers batches of action chunks and observations from recorded episodes; used as `make` of `BatchLoader`.

    An action chunk is a sequence of T consecutive actions, which a policy predicts at once. States and actions are
    unified vectors of 128 entries (slots) with fixed meanings for any robot arm. Only the slots that the robot fills
    are stored.

    Args:
        episodes: Recorded episodes; each row is one step.
        frames: Images of the episodes; None leaves them out.
        features: Features of a frozen encoder, which replace the images; None uses `frames`.
        horizon: T, actions of a chunk. After the end of an episode, its last action is repeated and marked invalid.
        history: F, images of each camera per observation; the last one is that of the row itself.

    Raises:
        ConfigError: The frames or features belong to other episodes.
        ValueError: The rows of an episode are not consecutive.
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
                    f"The cached {name} are of {cache.rows:,} rows of other episodes, not of these {episodes.rows:,} "
                    f"rows. Remove the folder of the cache (cache_dir=); the next run builds it again."
                )
        episode = episodes.episode
        begins = torch.cat([torch.ones(1, dtype=torch.bool), episode[1:] != episode[:-1]])
        first = begins.nonzero()[:, 0]
        if len(first) != len(episode.unique()):
            raise ValueError("The rows of an episode are not consecutive. Sort the rows by episode.")
        index = begins.cumsum(0) - 1
        self.first = first[index]
        self.last = torch.cat([first[1:] - 1, torch.tensor([len(episode) - 1])])[index]
        self.episodes, self.frames, self.features = episodes, frames, features
        self.past, self.future = torch.arange(1 - history, 1), torch.arange(horizon)
        self.state = episodes.state()
        self.keyframe = next_keyframes(episodes.action[:, -1] > 0, episodes.eef_pos, self.last)
        self.action = torch.cat([action_vector(part)[:, list(ACTION_SLOTS)] for part in episodes.action.split(4096)])
        self._state_slots, self._action_slots = torch.tensor(episodes.slots), torch.tensor(ACTION_SLOTS)
        self._state_mask, self._action_mask = episodes.state_mask, slot_mask(ACTION_SLOTS)
        cache = frames if features is None else features
        self._camera_mask = torch.tensor([cache is not None and camera in cache.cameras for camera in CAMERAS])

    @property
    def rows(self) -> int:
        """Number of recorded rows."""
        return len(self.first)

    def __call__(self, rows: Tensor) -> dict[str, Tree]:
        """Gathers a batch.

        Shapes: R rows, F images per camera, C cameras in the order of `CAMERAS`, images of H by W pixels, T actions.

        Args:
            rows: Indices of the recorded rows (R,) int64.

        Returns:
            ``obs``: dict with ``images`` (R, F, C, H, W, 3) uint8 or ``features`` (R, F, C, tokens, width), oldest
            first, or neither without a cache; ``image_mask`` (R, F, C) bool, False before the start of the episode and
            for missing cameras; ``state`` (R, 128), not normalised; ``state_mask`` (R, 128) bool, True for slots that
            the robot fills; ``task`` (R,) int64, index of the instruction; ``hz`` (R,), actions per second.
            ``action`` (R, T, 128), not normalised: action t was executed t steps after the row.
            ``action_mask`` (R, 128) bool, True for slots that the robot fills.
            ``valid`` (R, T) bool, False after the end of the episode.
            ``keyframe`` (R, 3), position of the end effector in metres at the keyframe; see `next_keyframes`.
        """
        count, column = len(rows), rows.unsqueeze(1)
        first, last = self.first[rows].unsqueeze(1), self.last[rows].unsqueeze(1)
        earlier, later = column + self.past, column + self.future
        obs: Tree = {
            "image_mask": (earlier >= first).unsqueeze(2) & self._camera_mask,
            "state": self._spread(self.state[rows], self._state_slots),
            "state_mask": self._state_mask.repeat(count, 1),
            "task": self.episodes.task[rows],
            "hz": torch.full((count,), self.episodes.hz),
        }
        if self.features is not None:
            obs["features"] = self._gather_features(self.features, torch.maximum(earlier, first))
        elif self.frames is not None:
            obs["images"] = self._gather_images(self.frames, torch.maximum(earlier, first))
        return {
            "obs": obs,
            "action": self._spread(self.action[torch.minimum(later, last)], self._action_slots),
            "action_mask": self._action_mask.repeat(count, 1),
            "valid": later <= last,
            "keyframe": self.episodes.eef_pos[self.keyframe[rows]],
        }

    def statistics(self, task_set: str) -> dict[str, Statistics]:
        """Computes the mean, deviation, range and quantiles of all recorded states and actions, for normalisation.

        Args:
            task_set: Name of the set of tasks, such as ``libero_90``, which is stored with the statistics.

        Returns:
            {"state": statistics, "action": statistics}, for those slots of the unified vector that the robot fills.
        """
        return {
            "state": statistics_of(self.state, [SLOT_NAMES[slot] for slot in self.episodes.slots], task_set),
            "action": statistics_of(self.action, [SLOT_NAMES[slot] for slot in ACTION_SLOTS], task_set),
        }

    def _gather_images(self, frames: FrameCache, rows: Tensor) -> Tensor:
        """Returns images (R, F, C, height, width, 3) of R x F `rows` and C cameras. In memory, axis C is first."""
        out = torch.empty(len(CAMERAS), *rows.shape, frames.height, frames.width, 3, dtype=torch.uint8)
        for number, camera in enumerate(CAMERAS):
            if camera in frames.cameras:
                frames.gather(camera, rows, out[number])
            else:
                out[number].zero_()
        return out.movedim(0, 2)

    def _gather_features(self, cache: FeatureCache, rows: Tensor) -> Tensor:
        """Returns features (R, F, C, tokens, width) of R x F `rows` and C cameras; those of missing cameras are 0."""
        features = cache.gather(rows)
        if cache.cameras == CAMERAS:
            return features
        out = features.new_zeros(*rows.shape, len(CAMERAS), *features.shape[3:])
        out[:, :, [CAMERAS.index(camera) for camera in cache.cameras]] = features
        return out

    @staticmethod
    def _spread(values: Tensor, slots: Tensor) -> Tensor:
        """Returns unified vectors (..., 128) of zeros in which the D entries `slots` have the values (..., D)."""
        return torch.zeros(*values.shape[:-1], UNIFIED_DIM).index_copy_(-1, slots, values)
