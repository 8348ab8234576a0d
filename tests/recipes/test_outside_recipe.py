"""A recipe in another package: it is listed from metadata, trained, resumed and evaluated by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import powerband
from contract.contract import check_env
from powerband.cli import catalogue
from powerband.cli import main as cli

ROOT = Path(powerband.__file__).parents[2]
EXAMPLE = ROOT / "examples" / "outside_recipe"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example package, next to a package whose entry point is broken."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    source = tmp_path_factory.mktemp("source") / "outside_recipe"
    subprocess.run(["cp", "-r", str(EXAMPLE), str(source)], check=True)
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True)
    broken = folder / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[powerband.recipes]\nbroken = no_such_module:RECIPE\n")
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The packages of `site` are installed for this process, until the test ends."""
    monkeypatch.syspath_prepend(str(site))
    yield
    catalogue.load.cache_clear()
    for name in [name for name in sys.modules if name.startswith("powerband_point_mass")]:
        del sys.modules[name]


def test_an_installed_recipe_is_listed_trained_and_evaluated(
    site: Path, installed: None, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    common = ["gpus=none", "threads=1", "tensorboard=false"]
    run, base = tmp_path / "run", tmp_path / "base"
    command = [sys.executable, "-m", "powerband", "train", "point-mass", "env_steps=64000", *common, f"run_dir={run}"]
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert cli.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "point-mass" in listed and "broken" in listed
    assert cli.main(["train", "point-mass", "variant=smoke", "ppo.lr=1e-9", *common, f"run_dir={base}"]) == 0

    def success(folder: Path) -> list[float]:
        capsys.readouterr()
        assert cli.main(["eval", str(folder), "--json"]) == 0
        return json.loads(capsys.readouterr().out)[0]["success_95"]

    assert success(run)[0] > success(base)[1], "the intervals of the trained and the untrained policy do not overlap"


def test_a_broken_recipe_breaks_only_itself(installed: None, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "broken"]) == 2
    assert "no module no_such_module" in capsys.readouterr().err


def test_a_run_folder_may_name_installed_recipes_only(
    installed: None, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "run.json").write_text('{"recipe": "somebody.else"}')
    (folder / "config.json").write_text("{}")
    assert cli.main(["eval", str(folder)]) == 2
    assert "--trust" in capsys.readouterr().err


def test_its_environment_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from powerband_point_mass.env import PointMassEnv

    check_env(
        lambda num_envs, seed, first_env: PointMassEnv(num_envs, 20, seed=seed, first_env=first_env),
        terminates=None,
        is_first_obs=lambda obs: torch.ones(len(obs), dtype=torch.bool),
    )
