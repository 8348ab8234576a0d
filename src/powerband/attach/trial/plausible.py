"""Plausible: the changes that the first profile of a script supports, with their predicted gains.

A change is plausible if the script has what it changes, and if the time that it concerns is `LEAST` of the wall time or
more. Changes that a model predicts to gain less than `LEAST_GAIN` are left out.
"""

from __future__ import annotations

import ctypes.util
import linecache
import os
import shutil
from collections.abc import Callable

from powerband.attach.findings import short_path
from powerband.attach.trial import permanent, predict, rehearsal
from powerband.attach.trial.change import Change, variables_of_threads
from powerband.attach.trial.observed import Loader, Observed

LEAST = 0.05
LEAST_GAIN = 0.02
EVERY = 10
"""One of this number of calls that log, print or save is made."""
LOGGERS = ("SummaryWriter", "init", "start_run")
"""Calls that create a logger of TensorBoard, W&B or MLflow."""
RENDERING = ("mujoco/renderer", "mujoco_rendering", "mujoco/rendering")
GL_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
PRINT, TQDM = "print(", "/tqdm/"


def plausible_changes(seen: Observed, allow_numerics: bool) -> list[Change]:
    """Returns the plausible changes, the one with the largest predicted gain first.

    Args:
        seen: Figures of the first profile.
        allow_numerics: Whether changes that change numerical results are included.
    """
    rules: tuple[Callable[[Observed], list[Change]], ...] = (
        _loaders,
        _vector_envs,
        _threads,
        _optimizers,
        _precision,
        _output,
        _rendering,
    )
    found = [change for rule in rules for change in rule(seen)]
    return sorted(
        (each for each in found if each.hope >= LEAST_GAIN and (allow_numerics or not each.numerics)),
        key=lambda each: -each.hope,
    )


def _loaders(seen: Observed) -> list[Change]:
    found = []
    for loader in seen.loaders:
        share = (loader.wait_s + loader.start_s) / seen.wall_s
        if share < LEAST or loader.iterable:  # each worker would read all of an iterable
            continue
        found += _workers(seen, loader, predict.bound(share))
        gain = predict.persistent_gain(seen, loader)
        if loader.num_workers and not loader.persistent_workers and loader.iterators:
            gain = min(gain, predict.bound(share))
            found.append(_loader_change(loader, "persistent_workers", True, gain, gain))
        if loader.num_workers:
            # More batches ahead help only if the workers are fast enough on average, which the waits do not show.
            value = 4 * loader.prefetch_factor
            found.append(_loader_change(loader, "prefetch_factor", value, predict.bound(share), None))
        if _cuda(seen) and not loader.pin_memory:
            found.append(_loader_change(loader, "pin_memory", True, predict.bound(share), None))
    return found


def _workers(seen: Observed, loader: Loader, at_most: float) -> list[Change]:
    """Numbers of workers: the smallest one with the largest gain, and the next smaller one."""
    numbers = sorted({1, 2, 4, 8, seen.cores} - {loader.num_workers, 0})
    gains = {number: predict.workers_gain(seen, loader, number) for number in numbers if number <= 4 * seen.cores}
    best = [number for number in gains if gains[number] >= 0.99 * max(gains.values()) > 0][:1]
    smaller = [number for number in gains if best and number < best[0]][-1:]
    return [
        _loader_change(loader, "num_workers", number, at_most, min(gains[number], at_most))
        for number in (*best, *smaller)
    ]


def _loader_change(loader: Loader, name: str, value: int | bool, at_most: float, gain: float | None) -> Change:
    text = f"DataLoader {name}={value} ({short_path(loader.where)})"
    where = (loader.where,) if loader.where else ()
    return Change(name, value, text, at_most, gain, False, where, {}, permanent.of_loader(loader.where, name, value))


def _vector_envs(seen: Observed) -> list[Change]:
    sites = seen.sites_of("SyncVectorEnv", "AsyncVectorEnv", "make_vec")
    if seen.num_envs < 2 or not sites or seen.share("env", "env_wait") < LEAST:
        return []
    parallel = any(site["name"] == "AsyncVectorEnv" for site in sites)
    mode = "sync" if parallel else "async"
    gain = predict.sync_gain(seen) if parallel else predict.async_gain(seen, rehearsal.async_step_s)
    text = f"vector environment: {'one process for all environments' if parallel else 'one process per environment'}"
    at_most = predict.bound(seen.share("env", "env_wait"))
    where = tuple(dict.fromkeys(site["where"] for site in sites))
    gain = min(gain, at_most)
    return [Change("vector_env", mode, text, at_most, gain, False, where, {}, permanent.of_vector_env(sites, mode))]


def _threads(seen: Observed) -> list[Change]:
    share = seen.share("update", "act", "returns", "sample")
    if not seen.threads or share < LEAST or _cuda(seen):
        return []
    numbers = sorted({1, max(1, seen.cores // 2), seen.cores} - {seen.threads})
    return [
        Change(
            "threads",
            number,
            f"threads of torch, OpenMP and BLAS: {number}, not {seen.threads}",
            predict.bound(share),
            variables=variables_of_threads(number),
            permanent=permanent.of_threads(seen.sites_of("set_num_threads"), number),
            probed=seen.updates > 0,
        )
        for number in numbers
    ]


def _optimizers(seen: Observed) -> list[Change]:
    share = seen.seconds.get("update", 0.0) / seen.wall_s
    sites = [site for site in seen.sites_of("Optimizer") if site["switches"]]
    if share < LEAST:
        return []
    found = []
    for name in ("foreach", "fused"):
        chosen = [site for site in sites if name in site["switches"] and not any(site["switches"].values())]
        if not chosen or (name == "foreach" and _cuda(seen)):  # it is the default on CUDA
            continue
        how = permanent.of_optimizers(chosen, name)
        text = f"{name} implementation of {', '.join(sorted({site['name'] for site in chosen}))}"
        # The fused kernels of Adam round in another order.
        numerics, probed = name == "fused", not _cuda(seen)
        found.append(
            Change("optimizer", name, text, predict.bound(share), None, numerics, permanent=how, probed=probed)
        )
    return found


def _precision(seen: Observed) -> list[Change]:
    share = seen.share("update", "act")
    if share < LEAST or not seen.updates:
        return []
    cuda, at_most = _cuda(seen), predict.bound(share)
    found = []
    if cuda:
        how = permanent.sentence("Write torch.backends.cudnn.benchmark = True after import torch.")
        found.append(Change("cudnn_benchmark", True, "cuDNN benchmark", at_most, permanent=how))
        how = permanent.sentence('Write torch.set_float32_matmul_precision("high") after import torch.')
        found.append(Change("tf32", True, "TF32", at_most, None, True, permanent=how, probed=True))
    if cuda or _cpu_has_bfloat16():
        how = permanent.sentence(
            f'Write with torch.autocast("{"cuda" if cuda else "cpu"}", dtype=torch.bfloat16): around the forward pass.'
        )
        found.append(
            Change("autocast", "bfloat16", "bfloat16 autocast", at_most, None, True, permanent=how, probed=True)
        )
    if cuda or shutil.which("g++") or shutil.which("clang++"):
        how = permanent.sentence("Write network.compile() before the first update.")
        found.append(Change("compile", True, "torch.compile of the networks", at_most, None, True, permanent=how))
    return found


def _output(seen: Observed) -> list[Change]:
    found = []
    for name, account in (("log_every", "log"), ("save_every", "save")):
        lines = [line for line in seen.lines if line.account == account and line.where]
        if lines and seen.share(account) >= LEAST and (account == "save" or seen.sites_of(*LOGGERS)):
            share = seen.logger_share if account == "log" else seen.share(account)
            change = _cadence(name, account, share, lines[0].where)
            if account == "save" and seen.logger_share - seen.share("log") >= LEAST:
                change = change.with_prediction(None)  # the loop may wait for the thread of the logger in any case
            found.append(change)
    printing = [line for line in seen.lines if line.where and PRINT in _text(line.where)]
    share = sum(line.seconds for line in printing) / seen.wall_s
    if share >= LEAST:
        found.append(_cadence("print_every", "print", share, printing[0].where))
    share = sum(line.seconds for line in seen.lines if TQDM in line.library) / seen.wall_s
    if share >= LEAST:
        variables = {"TQDM_MININTERVAL": "10"}
        gain, how = predict.cadence_gain(share, EVERY), permanent.of_variables(variables)
        text = "tqdm: one line per 10 s"
        found.append(Change("tqdm", 10, text, predict.bound(share), gain, variables=variables, permanent=how))
    return found


def _cadence(name: str, verb: str, share: float, where: str) -> Change:
    text = f"{verb} every {EVERY}th time ({short_path(where)})"
    gain = predict.cadence_gain(share, EVERY)
    how = permanent.sentence(f"Make only every {EVERY}th call at {short_path(where)}.")
    return Change(name, EVERY, text, predict.bound(share), gain, permanent=how)


def _rendering(seen: Observed) -> list[Change]:
    seconds = [  # processes render at the same time, so their times do not add up
        sum(line.seconds for line in lines if any(part in line.library + line.where for part in RENDERING))
        for lines in (seen.lines, *seen.worker_lines)
    ]
    share = max(seconds) / seen.wall_s
    if share < LEAST:
        return []
    at_most, now = predict.bound(share), os.environ.get("MUJOCO_GL", "").lower()
    how = permanent.sentence("Set scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0 before each rendering.")
    found = [Change("shadows", False, "MuJoCo without shadows", at_most, None, True, permanent=how)]
    for name, library in GL_LIBRARIES.items():
        if name != now and ctypes.util.find_library(library):
            variables = {"MUJOCO_GL": name, **({"PYOPENGL_PLATFORM": name} if name != "egl" else {})}
            how = permanent.of_variables(variables)
            text = f"rendering back end MUJOCO_GL={name}"
            # Another renderer gives slightly different pixels.
            found.append(Change("mujoco_gl", name, text, at_most, None, True, variables=variables, permanent=how))
    return found


def _text(where: str) -> str:
    path, _, line = where.rpartition(":")
    return linecache.getline(path, int(line))


def _cuda(seen: Observed) -> bool:
    return seen.device.startswith("cuda")


def _cpu_has_bfloat16() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
