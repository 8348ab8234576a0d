"""Floor plans of the user: pictures, SVG drawings and ROS maps give the same cells, and bad files are refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.cell_codes import FLOORS, WALLS
from powerband.recipes.sketchnav.plans.distance import largest_component, navigable
from powerband.recipes.sketchnav.plans.imported.plan_files import plans_of_split, read_plans
from powerband.recipes.sketchnav.plans.imported.svg import read_svg
from powerband.recipes.sketchnav.plans.imported.svg_shapes import path_lines, transform_matrix
from recipes.sketchnav.plans.imported.drawn_plans import SCALE, SVG, header_only_png, two_rooms, write_map, write_plans


def test_pictures_drawings_and_maps_show_the_same_rooms(tmp_path: Path) -> None:
    write_plans(tmp_path)
    plans = read_plans(tmp_path, SCALE)
    assert [plan.name for plan in plans] == ["house.png", "lab.yaml", "office.svg"]
    floors = []
    for imported in plans:
        cells = imported.plan.cells
        assert imported.plan.size_m == pytest.approx((8.1, 6.0), abs=0.2)
        rim = np.concatenate([cells[:2], cells[-2:], cells[:, :2].T, cells[:, -2:].T], axis=None)
        assert np.isin(rim, WALLS).all(), "nobody sees or walks out"
        free = navigable(cells)
        assert largest_component(free).sum() == free.sum()
        floors.append(np.isin(cells, FLOORS))
        door = floors[-1][:, cells.shape[1] // 2]
        assert 0.7 <= 0.1 * door.sum() <= 1.0
        assert imported.origin == pytest.approx((20, 20), abs=1), "the white page around the house is left out"
    high, wide = (min(floor.shape[axis] for floor in floors) for axis in (0, 1))
    for floor in floors[1:]:
        assert (floor[:high, :wide] == floors[0][:high, :wide]).mean() > 0.93
    assert {plan.plan.cells[0, 0] for plan in plans} == set(WALLS[:3])


def test_lines_of_a_sketch_follow_walls_of_any_direction(tmp_path: Path) -> None:
    page = Image.new("L", (200, 200), 255)
    ImageDraw.Draw(page).polygon([(100, 5), (195, 100), (100, 195), (5, 100)], outline=0, width=6)
    page.save(tmp_path / "square.png")
    walls = read_plans(tmp_path, 0.05)[0].plan.walls
    lengths = np.hypot(walls[:, 2] - walls[:, 0], walls[:, 3] - walls[:, 1])
    assert (np.diff(lengths) <= 0).all() and lengths[:4] == pytest.approx(6.0, abs=0.3)
    assert lengths[:4].sum() > 0.85 * lengths.sum()
    slope = np.abs((walls[:4, 3] - walls[:4, 1]) / (walls[:4, 2] - walls[:4, 0]))
    assert slope == pytest.approx(1.0, abs=0.1)


def test_one_plan_in_five_is_held_out(tmp_path: Path) -> None:
    for number in range(7):
        two_rooms().save(tmp_path / f"{number}.png")
    plans = read_plans(tmp_path, SCALE)
    names = {split: [each.name[0] for each in plans_of_split(plans, split)] for split in ("train", "val_unseen")}
    assert names == {"train": list("02345"), "val_unseen": list("16")}
    assert plans_of_split(plans[:1], "train") == plans_of_split(plans[:1], "val_unseen") == plans[:1]


def test_a_navigation_mesh_grows_to_the_walls(tmp_path: Path) -> None:
    write_map(tmp_path, "whole")
    whole = read_plans(tmp_path, 0)[0].plan.cells
    free = navigable(whole)
    picture = np.kron(np.where(free, 255, 0).astype(np.uint8), np.ones((2, 2), np.uint8))
    Image.fromarray(picture).save(tmp_path / "mesh.png")
    (tmp_path / "mesh.yaml").write_text("image: mesh.png\nresolution: 0.05\nnavigable: true")
    mesh = read_plans(tmp_path, 0)[0].plan.cells
    assert mesh.shape == whole.shape and (navigable(mesh) == free).mean() > 0.99


BAD_SVGS = {
    "image": ('<image href="file:///etc/hostname" width="5" height="5"/>', "<image>, which refers to other content"),
    "use": ('<use href="http://127.0.0.1:9/x.svg#a"/>', "<use>, which refers to other content"),
    "foreign": ("<foreignObject><p>a</p></foreignObject>", "<foreignObject>"),
    "path": ('<path d="L1 1"/>', "does not begin with M"),
    "transform": ('<g transform="perspective(3)"/>', "perspective"),
    "open": ("<g>", "not a valid SVG drawing"),
    "nested": ('<svg x="2" y="1" viewBox="0 0 1 1"><rect width="1" height="1"/></svg>', "<svg> inside another one"),
    "number": ('<path d="M0 0L1e999 1"/>', "a number is too large"),
    "flag": ('<path d="M0 0a5 5 0 2 1 1 0"/>', "a flag of an arc is not 0 or 1"),
    "late": ("<style>.wall { fill: none }</style>", "has a <style> after its first shape"),
    "product": ('<g transform="scale(1e300)"><g transform="scale(1e300)"><path d="M0 0h1"/></g></g>', "too large"),
}


@pytest.mark.parametrize("name", BAD_SVGS)
def test_drawings_that_refer_to_other_content_are_refused(tmp_path: Path, name: str) -> None:
    more, message = BAD_SVGS[name]
    (tmp_path / "plan.svg").write_text(SVG.format(more=more))
    with pytest.raises(ConfigError, match=message):
        read_plans(tmp_path, 1.0)


HIDDEN = {
    "a layer that is switched off": '<g style="display:none"><path style="display:inline" d="M3 3h4v4h-4z"/></g>',
    "an empty opacity": '<g opacity="0.0"><g opacity="1"><path d="M3 3h4v4h-4z"/></g></g>',
    "an opacity in percent": '<path style="opacity:0% !important" d="M3 3h4v4h-4z"/>',
    "fill and stroke": '<g fill-opacity="0" stroke="#000" stroke-opacity="0%"><path d="M3 3h4v4h-4z"/></g>',
    "a shaded room": '<path fill-opacity="0.08" d="M3 3h4v4h-4z"/>',
    "a shaded group": '<g opacity="0.6"><g opacity="0.6"><path d="M3 3h4v4h-4z"/></g></g>',
    "a translucent colour": '<path fill="#00000020" d="M3 3h4v4h-4z"/>',
    "a text in a frame": '<flowRoot><flowRegion><rect x="3" y="3" width="4" height="4"/></flowRegion></flowRoot>',
    "visibility": '<g visibility="hidden"><circle cx="5" cy="5" r="2"/></g>',
    "a reference in a hidden layer": '<g display="none"><use href="#a"/><path d="M3 3h4v4h-4z"/></g>',
}


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_shapes_are_no_walls(tmp_path: Path, name: str) -> None:
    file = tmp_path / "plan.svg"
    file.write_text(SVG.format(more=""))
    plain = read_plans(tmp_path, 1.0)[0].plan.cells
    file.write_text(SVG.format(more=HIDDEN[name]))
    assert np.array_equal(read_plans(tmp_path, 1.0)[0].plan.cells, plain)


def test_a_visible_child_of_an_invisible_parent_is_drawn(tmp_path: Path) -> None:
    shape = '<svg viewBox="0 0 2 1"><g visibility="hidden"><rect visibility="visible" width="1" height="1"/></g></svg>'
    (tmp_path / "plan.svg").write_text(shape)
    assert read_svg(tmp_path / "plan.svg", 1.0, 0.1)[5, [5, 15]].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("rules", "greys"),
    [
        ("", [0, 0]),
        ("rect { fill: none }", [255, 255]),
        ("#first { fill: #fff } /* rect { fill: blue } */", [255, 0]),
        ("#first { fill: white } rect { fill: #808080 } .wall { fill: lightgray }", [255, 211]),
        (".other, rect.wall { fill-opacity: 0 } .wall { font-size: 3px }", [0, 255]),
        ("@font-face { font-family: a } g > .wall { font-size: 1px } * { fill: none }", [255, 255]),
    ],
)
def test_rules_select_by_tag_class_and_identifier(tmp_path: Path, rules: str, greys: list[int]) -> None:
    shapes = '<rect id="first" width="1" height="1"/><rect class="wall" x="1" width="1" height="1"/>'
    (tmp_path / "plan.svg").write_text(f'<svg viewBox="0 0 2 1"><style>{rules}</style>{shapes}</svg>')
    assert read_svg(tmp_path / "plan.svg", 1.0, 0.1)[5, [5, 15]].tolist() == greys


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("g .wall { fill: none }", "sets fill by the selector 'g .wall'"),
        ("[class=wall] { stroke: #000 }", "sets stroke by the selector"),
        ("rect:hover { opacity: 0 }", "sets opacity by the selector"),
        ("@media print { .wall { fill: none } }", "rule @media"),
        ("@import url(x.css);", "rule @import"),
    ],
)
def test_rules_of_other_kinds_are_refused(tmp_path: Path, rules: str, message: str) -> None:
    (tmp_path / "plan.svg").write_text(f'<svg viewBox="0 0 2 1"><style>{rules}</style></svg>')
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_svg(tmp_path / "plan.svg", 1.0, 0.1)


@pytest.mark.parametrize("box", ["0 0 1e999 10", "0 0 1e300 10", "0 0 -5 10", "1e999 0 10 10"])
def test_sizes_out_of_range_are_refused(tmp_path: Path, box: str) -> None:
    (tmp_path / "plan.svg").write_text(f'<svg viewBox="{box}"/>')
    with pytest.raises(ConfigError, match="the limit is 1 to 8,192|a number is too large"):
        read_svg(tmp_path / "plan.svg", 1.0, 0.1)


def test_entities_are_refused_and_scripts_do_nothing(tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    entity = '<!DOCTYPE svg [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;"><!ENTITY c SYSTEM "file:///etc/hostname">]>'
    file.write_text(f"{entity}<svg viewBox='0 0 12 10'>&b;&c;</svg>")
    with pytest.raises(ConfigError, match="defines the entity 'a'"):
        read_plans(tmp_path, 1.0)
    file.write_text(SVG.format(more=""))
    plain = read_plans(tmp_path, 1.0)[0].plan.cells
    file.write_text(SVG.format(more='<script href="http://127.0.0.1:9/a.js">while (true);</script><title>x</title>'))
    assert np.array_equal(read_plans(tmp_path, 1.0)[0].plan.cells, plain)


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("black", 0.05, "has no free space"),
        ("floors", 0.05, "several floors"),
        ("shut", 0.05, "whose doors are closed"),
        ("house", 0, "metres_per_pixel=0 is not 0.001 to 0.5"),
        ("house", 0.5, "is 120 x 100 m large at 0.5 metres per pixel"),
        ("house", 0.002, "is 0.48 x 0.4 m large"),
        ("house", 0.012, "separate areas|no free space"),
        ("huge", 0.05, "20,000 x 20,000 pixels|20000|exceeds limit"),
        ("wide", 0.05, "8,300 x 10 pixels; the limit is 8,192"),
        ("text", 0.05, "is not a valid picture"),
    ],
)
def test_pictures_that_are_no_floor_plans_are_refused(tmp_path: Path, name: str, scale: float, message: str) -> None:
    file = tmp_path / f"{name}.png"
    if name == "huge":
        file.write_bytes(header_only_png(20_000))
    elif name == "text":
        file.write_text("no picture")
    elif name == "floors":
        page = Image.new("L", (480, 200), 255)
        page.paste(two_rooms(), (0, 0))
        page.paste(two_rooms(), (240, 0))
        page.save(file)
    elif name == "wide":
        Image.new("L", (8300, 10), 255).save(file)
    else:
        picture = {"black": Image.new("L", (200, 200), 0), "house": two_rooms(), "shut": two_rooms(0)}[name]
        picture.save(file)
    with pytest.raises(ConfigError, match=message):
        read_plans(tmp_path, scale)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image: lab.pgm", "resolution: None is not a number"),
        ("image: lab.pgm\nresolution: .nan", "is not a number"),
        ("image: ../lab.pgm\nresolution: 0.05", "in another folder"),
        ("resolution: 0.05", "names no picture"),
        ("image: lab.pgm\nresolution: 0.05\nmode: raw", "mode: raw is not supported"),
        ("image: lab.pgm\nresolution: 0.05\nfree_thresh: 0.9", "must rise"),
        ("image: lab.pgm\nresolution: 0.05\ncorner: 3", "corner: 3"),
        ("image: lab.pgm\nresolution: 7", "resolution: 7 is not"),
        ("image: !!python/object/apply:os.system [ls]", "cannot be read"),
    ],
)
def test_map_files_that_are_not_valid_are_refused(tmp_path: Path, text: str, message: str) -> None:
    write_map(tmp_path, "lab")
    (tmp_path / "lab.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_plans(tmp_path, 0.05)


def test_folders_without_plans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 0 floor plans"):
        read_plans(tmp_path, 0.05)
    with pytest.raises(ConfigError, match="is not a folder"):
        read_plans(tmp_path / "none", 0.05)


def test_paths_and_transforms_of_drawings() -> None:
    (line, other) = path_lines("m1,1 2 0 v2 h-2z M5-5.5.5 3")
    assert line.tolist() == [[1, 1], [3, 1], [3, 3], [1, 3], [1, 1]] and other.tolist() == [[5, -5.5], [0.5, 3]]
    arc = path_lines("M1 0A1 1 0 0 1 0 1")[0]
    assert np.hypot(*arc.T) == pytest.approx(1) and arc[-1].tolist() == [0, 1] and (arc >= -1e-9).all()
    for compact in ("M0 0a5 5 0 0110 0", "M0 0a5 5 0 01 10 0", "M0 0a5,5,0,0,1,10,0"):
        assert np.array_equal(path_lines(compact)[0], path_lines("M0 0a5 5 0 0 1 10 0")[0])
    (twice,) = path_lines("m0 0a5 5 0 0110 0 5 5 0 10-10.5.5l1 1")
    assert len(twice) == 2 * 24 + 2 and twice[-1] == pytest.approx([0.5, 1.5])
    large = path_lines("M1 0A1 1 0 1 0 0 1")[0]
    assert np.hypot(*large.T) == pytest.approx(1) and large[:, 0].min() == pytest.approx(-1, abs=0.01)
    curve = path_lines("M0 0C0 1 1 1 1 0S2-1 2 0")[0]
    assert curve[6] == pytest.approx([0.5, 0.75]) and curve[18] == pytest.approx([1.5, -0.75])
    matrix = transform_matrix("translate(2 3) rotate(90) scale(2)")
    assert matrix @ [1, 0, 1] == pytest.approx([2, 5, 1])
    assert transform_matrix("rotate(90, 1, 1)") @ [2, 1, 1] == pytest.approx([1, 2, 1])
