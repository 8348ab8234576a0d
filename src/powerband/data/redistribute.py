"""Redistribute: divides the transitions of a replay among another number of ranks."""

from __future__ import annotations

from typing import Any

import torch


def redistributed(states: list[dict[str, Any]], num_envs: int, capacity: int, rank: int, world_size: int) -> dict:
    """Returns the state of the replay of one rank, from the states of the replays of all saved ranks.

    Environments are numbered over all ranks, and a rank receives the transitions of its environments, in the order of
    their age. If simulators have failed, some transitions may count as those of a neighbouring environment.

    Args:
        states: Results of `Replay.state_dict` of the saved ranks, in rank order.
        num_envs: Number of environments on each new rank.
        capacity: Capacity of the replay on each new rank; the oldest transitions are omitted.
        rank: The new rank.
        world_size: Number of new ranks.

    Returns:
        A state for `Replay.load_state_dict`. n-step windows and episodes end at the newest transition of each
        environment.
    """
    saved_envs = num_envs * world_size // len(states)
    places = []  # (n, 4): saved rank, row, age in steps, environment
    for saved_rank, state in enumerate(states):
        size = len(state["rows"])
        position = int(state["position"]) if size == int(state["capacity"]) else 0
        from_newest = (position - 1 - torch.arange(size)) % max(size, 1)
        own_env = state["env"].cpu() if "env" in state else saved_envs - 1 - from_newest % saved_envs
        env = saved_rank * saved_envs + own_env
        columns = torch.full((size,), saved_rank), torch.arange(size), from_newest // saved_envs, env
        places.append(torch.stack(columns, 1))
    every = torch.cat(places)
    own = every[every[:, 3] // num_envs == rank]
    own = own[(own[:, 2] * -(num_envs * world_size) + own[:, 3]).argsort(stable=True)][-capacity:]
    size = len(own)
    rows = states[0]["rows"].new_empty(size, states[0]["rows"].shape[1])
    following, target = torch.arange(size), torch.arange(size)
    for saved_rank, state in enumerate(states):
        here = own[:, 0] == saved_rank
        rows[here] = state["rows"][own[here, 1]]
        if "following" in state:
            new_row = torch.full((len(state["rows"]),), -1)
            new_row[own[here, 1]] = target[here]
            successor = new_row[state["following"].cpu()[own[here, 1]]]
            following[here] = torch.where(successor >= 0, successor, target[here])
    parts: dict[str, Any] = {}
    if "following" in states[0]:
        parts = {"following": following, "newest": torch.full((num_envs,), -1)}
    for name in ("priority", "time", "episode"):
        if name in states[0]:
            parts[name] = torch.cat([state[name].cpu()[own[own[:, 0] == k, 1]] for k, state in enumerate(states)])
            parts[name] = parts[name][own[:, 0].argsort(stable=True).argsort(stable=True)]
    if "priority" in states[0]:
        parts["largest"] = torch.stack([state["largest"] for state in states]).amax(0)
    if "episode" in states[0]:
        parts["env"] = own[:, 3] % num_envs
    return {"rows": rows, "position": size % capacity, "capacity": capacity, **parts}
