"""Section copies: how fast tensors move: within memory, between host and GPU, and between GPUs."""

from __future__ import annotations

import torch

from powerband.doctor.row import Row, ok, skipped, warn
from powerband.doctor.scope import Check, Scope
from powerband.doctor.stopwatch import seconds_a_call

CPU_BYTES = 128 * 2**20
GPU_BYTES = 256 * 2**20
SMALL_BYTES = 64 * 2**10
"""About a batch of observations: what the time of a single copy is measured on."""
SLOW_LINK_GB_S = 6.0
"""Below half of PCIe 3.0 x16."""


def checks(scope: Scope) -> list[Check]:
    """Memory of the host, then each GPU, then each pair of GPUs."""
    found: list[Check] = [("host memory", memory_row)]
    gpus = scope.devices[1:]
    if not gpus:
        found.append(("host to device", lambda: skipped("host to device", "no GPU")))
    for gpu in gpus:
        found.append((f"{gpu} host", lambda gpu=gpu: host_rows(gpu)))
        found.append((f"{gpu} within", lambda gpu=gpu: within_row(gpu)))
    for index, gpu in enumerate(gpus):
        found += [(f"{gpu} to {other}", lambda a=gpu, b=other: pair_row(a, b)) for other in gpus[index + 1 :]]
    return found


def memory_row() -> Row:
    """GB/s of a large copy in the host's memory, read and write counted, with one thread and with all."""
    device, threads = torch.device("cpu"), torch.get_num_threads()
    source = torch.ones(CPU_BYTES // 4)
    into = torch.zeros_like(source)
    rates = {}
    try:
        for count in sorted({1, threads}):
            torch.set_num_threads(count)
            rates[count] = 2 * CPU_BYTES / seconds_a_call(lambda: into.copy_(source), device) / 1e9
    finally:
        torch.set_num_threads(threads)
    text = ", ".join(f"{rate:.1f} GB/s with {count} thread{'s' * (count > 1)}" for count, rate in rates.items())
    return ok(
        "host memory",
        f"{text} (read and write of {CPU_BYTES >> 20} MiB)",
        one_thread_gb_s=round(rates[1], 1),
        all_threads_gb_s=round(rates[threads], 1),
    )


def host_rows(gpu: torch.device) -> list[Row]:
    """Host to GPU and back, from page-locked memory and from other, and the time of a small one."""
    count = GPU_BYTES // 4
    pinned, pageable = torch.ones(count, pin_memory=True), torch.ones(count)
    on_gpu = torch.empty(count, device=gpu)
    small, small_gpu = torch.ones(SMALL_BYTES // 4, pin_memory=True), torch.empty(SMALL_BYTES // 4, device=gpu)
    up = GPU_BYTES / seconds_a_call(lambda: on_gpu.copy_(pinned, non_blocking=True), gpu) / 1e9
    down = GPU_BYTES / seconds_a_call(lambda: pinned.copy_(on_gpu, non_blocking=True), gpu) / 1e9
    plain = GPU_BYTES / seconds_a_call(lambda: on_gpu.copy_(pageable), gpu) / 1e9
    small_us = seconds_a_call(lambda: small_gpu.copy_(small, non_blocking=True), gpu) * 1e6
    text = f"{up:.1f} GB/s up, {down:.1f} GB/s down, {SMALL_BYTES >> 10} KiB in {small_us:.0f} us"
    figures = {"up_gb_s": round(up, 1), "down_gb_s": round(down, 1), "small_us": round(small_us, 1)}
    name = f"{gpu} pinned"
    advice = "The link is slow: see its generation and width in section accelerator, and the slot the card is in."
    first = ok(name, text, **figures) if up >= SLOW_LINK_GB_S else warn(name, text, advice, **figures)
    return [
        first,
        ok(
            f"{gpu} pageable",
            f"{plain:.1f} GB/s up ({up / plain:.1f} times faster from pinned memory)",
            up_gb_s=round(plain, 1),
        ),
    ]


def within_row(gpu: torch.device) -> Row:
    """GB/s of a copy in the GPU's own memory, read and write counted."""
    source = torch.ones(GPU_BYTES // 4, device=gpu)
    into = torch.empty_like(source)
    rate = 2 * GPU_BYTES / seconds_a_call(lambda: into.copy_(source), gpu) / 1e9
    return ok(f"{gpu} within", f"{rate:,.0f} GB/s (read and write)", gb_s=round(rate, 1))


def pair_row(first: torch.device, second: torch.device) -> Row:
    """GB/s between two GPUs, and whether they reach each other without the host."""
    source = torch.ones(GPU_BYTES // 4, device=first)
    into = torch.empty(GPU_BYTES // 4, device=second)

    def move() -> None:
        into.copy_(source, non_blocking=True)
        torch.cuda.synchronize(first)

    rate = GPU_BYTES / seconds_a_call(move, second) / 1e9
    direct = torch.cuda.can_device_access_peer(first, second)
    name, figures = f"{first} to {second}", {"gb_s": round(rate, 1), "direct": direct}
    if direct:
        return ok(name, f"{rate:.1f} GB/s, direct ({'NVLink or a wide switch' if rate > 70 else 'PCIe'})", **figures)
    return warn(
        name,
        f"{rate:.1f} GB/s, through the host",
        "These GPUs do not reach each other directly: expect "
        "slower collectives, and prefer a pair that does (nvidia-smi topo -m).",
        **figures,
    )
