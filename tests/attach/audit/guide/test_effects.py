"""Effects of sentences in English and Chinese."""

from __future__ import annotations

import pytest

from powerband.attach.audit.guide.effects import column_effect, effects_of, sentences_of


def promised(sentence: str) -> list[tuple[str, int, float, float]]:
    return [(e.kind, e.direction, round(e.low, 3), round(e.high, 3)) for e in effects_of(sentence)]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("总训练时间显著减少（~3 倍加速）", [("speed", 1, 3.0, 3.0)]),
        ("这可以提供约2-3倍的训练速度提升，同时减少内存使用", [("speed", 1, 2.0, 3.0), ("memory", -1, 0.0, 0.0)]),
        ("提高训练吞吐量", [("speed", 1, 0.0, 0.0)]),
        ("速度提升30%", [("speed", 1, 1.3, 1.3)]),
        ("GPU 利用率：20% → 80%", [("utilisation", 1, 0.0, 0.0)]),
        ("增加 batch_size 没有提高 GPU 利用率", [("utilisation", 0, 0.0, 0.0)]),
        ("总梯度更新数减少（100k vs 50k）", [("updates", -1, 0.0, 0.0)]),
        ("加速收敛", [("learning", 1, 0.0, 0.0)]),
        ("时间：~100 小时", [("absolute", 1, 0.0, 0.0)]),
        ("Training is 2x faster", [("speed", 1, 2.0, 2.0)]),
        ("This reduces memory by 30%", [("memory", -1, 0.7, 0.7)]),
        ("It cuts the training time by 50%", [("speed", 1, 2.0, 2.0)]),
        ("It makes training slower", [("speed", -1, 0.0, 0.0)]),
        ("It leads to more stable training", [("learning", 1, 0.0, 0.0)]),
        ("如果 GPU 利用率 < 40%，增加 `update_interval`", []),
        ("训练速度没有提升？", []),
        ("**目标**: 70-90% GPU利用率", []),
        ("使用4x A100训练", []),
        ("NVIDIA RTX A6000 × 4", []),
        ("The batch size is 512", []),
    ],
)
def test_a_sentence_promises(sentence: str, expected: list) -> None:
    assert promised(sentence) == expected


@pytest.mark.parametrize(
    ("header", "cell", "expected"),
    [
        ("梯度更新数", "少（每10步）", ("updates", -1)),
        ("梯度更新数", "中", None),
        ("加速比", "~1.0x", None),
        ("Speedup", "1.8-1.9x", ("speed", 1)),
        ("GPU 利用率", "~55%", ("utilisation", 1)),
        ("说明", "多进程启动", None),
    ],
)
def test_a_cell_promises(header: str, cell: str, expected: tuple | None) -> None:
    effect = column_effect(header, cell)
    assert (None if effect is None else (effect.kind, effect.direction)) == expected


def test_stated_updates_per_episode_are_counted() -> None:
    assert effects_of("update_interval=10: 每 episode 10 次 update")[0].count == 10
    assert effects_of("10 updates per episode")[0].count == 10


def test_sentences_end_at_both_kinds_of_full_stops() -> None:
    assert sentences_of("更快。更稳定；It is 1.5x faster. Memory is lower.") == [
        "更快",
        "更稳定",
        "It is 1.5x faster",
        "Memory is lower.",
    ]
