"""Section accelerator of ``powerband doctor``: checks the GPUs, their driver, and the processor."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerband.doctor import nvml
from powerband.doctor.check_result import CheckResult, fail, ok, skipped, warn
from powerband.doctor.context import Check, CheckContext

if TYPE_CHECKING:
    import torch

CUDA_TORCH = "Install a torch built for CUDA: pip install torch --index-url https://download.pytorch.org/whl/cu128."


def checks(context: CheckContext) -> list[Check]:
    """Returns the checks of this section: the driver, NVML, every GPU and the processor."""
    gpus: list[Check] = [(str(device), partial(cuda_row, device)) for device in context.devices[1:]]
    return [("gpu", lambda: gpu_row(context)), ("nvml", nvml_rows), *gpus, ("cpu", cpu_row)]


def gpu_row(context: CheckContext) -> CheckResult:
    """Checks whether torch can use the GPUs of this machine, and if not, why."""
    import torch

    hardware = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    cuda_version, torch_text = torch.version.cuda, f"torch {torch.__version__}"
    if cuda_version is None:
        if hardware:
            return fail(
                "gpu",
                f"this machine has {len(hardware)} NVIDIA GPU(s), but {torch_text} is built without CUDA",
                CUDA_TORCH,
            )
        return skipped("gpu", f"no GPU ({torch_text}, built without CUDA): training runs on the CPU")
    outcome = context.cuda
    if outcome is None:
        if hardware:
            return fail(
                "gpu",
                "this machine has GPU device files but no libcuda.so.1",
                "Install the NVIDIA driver. In a container, use the NVIDIA container toolkit and --gpus all.",
            )
        return skipped(
            "gpu", f"no GPU and no NVIDIA driver ({torch_text} for CUDA {cuda_version}): training runs on the CPU"
        )
    if outcome.problem:
        return fail(
            "gpu",
            f"CUDA does not start: {outcome.problem}",
            f"Check with nvidia-smi that the driver supports CUDA {cuda_version}, which torch needs. Start a container "
            "with --gpus all.",
        )
    if not outcome.value:
        return skipped("gpu", "the driver lists no GPU (is CUDA_VISIBLE_DEVICES set?): training runs on the CPU")
    return ok(
        "gpu",
        f"{outcome.value} GPU(s), CUDA {cuda_version}, cuDNN {torch.backends.cudnn.version()}, {torch_text}",
        gpus=outcome.value,
        cuda=cuda_version,
    )


def nvml_rows() -> CheckResult | list[CheckResult]:
    """Reads temperature, power, PCIe link and throttle reasons of every GPU from NVML, NVIDIA's management library."""
    try:
        report = nvml.read_gpus(nvml.open_library())
    except nvml.NvmlError as error:
        if "no NVML" in str(error):
            return skipped("nvml", f"{error}: this machine or container has no NVIDIA driver")
        return warn(
            "nvml",
            f"{error}: temperature, power and link cannot be read, training is not affected",
            "Give this user access to the driver. In a container, add utility to NVIDIA_DRIVER_CAPABILITIES.",
        )
    return [ok("nvml", f"driver {report['driver']}, {len(report['gpus'])} GPU(s)", driver=report["driver"])] + [
        _nvml_row(gpu) for gpu in report["gpus"]
    ]


def _nvml_row(gpu: dict[str, Any]) -> CheckResult:
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
            f"PCIe gen {gpu['pcie_gen']} x{gpu.get('pcie_width', '?')} (maximum gen {gpu.get('pcie_gen_max', '?')} "
            f"x{gpu.get('pcie_width_max', '?')}; an idle link is slower)"
        )
    reasons = nvml.throttle_reasons(gpu.get("slowed", 0))
    text = ", ".join(parts)
    if reasons:
        return warn(
            name,
            f"{text}; clocks reduced because of {', '.join(reasons)}",
            "Check the cooling and the power limit with nvidia-smi -q -d PERFORMANCE.",
            **gpu,
        )
    if gpu.get("pcie_width", 0) and gpu["pcie_width"] < gpu.get("pcie_width_max", 0):
        return warn(
            name, text, "The PCIe link is narrower than its maximum: reseat the card, or use another slot.", **gpu
        )
    return ok(name, text, **gpu)


def cuda_row(device: torch.device) -> CheckResult:
    """Checks the compute capability and the free memory of one GPU."""
    import torch

    gpu = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    metrics = {
        "memory_gib": round(total / 2**30, 1),
        "free_gib": round(free / 2**30, 1),
        "capability": f"{gpu.major}.{gpu.minor}",
        "multiprocessors": gpu.multi_processor_count,
    }
    text = (
        f"{gpu.name}, compute capability {metrics['capability']}, {metrics['memory_gib']:g} GiB "
        f"({metrics['free_gib']:g} free), {gpu.multi_processor_count} multiprocessors"
    )
    compiled = [int(arch.removeprefix("sm_").rstrip("af")) for arch in torch.cuda.get_arch_list() if "sm_" in arch]
    capability = 10 * gpu.major + gpu.minor
    if compiled and not any(arch // 10 == gpu.major and arch <= capability for arch in compiled):
        return fail(
            str(device), f"{text}; torch has code for sm_{', sm_'.join(map(str, compiled))} only", CUDA_TORCH, **metrics
        )
    if free < 0.5 * total:
        return warn(
            str(device),
            text,
            "Another process uses most of the GPU's memory. Find it with nvidia-smi, or choose another GPU with gpus=.",
            **metrics,
        )
    return ok(str(device), text, **metrics)


def cpu_row() -> CheckResult:
    """Reports the processor and its vector instructions, which decide the speed of matrix products."""
    import torch

    from powerband.core.machine.device import cores, emulates_bf16, host_facts, simd

    facts = host_facts()
    flags = simd(Path("/proc/cpuinfo"))
    torch_level = torch.backends.cpu.get_cpu_capability()
    metrics = {"cores": cores(), "memory_gib": facts["memory_gib"], "simd": flags, "torch_uses": torch_level}
    text = (
        f"{facts['cpu']}, {cores()} cores, {facts['memory_gib']:g} GiB, {' '.join(flags) or 'unknown SIMD flags'}; "
        f"torch uses {torch_level}"
    )
    if {"avx512_bf16", "amx_bf16"} & set(flags):
        text += "; bf16 in hardware"
    elif emulates_bf16(flags):
        text += "; no bf16 in hardware: train with precision=fp32"
    if flags and not {"avx2", "neon", "asimd"} & set(flags):
        return warn(
            "cpu",
            text,
            "Without AVX2, matrix products are several times slower. Use another machine or virtual processor type.",
            **metrics,
        )
    return ok("cpu", text, **metrics)
