"""The drawing page: a person draws, the agent moves, and requests from elsewhere are refused."""

from __future__ import annotations

import base64
import http.client
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from browser import Browser
from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.core.rank_context import RankContext
from powerband.recipes.sketchnav.drawing import session
from powerband.recipes.sketchnav.drawing import walker as walker_module
from powerband.recipes.sketchnav.drawing.server import MAX_REQUEST_BYTES, drawing_routes
from powerband.recipes.sketchnav.drawing.walker import Walker
from powerband.recipes.sketchnav.learners import build_learner
from powerband.recipes.sketchnav.plans.plan import Plan
from powerband.recipes.sketchnav.plans.sketch import PageTransform, draw_sketch
from powerband.report.local_page import LocalPage, Routes
from recipes.sketchnav.plans.imported.drawn_plans import SCALE, two_rooms


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Walker:
    folder = tmp_path_factory.mktemp("plans")
    two_rooms().save(folder / "house.png")
    config = configure("sketchnav", ["variant=smoke", "rules.max_steps=60"])[2].config
    plans = session.page_plans(config, str(folder), SCALE)
    return Walker(config, build_learner(config, RankContext.single())[0], plans)


@pytest.fixture(scope="module")
def server(walker: Walker) -> Iterator[LocalPage]:
    with LocalPage(drawing_routes(walker)) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server: LocalPage, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)  # the first request compiles
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


START_M, GOAL_M = np.array([1.5, 1.5]), np.array([6.5, 4.5])


def start_request(
    plan: Plan,
    policy: str = "expert",
    start: np.ndarray = START_M,
    goal: np.ndarray = GOAL_M,
) -> dict:
    page = draw_sketch(plan, start, goal, np.stack([start, goal]), "true", np.random.default_rng(0))
    file = io.BytesIO()
    Image.fromarray(page).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"plan": "house.png", "policy": policy, "start": start.tolist(), "goal": goal.tolist(), "sketch": url}


def test_requests_without_token_or_from_another_host_are_refused(server: LocalPage) -> None:
    root, port = f"/{server.token}/", server.server_port
    assert server.server_address[0] == "127.0.0.1", "nothing is served beyond loopback"
    assert ask(server, "GET", root)[0] == 200
    assert ask(server, "GET", root, Host=f"localhost:{port}")[0] == 200
    for path in ("/", "/plans", "/wrong/plans", f"/{server.token}", f"/{server.token[:-1]}/", "/%C3%A9/"):
        status, content = ask(server, "GET", path)
        assert status == 403 and b"token" in content, path
    for host in ("attacker.example", f"attacker.example:{port}", "127.0.0.1", f"127.0.0.1.attacker.example:{port}", ""):
        for method in ("GET", "POST"):
            status, content = ask(server, method, root + "plans", Host=host)
            assert status == 403 and b"Host" in content, host
    status, content = ask(server, "POST", root + "step", b"{}", Origin="http://attacker.example")
    assert status == 403 and b"another page" in content
    assert ask(server, "GET", root + "../../pyproject.toml")[0] == 404
    assert ask(server, "POST", root + "start", b"", **{"Content-Length": str(MAX_REQUEST_BYTES + 1)})[0] == 413
    assert ask(server, "PUT", root)[0] == 501


def test_invalid_episodes_are_refused_with_the_reason(server: LocalPage, walker: Walker) -> None:
    good = start_request(walker.plans["house.png"])
    blank = start_request(walker.plans["house.png"])
    file = io.BytesIO()
    Image.new("RGB", (512, 512), (255, 255, 255)).save(file, "PNG")
    blank["sketch"] = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    for request, message in (
        ([], "not a JSON object"),
        ({}, "The request is not valid"),
        ({**good, "plan": "none"}, "The request is not valid"),
        ({**good, "sketch": "data:image/png;base64,%%"}, "The request is not valid"),
        ({**good, "policy": "random"}, "Unknown policy 'random'"),
        ({**good, "goal": good["start"]}, "same place"),
        ({**good, "goal": [40, 40]}, "from free space"),
        ({**good, "goal": [float("nan"), 4]}, "from free space"),
        (blank, "has no blue start dot"),
    ):
        status, content = ask(server, "POST", f"/{server.token}/start", json.dumps(request).encode())
        assert status == 400 and message in json.loads(content)["error"], (message, content)


@pytest.mark.parametrize("policy", ["expert", "policy"])
def test_an_episode_ends_after_some_steps(server: LocalPage, walker: Walker, policy: str) -> None:
    body = json.dumps(start_request(walker.plans["house.png"], policy)).encode()
    state = json.loads(ask(server, "POST", f"/{server.token}/start", body)[1])
    assert state["at"] == pytest.approx([1.5, 1.5], abs=0.1) and state["steps"] == 0
    assert (state["estimate"] is not None) == (policy == "policy")
    for _ in range(60):
        state = json.loads(ask(server, "POST", f"/{server.token}/step", b"{}")[1])
        if state["result"]:
            break
    assert state["result"].startswith("Success" if policy == "expert" else ("Success", "Failure"))
    assert json.loads(ask(server, "POST", f"/{server.token}/step", b"{}")[1]) == state


def test_the_policy_may_be_on_another_device_than_the_environment(
    walker: Walker, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, moved = torch.device("meta"), []
    monkeypatch.setattr(walker_module, "device_of", lambda learner: device)
    monkeypatch.setattr(walker_module, "on_device", lambda obs, to: moved.append(to) or obs)
    walker.start(start_request(walker.plans["house.png"], "policy"))
    assert moved == [device], "the estimated position is computed on the device of the learner"
    assert walker.learner.noise.device == device


def test_a_person_draws_and_the_agent_moves(server: LocalPage, walker: Walker, tmp_path: Path) -> None:
    plan = walker.plans["house.png"]
    page = PageTransform(plan, None)
    start, goal, wall = page(np.array([(1.5, 1.5), (6.5, 4.5), (4.0, 1.0)])).tolist()
    with Browser(tmp_path) as browser:
        browser.call("Page.navigate", url=server.url)
        browser.wait_for(
            "document.readyState === 'complete' && typeof plans === 'object' && places && image && image.complete"
        )
        browser.drag("#sketch", [tuple(wall), (wall[0], wall[1] + 40), (wall[0], wall[1] + 80)])
        ink = "sketch.getImageData({}, {}, 1, 1).data[3]"
        assert browser.evaluate(ink.format(round(wall[0]), round(wall[1] + 60))) > 0, "the line is drawn"
        browser.evaluate("document.querySelector('#start').click()")
        assert "first" in browser.wait_for("element('status').value")
        for name, point in (("start", start), ("goal", goal)):
            browser.evaluate(f"document.querySelector('[data-tool={name}]').click()")
            browser.drag("#sketch", [tuple(point)])
        assert browser.evaluate("places.start") == pytest.approx([1.5, 1.5], abs=0.1)
        browser.evaluate("element('policy').value = 'expert'; element('start').click()")
        browser.wait_for("trail.length > 3")
        first, later = browser.evaluate("[trail[0].at, trail[trail.length - 1].at]")
        assert np.hypot(*np.subtract(later, first)) > 0.2, "the agent moves"
        assert browser.wait_for("element('status').value.includes('Success')")
        assert browser.evaluate("element('camera').naturalWidth") == walker.config.pixels
        # A photograph: grey paper, a dark stroke, no colours.
        browser.evaluate("""(async () => {
            const page = document.createElement('canvas'); page.width = 300; page.height = 200;
            const draw = page.getContext('2d');
            draw.fillStyle = '#b0a890'; draw.fillRect(0, 0, 300, 200);
            draw.fillStyle = '#403a35'; draw.fillRect(30, 90, 240, 20);
            const blob = await new Promise((done) => page.toBlob(done, 'image/jpeg'));
            const files = new DataTransfer(); files.items.add(new File([blob], 'a.jpg', {type: 'image/jpeg'}));
            element('photo').files = files.files; element('photo').dispatchEvent(new Event('change'));
        })()""")
        browser.wait_for("photo !== null && toScale === false")
        assert browser.evaluate(ink.format(256, 256)) == 255 and browser.evaluate(ink.format(256, 160)) == 0
        assert all(each.startswith((server.url, "data:", "blob:")) for each in browser.requests), browser.requests


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import runs

    return runs.train("sketchnav", tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[Walker]:
    """Walkers of the pages that a command opened; each page ends at once, as if the person had pressed Ctrl-C."""
    opened: list[Walker] = []

    def routes(walker: Walker) -> Routes:
        opened.append(walker)
        return drawing_routes(walker)

    monkeypatch.setattr(session, "drawing_routes", routes)
    monkeypatch.setattr(LocalPage, "serve_forever", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    return opened


def test_eval_opens_the_page(run_dir: Path, pages: list[Walker], capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["eval", str(run_dir), "draw=true"]) == 0
    text = capsys.readouterr().out
    assert len(pages) == 1 and "Open http://127.0.0.1:" in text and "The page is closed" in text
    assert cli.main(["eval", str(run_dir), "port=8000"]) == 2
    assert "Write draw=true" in capsys.readouterr().err


def test_the_stage_draw_opens_the_page_with_the_policy_of_a_run(
    run_dir: Path, pages: list[Walker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = next(path for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit())
    (tmp_path / "plans").mkdir()
    two_rooms().save(tmp_path / "plans" / "house.png")
    own_plan = ["plans_dir=plans", f"metres_per_pixel={SCALE}"]
    for arguments in ([f"policy={run_dir}"], [f"policy={checkpoint}", *own_plan, "net.width=8", "--json"]):
        assert cli.main(["train", "sketchnav", "draw", *arguments]) == 0
    written = capsys.readouterr()
    assert (
        "Open http://127.0.0.1:" in written.out and json.loads(written.out[written.out.index("{") :])["stage"] == "draw"
    )
    assert "net.width: no effect on the stage draw" in written.err
    assert list(tmp_path.iterdir()) == [tmp_path / "plans"], "no run folder is left"
    first, second = pages
    assert first.config.net.width == second.config.net.width == 16, "the settings are those of the run"
    assert list(second.plans) == ["house.png"] and list(first.plans) == ["plan 0"]
    assert cli.main(["eval", str(run_dir), "draw=true"]) == 0
    for one, other in zip(first.learner.policy_state().values(), pages[2].learner.policy_state().values(), strict=True):
        assert one.equal(other), "both commands load the same weights"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["draw"], "policy= names none"),
        (["draw", "policy=nowhere"], "policy=nowhere does not exist"),
        (["train", "policy=nowhere"], "belongs to the stage draw"),
        (["demos", "port=8000"], "port=8000 belongs to the stage draw"),
    ],
)
def test_the_options_of_draw(arguments: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "sketchnav", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_draw_refuses_a_run_of_another_recipe_and_a_measurement(
    tmp_path: Path, run_dir: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "run.json").write_text('{"recipe": "gym"}')
    (tmp_path / "config.json").write_text("{}")
    assert cli.main(["train", "sketchnav", "draw", f"policy={tmp_path}"]) == 2
    assert "is a run of gym" in capsys.readouterr().err
    assert cli.main(["profile", "sketchnav", "draw", f"policy={run_dir}", "gpus=none", "seconds=1"]) == 2
    assert "trains nothing" in capsys.readouterr().err
