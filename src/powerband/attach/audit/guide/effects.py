"""Effects that a sentence promises: their kind, direction and size, in English and Chinese."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["speed", "memory", "updates", "utilisation", "learning", "absolute"]

PATTERNS: dict[Kind, re.Pattern[str]] = {
    "learning": re.compile(
        r"收敛|稳定性?|成功率|泛化|梯度噪声"
        r"|converg|\bstabl[ey]|stability|success rate|sample.efficien|better polic",
        re.I,
    ),
    "utilisation": re.compile(
        r"利用率|(充分|更好地|高效)利用.{0,16}GPU"
        r"|\butili[sz](ation|es?|ing)\b|GPU.{0,3}计算(时间)?.{0,4}(增加|提高)",
        re.I,
    ),
    "memory": re.compile(
        r"(节省|减少|降低|增加|占用).{0,6}(显存|内存)|(显存|内存).{0,6}(减少|降低|节省|占用|增加)|占用.{0,2}(显存|内存)"
        r"|\b(reduc|sav|less|lower|fewer|cut|halv|more|increas|decreas)\w*\b.{0,24}\bmemory"
        r"|\bmemory\b.{0,20}\b(reduc|sav|lower|less|halv|drop|increas|grow)",
        re.I,
    ),
    "updates": re.compile(
        r"更新(数|频率|次数)(减少|增加|更?低|更?高|更?少|更?多)|每 ?episode ?\d+ ?次 ?update"
        r"|\d+ updates? per episode|\b(fewer|more|less frequent|more frequent)\b.{0,12}\bupdates?\b",
        re.I,
    ),
    "speed": re.compile(
        r"加速(?!比\W*$)|提速|速度.{0,6}(提升|提高|加快)|(提升|提高).{0,8}(速度|吞吐|效率)|吞吐量?.{0,6}(提升|提高)"
        r"|时间.{0,8}(减少|缩短|节省)|(减少|缩短|节省).{0,6}时间|(?<!慢)更快|快一点|更慢|变慢|较慢"
        r"|\bfaster\b|\bslower\b|\bspeed-?ups?\b|\bspeed(s|ed)? up\b|\bslows? down\b"
        r"|\b(increas|improv|higher|rais|doubl|boost)\w*\b.{0,20}\b(throughput|speed)"
        r"|\b(throughput|speed)\b.{0,20}\b(increas|improv|higher|doubl)"
        r"|\b(reduc|cut|sav|halv|shorten)\w*\b.{0,16}\btime\b",
        re.I,
    ),
    "absolute": re.compile(
        r"(时间|速度|耗时)\**\s*[:：].{0,12}\d ?(小时|分钟|秒|天)|\d+ ?(FPS|frames per second)"
        r"|\btakes?\b.{0,12}\d+ ?(hours?|minutes?)",
        re.I,
    ),
}
"""Kind of effect -> pattern. The kinds are tried in this order, and a clause about learning has no other kind."""

DOWN = re.compile(
    r"减少|降低|节省|缩短|更少|很少|更低|频率低|更慢|变慢|较慢|减小"
    r"|\b(reduc|sav|less|lower|fewer|cut|halv|slow|decreas|drop)",
    re.I,
)
SLOWER = re.compile(r"更慢|变慢|较慢|\bslow", re.I)
NEGATED = re.compile(r"(没有|没|不会|并不|不能|无法|未|\bno\b|\bnot\b|n't|\bnever\b)\s*(显著|明显)?.{0,8}$", re.I)
NO_PROMISE = re.compile(
    r"^\W*(如果|若|当|假如|检查|确认|看|if\b|when\b|check\b)|监控|查看|根据|不关心|\bmonitor|\bdepending on\b"
    r"|目标|\btargets?\b|\bgoal\b|[?？]\s*\**$|[<>]\s*\d",
    re.I,
)
NUMBER = r"(\d+(?:\.\d+)?)(?:\s*(?:-|–|~|至|到|to)\s*(\d+(?:\.\d+)?))?"
HARDWARE_NAME = r"\s*(?:NVIDIA|RTX|A100|A6000|H100|H200|V100|GPU|\d{4}\b|个GPU|张)"
TIMES = re.compile(NUMBER + rf"\s*(?:[x×](?![A-Za-z])(?!\s*\d)|倍|-?fold\b|\s+times\b)(?!{HARDWARE_NAME})", re.I)
PERCENT = re.compile(NUMBER + r"\s*%")
SENTENCE = re.compile(r"[。；;！!]|(?<=[a-z\d)])\.\s+(?=[A-Z])")
CLAUSE = re.compile(r"[，,、]|\s但|\bbut\b|\band\b", re.I)


@dataclass(frozen=True)
class Effect:
    """One promised effect.

    Attributes:
        kind: What changes.
        direction: 1 for more (faster, for a speed), -1 for less, 0 for a promise of no change.
        low: Smallest promised factor; 0 without a number. For a speed it is the factor of the rate.
        high: Largest promised factor; 0 without a number.
        throughput: Whether the promise is about a throughput, which counts transitions.
        count: Updates per episode that the text states; 0 without them.
        clause: Part of the sentence that promises it.
    """

    kind: Kind
    direction: int = 1
    low: float = 0.0
    high: float = 0.0
    throughput: bool = False
    count: float = 0.0
    clause: str = ""


def sentences_of(text: str) -> list[str]:
    """Splits a text at the ends of its sentences."""
    return [part.strip() for part in SENTENCE.split(text) if part.strip()]


def effects_of(sentence: str) -> list[Effect]:
    """Returns the effects that a sentence promises, one per kind. Conditions, targets and questions promise nothing."""
    if NO_PROMISE.search(sentence):
        return []
    found: dict[Kind, Effect] = {}
    for clause in CLAUSE.split(sentence):
        for kind, pattern in PATTERNS.items():
            match = pattern.search(clause)
            if match is None or kind in found:
                continue
            found[kind] = replace(_effect(kind, clause, match, sentence), clause=clause)
            if kind == "learning":
                break
    if "speed" in found:
        found.pop("absolute", None)
    return list(found.values())


def column_effect(header: str, cell: str) -> Effect | None:
    """Returns the effect that a cell of a table promises under the header of its column; None without one."""
    kind = next((kind for kind, pattern in COLUMNS.items() if pattern.search(header)), None)
    if kind is None or not cell.strip(" -—"):
        return None
    if kind == "updates":
        if re.search(r"少|低|\b(few|less|low)", cell, re.I):
            return Effect("updates", -1)
        return Effect("updates", 1) if re.search(r"多|高|\b(many|more|high)", cell, re.I) else None
    if kind == "speed":
        low, high = _factor(cell, 1)
        return Effect("speed", 1, low, high) if low and high != 1 else None
    return Effect(kind) if kind == "learning" or re.search(r"\d", cell) else None


COLUMNS: dict[Kind, re.Pattern[str]] = {
    "learning": re.compile(r"收敛|稳定|converg|stabil", re.I),
    "utilisation": re.compile(r"利用率|utili[sz]ation|GPU ?计算时间", re.I),
    "updates": re.compile(r"更新(数|频率|次数)|\bupdates\b", re.I),
    "speed": re.compile(r"加速比?|speed-?up|faster", re.I),
    "absolute": re.compile(r"时间|FPS|\btime\b|hours", re.I),
}


def _effect(kind: Kind, clause: str, match: re.Match[str], sentence: str) -> Effect:
    down = SLOWER if kind == "speed" else DOWN
    direction = -1 if down.search(clause) else 1
    if NEGATED.search(clause[: match.start()]):
        return Effect(kind, 0)
    low = high = 0.0
    if kind in ("speed", "memory", "updates"):
        low, high = _factor(clause, direction)
        if not low and kind == "speed" and len(PATTERNS[kind].findall(sentence)) == 1:
            low, high = _factor(sentence, direction)
    if count := re.search(r"(\d+) ?次 ?update|(\d+) updates? per episode", clause, re.I):
        return Effect(kind, 1, count=float(count[1] or count[2]))
    throughput = bool(re.search(r"吞吐|throughput|samples", clause, re.I))
    return Effect(kind, direction, low, high, throughput)


def _factor(text: str, direction: int) -> tuple[float, float]:
    """Returns the smallest and the largest promised factor of a text; zeros without a number."""
    if match := TIMES.search(text):
        low, high = float(match[1]), float(match[2] or match[1])
        return (low, high) if direction > 0 else (1 / max(high, 1e-9), 1 / max(low, 1e-9))
    if "利用率" in text or "utili" in text.lower():
        return 0.0, 0.0
    if match := PERCENT.search(text):
        low, high = float(match[1]) / 100, float(match[2] or match[1]) / 100
        less_time = re.search(r"时间|\btime\b", text, re.I) and DOWN.search(text)
        if less_time and high < 1:
            return 1 / (1 - low), 1 / (1 - high)
        return (1 + low, 1 + high) if direction > 0 else (max(0.0, 1 - high), 1 - low)
    return 0.0, 0.0
