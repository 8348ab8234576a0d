"""Training and evaluation on the user's own floor plans and Habitat episodes, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import runs
from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.imitation.dataset import load_demonstrations
from powerband.recipes.sketchnav.plans.episodes.episodes import Episodes
from recipes.sketchnav.plans.imported import test_habitat
from recipes.sketchnav.plans.imported.drawn_plans import SCALE, write_plans


def test_a_run_learns_and_is_evaluated_on_own_plans(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    plans = tmp_path / "plans"
    write_plans(plans)
    own = [f"plans_dir={plans}", f"metres_per_pixel={SCALE}"]
    generated = runs.train("sketchnav", tmp_path / "generated")
    run_dir = runs.train("sketchnav", tmp_path / "run", *own, "eval_interval=32", "eval_episodes=1")
    assert "2 plans of train" in capsys.readouterr().out
    assert any("eval/success" in line for line in runs.metrics(run_dir))
    for run in (generated, run_dir):
        command = ["eval", str(run), *own, "policies=expert", "video=false", "threads=1", "sketches=smooth"]
        assert cli.main(command) == 0
        (row,) = json.loads((run / "eval-sketchnav.json").read_text())["rows"]
        assert (row["split"], row["episodes"], row["success"]) == ("own", 6, 1.0)
    assert cli.main(["eval", str(run_dir), "policies=expert", "video=false", "threads=1", "sketches=true"]) == 0
    rows = json.loads((run_dir / "eval-sketchnav.json").read_text())["rows"]
    assert [row["split"] for row in rows] == ["val_seen", "val_unseen"]
    assert cli.main(["eval", str(run_dir), *own, "splits=train"]) == 2
    assert "Leave splits and drawings out" in capsys.readouterr().err
    arguments = [*runs.SMALL["sketchnav"][1:], *runs.COMMON, *own, "eval_plans=2"]
    assert cli.main(["train", "sketchnav", "episodes", *arguments, f"run_dir={tmp_path / 'sets'}"]) == 0
    for split, count in (("train", 2), ("val_seen", 2), ("val_unseen", 1)):
        episodes, metadata = Episodes.load(tmp_path / "sets" / f"episodes-{split}.safetensors")
        assert metadata["scenes"]["plans"] == len(episodes.size) == count


def test_habitat_episodes_are_learned_from_and_evaluated(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.mkdir()
    file = test_habitat.write(maps, test_habitat.ENTRIES)
    own = [f"plans_dir={maps}", f"episode_file={file}"]
    run_dir = runs.train("sketchnav", tmp_path / "run", *own, "scenes.starts=4")
    command = ["eval", str(run_dir), *own, "policies=expert", "video=false", "threads=1", "sketches=abstract"]
    assert cli.main(command) == 0
    (row,) = json.loads((run_dir / "eval-sketchnav.json").read_text())["rows"]
    assert (row["split"], row["episodes"], row["success"]) == ("own", 4, 1.0)


def test_recordings_belong_to_their_plans(tmp_path: Path) -> None:
    write_plans(tmp_path / "plans")
    own = [f"plans_dir={tmp_path / 'plans'}", f"metres_per_pixel={SCALE}", f"demos_dir={tmp_path / 'demos'}"]
    small = runs.SMALL["sketchnav"][1:]
    assert cli.main(["train", "sketchnav", "demos", *small, *runs.COMMON, *own, f"run_dir={tmp_path / 'run'}"]) == 0
    same = [f"plans_dir={tmp_path}/./plans/../plans", *own[1:]]
    config = configure("sketchnav", [*small, "algo=clone", *same])[2].config
    demonstrations, episodes = load_demonstrations(config)
    assert demonstrations.num_episodes == len(episodes) == 4
    for others in ([own[2]], [own[0], f"metres_per_pixel={1.1 * SCALE:g}", own[2]]):
        config = configure("sketchnav", [*small, "algo=clone", *others])[2].config
        with pytest.raises(ConfigError, match="was recorded on other episodes"):
            load_demonstrations(config)


def test_recordings_belong_to_their_file_of_episodes(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.mkdir()
    file = test_habitat.write(maps, test_habitat.ENTRIES)
    own = [f"plans_dir={maps}", f"episode_file={file}", f"demos_dir={tmp_path / 'demos'}"]
    small = runs.SMALL["sketchnav"][1:]
    assert cli.main(["train", "sketchnav", "demos", *small, *runs.COMMON, *own, f"run_dir={tmp_path / 'run'}"]) == 0
    config = configure("sketchnav", [*small, "algo=clone", *own])[2].config
    assert load_demonstrations(config)[0].num_episodes == 2
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"episodes": test_habitat.ENTRIES[::-1]}))
    config = configure("sketchnav", [*small, "algo=clone", own[0], f"episode_file={other}", own[2]])[2].config
    with pytest.raises(ConfigError, match="was recorded on other episodes"):
        load_demonstrations(config)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["metres_per_pixel=0.02"], "Write plans_dir=FOLDER"),
        (["plans_dir=nowhere"], "plans_dir=nowhere is not a folder"),
        (["episode_file=val.json.gz"], "need a top-down map of each scene"),
        (["episode_file=val.json", "plans_dir={plans}", "metres_per_pixel=0.05"], "val.json does not exist"),
        (["episode_file=a.safetensors", "plans_dir={plans}", "metres_per_pixel=0.05"], "has plans of its own"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    write_plans(tmp_path / "plans")
    recipe, _, resolved = configure("sketchnav", [word.format(plans=tmp_path / "plans") for word in words])
    with pytest.raises(ConfigError, match=message):
        recipe.check_sizes(resolved.config, 1)


def test_the_number_of_generated_plans_has_no_effect_on_own_plans() -> None:
    resolved = configure("sketchnav", ["plans_dir=plans", "scenes.plans=3", "scenes.max_size_m=9"])[2]
    found = [notice for notice in resolved.notices if "no effect" in notice]
    assert len(found) == 1 and found[0].startswith("scenes.plans has no effect")  # sizes set the first size of a page
