"""Sentences about the verdicts of a guide, in English and Chinese."""

from __future__ import annotations

from typing import Any

from powerband.attach.audit.guide.comparison import Comparison
from powerband.attach.audit.guide.verdict import ClaimVerdict
from powerband.core.config.texts import shortened

VERDICTS = {
    "en": {"confirmed": "confirmed", "refuted": "refuted", "no-effect": "no effect", "refused": "refused"},
    "zh": {"confirmed": "成立", "refuted": "不成立", "no-effect": "没有效果", "refused": "不接受"},
}
QUANTITIES = {
    "en": {
        "rate": "the steps per second",
        "rows": "the transitions learned per second",
        "memory_bytes": "the memory",
        "updates_per_step": "the updates per step",
    },
    "zh": {
        "rate": "每秒步数",
        "rows": "每秒学习的样本数",
        "memory_bytes": "内存",
        "updates_per_step": "每步更新数",
    },
}
TEXTS: dict[str, dict[str, str]] = {
    "en": {
        "line": "powerband: {text}",
        "measured": "{verdict}: measured {ratio} {quantity} on {machine}, {change}{facts}{end}",
        "updates_line": "{verdict}: measured on {machine}, {change}{facts} ({count} updates in {steps} steps){end}",
        "interval": "{ratio:.2f}x ({low:.2f} to {high:.2f})",
        "factor": "{ratio:.3g}x",
        "change": "`{option}={value}` compared with {before}",
        "default": "the default of {recipe}",
        "variant": " (variant {variant})",
        "same_updates": "; updates per step stay at {after:.2g}",
        "updates": "; updates per step go from {before:.2g} to {after:.2g}",
        "memory": "; {before:.0f} MiB before, {after:.0f} MiB after",
        "steps": "; steps per second: {ratio:.2f}x ({low:.2f} to {high:.2f})",
        "processes": "; processes go from {before} to {after}",
        "not_factor": "; not {claimed}x",
        "known": "; `{option}={value}` leaves the updates per step at {after:.2g} here",
        "opposite": "; the opposite of the claim",
        "not_measurable": "not measurable here: {labels}{reason}",
        "labels": "{labels}: ",
        "more": "and {count} more",
        "gpus": "needs several GPUs, and this machine has {gpus}",
        "cuda": "needs an NVIDIA GPU, which this machine does not have",
        "learning": "is about learning, which only complete runs over several seeds can show",
        "absolute": "is an absolute figure of another machine; `powerband estimate {recipe}` predicts it for this one",
        "utilisation": "is about the use of the GPU; `powerband profile {recipe}` measures it",
        "no-option": "names no single option of the recipe {recipe}",
        "no-value": "the guide states no value of `{option}` to compare",
        "obsolete": "`{option}` has no counterpart in {recipe}. {detail}",
        "same": "`{option}={value}` is what {recipe} does without the option",
        "slow": "one run takes longer than the budget of {seconds:g} s allows",
        "failed": "the run failed. {detail}",
        "budget": "not reached within the budget of {seconds:g} s",
        "few": "too few pairs of runs ({pairs}) fit into {seconds:g} s; their mean for {quantity} is {ratio:.2f}x",
        "off": "measurement is off (seconds=0)",
        "interrupted": "the audit was interrupted before",
        "noisy": "measured {interval} {quantity}, {change}: the runs differ too much to decide",
        "refused": "refused: {detail}",
        "title": "Audit by powerband",
        "summary": "Recipe {recipe}, {machine}, {runs} runs in {seconds:.0f} s. {claims} claims: {counts}.",
        "counts_not": "not measurable here",
        "columns": "line|command or settings|result|message",
        "works": "works",
        "notice": "works, with a notice",
        "unknown": "unknown",
        "script": "the guide does not contain this script",
        "missing_file": "this machine has no file {file}",
        "absent_gpus": "The GPUs that it names are absent here.",
    },
    "zh": {
        "line": "powerband：{text}",
        "measured": "{verdict}：在{machine}上实测{quantity}为 {ratio}，{change}{facts}{end}",
        "updates_line": "{verdict}：在{machine}上实测，{change}{facts}（{steps} 步中做了 {count} 次更新）{end}",
        "interval": "{ratio:.2f} 倍（{low:.2f} 至 {high:.2f}）",
        "factor": "{ratio:.3g} 倍",
        "change": "`{option}={value}` 对比{before}",
        "default": "{recipe} 的默认值",
        "variant": "（变体 {variant}）",
        "same_updates": "；每步更新数仍为 {after:.2g}",
        "updates": "；每步更新数从 {before:.2g} 变为 {after:.2g}",
        "memory": "；之前 {before:.0f} MiB，之后 {after:.0f} MiB",
        "steps": "；每秒步数为 {ratio:.2f} 倍（{low:.2f} 至 {high:.2f}）",
        "processes": "；进程数从 {before} 变为 {after}",
        "not_factor": "；不是 {claimed} 倍",
        "known": "；在本机上，`{option}={value}` 时每步更新数仍为 {after:.2g}",
        "opposite": "；与所说相反",
        "not_measurable": "本机无法测量：{labels}{reason}",
        "labels": "{labels}——",
        "more": "等另外 {count} 项",
        "gpus": "需要多块 GPU，本机有 {gpus} 块",
        "cuda": "需要 NVIDIA GPU，本机没有",
        "learning": "说的是学习效果，只有用多个种子跑完整训练才能看出",
        "absolute": "是另一台机器上的绝对数值；`powerband estimate {recipe}` 可预测本机所需时间",
        "utilisation": "说的是 GPU 利用率；`powerband profile {recipe}` 可以测量",
        "no-option": "没有对应到 {recipe} 的某一个选项",
        "no-value": "指南没有给出 `{option}` 可供对比的取值",
        "obsolete": "`{option}` 在 {recipe} 中没有对应项。{detail}",
        "same": "`{option}={value}` 就是 {recipe} 不设该选项时的行为",
        "slow": "一次运行所需时间超出 {seconds:g} 秒的预算",
        "failed": "运行失败。{detail}",
        "budget": "{seconds:g} 秒的预算内没有测到",
        "few": "{seconds:g} 秒内只完成了 {pairs} 对运行，不足以判断；{quantity}平均为 {ratio:.2f} 倍",
        "off": "未开启测量（seconds=0）",
        "interrupted": "测到之前审计已被中断",
        "noisy": "实测{quantity}为 {interval}，{change}：各次运行相差太大，无法判断",
        "refused": "不接受：{detail}",
        "title": "powerband 的审计结果",
        "summary": "配方 {recipe}，{machine}，共运行 {runs} 次、{seconds:.0f} 秒。{claims} 条说法：{counts}。",
        "counts_not": "本机无法测量",
        "columns": "行|命令或设置|结果|说明",
        "works": "可用",
        "notice": "可用，有提示",
        "unknown": "未知",
        "script": "指南中没有这个脚本的内容",
        "missing_file": "本机没有文件 {file}",
        "absent_gpus": "本机没有它指定的 GPU。",
    },
}
"""Language -> name of a sentence -> its format."""
MIB = 2**20


class GuideWording:
    """Writes the sentences of one audit.

    Args:
        lang: ``en`` or ``zh``.
        recipe: Name of the recipe.
        machine: Text that names this machine.
        gpus: Number of its GPUs.
        seconds: Budget of the measurement.

    Attributes:
        interrupted: Whether Ctrl-C ended the audit early.
        known: Option and value -> its runs, for claims that need other hardware.
    """

    def __init__(self, lang: str, recipe: str, machine: str, gpus: int, seconds: float) -> None:
        self.lang, self.recipe, self.machine, self.gpus, self.seconds = lang, recipe, machine, gpus, seconds
        self.interrupted = False
        self.known: dict[tuple[str, str], Comparison] = {}

    def __call__(self, name: str, **values: Any) -> str:
        """Returns a sentence of `TEXTS` with its values."""
        return TEXTS[self.lang][name].format(**values)

    def verdict(self, name: str) -> str:
        """Returns the name of a verdict."""
        return VERDICTS[self.lang].get(name) or self("counts_not")

    def sentence(self, verdict: ClaimVerdict, labels: str = "") -> str:
        """Returns the sentence about one verdict, or about several that are not measurable for the same reason.

        Args:
            verdict: The verdict.
            labels: Names of the claims; "" if the place of the sentence shows what it is about.
        """
        prefix = self("labels", labels=labels) if labels else ""
        if verdict.verdict == "not-measurable":
            return self("not_measurable", labels=prefix, reason=self.reason(verdict))
        if verdict.verdict == "refused":
            return prefix + self("refused", detail=shortened(verdict.detail, 240))
        return prefix + self._measured(verdict)

    def reason(self, verdict: ClaimVerdict) -> str:
        """Returns why a claim was not measured."""
        name, claim = verdict.reason, verdict.claim
        if name == "budget" and verdict.ratio and verdict.comparison:
            few = {"pairs": verdict.comparison.pairs, "quantity": self._quantity(verdict), "ratio": verdict.ratio[0]}
            return self("few", seconds=self.seconds, **few)
        if name == "budget" and (self.interrupted or not self.seconds):
            name = "interrupted" if self.interrupted else "off"
        detail = shortened(verdict.detail, 200)
        values: dict[str, Any] = {"option": claim.option, "value": claim.value, "detail": detail}
        if name == "noisy":
            values |= {"interval": self._interval(verdict), "quantity": self._quantity(verdict)}
            values["change"] = self._change(verdict)
        known = self._known(verdict) if name in ("gpus", "cuda") else ""
        return self(name, recipe=self.recipe, gpus=self.gpus, seconds=self.seconds, **values) + known

    def _known(self, verdict: ClaimVerdict) -> str:
        """What the runs show about the option of a claim that needs other hardware; "" if that is nothing."""
        option, value = verdict.claim.option, verdict.claim.value
        found = self.known.get((option, value))
        if found is None or verdict.claim.effect.kind not in ("speed", "utilisation"):
            return ""
        before, after = found.before[0].updates_per_step, found.after[0].updates_per_step
        if not before or not after or abs(after / before - 1) > 0.01 or "update" not in option:
            return ""
        return self("known", option=option, value=value, after=after)

    def _measured(self, verdict: ClaimVerdict) -> str:
        comparison, effect = verdict.comparison, verdict.claim.effect
        assert comparison is not None and verdict.ratio is not None
        before, after = comparison.before[0], comparison.after[0]
        facts = ""
        if verdict.figure == "memory_bytes":
            facts += self("memory", before=before.memory_bytes / MIB, after=after.memory_bytes / MIB)
        elif before.updates_per_step and after.updates_per_step:
            same = abs(after.updates_per_step / before.updates_per_step - 1) < 0.01
            values = {"before": before.updates_per_step, "after": after.updates_per_step}
            facts += self("same_updates" if same else "updates", **values)
        rate = comparison.ratio("rate")
        if verdict.figure == "rows" and rate:
            facts += self("steps", ratio=rate[0], low=rate[1], high=rate[2])
        if before.processes != after.processes:
            facts += self("processes", before=before.processes, after=after.processes)
        end = ""
        if verdict.verdict == "refuted":
            claimed = f"{effect.low:.3g}" + (f"-{effect.high:.3g}" if effect.high != effect.low else "")
            end = self("not_factor", claimed=claimed) if effect.low else self("opposite")
        if verdict.figure == "updates_per_step":
            count, steps = (sum(getattr(each, name) for each in comparison.after) for name in ("updates", "env_steps"))
            return self(
                "updates_line",
                verdict=self.verdict(verdict.verdict),
                machine=self.machine,
                change=self._change(verdict),
                facts=facts,
                count=count,
                steps=steps,
                end=end,
            )
        return self(
            "measured",
            verdict=self.verdict(verdict.verdict),
            ratio=self._interval(verdict),
            quantity=self._quantity(verdict),
            machine=self.machine + (self("variant", variant=comparison.variant) if comparison.variant else ""),
            change=self._change(verdict),
            facts=facts,
            end=end,
        )

    def _interval(self, verdict: ClaimVerdict) -> str:
        assert verdict.ratio is not None
        ratio, low, high = verdict.ratio
        return self("factor" if low == high else "interval", ratio=ratio, low=low, high=high)

    def _quantity(self, verdict: ClaimVerdict) -> str:
        return QUANTITIES[self.lang][verdict.figure]

    def _change(self, verdict: ClaimVerdict) -> str:
        assert verdict.comparison is not None
        claim, was = verdict.claim, verdict.comparison.values[0]
        named = f"{' ' if self.lang == 'zh' else ''}`{was}`"
        plain = f"{claim.option.lstrip('-').replace('-', '_')}="
        given = any(word.startswith(plain) for word in verdict.comparison.pair.before)
        default = "" if given else self("default", recipe=self.recipe)
        before = f"{named} ({default})" if default and self.lang == "en" else f"{default}{named}"
        return self("change", option=claim.option, value=claim.value, before=before)


def machine_text(lang: str, cores: int, gpu: str) -> str:
    """Names a machine by its GPU, or by its CPU cores."""
    if gpu:
        return f" {gpu} " if lang == "zh" else gpu
    return f" {cores} 个 CPU 核" if lang == "zh" else f"{cores} CPU core{'s' if cores != 1 else ''}"
