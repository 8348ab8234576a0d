"""powerband, TraceML and Fournex on the same faults, side by side: what each says of the same loop.

    python benchmarks/fault_peers.py --peers FOLDER --json benchmarks/results/fault_peers.json [--only FAULT ...]

FOLDER holds traceml-ai 0.5.0 and fournex 0.3.1 (`pip install --target FOLDER --no-deps traceml-ai fournex`, and what
they need). The loop is `faulty_loop.py`, the same file for all three; how each is told its parts is `peer_tools.py`.
powerband is used as on any loop that is not its own: a `PhaseClock` and `diagnose`. What `powerband profile` measures
besides on its own recipes (`faults.py`) is not used: each environment's step, updates of other batches and threads.

RIGHT below was written before this suite was run; smoke runs had been seen (slow env, item, tiny batch, checkpoint
under powerband, slow env under TraceML, tiny batch under Fournex). It is meant
generously: a verdict that points at the right place counts, if less than one that names the cause; the table tells them
apart. A fault's healthy near-miss must not get the same label first: what is said of every loop says nothing. After a
trial of the loader its near-miss was given 20 ms of work a batch, as in `faults.py`: without it, waiting took a tenth.
The first straggler was thrown away, as none of its workers was slow: the fault was put right and run again.
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

sys.path.insert(0, str(Path(__file__).parent))

from faulty_loop import Dose
from powerband import __version__
from powerband.core.device import host_facts

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
"""Fault -> with the fault, and its healthy near-miss. Doses are those of `faults.py`, where the loop allows."""

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
"""Fault -> tool -> label -> whether it names the cause or the place; none where a tool has no such label."""

LOOP = str(Path(__file__).with_name("faulty_loop.py"))


def environment(peers: Path | None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*([str(peers)] if peers else []), *filter(None, sys.path)])}


def loop_words(dose: Dose, tool: str, seconds: float, device: str) -> list[str]:
    return ["--dose", json.dumps(dataclasses.asdict(dose)), "--tool", tool, f"--seconds={seconds}", "--device", device]


def called(words: list[str], peers: Path | None, folder: str) -> str:
    """What a command prints.

    Raises:
        RuntimeError: It failed; the end of what it said, verbatim but for the folders of this machine.
    """
    done = subprocess.run(words, env=environment(peers), cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        said = (done.stderr or done.stdout)[-1500:].replace(f"{Path(sys.prefix).parent}/", "")
        raise RuntimeError(f"status {done.returncode}: {said.replace(f'{Path(__file__).parents[1]}/', '')}")
    return done.stdout


def by_powerband(dose: Dose, seconds: float, device: str, peers: Path, folder: str) -> dict[str, Any]:
    words = [sys.executable, LOOP, *loop_words(dose, "powerband", seconds, device), "--out=seen.json"]
    called(words, None, folder)
    return json.loads((Path(folder) / "seen.json").read_text())


def by_traceml(dose: Dose, seconds: float, device: str, peers: Path, folder: str) -> dict[str, Any]:
    words = [sys.executable, str(peers / "bin/traceml"), "run", LOOP, "--mode=summary", "--logs-dir=logs"]
    called([*words, "--run-name=run", "--args", *loop_words(dose, "TraceML", seconds, device)], peers, folder)
    said = json.loads((Path(folder) / "logs/run/final_summary.json").read_text())
    first = said["primary_diagnosis"]
    sections = {name: said[name]["diagnosis"] for name in ("step_time", "system", "process", "step_memory")}
    calm = {"NORMAL", "NO_GPU", "NO_DATA", first["kind"]}
    return {
        "labels": [first["kind"], *(each["kind"] for each in sections.values() if each["kind"] not in calm)],
        "words": f"Verdict: {first['status']} ({first['severity']}). {first['summary']} {first['action']}",
        "seen": first.get("evidence", {}),
        "sections": {name: f"{each['status']}: {each['summary']}" for name, each in sections.items()},
    }


def by_fournex(dose: Dose, seconds: float, device: str, peers: Path, folder: str) -> dict[str, Any]:
    frx = [sys.executable, str(peers / "bin/frx")]
    words = [*frx, "collect", "--no-zip", "--out=runs", "--run-id=run", "--", sys.executable, LOOP]
    called([*words, *loop_words(dose, "Fournex", seconds, device)], peers, folder)
    said = json.loads(called([*frx, "analyze", "runs/run", "--json"], peers, folder))["result"]
    said = said.get("steady_state") or said
    found = said["diagnosis"]
    reason = " ".join([found["confidence"]["reason"], *found["why"]])
    return {
        "labels": [each["label"] for each in said["bottlenecks"]] or [str(found["primary_bottleneck"])],
        "words": f"Primary Bottleneck: {found['user_facing_bottleneck']} ({found['confidence']['level']}). {reason}",
        "seen": said["run_summary"],
    }


TOOLS = {"powerband": by_powerband, "TraceML": by_traceml, "Fournex": by_fournex}


def asked(tool: str, dose: Dose, seconds: float, device: str, peers: Path) -> dict[str, Any]:
    """What a tool says of one run; where it refuses, its message."""
    folder = tempfile.mkdtemp(prefix="fault-peers-")
    try:
        return TOOLS[tool](dose, seconds, device, peers, folder)
    except (RuntimeError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
        return {"labels": [], "words": f"{type(error).__name__}: {error}", "refused": True}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judged(fault: str, tool: str, sick: dict[str, Any], well: dict[str, Any]) -> dict[str, Any]:
    """A tool's words on a fault and on its near-miss, and what they are worth.

    `right` is judged by the first label alone. `tells_apart`: the near-miss does not get that label first too.
    """
    right = RIGHT[fault][tool]
    first = sick["labels"][0] if sick["labels"] else ""
    row = {
        "says": sick["words"],
        "labels": sick["labels"],
        "right": right.get(first, "no") if right else "no such label",
        "also": [label for label in sick["labels"][1:] if label in right],
        "near_miss_says": well["words"],
        "near_miss_labels": well["labels"],
        "seen": sick.get("seen", {}),
        "near_miss_seen": well.get("seen", {}),
    }
    if row["right"] in ("cause", "place"):
        row["tells_apart"] = well["labels"][:1] != [first]
    return row


def counts(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Faults by what each tool's first label was worth."""
    result = {}
    for tool in TOOLS:
        found = [row[tool] for row in rows]
        result[tool] = {worth: sum(each["right"] == worth for each in found) for worth in WORTH}
        result[tool]["told apart from the near-miss"] = sum(each.get("tells_apart", False) for each in found)
    return result


WORTH = ("cause", "place", "no", "no such label")


def version(name: str, peers: Path) -> str:
    return next((each.version for each in metadata.distributions(name=name, path=[str(peers)])), "missing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="other rows of the JSON are kept")
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
        "labels": "what counts as right was written before the suite was run: RIGHT in benchmarks/fault_peers.py",
    }
    known: dict[tuple[str, Dose], dict[str, Any]] = {}
    order = {fault: index for index, fault in enumerate(FAULTS)}
    rows: list[dict[str, Any]] = []
    if options.only and options.json and options.json.exists():
        rows = json.loads(options.json.read_text())["rows"]

    def ask(tool: str, dose: Dose) -> dict[str, Any]:
        if (tool, dose) not in known:
            known[tool, dose] = asked(tool, dose, options.seconds, options.device, options.peers.resolve())
        return known[tool, dose]

    for fault in options.only or FAULTS:
        sick, well = FAULTS[fault]
        row: dict[str, Any] = {"fault": fault, "seconds": options.seconds}
        row |= {"dose": dataclasses.asdict(sick), "near_miss": dataclasses.asdict(well)}
        for tool in TOOLS:
            row[tool] = judged(fault, tool, ask(tool, sick), ask(tool, well))
            apart = {True: "", False: " (the near-miss too)"}[row[tool].get("tells_apart", True)]
            print(f"{fault:<19}{tool:<11}{row[tool]['right'] + apart:<28}{row[tool]['says'][:150]}", flush=True)
        rows = sorted([*(each for each in rows if each["fault"] != fault), row], key=lambda each: order[each["fault"]])
        if options.json:
            options.json.write_text(json.dumps({**result, "counts": counts(rows), "rows": rows}, indent=2) + "\n")
    print(json.dumps(counts(rows), indent=2))


if __name__ == "__main__":
    main()
