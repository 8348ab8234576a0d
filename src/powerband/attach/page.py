"""Page: one self-contained HTML file about the profile of a script."""

from __future__ import annotations

import html
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from powerband.attach.findings import ScriptProfile, short_path
from powerband.report.document import document, save_page
from powerband.report.sections.timeline import timeline_charts, timeline_text
from powerband.tune.measure.ledger import ACCOUNT_ALIASES, ACCOUNTS, duration

INPUT = ("env", "data_wait")
"""Accounts of the calls that begin an iteration of the loop if an update came before them."""
LINES = 40
TRIED = ("change", "realised gain", "interval", "predicted", "verdict", "how to keep it")


def write_page(profile: ScriptProfile, path: str) -> Path:
    """Writes the report page of a script's profile.

    Raises:
        ConfigError: The file cannot be written.
    """
    diagnosis, leader = profile.diagnosis, profile.ranks[0]
    steps_per_update = leader.optimizer_steps / leader.updates if leader.updates else 1.0
    trace = chrome_trace(leader.record.of_kind("trace"), max(1, leader.num_envs), steps_per_update)
    wall_s = diagnosis.ledger.wall_s
    accounts = [(name, duration(s), f"{s / wall_s:.1%}", ACCOUNTS.get(name, ""))
                for name, s in sorted(diagnosis.ledger.seconds.items(), key=lambda item: -item[1])]  # fmt: skip
    lines = [
        (f"{line.seconds / wall_s:.1%}", line.account, *(short_path(each) if each else "" for each in
         (line.where, line.caller, line.library)))
        for line in leader.lines[:LINES]
    ]  # fmt: skip
    processes = [
        (each.record.pid, each.record.start["rank"], each.env_steps, each.updates, f"{each.ledger.cpu_s:.1f} s",
         shlex.join(each.record.start["argv"])[:200])
        for each in profile.processes
    ]  # fmt: skip
    advice = [(each.cause, each.change, f"{each.at_most:.2f}x") for each in profile.advice]
    sections = {
        "Where the time went": table(("account", "seconds", "share", "meaning"), accounts),
        "Cause": f"<pre>{html.escape(chr(10).join([*diagnosis.lines(remedy=False), *profile.run.notes]))}</pre>",
        "Advice": table(("cause", "change", "gain at most"), advice),
        "Tried changes": table(TRIED, [each.cells() for each in profile.tried.tried] if profile.tried else []),
        "Lines of code": table(("share", "account", "line", "called from", "in"), lines),
        "Recorded steps": timeline_charts(trace) and f"{timeline_charts(trace)}<pre>{timeline_text(trace)}</pre>",
        "Processes": table(("process", "rank", "env steps", "updates", "processor", "command"), processes),
    }
    command = f"<code class=command>{html.escape(shlex.join(profile.command))}</code>"
    head = f"<p class=state>{html.escape(diagnosis.cause)}</p>{command}"
    return save_page(Path(path), document("Profile of a script", head, sections), "page=FILE.html")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a table as HTML; empty without rows."""
    if not rows:
        return ""
    titles = "".join(f"<th>{html.escape(title)}</th>" for title in head)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"


def chrome_trace(
    recorded: Sequence[dict[str, Any]], num_envs: int = 1, steps_per_update: float = 1.0
) -> dict[str, Any]:
    """Converts recorded spans to a Chrome trace with the iterations of the loop.

    The iteration is found from the repetition: it begins with the first environment step, or the first batch of a
    loader, after an update.

    Args:
        recorded: Lines of kind ``trace``; at most one.
        num_envs: Environments of one call.
        steps_per_update: Steps of all optimisers per update.
    """
    spans = sorted(recorded[0]["spans"], key=lambda span: span[1]) if recorded else []
    if not spans:
        return {}
    zero = spans[0][1]

    def event(name: str, thread: int, start: int, end: int, **args: int) -> dict[str, Any]:
        times = {"ts": (start - zero) / 1e3, "dur": (end - start) / 1e3}
        return {"name": name, "ph": "X", "pid": 0, "tid": thread, **times, "args": args}

    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}
        for thread, name in enumerate(("steps", "loop"))
    ]
    starts, updated = [zero], False
    for account, start, _ in spans:
        if account in INPUT and updated:
            starts.append(start)
        updated = account not in INPUT and (updated or account == "optimizer")
    ends = [*starts[1:], max(end for _, _, end in spans)]
    for start, end in zip(starts, ends, strict=True):
        inside = [account for account, began, _ in spans if start <= began < end]
        env_steps, updates = inside.count("env") * num_envs, round(inside.count("optimizer") / steps_per_update)
        events.append(event("step", 0, start, end, env_steps=env_steps, grad_steps=updates))
    events += [event(ACCOUNT_ALIASES.get(account, account), 1, start, end, depth=0) for account, start, end in spans]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
