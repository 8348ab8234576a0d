"""Texts of verdicts and evidence, in English and Chinese."""

from __future__ import annotations

VERDICTS = {
    "en": {
        "works": "works",
        "no-effect": "no effect",
        "never-read": "never read",
        "misnamed": "misnamed",
        "unknown": "unknown",
    },
    "zh": {
        "works": "有效",
        "no-effect": "无效果",
        "never-read": "从未读取",
        "misnamed": "名不副实",
        "unknown": "未知",
    },
}
"""Language -> verdict -> its name in the table."""

COLUMNS = {"en": ("option", "value", "verdict", "evidence"), "zh": ("选项", "取值", "结论", "依据")}

ASPECTS_ZH = {
    "loss": "损失",
    "gradients": "梯度",
    "parameters": "参数",
    "updates": "优化器步数",
    "env_steps": "环境步数",
    "single_steps": "单个环境的步数",
    "environments": "真正步进的环境数",
    "events": "环境步与更新的次序",
    "rows": "进入网络的行数",
    "dtypes": "矩阵乘的精度",
    "groups": "优化器设置",
    "first groups": "优化器初始设置",
    "calls": "库调用的参数",
    "processes": "进程数",
    "threads": "线程数",
    "ranks": "rank 数",
    "ends": "结束方式",
    "console": "终端输出",
    "files": "写出的文件",
    "file sizes": "文件大小",
    "backward": "反向传播次数",
}

EVIDENCE = {
    "en": {
        "works": "{change}: {aspect} {before} → {after}",
        "works_elsewhere": "no effect at its present value and {same}; {change}: {aspect} {before} → {after}",
        "never_read": "defined at {where}; nobody reads it{window}",
        "overwritten": "defined at {where}; {place} replaces it before it is read",
        "window": " in {updates} optimiser steps, and no other line of the code names it",
        "no_difference": "{changes}: no difference in {what}{read}",
        "environments": "{changes}: no difference: {number} environments step either way{read}",
        "environments_bits": "{changes}: {number} environments step either way, but the results differ{read}",
        "interval": (
            "{change}: updates per environment step {before:.2f} and {after:.2f}; the order changes, the work does not"
        ),
        "batch": "{change}: {before} → {after} rows reach the network, {factor:g} per unit",
        "batch_ranks": "{value} rows on each of {ranks} ranks: the value is per rank; one update learns from {rows}",
        "threads": "{change}: threads {before} → {after}, processes unchanged: the workers are threads",
        "total": "{change}: {steps} environment steps until the end, {factor:g} per unit",
        "environment_count": "{change}: {before} → {after} environments step",
        "later": "{changes}: no difference in {updates} optimiser steps, but it may act later{read}",
        "hardware": "{changes}: no difference, but the code may use it only on a GPU, which is absent here{read}",
        "refused": "{change}: the script ends with an error: {error}",
        "outside": "{change}: stopped before a write to {path}, outside the working folder",
        "late_read": "not read in {updates} optimiser steps; {place} names it",
        "no_value": "no other value is known for {value!r}",
        "slow": "{change}: the run was stopped after {seconds} s, before it did the same work",
        "not_applied": "the new value did not reach the script",
        "not_repeatable": "{changes}: two unchanged runs have different losses, so small effects are invisible{read}",
        "not_reached": "not reached within the budget{read}",
        "read_at": " ({place})",
        "read_in_bulk": " (read in bulk: {place})",
        "all_aspects": "steps, losses, gradients, parameters, processes, files and output",
        "output_aspects": "files and output",
        "unseen": "{changes}: no difference, but the run shows no optimiser step and no environment step{read}",
        "untrained": "{changes}: no difference before the first optimiser step; a larger window reaches it{read}",
    },
    "zh": {
        "works": "{change}：{aspect} {before} → {after}",
        "works_elsewhere": "当前取值与 {same} 没有区别；{change}：{aspect} {before} → {after}",
        "never_read": "定义于 {where}；没有任何代码读取它{window}",
        "overwritten": "定义于 {where}；读取之前已在 {place} 被替换",
        "window": "（{updates} 次优化器步之内），代码中也没有别处提到它",
        "no_difference": "{changes}：{what}均无差别{read}",
        "environments": "{changes}：无差别，真正步进的环境始终是 {number} 个{read}",
        "environments_bits": "{changes}：真正步进的环境始终是 {number} 个，但结果不同{read}",
        "interval": "{change}：每个环境步的更新数为 {before:.2f} 与 {after:.2f}；只改变次序，不改变工作量",
        "batch": "{change}：进入网络的行数 {before} → {after}，每单位 {factor:g} 行",
        "batch_ranks": "{ranks} 个 rank 各 {value} 行：该值按 rank 计，一次更新用 {rows} 行",
        "threads": "{change}：线程数 {before} → {after}，进程数不变：工作进程其实是线程",
        "total": "{change}：到结束共 {steps} 个环境步，每单位 {factor:g} 步",
        "environment_count": "{change}：真正步进的环境 {before} → {after}",
        "later": "{changes}：{updates} 次优化器步之内无差别，但它可能在之后起作用{read}",
        "hardware": "{changes}：无差别，但代码可能只在 GPU 上使用它，而本机没有 GPU{read}",
        "refused": "{change}：脚本出错退出：{error}",
        "outside": "{change}：即将写入工作目录之外的 {path}，已停止",
        "late_read": "{updates} 次优化器步之内未读取；{place} 提到了它",
        "no_value": "不知道 {value!r} 之外还有什么取值",
        "slow": "{change}：{seconds} 秒后停止，还没做完同样的工作",
        "not_applied": "新取值没有到达脚本",
        "not_repeatable": "{changes}：两次未改动的运行损失就不同，看不出小的影响{read}",
        "not_reached": "预算之内没有测到{read}",
        "read_at": "（{place}）",
        "read_in_bulk": "（批量读取：{place}）",
        "all_aspects": "步数、损失、梯度、参数、进程、文件和输出",
        "output_aspects": "文件和输出",
        "unseen": "{changes}：无差别，但运行中没有优化器步，也没有环境步{read}",
        "untrained": "{changes}：第一次优化器步之前无差别；加大 window 才能看到训练{read}",
    },
}
"""Language -> name of a sentence -> its format."""


class Wording:
    """The texts of one language.

    Args:
        lang: ``en`` or ``zh``.
        option: Name of the option that sentences are about; it goes in front of those that begin with its values.
    """

    def __init__(self, lang: str, option: str = "") -> None:
        self.lang, self.option = lang, option

    def about(self, option: str) -> Wording:
        """Returns the texts about one option."""
        return Wording(self.lang, option)

    def __call__(self, sentence: str, **values: object) -> str:
        """Returns a sentence of `EVIDENCE` with its values."""
        format_text = EVIDENCE[self.lang][sentence]
        name = f"{self.option}: " if self.option and format_text.startswith(("{change", "{value}")) else ""
        return name + format_text.format(**values)

    def aspect(self, name: str) -> str:
        """Returns the name of an aspect of a run."""
        return ASPECTS_ZH.get(name, name) if self.lang == "zh" else name.replace("_", " ")
