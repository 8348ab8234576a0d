"""Diagnoses of powerband for a training loop with injected faults, compared with those of TraceML and Fournex.

    make peers
    python benchmarks/diagnosis/fault_peers.py --json benchmarks/results/diagnosis/fault_peers.json [--only FAULT ...]

``make peers`` installs TraceML and Fournex. All tools measure the same loop, `faulty_loop.py`; `peer_tools.py` adapts
each tool to it. powerband uses a `PhaseClock` and `diagnose`, as for any loop outside of the package. It does not use
the measurements that `powerband profile` makes only on its recipes (`faults.py`), such as the steps of each
environment.

The table RIGHT lists the correct labels. It was written before this suite was run, but after smoke runs: slow env,
item, tiny batch and checkpoint with powerband, slow env with TraceML, tiny batch with Fournex. A label counts as
"cause" if it names the cause, and as "place" if it only points to the right part of the loop. The near-miss of a fault
must get another first label, because a label that every loop gets contains no information.

Two cases changed after their first run. The near-miss of the loader got 20 ms of work per batch, as in `faults.py`,
because waiting had taken a tenth of the time. The straggler was corrected and repeated, because no worker was slow.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from faulty_loop import Dose
from powerband import __version__
from powerband.core.machine.device import host_facts

LIMIT_S = 120.0
"""Time limit of one run of a tool, whose loop takes about ten seconds."""
PEERS = Path(__file__).parents[2] / "build/peers"
HEALTHY = Dose()
SLOW, RENDERED = "faulty_envs:SlowPendulum-v0", "faulty_envs:SoftwareRendered-v0"
FAULTS: dict[str, tuple[Dose, Dose]] = {
    "slow env": (Dose(SLOW, 40, env_steps=4), Dose(SLOW, 1)),
    "straggler env": (Dose(SLOW, 40, 4, env_steps=4), Dose(SLOW, 1, 4)),
    "slow loader": (Dose(load_ms=10), Dose(SLOW, 1, env_steps=16, load_ms=0.5)),
    "tiny batch": (Dose(batch=4), HEALTHY),
    "item": (Dose(questions=20, question_ms=2), HEALTHY),
    "update interval": (Dose(updates=8), Dose(env_steps=16)),
    "eval": (Dose(eval_every=20), HEALTHY),
    "log and figures": (Dose(log_every=4), HEALTHY),
    "checkpoint": (Dose(save_every=4), HEALTHY),
    "software rendering": (Dose(RENDERED, 15, env_steps=4), HEALTHY),
    "threads": (Dose(threads=16 * (os.cpu_count() or 1)), HEALTHY),
}
"""Fault -> (loop with the fault, its healthy near-miss); doses are those of `faults.py` if the loop allows them."""

RIGHT: dict[str, dict[str, dict[str, str]]] = {
    "slow env": {
        "powerband": {"env-bound": "cause"},
        "TraceML": {"RESIDUAL_HEAVY": "place", "INPUT_BOUND": "place"},  # "work outside traced phases"
        "Fournex": {},
    },
    "straggler env": {
        "powerband": {"env-straggler": "cause", "env-bound": "place"},
        "TraceML": {"RESIDUAL_HEAVY": "place", "INPUT_BOUND": "place"},
        "Fournex": {},
    },
    "slow loader": {
        "powerband": {"data-wait": "cause"},
        "TraceML": {"INPUT_BOUND": "cause"},
        "Fournex": {"input_bound": "cause"},
    },
    "tiny batch": {
        "powerband": {"small-batch": "cause", "update-bound": "place"},
        "TraceML": {"COMPUTE_BOUND": "place", "LOW_GPU_UTILIZATION_UNEXPLAINED": "place"},
        "Fournex": {"launch_bound": "cause", "underutilized_gpu": "place"},
    },
    "item": {
        "powerband": {"host-sync": "cause", "update-bound": "place"},
        "TraceML": {"RESIDUAL_HEAVY": "place"},  # "CPU stalls"
        "Fournex": {"sync_bound": "cause"},
    },
    "update interval": {
        "powerband": {"update-bound": "cause"},
        "TraceML": {"COMPUTE_BOUND": "place"},  # "reduce step cost"
        "Fournex": {},
    },
    "eval": {
        "powerband": {"eval-blocking": "cause"},
        "TraceML": {"RESIDUAL_HEAVY": "place"},  # "validation"
        "Fournex": {},
    },
    "log and figures": {
        "powerband": {"log-blocking": "cause"},
        "TraceML": {"RESIDUAL_HEAVY": "place"},  # "logging"
        "Fournex": {},
    },
    "checkpoint": {
        "powerband": {"save-blocking": "cause"},
        "TraceML": {"RESIDUAL_HEAVY": "place"},  # "checkpointing"
        "Fournex": {},
    },
    "software rendering": {
        "powerband": {"software-rendering": "cause", "env-bound": "place"},
        "TraceML": {"RESIDUAL_HEAVY": "place", "INPUT_BOUND": "place"},
        "Fournex": {},
    },
    "threads": {
        "powerband": {"thread-oversubscription": "cause", "update-bound": "place"},
        "TraceML": {"COMPUTE_BOUND": "place", "HIGH_PROCESS_CPU": "place"},
        "Fournex": {},
    },
}
"""Fault -> tool -> label -> "cause" or "place"; empty if the tool has no suitable label."""

LOOP = str(Path(__file__).with_name("faulty_loop.py"))


def environment(peers: Path | None) -> dict[str, str]:
    """Returns the environment variables of a run, with the folder of the peers on PYTHONPATH."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*([str(peers)] if peers else []), *filter(None, sys.path)])}


def loop_arguments(dose: Dose, tool: str, seconds: float, device: str) -> list[str]:
    """Returns the command line arguments of `faulty_loop.py`."""
    return ["--dose", json.dumps(dataclasses.asdict(dose)), "--tool", tool, f"--seconds={seconds}", "--device", device]


def output_of(command: list[str], peers: Path | None, folder: str) -> str:
    """Runs a command and returns its output.

    Raises:
        RuntimeError: The command failed or did not end in time; the message is the end of its output, without the
            folders of this machine.
    """
    process = subprocess.Popen(
        command, env=environment(peers), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        stdout, stderr = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        started = psutil.Process(process.pid)
        for each in [*started.children(recursive=True), started]:  # a tool starts processes in sessions of their own
            each.kill()
        process.wait()
        raise RuntimeError(f"not done after {LIMIT_S:g} s") from None
    if process.returncode:
        output = (stderr or stdout)[-1500:].replace(f"{Path(sys.prefix).parent}/", "")
        raise RuntimeError(f"status {process.returncode}: {output.replace(f'{Path(__file__).parents[2]}/', '')}")
    return stdout


def by_powerband(dose: Dose, seconds: float, device: str, peers: Path, folder: str) -> dict[str, Any]:
    """Runs the loop with powerband and returns its verdict."""
    command = [sys.executable, LOOP, *loop_arguments(dose, "powerband", seconds, device), "--out=verdict.json"]
    output_of(command, None, folder)
    return json.loads((Path(folder) / "verdict.json").read_text())


def by_traceml(dose: Dose, seconds: float, device: str, peers: Path, folder: str) -> dict[str, Any]:
    """Runs the loop with TraceML and returns its verdict."""
    return traceml_verdict([LOOP, *loop_arguments(dose, "TraceML", seconds, device)], peers, folder)


def by_fournex(dose: Dose, seconds: float, device: str, peers: Path, folder: str) -> dict[str, Any]:
    """Runs the loop with Fournex and returns its verdict."""
    return fournex_verdict([LOOP, *loop_arguments(dose, "Fournex", seconds, device)], peers, folder)


def traceml_verdict(script: list[str], peers: Path, folder: str) -> dict[str, Any]:
    """Runs a script with its arguments under TraceML and returns labels, words and evidence of its summary."""
    command = [sys.executable, str(peers / "bin/traceml"), "run", script[0], "--mode=summary", "--logs-dir=logs"]
    output_of([*command, "--run-name=run", "--args", *script[1:]], peers, folder)
    summary = json.loads((Path(folder) / "logs/run/final_summary.json").read_text())
    first = summary["primary_diagnosis"]
    sections = {name: summary[name]["diagnosis"] for name in ("step_time", "system", "process", "step_memory")}
    ignored = {"NORMAL", "NO_GPU", "NO_DATA", first["kind"]}
    return {
        "labels": [first["kind"], *(each["kind"] for each in sections.values() if each["kind"] not in ignored)],
        "words": f"Verdict: {first['status']} ({first['severity']}). {first['summary']} {first['action']}",
        "seen": first.get("evidence", {}),
        "sections": {name: f"{each['status']}: {each['summary']}" for name, each in sections.items()},
    }


def fournex_verdict(script: list[str], peers: Path, folder: str) -> dict[str, Any]:
    """Runs a script with its arguments under Fournex and returns labels, words and evidence of its analysis."""
    frx = [sys.executable, str(peers / "bin/frx")]
    collect = [*frx, "collect", "--no-zip", "--out=runs", "--run-id=run", "--", sys.executable]
    output_of([*collect, *script], peers, folder)
    result = json.loads(output_of([*frx, "analyze", "runs/run", "--json"], peers, folder))["result"]
    result = result.get("steady_state") or result
    diagnosis = result["diagnosis"]
    level = diagnosis["confidence"]["level"]
    reason = " ".join([diagnosis["confidence"]["reason"], *diagnosis["why"]])
    return {
        "labels": [each["label"] for each in result["bottlenecks"]] or [str(diagnosis["primary_bottleneck"])],
        "words": f"Primary Bottleneck: {diagnosis['user_facing_bottleneck']} ({level}). {reason}",
        "seen": result["run_summary"],
    }


TOOLS = {"powerband": by_powerband, "TraceML": by_traceml, "Fournex": by_fournex}


def verdict_of(tool: str, dose: Dose, seconds: float, device: str, peers: Path) -> dict[str, Any]:
    """Runs the loop with a tool and returns its verdict, or the error message if the tool fails."""
    folder = tempfile.mkdtemp(prefix="fault-peers-")
    try:
        return TOOLS[tool](dose, seconds, device, peers, folder)
    except (RuntimeError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
        return {"labels": [], "words": f"{type(error).__name__}: {error}", "refused": True}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def comparison(fault: str, tool: str, faulty: dict[str, Any], near_miss: dict[str, Any]) -> dict[str, Any]:
    """Rates the verdicts of a tool on a fault and on its near-miss.

    Returns:
        Row of the table. ``right`` rates the first label; ``tells_apart`` is true if the near-miss has another one.
    """
    right = RIGHT[fault][tool]
    first = faulty["labels"][0] if faulty["labels"] else ""
    row = {
        "says": faulty["words"],
        "labels": faulty["labels"],
        "right": right.get(first, "no") if right else "no such label",
        "also": [label for label in faulty["labels"][1:] if label in right],
        "near_miss_says": near_miss["words"],
        "near_miss_labels": near_miss["labels"],
        "seen": faulty.get("seen", {}),
        "near_miss_seen": near_miss.get("seen", {}),
    }
    if row["right"] in ("cause", "place"):
        row["tells_apart"] = near_miss["labels"][:1] != [first]
    return row


def counts(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Returns the number of faults for each tool and rating of its first label."""
    result = {}
    for tool in TOOLS:
        tool_rows = [row[tool] for row in rows]
        result[tool] = {rating: sum(each["right"] == rating for each in tool_rows) for rating in RATINGS}
        result[tool]["told apart from the near-miss"] = sum(each.get("tells_apart", False) for each in tool_rows)
    return result


RATINGS = ("cause", "place", "no", "no such label")
"""Ratings of a first label: it names the cause, points to the place, is wrong, or the tool has no suitable label."""


def version(name: str, peers: Path) -> str:
    """Returns the installed version of a package in the folder of the peers."""
    return next((each.version for each in metadata.distributions(name=name, path=[str(peers)])), "missing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=PEERS, help="folder of TraceML and Fournex")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="faults to run; other rows of the JSON file are kept")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "host": {**host_facts(), "cores_of_this_run": len(os.sched_getaffinity(0)), "load": os.getloadavg()},
        "versions": {
            "powerband": __version__,
            "TraceML": version("traceml-ai", options.peers),
            "Fournex": version("fournex", options.peers),
        },
        "device": options.device,
        "labels": "correct labels were fixed before the suite was run: RIGHT in benchmarks/diagnosis/fault_peers.py",
    }
    verdicts: dict[tuple[str, Dose], dict[str, Any]] = {}
    order = {fault: index for index, fault in enumerate(FAULTS)}
    rows: list[dict[str, Any]] = []
    if options.only and options.json and options.json.exists():
        rows = json.loads(options.json.read_text())["rows"]

    def cached_verdict(tool: str, dose: Dose) -> dict[str, Any]:
        if (tool, dose) not in verdicts:
            verdicts[tool, dose] = verdict_of(tool, dose, options.seconds, options.device, options.peers.resolve())
        return verdicts[tool, dose]

    for fault in options.only or FAULTS:
        faulty, near_miss = FAULTS[fault]
        row: dict[str, Any] = {"fault": fault, "seconds": options.seconds}
        row |= {"dose": dataclasses.asdict(faulty), "near_miss": dataclasses.asdict(near_miss)}
        for tool in TOOLS:
            row[tool] = comparison(fault, tool, cached_verdict(tool, faulty), cached_verdict(tool, near_miss))
            both = {True: "", False: " (the near-miss too)"}[row[tool].get("tells_apart", True)]
            print(f"{fault:<19}{tool:<11}{row[tool]['right'] + both:<28}{row[tool]['says'][:150]}", flush=True)
        rows = sorted([*(each for each in rows if each["fault"] != fault), row], key=lambda each: order[each["fault"]])
        if options.json:
            options.json.write_text(json.dumps({**result, "counts": counts(rows), "rows": rows}, indent=2) + "\n")
    print(json.dumps(counts(rows), indent=2))


if __name__ == "__main__":
    main()
