"""Controller of three snakes for the competition "3v3 snakes" of the Jidi platform, exported by powerband.

The platform calls `my_controller` once per snake and move. The folder contains all that it reads: ``agent.py``,
``board.py``, ``agent.json`` and ``actor.npz``. It needs Python 3.6 or later and numpy.
"""

import importlib.util
import json
import os

FOLDER = os.path.dirname(os.path.abspath(__file__))


def load_module(name):
    """Imports the file `name` of this folder under a name of its own, because the platform has a package ``agent``."""
    path = os.path.join(FOLDER, name + ".py")
    spec = importlib.util.spec_from_file_location(f"{name}_{abs(hash(FOLDER)):x}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


board = load_module("board")
agent = load_module("agent").Agent(FOLDER)
with open(os.path.join(FOLDER, "agent.json")) as file:
    observation_kind = json.load(file)["observation"]
games: dict = {}
"""Index of a snake in the observation -> `board.Game`, what its earlier observations of the game showed."""


def my_controller(observation, action_space, is_act_continuous=False):
    """Chooses the move of one snake.

    Args:
        observation: Dictionary of the platform: 1 is the list of beans (row, column); 2 to 7 are the snakes, lists of
            cells with the head first; ``last_direction`` is None before the first move; ``controlled_snake_index`` is
            the snake that moves, 2 to 7.
        action_space: Not used; there are four moves.
        is_act_continuous: Not used.

    Returns:
        [[up, down, left, right]], in which the entry of the chosen move is 1 and the others are 0.
    """
    index = int(observation["controlled_snake_index"])
    if observation.get("last_direction") is None or index not in games:
        games[index] = board.Game()
    position = games[index].position(observation)
    snake = index - 2
    if not position.bodies[snake]:
        return [[1, 0, 0, 0]]
    first = snake // 3 * 3
    scores = agent.scores([board.OBSERVATIONS[observation_kind](position, i) for i in range(first, first + 3)])
    move = int(scores[snake - first].argmax())
    if observation_kind == "features":  # its moves are forward, left, right
        direction = position.directions[snake]
        move = (direction, board.LEFT_OF[direction], board.LEFT_OF[direction] ^ 1)[move]
    return [[int(k == move) for k in range(4)]]
