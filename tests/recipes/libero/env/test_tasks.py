"""Names, order, instructions and goals of LIBERO's tasks."""

from __future__ import annotations

import pytest

from powerband.core.errors import ConfigError
from powerband.recipes.libero.env.scripted_policy import task_script
from powerband.recipes.libero.env.tasks import (
    BENCHMARKS,
    NUM_PUBLISHED_STATES,
    Goal,
    benchmark_tasks,
    find_benchmark,
    find_task,
    parse_goals,
    published_states,
)

PROBLEM = """(define (problem P) (:language close it) (:objects a_1 - a)
  (:goal
    (And (On bowl_1 plate_1) (Close cabinet_1_top_region))
  )
)"""


def test_goals_are_read_in_their_order() -> None:
    assert parse_goals(PROBLEM) == (Goal("on", "bowl_1", "plate_1"), Goal("close", "cabinet_1_top_region"))
    assert parse_goals("(define (problem P))") == ()


def test_a_benchmark_is_found_by_its_short_name_and_an_unknown_one_is_refused() -> None:
    assert find_benchmark("goal") == find_benchmark("LIBERO-goal") == "libero_goal"
    with pytest.raises(ConfigError, match="benchmark=libero_spacial.*libero_spatial"):
        find_benchmark("libero_spacial")


class TestWithLibero:
    @pytest.fixture(autouse=True)
    def package(self) -> None:
        pytest.importorskip("libero", reason="LIBERO is not installed")

    @pytest.mark.parametrize("benchmark", BENCHMARKS)
    def test_every_benchmark_has_its_tasks_with_files_goals_and_states(self, benchmark: str) -> None:
        tasks = benchmark_tasks(benchmark)
        assert len(tasks) == BENCHMARKS[benchmark] and [task.index for task in tasks] == list(range(len(tasks)))
        for task in tasks:
            assert task.problem.exists() and task.goals, task
            assert task.instruction and task.instruction == task.instruction.replace("_", " ")
        assert len(published_states(tasks[0])) >= NUM_PUBLISHED_STATES

    def test_a_task_is_found_by_number_name_and_instruction(self) -> None:
        task = find_task("libero_90", "close the top drawer of the cabinet")
        assert task.goals == (Goal("close", "wooden_cabinet_1_top_region"),)
        assert task == find_task("libero_90", str(task.index)) == find_task("libero_90", task.name)
        with pytest.raises(ConfigError, match="has 10 tasks, numbered from 0"):
            find_task("libero_goal", "10")
        with pytest.raises(ConfigError, match="Nearest: put_the_bowl_on_the_plate"):
            find_task("libero_goal", "put the bowl on a plate")

    def test_a_task_without_a_script_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="has no script .*open microwave_1"):
            task_script(find_task("libero_90", "open the microwave"))

    @pytest.mark.parametrize("benchmark", ["libero_spatial", "libero_object", "libero_goal", "libero_10"])
    def test_every_task_of_the_small_benchmarks_has_a_script(self, benchmark: str) -> None:
        for task in benchmark_tasks(benchmark):
            names, script = task_script(task)
            assert script.goals == task.goals and names == script.places and len(set(names)) == len(names)
