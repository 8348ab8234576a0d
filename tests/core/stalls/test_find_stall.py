"""Which rank is the cause of a stall, when it is one, and what other machines know of it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from powerband.core.stalls import machines
from powerband.core.stalls.machines import Machines
from powerband.core.stalls.observation import Observation, RankObserver
from powerband.core.stalls.progress import Progress, RankProgress, SharedPages
from powerband.core.stalls.watch import StallWatch, find_stall
from powerband.core.telemetry.phase_clock import PhaseClock

PROGRESS = RankProgress(
    rank=0, world_size=2, pid=1, began=1, stacks_fd=3, phase="update", beat_ns=1, waiting=False, env_steps=100,
    updates=9, patience_s=0.0, folder="",
)  # fmt: skip


def rank(number: int, silent_s: float = 0.0, idle_s: float | None = None, state: str = "S", **progress) -> Observation:
    stopped = progress.pop("stopped", ())
    own = replace(PROGRESS, rank=number, **progress)
    return Observation(own, state, stopped, silent_s, silent_s if idle_s is None else idle_s, "here")


def cause(*ranks: Observation, patient: bool = False) -> int | str:
    """Number of the rank that stalls a run with stall_s=10; "" for none, and "all" if all wait."""
    stall = find_stall(list(ranks), 10, patient)
    return "" if stall is None else "all" if stall.cause is None else stall.cause.progress.rank


@pytest.mark.parametrize(
    ("expected", "ranks"),
    [
        ("", [rank(0), rank(1)]),
        ("", [rank(0, 9), rank(1, 9)]),
        (1, [rank(0, 11, waiting=True), rank(1, 11)]),
        (1, [rank(0, 30, waiting=True), rank(1, 11, state="T", waiting=True)]),
        (1, [rank(0, 30), rank(1, 11, state="T", env_steps=101)]),
        (1, [rank(0, 11), rank(1, 11, env_steps=99)]),
        (0, [rank(0, 12), rank(1, 11)]),
        ("all", [rank(0, 11, waiting=True), rank(1, 12, waiting=True)]),
        ("", [rank(0, 90, waiting=True), rank(1, 90, 1)]),
        (1, [rank(0, 101, waiting=True), rank(1, 101, 1)]),
        ("", [rank(0, 500, 1, phase="eval"), rank(1, 500, waiting=True, phase="eval")]),
        (0, [rank(0, 601, 1, phase="eval"), rank(1, 601, waiting=True, phase="eval")]),
        (0, [rank(0, 11, phase="eval", stopped=(7,)), rank(1, 11, waiting=True, phase="eval")]),
        ("", [rank(0, 99, phase="save"), rank(1, 99, waiting=True)]),
        (0, [rank(0, 101, phase="save"), rank(1, 101, waiting=True)]),
        ("", [rank(0, 99, updates=0), rank(1, 99, waiting=True)]),
        ("", [rank(0, 9_999, 99, phase="start"), rank(1, 9_999, waiting=True)]),
        (0, [rank(0, 9_999, 101, phase="end"), rank(1)]),
    ],
)
def test_the_cause_of_a_stall(expected: int | str, ranks: list[Observation]) -> None:
    assert cause(*ranks) == expected


def test_a_rank_that_waits_for_one_without_news_is_patient_while_that_may_evaluate() -> None:
    waits = rank(0, 11, waiting=True)
    assert find_stall([waits], 10).ends and not find_stall([waits], 10, patient=True).ends
    assert find_stall([replace(waits, silent_s=101)], 10, patient=True).ends
    assert cause(rank(0, 500, waiting=True, phase="eval")) == ""


@pytest.mark.parametrize("facts", [{}, {"idle_s": 70.0, "silent_s": 70.0}, {"state": "T", "idle_s": 99.0}])
@pytest.mark.parametrize("age_s", [6.0, 59.5, 70.0])
def test_old_news_of_a_lost_machine_is_no_overdue_rank(facts: dict, age_s: float) -> None:
    """The survivors, which were started again meanwhile, go on."""
    lost = Observation.from_json({**rank(1, 0.5).to_json(), **facts}, age_s)
    assert not lost.overdue(60.0) and find_stall([rank(0, 1.0), lost], 60.0) is None


def test_news_of_another_machine_does_not_grow_idle_on_its_way() -> None:
    assert find_stall([rank(0, 1.0), Observation.from_json(rank(1, 9.0).to_json(), 2.0)], 10.0) is None
    assert find_stall([rank(0, 1.0), Observation.from_json(rank(1, 11.0).to_json(), 2.0)], 10.0).cause.silent_s == 13


def test_simulators_that_the_rank_replaces_end_the_run_only_after_that() -> None:
    waits = rank(0, 11, phase="env_wait", patience_s=60.0, stopped=(7,))
    stall = find_stall([waits], 10)
    assert stall.cause is waits and not stall.ends
    assert find_stall([replace(waits, silent_s=151)], 10).ends
    assert find_stall([rank(0, 11, phase="env_wait", stopped=(7,))], 10).ends


def test_the_phase_clock_shows_its_span_to_another_process() -> None:
    pages = SharedPages(1)
    progress, page = Progress(pages.page(0)), SharedPages(1, pages.path).page(0)
    assert RankProgress.read(page) is None
    progress.begin(3, 4, 5, 6, time.perf_counter_ns())
    clock = PhaseClock(progress=progress)

    def phase() -> str:
        return RankProgress.read(page).phase

    assert phase() == "start"
    progress.loop_begins()
    with clock("update"):
        before = RankProgress.read(page)
        assert before.phase == "update" and not before.waiting and 0 < time.perf_counter_ns() - before.beat_ns < 10e9
        with clock("collectives"):
            assert RankProgress.read(page).waiting and phase() == "collectives"
        assert phase() == "update"
    assert phase() == "other" and RankProgress.read(page).beat_ns > before.beat_ns
    with progress.waiting:
        assert RankProgress.read(page).waiting
    for number in range(70):  # more accounts than names
        with clock(f"account {number}"):
            assert phase() == (f"account {number}" if number < 61 else "other")
    progress.iteration(7, 2)
    progress.iteration(14, 2)
    progress.set_folder("/a/b")
    read = RankProgress.read(page)
    assert (read.rank, read.world_size, read.began, read.stacks_fd) == (3, 4, 5, 6)
    assert (read.env_steps, read.updates, read.folder, read.waiting) == (14, 4, "/a/b", False)
    progress.end()
    assert RankProgress.read(page) is None


def test_the_page_of_a_restarted_rank_has_nothing_of_the_killed_one() -> None:
    page = SharedPages(1).page(0)
    killed = Progress(page)
    killed.begin(0, 2, 5, 6, 1)
    killed.iteration(700, 90)
    killed.allow_wait(60.0)
    killed.set_evaluator(77)
    killed.waiting.__enter__()
    Progress(page).begin(0, 2, 8, 6, 2)
    read = RankProgress.read(page)
    assert (read.began, read.env_steps, read.updates, read.waiting) == (8, 0, 0, False)
    assert (read.patience_s, read.evaluator) == (0.0, 0)


def test_a_suspended_watch_excuses_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = SharedPages(1)
    silences = []
    watch = StallWatch(pages, 10.0, "warn")
    monkeypatch.setattr(RankObserver, "observe", lambda self, now: silences.append((now - self._since_ns) / 1e9))
    for second in (1002, 1003, 1004, 1104, 1105):
        watch.poll(second * 1_000_000_000)
    assert silences == [0, 1, 2, 0, 1]


def test_machines_know_the_ranks_of_each_other_until_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import TCPStore

    monkeypatch.setattr(machines, "PERIOD_S", 0.05)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ended = [threading.Event(), threading.Event()]
    one, two = (Machines("127.0.0.1", store.port, each) for each in ended)
    deadline = time.monotonic() + 30
    own, other = rank(0, 3, waiting=True), rank(1, 12, stopped=(7,))
    while not ((known := one.exchange([own], 30)) and two.exchange([other], 30)):
        assert time.monotonic() < deadline
        two.exchange([other], 30)
        time.sleep(0.02)
    assert known[0].progress == other.progress and known[0].stopped == (7,) and 12 <= known[0].silent_s < 42
    assert cause(own, *known) == 1
    ended[1].set()
    while one.exchange([own], 0.3):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ended[0].set()
