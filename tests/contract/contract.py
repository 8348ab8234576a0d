"""Contract of VecEnv: `check_env` runs all checks; a new environment is one line in `test_envs.py`."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.data.types import Step, Tree, VecEnv, tree_leaves, tree_map, tree_paths

MakeEnv = Callable[[int, int, int], VecEnv]
"""(num_envs, seed, first_env) -> environments; `first_env` is the global index of the first."""
SEED = 7


def check_env(
    make_env: MakeEnv,
    *,
    steps: int = 250,
    num_envs: int = 4,
    is_first_obs: Callable[[Tree], Tensor] | None = None,
    terminates: bool | None = None,
) -> None:
    """Checks a VecEnv against the protocol.

    Args:
        make_env: Function that creates the environments.
        steps: Steps of a random policy in which at least one episode must end.
        num_envs: Number of environments, at least 2 and even.
        is_first_obs: Function that returns the rows (N,) bool that can be first observations of an episode; None skips
            this check.
        terminates: True if episodes of a random policy terminate, False if they are only truncated.

    Raises:
        AssertionError: The environment breaks the protocol.
    """
    env = make_env(num_envs, SEED, 0)
    try:
        first, played, actions = play(env, SEED, steps)
        check_shapes(env, first, played)
        check_not_overwritten(env, actions)
        check_ends(env, first, played, is_first_obs, terminates)
        check_seeding(env, make_env, played, steps)
    finally:
        env.close()
        env.close()
    check_global_ids(make_env, num_envs, steps, played)
    check_resume(make_env, num_envs, steps)


def play(env: VecEnv, seed: int, steps: int, first_env: int = 0) -> tuple[Tree, list[Step], list[Tensor]]:
    """Resets and steps with random allowed actions; those of a row depend on its global index only."""
    generators = [np.random.default_rng([seed, first_env + row]) for row in range(env.num_envs)]
    obs = first = tree_map(torch.clone, env.reset(seed))
    played, actions = [], []
    for _ in range(steps):
        rows = [
            _random_action(env, tree_map(lambda leaf, row=row: leaf[row], obs), g) for row, g in enumerate(generators)
        ]
        actions.append(torch.stack(rows).to(env.device))
        played.append(_copy(env.step(actions[-1])))
        obs = played[-1].obs
    return first, played, actions


def check_shapes(env: VecEnv, first: Tree, played: list[Step]) -> None:
    """Checks shapes, dtypes and devices against the spec."""
    assert isinstance(env, VecEnv)
    spec, n = env.spec, env.num_envs
    agents = () if spec.num_agents is None else (spec.num_agents,)
    assert (spec.num_actions is None) == spec.action.dtype.is_floating_point
    if spec.num_actions is None:
        assert spec.low.shape == spec.high.shape == spec.action.shape and bool((spec.low < spec.high).all())
    _check_tree(first, env)
    for step in played:
        _check_tree(step.obs, env)
        _check_tensor(step.reward, (n, *agents), torch.float32, env, "reward")
        _check_tensor(step.terminated, (n,), torch.bool, env, "terminated")
        _check_tensor(step.truncated, (n,), torch.bool, env, "truncated")
        assert bool(step.reward.isfinite().all())
        if bool(step.ended.any()):
            _check_tree(step.final_obs, env)
        _check_tree(step.next_obs(), env)
        for name, metric in step.episode.items():
            _check_tensor(metric, (n,), torch.float32, env, name)


def check_ends(
    env: VecEnv,
    first: Tree,
    played: list[Step],
    is_first_obs: Callable[[Tree], Tensor] | None,
    terminates: bool | None,
) -> None:
    """Checks autoreset: time limits, first and last observations, and the kind of the ends."""
    ended = torch.stack([step.ended for step in played]).cpu()
    assert bool(ended.any()), "no episode ended in these steps: use more steps"
    length = torch.zeros(env.num_envs, dtype=torch.int64)
    for step, over in zip(played, ended, strict=True):
        length += 1
        if env.spec.max_episode_steps is not None:
            limit = env.spec.max_episode_steps
            assert bool((length <= limit).all()), f"an episode of {length.max()} steps under a limit of {limit}"
            assert bool(over[length == limit].all()), "an episode continued after its time limit"
        if bool(over.any()):
            obs, final = (_flat(tree)[over] for tree in (step.obs, step.final_obs))
            assert not torch.equal(obs, final), "final_obs is the first observation of the next episode"
            if is_first_obs is not None:
                assert bool(is_first_obs(step.obs).cpu()[over].all()), "the row after an end does not start an episode"
        length[over] = 0
    if is_first_obs is not None:
        assert bool(is_first_obs(first).all())
    if terminates is not None:
        terminated = bool(torch.stack([step.terminated for step in played]).any())
        assert terminated == terminates, f"terminated rows: {terminated}, expected of this task: {terminates}"


def check_seeding(env: VecEnv, make_env: MakeEnv, played: list[Step], steps: int) -> None:
    """Checks that a seed repeats its trajectory, also in a new object, and that another seed changes it."""
    assert_same(play(env, SEED, steps)[1], played, "reset with the same seed")
    steps = min(steps, 20)
    assert not torch.equal(_flat(play(env, SEED + 1, steps)[0]), _flat(play(env, SEED, steps)[0])), (
        "the seed has no effect"
    )
    rows = _flat(env.reset(SEED))
    assert len(torch.unique(rows, dim=0)) > 1, "all environments start with the same observation"
    again = make_env(env.num_envs, SEED, 0)
    try:
        assert_same(play(again, SEED, steps)[1], played[:steps], "a new object with the same seed")
    finally:
        again.close()


def check_global_ids(make_env: MakeEnv, num_envs: int, steps: int, played: list[Step]) -> None:
    """Checks that environments on two ranks have the trajectories of one rank."""
    half = num_envs // 2
    for first_env in (0, half):
        env = make_env(half, SEED, first_env)
        try:
            part = play(env, SEED, min(steps, 40), first_env)[1]
        finally:
            env.close()
        rows = slice(first_env, first_env + half)
        expected = [_rows(step, rows) for step in played[: len(part)]]
        assert_same(part, expected, f"environments {first_env} to {first_env + half - 1} on a rank of their own")


def check_not_overwritten(env: VecEnv, actions: list[Tensor]) -> None:
    """Checks that the result of `recv` remains unchanged during the next step."""
    env.reset(SEED)
    for action, following in itertools.pairwise(actions):
        step = env.step(action)
        copy = _copy(step)
        env.send(following)
        env.recv()
        assert_same([step], [copy], "after the next step")


def check_resume(make_env: MakeEnv, num_envs: int, steps: int) -> None:
    """Checks that a state saved within episodes continues according to the resume level of the spec."""
    uninterrupted = make_env(num_envs, SEED, 0)
    resumed = make_env(num_envs, SEED, 0)
    try:
        _, played, actions = play(uninterrupted, SEED, steps)
        uninterrupted.reset(SEED)
        middle = steps // 2 + 1
        for action in actions[:middle]:
            uninterrupted.step(action)
        state = uninterrupted.state_dict()
        assert all(isinstance(leaf, (Tensor, np.ndarray, int, float, str, bool)) for leaf in tree_leaves(state))
        state = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, state)
        resumed.reset(SEED + 5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if resumed.spec.resume == "truncated" else "error")
            resumed.load_state_dict(state)
        if resumed.spec.resume == "truncated":
            assert not bool(resumed.resumed.any())
            _check_tree(resumed.observe(), resumed)
            resumed.step(actions[middle])
        else:
            assert bool(resumed.resumed.all())
            current = _flat(resumed.observe())
            assert torch.equal(current, _flat(played[middle - 1].obs)), "observe() after a resume"
            again = [_copy(resumed.step(action)) for action in actions[middle:]]
            assert_same(again, played[middle:], "after a resume")
        continued = [_copy(uninterrupted.step(action)) for action in actions[middle:]]
        assert_same(continued, played[middle:], "after a save")
    finally:
        uninterrupted.close()
        resumed.close()


def assert_same(one: list[Step], other: list[Step], when: str) -> None:
    """Checks that two trajectories are equal bit for bit; metrics and `final_obs` only in rows that ended."""
    assert len(one) == len(other)
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        pairs = {"obs": (a.obs, b.obs), "next_obs": (a.next_obs(), b.next_obs())}
        for name in ("reward", "terminated", "truncated"):
            pairs[name] = (getattr(a, name), getattr(b, name))
        for name, value in a.episode.items():
            pairs[name] = (value[a.ended], b.episode[name][b.ended])
        for name, (left, right) in pairs.items():
            for (path, x), (_, y) in zip(tree_paths(left), tree_paths(right), strict=True):
                assert torch.equal(x, y), f"{name} {path} of step {index} differs {when}"


def _random_action(env: VecEnv, obs: Tree, generator: np.random.Generator) -> Tensor:
    spec = env.spec
    if spec.num_actions is None:
        unit = torch.from_numpy(generator.random(spec.action.shape, np.float32))
        low, high = spec.low.cpu().clamp(min=-10), spec.high.cpu().clamp(max=10)
        return low + (high - low) * unit
    shape = (spec.num_actions,) if spec.action_heads else (*spec.action.shape, spec.num_actions)
    score = torch.from_numpy(generator.random(shape, np.float32))
    if isinstance(obs, dict) and "action_mask" in obs:
        score = score * obs["action_mask"].cpu() - 1.0 * ~obs["action_mask"].cpu()
    if spec.action_heads:
        return torch.stack([head.argmax() for head in score.split(spec.action_heads)])
    return score.argmax(-1)


def _check_tree(tree: Tree, env: VecEnv) -> None:
    specs = dict(tree_paths(env.spec.obs))
    leaves = dict(tree_paths(tree))
    assert leaves.keys() == specs.keys()
    for path, leaf in leaves.items():
        _check_tensor(leaf, (env.num_envs, *specs[path].shape), specs[path].dtype, env, path or "obs")
    if isinstance(tree, dict) and "action_mask" in tree:
        assert tree["action_mask"].dtype == torch.bool and bool(tree["action_mask"].any(-1).all()), (
            "a row has no allowed action"
        )


def _check_tensor(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, env: VecEnv, name: str = "leaf") -> None:
    assert tuple(tensor.shape) == tuple(shape), f"{name} has shape {tuple(tensor.shape)}, expected {shape}"
    assert tensor.dtype == dtype, f"{name} has dtype {tensor.dtype}, expected {dtype}"
    assert tensor.device.type == env.device.type, f"{name} is on {tensor.device}, expected {env.device}"


def _flat(tree: Tree) -> Tensor:
    return torch.cat([leaf.cpu().reshape(len(leaf), -1).double() for leaf in tree_leaves(tree)], 1)


def _rows(step: Step, rows: slice) -> Step:
    def part(tree: Any) -> Any:
        return None if tree is None else tree_map(lambda leaf: leaf[rows], tree)

    fields = (part(value) for value in (step.obs, step.reward, step.terminated, step.truncated, step.final_obs))
    return Step(*fields, part(step.episode))


def _copy(step: Step) -> Step:
    fields = (step.obs, step.reward, step.terminated, step.truncated, step.final_obs, step.episode)
    return Step(*(None if tree is None else tree_map(torch.clone, tree) for tree in fields))
