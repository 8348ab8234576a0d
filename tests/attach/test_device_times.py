"""Kernels of a script's GPU: which part of the loop launched them, and the ledger that they divide."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.attach.findings import script_profile
from powerband.attach.processes.launch import BOOTSTRAP
from powerband.attach.processes.records import Record
from powerband.attach.processes.script_run import ScriptRun
from powerband.attach.times.device_times import device_times
from powerband.tune.diagnose.diagnosis import diagnose
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.ledger import Ledger

UNIX_NS = 1_000_000_000_000


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BOOTSTRAP))
    before = set(sys.modules)
    yield importlib.import_module("powerband_attach.profile.kernel_probe")
    for name in set(sys.modules) - before:
        if name.startswith("powerband_attach"):
            del sys.modules[name]


def event(kind: str, name: str, start: int, duration: int, number: int) -> SimpleNamespace:
    return SimpleNamespace(
        device_type=lambda: SimpleNamespace(name=kind),
        name=lambda: name,
        start_ns=lambda: UNIX_NS + start,
        duration_ns=lambda: duration,
        correlation_id=lambda: number,
    )


def test_a_kernel_belongs_to_the_part_that_launched_it_and_overlaps_count_once(probe: Any) -> None:
    spans = [(100, 200, "env"), (300, 400, "update"), (420, 450, "update"), (600, 700, "env")]
    events = [
        event("CPU", "cudaLaunchKernel", 250, 5, 1),  # the forward pass, before the backward pass
        event("CUDA", "gemm", 500, 40, 1),  # it runs while the host chooses actions
        event("CPU", "cudaLaunchKernel", 550, 5, 2),  # the policy
        event("CUDA", "gemm", 520, 40, 2),  # on another stream, 20 ns at the same time
        event("CPU", "cudaLaunchKernel", 650, 5, 3),
        event("CUDA", "physics", 660, 40, 3),
        event("CPU", "cudaMemcpyAsync", 710, 5, 5),
        event("CUDA", "Memcpy DtoH (Device -> Pinned)", 720, 20, 5),
        event("CPU", "cudaStreamSynchronize", 560, 30, 4),
        event("CPU", "cudaDeviceSynchronize", 801, 90, 6),  # that of the probe, after the record
    ]
    figures = probe.figures_of(events, spans, (50, 800), UNIX_NS)
    assert (figures["kernels"], figures["syncs"]) == (4, 1)
    assert figures["sync_s"] == pytest.approx(30e-9)
    assert figures["busy_s"] == pytest.approx(120e-9)
    each_s = 40e-9 * 120 / 140  # seconds of one kernel, if overlaps count once
    expected = {"update": each_s, "act": each_s, "env": each_s, "copy": each_s / 2}
    assert figures["launched_s"] == pytest.approx(expected)


def record_of(**figures: Any) -> Record:
    line = {"kind": "kernel_profile", "updates": 10, "env_steps": 20, "kernels": 1000, "syncs": 10, **figures}
    return Record(1, 0, 0, {}, [line])


def test_waiting_for_the_device_belongs_to_the_account_that_launched_its_kernels() -> None:
    host = Ledger(10.0, {"env": 2.0, "act": 1.0, "update": 2.0, "h2d": 4.5, "other": 0.5})
    record = record_of(launched_s={"update": 0.6, "act": 0.05, "copy": 0.01}, sync_s=0.45)
    ledger, device = device_times(host, record, updates=100, env_steps=200)
    assert device is not None
    assert (device.kernels, device.syncs) == (100, 1)
    assert device.busy == pytest.approx(0.66)
    assert ledger.seconds == pytest.approx(
        {"env": 2.0, "act": 0.5, "update": 6.0, "h2d": 0.0, "other": 0.5, "launch": 1.0}
    )
    assert ledger.launch == pytest.approx({"act": 0.5, "update": 0.5})


def test_environments_count_only_if_their_work_runs_on_the_device() -> None:
    host = Ledger(10.0, {"env": 8.0, "update": 2.0})
    on_cpu = record_of(launched_s={"update": 0.1, "env": 0.001}, sync_s=0.0)
    assert device_times(host, on_cpu, 100, 200)[0].launch == pytest.approx({"update": 1.0})
    on_gpu = record_of(launched_s={"update": 0.1, "env": 0.2}, sync_s=0.0)
    assert device_times(host, on_gpu, 100, 200)[0].launch == pytest.approx({"update": 1.0, "env": 6.0})


def test_actions_keep_their_time_if_the_record_contains_none() -> None:
    host = Ledger(10.0, {"act": 8.0, "update": 2.0})
    record = record_of(launched_s={"update": 0.1}, env_steps=0, sync_s=0.0)
    assert device_times(host, record, 100, 200)[0].launch == pytest.approx({"update": 1.0})


@pytest.mark.parametrize("lines", [[], [{"kind": "kernel_profile", "kernels": 0, "updates": 3}]])
def test_without_kernels_the_ledger_is_that_of_the_host(lines: list[dict[str, Any]]) -> None:
    host = Ledger(10.0, {"update": 10.0})
    assert device_times(host, Record(1, 0, 0, {}, lines), 100, 0) == (host, None)


def times_line(now_s: int, updates: int) -> dict[str, Any]:
    """A line of a record, of a script that does nothing but updates."""
    empty: dict[str, Any] = {"bins": {}, "counts": {}, "worst_ns": {}, "envs": {}, "samples": []}
    zeros = dict.fromkeys(("env_steps", "num_envs", "cpu_s", "thread_s", "queue_s"), 0)
    moment = {"kind": "times", "now_ns": now_s * 10**9, "ns": {"backward": now_s * 10**9}}
    return {**empty, **zeros, **moment, "updates": updates, "optimizer_steps": updates}


@pytest.mark.parametrize("recorded", [False, True])
def test_a_report_says_if_the_kernels_are_unknown(recorded: bool) -> None:
    optimizer = {"kind": "optimizer", "name": "Adam", "device": "cuda:0", "dtype": "float32", "threads": 1}
    kernels = record_of(launched_s={"update": 0.001}, sync_s=0.0).lines if recorded else []
    lines = [optimizer, times_line(0, 0), times_line(10, 1000), *kernels]
    record = Record(1, 0, 0, {"rank": None, "argv": ["train.py"]}, lines)
    profile = script_profile(["python", "train.py"], ScriptRun([record], [], 0, 0, 11 * 10**9, 1.0))
    assert profile is not None
    assert any("not recorded" in note for note in profile.to_dict()["remarks"]) != recorded
    assert (profile.diagnosis.cause == "launch-bound") == recorded
    assert ("GPU: it runs kernels for 1% of the time" in str(profile)) == recorded


@pytest.mark.parametrize(
    ("kernels_s", "syncs", "sync_s", "cause"),
    [
        (0.5, 0.0, 0.0, "launch-bound"),
        (0.5, 1.0, 0.5e-2, "launch-bound"),  # the kernels are short, so not to wait for them would gain little
        (6.0, 1.0, 5.5e-2, "host-sync"),  # without the wait, the launches would hide behind the kernels
        (9.5, 1.0, 9.0e-2, "update-bound"),  # the device is busy in any case
    ],
)
def test_reading_values_costs_what_the_device_idles_afterwards(
    kernels_s: float, syncs: float, sync_s: float, cause: str
) -> None:
    waiting_s = 100 * syncs * sync_s
    host = Ledger(10.0, {"update": 10.0 - waiting_s, "h2d": waiting_s})
    record = record_of(launched_s={"update": kernels_s / 10}, syncs=10 * syncs, sync_s=10 * sync_s)
    ledger, device = device_times(host, record, 100, 0)
    assert device is not None
    facts = WindowFacts(
        iterations=100, grad_steps=100, device_busy=device.busy, syncs_per_iteration=device.syncs, sync_s=device.sync_s
    )
    assert diagnose(ledger, facts).cause == cause
