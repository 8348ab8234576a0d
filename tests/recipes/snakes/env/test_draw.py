"""Images: content of the cells, bodies across the edge, files that can be read again."""

import builtins

import numpy as np
import pytest
from PIL import Image

from powerband.recipes.snakes.env.board_image import BEAN, GRID, HEADER, PAPER, SHADES, draw_board
from powerband.report.media_files import save_image, write_video
from recipes.snakes.env.reference_obs import load, random_boards

CELL = 24


@pytest.fixture(scope="module")
def boards():
    return random_boards(20, seed=41)


def middle(image: np.ndarray, cell: tuple[int, int]) -> np.ndarray:
    """Colour in the middle of a board cell."""
    return image[int((cell[0] + HEADER + 0.5) * CELL), int((cell[1] + 0.5) * CELL)].astype(int)


def test_every_cell_has_its_colour(boards):
    state, positions = boards
    for b, position in enumerate(positions):
        image = draw_board(state, b, cell=CELL)
        assert image.dtype == np.uint8 and image.shape == (12 * CELL, 20 * CELL, 3)
        owner = {cell: i for i, body in enumerate(position["bodies"]) for cell in body[1:]}
        heads = [body[0] for body in position["bodies"] if body]
        for row in range(10):
            for col in range(20):
                if (row, col) in heads:
                    continue
                if (row, col) in owner:
                    expected = SHADES[owner[row, col]]
                else:
                    expected = BEAN if (row, col) in position["beans"] else PAPER
                assert np.abs(middle(image, (row, col)) - expected).max() < 12, (b, row, col)


def test_a_body_over_the_edge_touches_both_edges_and_crosses_nothing():
    far = [[(9, c) for c in (3 * i, 3 * i + 1, 3 * i + 2)] for i in range(5)]
    state = load([{"bodies": [[(4, 1), (4, 0), (4, 19), (4, 18)], *far], "beans": [], "directions": [3] + [2] * 5}])
    image = draw_board(state, cell=CELL)
    line = int((4 + HEADER + 0.5) * CELL)
    for column in (0, -1):
        assert np.abs(image[line, column].astype(int) - SHADES[0]).max() < 12
    between = image[line, 3 * CELL : 17 * CELL].astype(int)
    assert np.abs(between - PAPER).max() <= np.abs(np.subtract(PAPER, GRID)).max() + 2


def test_header_shows_scores_and_steps():
    _, (position, *_) = random_boards(1, seed=42, missing=0)
    changes = [{}, {"scores": [9, 9, 9, 0, 0, 0]}, {"step_count": 150}]
    plain, *others = [
        draw_board(load([{**position, "scores": [0] * 6, "step_count": 3, **change}]), cell=CELL) for change in changes
    ]
    edge = HEADER * CELL
    for other in others:
        assert (plain[:edge] != other[:edge]).any()
        assert (plain[edge + 3 :] == other[edge + 3 :]).all()


def test_wrong_arguments_are_refused(boards):
    state, _ = boards
    with pytest.raises(ValueError, match="even number"):
        draw_board(state, 0, cell=13)
    with pytest.raises(ValueError, match="does not exist"):
        draw_board(state, 20)
    with pytest.raises(ValueError, match="frames is empty"):
        write_video([], "nowhere.mp4")


def test_files_can_be_read_again(boards, tmp_path):
    state, _ = boards
    frames = [draw_board(state, b, cell=12, caption="a word") for b in range(4)]
    path = save_image(tmp_path / "new" / "board.png", frames[0])
    assert (np.asarray(Image.open(path)) == frames[0]).all()
    imageio = pytest.importorskip("imageio.v3")
    pytest.importorskip("av")
    path = write_video(iter(frames), tmp_path / "films" / "game.mp4", fps=8)
    assert path.suffix == ".mp4"
    read = imageio.imread(path, plugin="pyav")
    assert read.shape == (4, *frames[0].shape)
    assert np.abs(read[2].astype(int) - frames[2]).mean() < 6


def test_without_an_encoder_it_is_a_gif(boards, tmp_path, monkeypatch):
    state, _ = boards
    frames = [draw_board(state, b, cell=12) for b in range(3)]
    real = builtins.__import__

    def without_imageio(name, *rest, **options):
        if name.startswith("imageio"):
            raise ImportError("not installed")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without_imageio)
    with pytest.warns(UserWarning, match="H.264"):
        path = write_video(frames, tmp_path / "game.mp4")
    assert path.suffix == ".gif" and not (tmp_path / "game.mp4").exists()
    assert Image.open(path).n_frames == 3
