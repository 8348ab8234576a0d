"""PointNav episodes of Habitat in top-down maps: fabricated files of the published format, and invalid files."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.distance import DISTANCE_UNIT_M, navigable
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, HEADINGS
from powerband.recipes.sketchnav.plans.imported import habitat
from powerband.recipes.sketchnav.plans.imported.habitat import habitat_episodes, read_habitat_episodes
from powerband.recipes.sketchnav.plans.imported.plan_files import read_plans
from powerband.recipes.sketchnav.settings import EpisodeConfig
from recipes.sketchnav.plans.imported.drawn_plans import write_map

CORNER = [-6.0, 3.0]
"""World x and z of the upper left corner of the map. The house is at x of -4 to 4 and z of 5 to 11."""
SCENES = EpisodeConfig(goals=10, starts=10, sketch_px=36)


def entry(number: int, start: tuple[float, float], goal: tuple[float, float], turn: float, **more: Any) -> dict:
    """An episode as PointNavDatasetV1 stores it: x and z of start and goal, and the rotation around y in radians."""
    return {
        "episode_id": str(number),
        "scene_id": "data/scene_datasets/gibson/Cantwell.glb",
        "start_position": [start[0], 0.1, start[1]],
        "start_rotation": [0, math.sin(turn / 2), 0, math.cos(turn / 2)],
        "info": {"geodesic_distance": math.dist(start, goal), "difficulty": "easy"},
        "goals": [{"position": [goal[0], 0.1, goal[1]], "radius": None}],
        "shortest_paths": None,
        "start_room": None,
        **more,
    }


ENTRIES = [
    entry(0, (-3.0, 6.0), (-3.0, 10.0), 0.0),
    entry(1, (-3.0, 10.0), (3.0, 6.0), math.pi / 2),
    entry(2, (2.0, 9.0), (-2.0, 7.0), -math.pi / 2),
    entry(3, (3.0, 6.0), (-3.0, 6.0), math.pi),
]


def write(folder: Path, entries: list[dict], name: str = "val.json.gz") -> Path:
    write_map(folder, "Cantwell", corner=CORNER)
    path = folder / name
    text = json.dumps({"episodes": entries}).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def load(folder: Path, path: Path) -> tuple[Any, str]:
    return habitat_episodes(path, read_plans(folder, 0), SCENES, "train", 0)


def networkx_length(free: np.ndarray, start: tuple[int, int], goal: tuple[int, int]) -> float:
    """Length in metres of the shortest path over straight, diagonal and knight's moves through free cells."""
    graph = networkx.Graph()
    moves = {(1, 0): [], (0, 1): [], (1, 1): [(1, 0), (0, 1)], (1, -1): [(1, 0), (0, -1)]}
    for side in (-1, 1):
        moves[2, side] = [(1, 0), (1, side)]
        moves[1, 2 * side] = [(0, side), (1, side)]
    cells = {(int(x), int(y)) for y, x in np.argwhere(free)}
    for x, y in cells:
        for (dx, dy), between in moves.items():
            if (x + dx, y + dy) in cells and all((x + ax, y + ay) in cells for ax, ay in between):
                graph.add_edge((x, y), (x + dx, y + dy), weight=0.1 * math.hypot(dx, dy))
    return networkx.dijkstra_path_length(graph, start, goal)


@pytest.mark.parametrize("name", ["val.json.gz", "val.json"])
def test_episodes_take_place_where_the_file_says(tmp_path: Path, name: str) -> None:
    episodes, message = load(tmp_path, write(tmp_path, ENTRIES, name))
    assert message == f"4 episodes of {name}, 0 left out" and len(episodes) == 4
    imported = read_plans(tmp_path, 0)[0]
    free = navigable(imported.plan.cells)
    found = set()
    for number in range(4):
        start, goal = (
            values[number, :2].numpy() * COORDINATE_UNIT_M * 10 for values in (episodes.start, episodes.target)
        )
        (given,) = [
            each
            for each in ENTRIES
            if math.dist(imported.cell_at(each["start_position"][0], each["start_position"][2]), start) < 1
        ]
        x, _, z = given["goals"][0]["position"]
        assert math.dist(imported.cell_at(x, z), goal) < 1
        heading = {0: 270, 1: 180, 2: 0, 3: 90}[int(given["episode_id"])]  # ahead is -z, which is up in the map
        assert int(episodes.start[number, 2]) * 360 // HEADINGS == heading
        cells = [(int(values[0]), int(values[1])) for values in (start, goal)]
        exact = networkx_length(free, *cells)
        # A field rounds each move to 2 mm.
        assert float(episodes.length[number]) == pytest.approx(exact, rel=0.006), exact
        legs = np.diff(episodes.path_corners(number), axis=0)
        assert np.hypot(*legs.T).sum() == pytest.approx(exact, rel=1e-6)
        found.add(int(given["episode_id"]))
    assert found == {0, 1, 2, 3} and DISTANCE_UNIT_M == 0.002


def test_scenes_have_files_of_their_own_and_only_some_episodes_are_taken(tmp_path: Path) -> None:
    path = write(tmp_path, [])
    with pytest.raises(ConfigError, match="has no episodes, and .*content has no files of scenes"):
        load(tmp_path, path)
    (tmp_path / "content").mkdir()
    write(tmp_path / "content", [entry(k, (-3, 6 + k / 100), (3, 8), 0.0) for k in range(300)], "Cantwell.json.gz")
    other = [entry(0, (0, 0), (1, 1), 0.0, scene_id="hm3d/00800-TEEsavR23oF/TEEsavR23oF.basis.glb")]
    write(tmp_path / "content", other, "TEEsavR23oF.json.gz")
    episodes, message = load(tmp_path, path)
    assert len(episodes) == 100 and "1 scenes have no map" in message
    rows = episodes.start[:, 1].numpy()
    assert rows.max() - rows.min() == pytest.approx(2.9 / COORDINATE_UNIT_M, rel=0.05), "spread over the file"
    assert {episode.scene for episode in read_habitat_episodes(path)} == {"Cantwell", "TEEsavR23oF"}
    again, _ = load(tmp_path, path)
    assert all(torch.equal(value, getattr(again, name)) for name, value in vars(episodes).items())


def test_floors_are_kept_apart(tmp_path: Path) -> None:
    upstairs = [
        {**each, "start_position": [each["start_position"][0], 3.1, each["start_position"][2]]} for each in ENTRIES[:2]
    ]
    for each in upstairs[:1]:
        each["goals"] = [{"position": [*each["goals"][0]["position"][:1], 3.1, each["goals"][0]["position"][2]]}]
    path = write(tmp_path, ENTRIES + upstairs)
    with pytest.raises(ConfigError, match="heights of 0.1 to 3.1 m, which are several floors"):
        load(tmp_path, path)
    write_map(tmp_path, "up", corner=CORNER, scene="Cantwell", floor=3.0)
    write_map(tmp_path, "Cantwell", corner=CORNER, floor=0.0)
    episodes, _ = load(tmp_path, path)
    assert len(episodes) == 5 and len(episodes.size) == 2, "the episode that climbs stairs is left out"


def test_maps_of_the_wrong_scale_or_place_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, ENTRIES)
    write_map(tmp_path, "Cantwell", corner=[100.0, 3.0])
    with pytest.raises(ConfigError, match="4 of 4 episodes do not fit their maps: 4 have a start or goal that is not"):
        load(tmp_path, path)
    write_map(tmp_path, "Cantwell")
    with pytest.raises(ConfigError, match=r"corner: \[x, z\]"):
        load(tmp_path, path)
    longer = [{**each, "info": {"geodesic_distance": 4 * each["info"]["geodesic_distance"]}} for each in ENTRIES]
    path = write(tmp_path, longer)
    with pytest.raises(ConfigError, match="times as long as geodesic_distance"):
        load(tmp_path, path)
    path = write(tmp_path, [{**each, "scene_id": "Denmark.glb"} for each in ENTRIES])
    with pytest.raises(ConfigError, match="scenes Denmark, and plans_dir has no map"):
        load(tmp_path, path)


def test_the_causes_of_episodes_that_do_not_fit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    still = [entry(4 + k, (-3.0, 6.0), (-3.0, 6.0), 0.0) for k in range(5)]
    path = write(tmp_path, [*ENTRIES, *still, entry(9, (50.0, 6.0), (-3.0, 6.0), 0.0)])
    with pytest.raises(ConfigError, match="6 of 10 .*: 5 start at their goal, 1 have a start or goal that is not in"):
        load(tmp_path, path)
    path, computed = write(tmp_path, ENTRIES), []

    def blocked(free: np.ndarray, *goal: int) -> np.ndarray:
        computed.append(goal)
        return np.full(free.shape, habitat.BLOCKED, np.int16)

    monkeypatch.setattr(habitat, "distance_field", blocked)
    with pytest.raises(ConfigError, match="4 of 4 .*: 4 have a goal with a path of more than 65 m"):
        load(tmp_path, path)
    assert len(computed) == len(set(computed)) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "has no list of episodes"),
        (b'{"episodes": [{}]}', "episode 0 is not a PointNav episode .KeyError"),
        (b'{"episodes": 3}', "has no list of episodes"),
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (json.dumps({"episodes": [{**ENTRIES[0], "start_position": [1, 2]}]}).encode(), "episode 0"),
        (json.dumps({"episodes": [{**ENTRIES[0], "start_position": [1, math.nan, 2]}]}).encode(), "not finite"),
        (json.dumps({"episodes": [{**ENTRIES[0], "goals": []}]}).encode(), "IndexError"),
    ],
)
def test_files_that_are_no_episodes_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "val.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_habitat_episodes(path)


def test_large_files_are_refused_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(habitat, "MAX_JSON_BYTES", 2**20)
    bomb = tmp_path / "val.json.gz"
    bomb.write_bytes(gzip.compress(b" " * 2**24))
    assert bomb.stat().st_size < 2**15
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(10**9)  # sparse
    for path in (bomb, huge):
        with pytest.raises(ConfigError, match="has more than 1 MiB of JSON. Split it"):
            read_habitat_episodes(path)
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_habitat_episodes(tmp_path / "cut.json.gz")
