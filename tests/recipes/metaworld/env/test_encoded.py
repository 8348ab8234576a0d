"""EncodedVecEnv: its history, built step by step, equals the windows of recorded transitions."""

from __future__ import annotations

import torch

from powerband.envs.adapters.gymnasium_env import GymVecEnv
from powerband.recipes.metaworld.env.encoded import EncodedVecEnv
from powerband.recipes.metaworld.transitions.trajectories import Trajectories

LENGTH = 4


def encoded(num_envs: int = 3, keys: tuple[str, ...] = ("obs", "z")) -> EncodedVecEnv:
    """Pendulum with a time limit of 7 steps; the encoder is a weighted sum of its inputs, with weights by position."""

    def encoder(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        place = torch.arange(LENGTH)
        valid = (place < batch["length"].unsqueeze(1)).float().unsqueeze(-1)
        between = (place[:-1] < batch["length"].unsqueeze(1) - 1).float().unsqueeze(-1)
        weight = (1.0 + place).unsqueeze(-1)
        parts = [(batch["state"] * valid * weight).sum(1)]
        parts += [(batch[name] * between * weight[:-1]).sum(1) for name in ("action", "reward")]
        return torch.cat([*parts, batch["length"].unsqueeze(1).float()], 1)

    env = GymVecEnv("Pendulum-v1", num_envs, 0, env_kwargs={"max_episode_steps": 7}, seed=1)
    return EncodedVecEnv(env, encoder, lambda obs: obs[..., :2], 5, LENGTH, 0.5, keys)


def test_codes_equal_those_of_recorded_windows():
    env = encoded()
    obs = env.reset()
    transitions, finals = [], []
    draw = torch.Generator().manual_seed(0)
    for _ in range(18):
        action = torch.rand(3, 1, generator=draw) * 2 - 1
        step = env.step(action)
        transitions.append((obs, action, step.reward, step.next_obs(), step.ended))
        finals.append(step.final_obs is not None)
        obs = step.obs
    assert any(finals)
    for row in range(3):
        state = torch.stack([each[0]["obs"][row, :2] for each in transitions])
        ended = torch.tensor([bool(each[4][row]) for each in transitions])
        start = torch.cat([torch.tensor([True]), ended[:-1]])
        past = Trajectories(
            state,
            torch.stack([e[1][row] for e in transitions]),
            torch.stack([e[2][row] for e in transitions]) * 0.5,
            start,
        )
        expected = env.encoder(past.windows(torch.arange(18), LENGTH))
        torch.testing.assert_close(torch.stack([each[0]["z"][row] for each in transitions]), expected)
        # Within an episode the code of next_obs is that of the next obs. At its end it has a longer history.
        for step in range(17):
            same = torch.equal(transitions[step][3]["z"][row], transitions[step + 1][0]["z"][row])
            assert same != bool(ended[step])
        last = int(ended.nonzero()[0])
        assert (
            float(transitions[last][3]["z"][row, -1]) == LENGTH and float(transitions[last + 1][0]["z"][row, -1]) == 1
        )
    env.close()


def test_a_resume_keeps_the_history():
    one, two = encoded(), encoded()
    one.reset()
    for _ in range(5):
        one.step(torch.full((3, 1), 0.5))
    two.load_state_dict(one.state_dict())
    assert bool(two.resumed.all())
    a, b = one.step(torch.full((3, 1), -0.3)), two.step(torch.full((3, 1), -0.3))
    assert torch.equal(a.obs["z"], b.obs["z"]) and torch.equal(a.obs["obs"], b.obs["obs"])
    one.close()
    two.close()


def test_observations_can_be_code_and_state_alone():
    env = encoded(keys=("z", "s"))
    obs = env.reset()
    assert list(obs) == ["z", "s"] and obs["s"].shape == (3, 2) and obs["z"].shape == (3, 5)
    assert list(env.spec.obs) == ["z", "s"]
    env.close()


def test_codes_of_some_environments_are_computed_on_demand():
    every, none = encoded(), encoded(keys=("obs",))
    every.reset()
    assert list(none.reset()) == ["obs"] and list(none.spec.obs) == ["obs"]
    for _ in range(3):
        step, other = every.step(torch.full((3, 1), 0.5)), none.step(torch.full((3, 1), 0.5))
        assert torch.equal(step.obs["obs"], other.obs["obs"]) and list(other.obs) == ["obs"]
    rows = torch.tensor([True, False, True])
    assert torch.equal(none.codes(rows), step.obs["z"][rows])
    every.close()
    none.close()
