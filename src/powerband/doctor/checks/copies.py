"""Section copies of ``powerband doctor``: measures tensor copies in memory, between host and GPU, and between GPUs."""

from __future__ import annotations

from functools import partial

import torch

from powerband.doctor.check_result import CheckResult, ok, skipped, warn
from powerband.doctor.context import Check, CheckContext
from powerband.doctor.stopwatch import seconds_per_call

CPU_BYTES = 128 * 2**20
GPU_BYTES = 256 * 2**20
SMALL_BYTES = 64 * 2**10
"""Size of the copy whose latency is measured, about a batch of observations."""
SLOW_LINK_GB_S = 6.0
"""Links between host and GPU that are slower get a warning; PCIe 3.0 x16 is about twice as fast."""


def checks(context: CheckContext) -> list[Check]:
    """Returns the checks of this section: the memory of the host, of each GPU and of each pair of GPUs."""
    result: list[Check] = [("host memory", memory_row)]
    gpus = context.devices[1:]
    if not gpus:
        result.append(("host to device", lambda: skipped("host to device", "no GPU")))
    for gpu in gpus:
        result.append((f"{gpu} host", partial(host_rows, gpu)))
        result.append((f"{gpu} within", partial(device_copy_row, gpu)))
    for index, gpu in enumerate(gpus):
        for other in gpus[index + 1 :]:
            result.append((f"{gpu} to {other}", partial(device_to_device_row, gpu, other)))
    return result


def memory_row() -> CheckResult:
    """Measures a large copy in the host's memory with one thread and with all threads, in GB/s read plus written."""
    device, threads = torch.device("cpu"), torch.get_num_threads()
    source = torch.ones(CPU_BYTES // 4)
    target = torch.zeros_like(source)
    rates = {}
    try:
        for count in sorted({1, threads}):
            torch.set_num_threads(count)
            rates[count] = 2 * CPU_BYTES / seconds_per_call(lambda: target.copy_(source), device) / 1e9
    finally:
        torch.set_num_threads(threads)
    text = ", ".join(f"{rate:.1f} GB/s with {count} thread{'s' * (count > 1)}" for count, rate in rates.items())
    return ok(
        "host memory",
        f"{text} (read and write of {CPU_BYTES >> 20} MiB)",
        one_thread_gb_s=round(rates[1], 1),
        all_threads_gb_s=round(rates[threads], 1),
    )


def host_rows(gpu: torch.device) -> list[CheckResult]:
    """Measures copies from host to GPU and back, with pinned and with pageable memory, and a small copy."""
    count = GPU_BYTES // 4
    pinned, pageable = torch.ones(count, pin_memory=True), torch.ones(count)
    on_gpu = torch.empty(count, device=gpu)
    small, small_gpu = torch.ones(SMALL_BYTES // 4, pin_memory=True), torch.empty(SMALL_BYTES // 4, device=gpu)
    up = GPU_BYTES / seconds_per_call(lambda: on_gpu.copy_(pinned, non_blocking=True), gpu) / 1e9
    down = GPU_BYTES / seconds_per_call(lambda: pinned.copy_(on_gpu, non_blocking=True), gpu) / 1e9
    plain = GPU_BYTES / seconds_per_call(lambda: on_gpu.copy_(pageable), gpu) / 1e9
    small_us = seconds_per_call(lambda: small_gpu.copy_(small, non_blocking=True), gpu) * 1e6
    text = f"{up:.1f} GB/s up, {down:.1f} GB/s down, {SMALL_BYTES >> 10} KiB in {small_us:.0f} us"
    metrics = {"up_gb_s": round(up, 1), "down_gb_s": round(down, 1), "small_us": round(small_us, 1)}
    name = f"{gpu} pinned"
    advice = "The PCIe link is slow: check its generation and width in section accelerator, and the slot of the card."
    pinned_row = ok(name, text, **metrics) if up >= SLOW_LINK_GB_S else warn(name, text, advice, **metrics)
    return [
        pinned_row,
        ok(
            f"{gpu} pageable",
            f"{plain:.1f} GB/s up ({up / plain:.1f} times faster from pinned memory)",
            up_gb_s=round(plain, 1),
        ),
    ]


def device_copy_row(gpu: torch.device) -> CheckResult:
    """Measures a copy within the memory of one GPU, in GB/s read plus written."""
    source = torch.ones(GPU_BYTES // 4, device=gpu)
    target = torch.empty_like(source)
    rate = 2 * GPU_BYTES / seconds_per_call(lambda: target.copy_(source), gpu) / 1e9
    return ok(f"{gpu} within", f"{rate:,.0f} GB/s (read and write)", gb_s=round(rate, 1))


def device_to_device_row(first: torch.device, second: torch.device) -> CheckResult:
    """Measures copies between two GPUs in GB/s, and whether they bypass the host."""
    source = torch.ones(GPU_BYTES // 4, device=first)
    target = torch.empty(GPU_BYTES // 4, device=second)

    def move() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(first)

    rate = GPU_BYTES / seconds_per_call(move, second) / 1e9
    direct = torch.cuda.can_device_access_peer(first, second)
    name, metrics = f"{first} to {second}", {"gb_s": round(rate, 1), "direct": direct}
    if direct:
        return ok(name, f"{rate:.1f} GB/s, direct ({'NVLink or a wide switch' if rate > 70 else 'PCIe'})", **metrics)
    return warn(
        name,
        f"{rate:.1f} GB/s, through the host",
        "These GPUs have no direct connection, so collectives are slower. "
        "Find a connected pair with nvidia-smi topo -m.",
        **metrics,
    )
