"""A submission folder plays as the trained policy does, in a process without powerband and torch."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import runs
from powerband.cli import main as cli
from powerband.core.errors import ConfigError
from powerband.recipes.snakes.env.board import dump_board
from powerband.recipes.snakes.env.env import SnakesEnv
from powerband.recipes.snakes.env.observations import OBSERVATIONS
from powerband.recipes.snakes.evaluation_options import Evaluation
from powerband.recipes.snakes.jidi import board
from powerband.recipes.snakes.jidi.export import write_submission
from powerband.recipes.snakes.learners import load
from recipes.snakes.env.reference_obs import random_boards

NAMES = ("up", "down", "left", "right")


def as_position(position: dict[str, Any]) -> board.Position:
    """The `Position` of a dumped board."""
    cells = [[row * 20 + col for row, col in body] for body in position["bodies"]]
    beans = [row * 20 + col for row, col in position["beans"]]
    found = board.Position(cells, beans, position["directions"], position["step_count"])
    found.scores = position["scores"]
    return found


@pytest.mark.parametrize("name", list(OBSERVATIONS))
def test_observations_equal_those_of_training(name: str) -> None:
    state, positions = random_boards(60, seed=3)
    for team in (0, 1):
        expected = OBSERVATIONS[name].spec.zeros(60)
        OBSERVATIONS[name].write(state, team, slice(0, 60), expected)
        for b, position in enumerate(positions):
            parsed = as_position(position)
            rows = [board.OBSERVATIONS[name](parsed, 3 * team + k) for k in range(3)]
            assert np.abs(np.array(rows) - expected[b].flatten(1).numpy()).max() < 1e-5, (b, team)


def dictionary(position: dict[str, Any], index: int, last: list[int] | None) -> dict[Any, Any]:
    """The observation of the platform; its ``last_direction`` is that before the latest move."""
    snakes = {i + 2: [list(cell) for cell in body] for i, body in enumerate(position["bodies"])}
    names = None if last is None else [NAMES[direction] for direction in last]
    size = {"board_width": 20, "board_height": 10}
    beans = [list(cell) for cell in position["beans"]]
    return {1: beans, **snakes, **size, "last_direction": names, "controlled_snake_index": index}


def imported(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"submission_{folder.name}", folder / "submission.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ppo", ["normalize_obs=true", "activation=tanh"]),
        ("ppo", ["shared_trunk=false", "activation=silu", "observation=planes"]),
        ("ddpg", []),
        ("bicnet", ["observation=baseline26"]),
    ],
    ids=["features", "planes", "ddpg", "bicnet"],
)
def test_the_submission_chooses_the_moves_of_the_policy(name: str, words: list[str], tmp_path: Path) -> None:
    run_dir = runs.train(name, tmp_path / "run", "env_steps=128", *words)
    assert cli.main(["eval", str(run_dir), f"export=jidi:{tmp_path / 'team'}"]) == 0
    controller = imported(tmp_path / "team").my_controller
    learner, observation = load(run_dir)
    kind = OBSERVATIONS[observation]
    env = SnakesEnv(1, seed=5, observation=observation, mirrored=1.0, stagger=False)
    last, generator = None, torch.Generator().manual_seed(1)
    for _ in range(60):
        position = dump_board(env.state, 0)
        own = kind.spec.zeros(1)
        kind.write(env.state, 0, slice(0, 1), own)
        chosen = learner.act(own, None, explore=False)[0][0]
        for k in range(3):
            (answer,) = controller(dictionary(position, k + 2, last), [4], False)
            move, direction = int(chosen[k]), position["directions"][k]
            if kind.relative:
                move = (direction, board.LEFT_OF[direction], board.LEFT_OF[direction] ^ 1)[move]
            assert last is None or answer == [int(n == move) for n in range(4)]  # the first direction can differ
        last = position["directions"]
        random_moves = torch.randint(kind.num_actions, (1, 3), generator=generator)
        env.step(torch.cat([chosen[None], random_moves]))


GAME = """
import sys
sys.path.insert(0, {tests!r})
import json, random
sys.path.insert(0, {folder!r})
from submission import my_controller
from reference import Snakes
draw = random.Random(4)
heads = (1, 0), (4, 0), (8, 0), (1, 19), (4, 10), (8, 10)
bodies = [[(r, c), (r, (c + 1) % 20), (r, (c + 2) % 20)] for r, c in heads]
def bean(index, taken):
    return draw.choice([(r, c) for r in range(10) for c in range(20) if (r, c) not in taken])
game = Snakes(bodies, [], [2] * 6, lambda snake, allowed: draw.choice(allowed), bean)
game.refill()
names, last = ("up", "down", "left", "right"), None
while not (game.over or game.limit):
    seen = {{1: [list(c) for c in game.beans], **{{i + 2: [list(c) for c in b] for i, b in enumerate(game.bodies)}}}}
    seen.update(board_width=20, board_height=10, last_direction=last and [names[d] for d in last])
    moves = [my_controller(dict(seen, controlled_snake_index=i + 2), [4], False)[0].index(1) for i in range(3)]
    last = list(game.directions)
    game.step(moves + [draw.randrange(4) for _ in range(3)])
print(json.dumps([game.step_count, sum(game.scores[:3]), sum(game.scores[3:]), sorted(sys.modules)]))
"""


def test_a_fresh_process_plays_a_game_against_random_without_powerband_and_torch(tmp_path: Path) -> None:
    run_dir = runs.train("ppo", tmp_path / "run", "env_steps=64")
    write_submission(run_dir, tmp_path / "team")
    tests = str(Path(__file__).parent / "env")
    code = GAME.format(folder=str(tmp_path / "team"), tests=tests)
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    steps, _, _, modules = json.loads(done.stdout)
    assert steps == 200
    assert not {"torch", "powerband", "numba"} & set(modules)


def test_what_the_folder_contains(tmp_path: Path) -> None:
    run_dir = runs.train("ddpg", tmp_path / "run", "env_steps=80")
    files = write_submission(run_dir / "checkpoints" / "80", tmp_path / "new" / "team")
    assert files == ["actor.npz", "agent.json", "agent.py", "board.py", "submission.py"]
    with np.load(tmp_path / "new" / "team" / "actor.npz", allow_pickle=False) as stored:
        assert all(stored[name].dtype == np.float32 for name in stored.files)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["team"]
    for existing in (tmp_path / "new" / "team", tmp_path / "run" / "config.json"):
        with pytest.raises(ConfigError, match="is not overwritten"):
            write_submission(run_dir, existing)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_submission(run_dir, tmp_path / "run" / "config.json" / "team")


@pytest.mark.parametrize("value", ["jidi", "jidi:", "kaggle:folder", "folder"])
def test_other_platforms_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="Write export=jidi:FOLDER"):
        Evaluation(export=value)


def test_the_direction_of_a_snake_follows_from_its_body() -> None:
    game = board.Game()
    bodies = {i + 2: [] for i in range(6)}
    first = {1: [], **bodies, 2: [[0, 0], [0, 19], [0, 18]], "last_direction": None}
    assert game.position(first).directions[0] == 3  # it crossed the right edge
    second = {**first, 2: [[0, 1], [0, 0], [0, 19]], "last_direction": ["up"] * 6}
    assert game.position(second).directions[0] == 3
    placed_again = {**first, 2: [[0, 0], [0, 19], [1, 19]], "last_direction": ["up"] * 6}
    assert game.position(placed_again).directions[0] == 2  # the rules ignore the edge in this case
