"""Section accelerator: the GPUs and their driver, or, where there is none, the processor that trains instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from powerband.doctor import nvml
from powerband.doctor.row import Row, fail, ok, skipped, warn
from powerband.doctor.scope import Check, Scope

CUDA_TORCH = "Install a torch built for CUDA: pip install torch --index-url https://download.pytorch.org/whl/cu128."


def checks(scope: Scope) -> list[Check]:
    """Driver, NVML, one row a GPU, and the processor."""
    found: list[Check] = [("gpu", lambda: gpu_row(scope)), ("nvml", nvml_rows)]
    for device in scope.devices[1:]:
        found.append((str(device), lambda device=device: cuda_row(device)))
    return [*found, ("cpu", cpu_row)]


def start_cuda() -> int:
    """Number of GPUs after CUDA has started; called in a child."""
    import torch

    torch.cuda.init()
    return torch.cuda.device_count()


def gpu_row(scope: Scope) -> Row:
    """Whether torch can use a GPU here, and what is in the way where there is one."""
    import torch

    hardware = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    built, here = torch.version.cuda, f"torch {torch.__version__}"
    if built is None:
        if hardware:
            return fail("gpu", f"{len(hardware)} NVIDIA GPU(s) here, and {here} is built without CUDA", CUDA_TORCH)
        return skipped("gpu", f"no GPU ({here}, built without CUDA): training runs on the CPU")
    outcome = scope.cuda
    if outcome is None:
        if hardware:
            return fail(
                "gpu",
                "GPU device files, but no libcuda.so.1",
                "Install the NVIDIA driver (a container: start it with "
                "--gpus all, which needs the NVIDIA container toolkit).",
            )
        return skipped("gpu", f"no GPU and no NVIDIA driver ({here} for CUDA {built}): training runs on the CPU")
    if outcome.problem:
        return fail(
            "gpu",
            f"CUDA does not start: {outcome.problem}",
            "Compare the driver with CUDA "
            f"{built} that torch needs (nvidia-smi), and see that the container was started with --gpus all.",
        )
    if not outcome.value:
        return skipped("gpu", "the driver is here and shows no GPU (CUDA_VISIBLE_DEVICES?): training runs on the CPU")
    return ok(
        "gpu",
        f"{outcome.value} GPU(s), CUDA {built}, cuDNN {torch.backends.cudnn.version()}, {here}",
        gpus=outcome.value,
        cuda=built,
    )


def nvml_rows() -> Row | list[Row]:
    """What the driver says of its GPUs: temperature, power, link, and what slows them."""
    try:
        facts = nvml.read_gpus(nvml.open_library())
    except nvml.NvmlError as error:
        if "no NVML" in str(error):
            return skipped("nvml", f"{error}: no NVIDIA driver on this machine, or none in this container")
        return warn(
            "nvml",
            f"{error}: temperature, power and link cannot be read, training is not affected",
            "Ask for access to the driver (a container: utility in NVIDIA_DRIVER_CAPABILITIES).",
        )
    return [ok("nvml", f"driver {facts['driver']}, {len(facts['gpus'])} GPU(s)", driver=facts["driver"])] + [
        _nvml_row(gpu) for gpu in facts["gpus"]
    ]


def _nvml_row(gpu: dict[str, Any]) -> Row:
    name = f"nvml {gpu['index']}"
    parts = [gpu.get("name", "GPU")]
    if "free_gib" in gpu:
        parts.append(f"{gpu['free_gib']:g} of {gpu['memory_gib']:g} GiB free")
    if "temperature_c" in gpu:
        parts.append(f"{gpu['temperature_c']} C")
    if "power_w" in gpu:
        limit = f" of {gpu['power_limit_w']:g} W" if "power_limit_w" in gpu else ""
        parts.append(f"{gpu['power_w']:g} W{limit}")
    if "pcie_gen" in gpu:
        parts.append(
            f"PCIe gen {gpu['pcie_gen']} x{gpu.get('pcie_width', '?')} (can do gen {gpu.get('pcie_gen_max', '?')} "
            f"x{gpu.get('pcie_width_max', '?')}; it falls back while idle)"
        )
    reasons = nvml.slowed(gpu.get("slowed", 0))
    text = ", ".join(parts)
    if reasons:
        return warn(
            name,
            f"{text}; clocks held down by {', '.join(reasons)}",
            "Look at cooling and at the power limit (nvidia-smi -q -d PERFORMANCE).",
            **gpu,
        )
    if gpu.get("pcie_width", 0) and gpu["pcie_width"] < gpu.get("pcie_width_max", 0):
        return warn(name, text, "The link is narrower than it could be: reseat the card, or use another slot.", **gpu)
    return ok(name, text, **gpu)


def cuda_row(device: Any) -> Row:
    """One GPU as torch sees it."""
    import torch

    gpu = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    figures = {
        "memory_gib": round(total / 2**30, 1),
        "free_gib": round(free / 2**30, 1),
        "capability": f"{gpu.major}.{gpu.minor}",
        "multiprocessors": gpu.multi_processor_count,
    }
    text = (
        f"{gpu.name}, compute capability {figures['capability']}, {figures['memory_gib']:g} GiB "
        f"({figures['free_gib']:g} free), {gpu.multi_processor_count} multiprocessors"
    )
    known = [int(arch.removeprefix("sm_").rstrip("af")) for arch in torch.cuda.get_arch_list() if "sm_" in arch]
    own = 10 * gpu.major + gpu.minor
    if known and not any(arch // 10 == gpu.major and arch <= own for arch in known):
        return fail(str(device), f"{text}; torch has code for {', '.join(map(str, known))} only", CUDA_TORCH, **figures)
    if free < 0.5 * total:
        return warn(
            str(device),
            text,
            "Another process holds most of its memory: see nvidia-smi, and end it or take another GPU with gpus=.",
            **figures,
        )
    return ok(str(device), text, **figures)


def cpu_row() -> Row:
    """The processor: what it is, and which vector instructions matter for matrix products."""
    import torch

    from powerband.core.device import cores, host_facts, simd, slow_bf16

    facts = host_facts()
    has = simd(Path("/proc/cpuinfo"))
    uses = torch.backends.cpu.get_cpu_capability()
    figures = {"cores": cores(), "memory_gib": facts["memory_gib"], "simd": has, "torch_uses": uses}
    text = (
        f"{facts['cpu']}, {cores()} cores, {facts['memory_gib']:g} GiB, {' '.join(has) or 'no SIMD flags known'}; "
        f"torch uses {uses}"
    )
    if {"avx512_bf16", "amx_bf16"} & set(has):
        text += "; bf16 in hardware"
    elif slow_bf16(has):
        text += "; no bf16 in hardware: train with precision=fp32"
    if has and not {"avx2", "neon", "asimd"} & set(has):
        return warn(
            "cpu",
            text,
            "Without AVX2 matrix products are several times slower: take another machine or "
            "another type of virtual processor.",
            **figures,
        )
    return ok("cpu", text, **figures)
