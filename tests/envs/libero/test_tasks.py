"""Names, order, instructions and goals of LIBERO's tasks."""

from __future__ import annotations

import pytest

from powerband.core.flags import ConfigError
from powerband.envs.libero.scripted import script_of
from powerband.envs.libero.tasks import (
    BENCHMARKS,
    STARTS,
    Goal,
    benchmark_named,
    goals_in,
    starts_of,
    task_named,
    tasks_of,
)

PROBLEM = """(define (problem P) (:language close it) (:objects a_1 - a)
  (:goal
    (And (On bowl_1 plate_1) (Close cabinet_1_top_region))
  )
)"""


def test_goals_are_read_in_their_order() -> None:
    assert goals_in(PROBLEM) == (Goal("on", "bowl_1", "plate_1"), Goal("close", "cabinet_1_top_region"))
    assert goals_in("(define (problem P))") == ()


def test_a_benchmark_by_its_short_name_and_an_unknown_one() -> None:
    assert benchmark_named("goal") == benchmark_named("LIBERO-goal") == "libero_goal"
    with pytest.raises(ConfigError, match="benchmark=libero_spacial.*libero_spatial"):
        benchmark_named("libero_spacial")


class TestWithThePackage:
    @pytest.fixture(autouse=True)
    def package(self) -> None:
        pytest.importorskip("libero", reason="LIBERO is not installed")

    @pytest.mark.parametrize("benchmark", BENCHMARKS)
    def test_every_benchmark_has_its_tasks_with_files_goals_and_states(self, benchmark: str) -> None:
        tasks = tasks_of(benchmark)
        assert len(tasks) == BENCHMARKS[benchmark] and [task.index for task in tasks] == list(range(len(tasks)))
        for task in tasks:
            assert task.problem.exists() and task.goals, task
            assert task.instruction and task.instruction == task.instruction.replace("_", " ")
        assert len(starts_of(tasks[0])) >= STARTS

    def test_a_task_by_number_name_and_instruction(self) -> None:
        task = task_named("libero_90", "close the top drawer of the cabinet")
        assert task.goals == (Goal("close", "wooden_cabinet_1_top_region"),)
        assert task == task_named("libero_90", str(task.index)) == task_named("libero_90", task.name)
        with pytest.raises(ConfigError, match="has 10, from 0 on"):
            task_named("libero_goal", "10")
        with pytest.raises(ConfigError, match="Nearest: put_the_bowl_on_the_plate"):
            task_named("libero_goal", "put the bowl on a plate")

    def test_a_task_without_a_script_says_so(self) -> None:
        with pytest.raises(ConfigError, match="has no script .*turnon"):
            script_of(task_named("libero_goal", "turn on the stove"))
