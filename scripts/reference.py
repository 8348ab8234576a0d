"""Writes ``docs/reference/*.md``: all options of every recipe, from the configuration dataclasses.

    python scripts/reference.py            # write the pages
    python scripts/reference.py --check    # exit status 1 if a page is not up to date

Pages exist in English and in Chinese. The help texts are the strings under the fields and are the same in both.
"""

from __future__ import annotations

import argparse
import sys
import typing
from collections import defaultdict
from pathlib import Path
from typing import Any

from powerband.cli.catalogue import RECIPES, load
from powerband.core.config.run_config import RunConfig
from powerband.core.config.schema import Field, fields_of, value_text
from powerband.core.config.values import describe_kind
from powerband.core.recipe import Recipe, load_object

PAGES = Path(__file__).parents[1] / "docs" / "reference"
ENGLISH = {
    "suffix": "",
    "sibling": "[中文]({name}.zh-CN.md)",
    "title": "Options of {name}",
    "generated": "`scripts/reference.py` generates this page from the configuration dataclasses. Do not edit it.",
    "run": "Options of every recipe (section `run`) are on the page [Options](index.md).",
    "columns": ("option", "type", "default", "description"),
    "stages": "Stages",
    "stages_text": "`powerband train {name} [STAGE]` runs one of these stages: {stages}. The default is `{default}`.",
    "algorithms": "Algorithms",
    "algorithm_columns": ("`algo`", "loop", "sections"),
    "variants": "Variants",
    "variant_columns": ("`variant`", "values"),
    "top": "Options without a section",
    "section": "Section `{name}`",
    "evaluation": "Options of `powerband eval`",
    "none": "none",
    "index": "Options",
    "index_text": (
        "Every option can be written as `a.b=c` or `--a.b c`, with `-` or `_`. You can leave out the section if the "
        "name is unique. `powerband train RECIPE --help` prints the same table, and `powerband show RECIPE` prints "
        "every value, its range and its source.\n\nThe type of a number states its range; a value outside is refused, "
        "whatever its source. Numbers are written with the digits 0 to 9, one decimal point and an exponent such as "
        "`1e6`; `inf` is valid only where the range says so. A counter without an upper limit ends at 2**63 - 1."
    ),
    "recipes": "Recipes",
    "recipe_columns": ("recipe", "summary"),
    "every": "Options of every recipe: section `run`",
}
CHINESE = {
    "suffix": ".zh-CN",
    "sibling": "[English]({name}.md)",
    "title": "{name} 的配置项",
    "generated": (
        "本页由 `scripts/reference.py` 根据配置 dataclass 生成，请勿手工修改。说明文字与 `--help` 相同，为英文。"
    ),
    "run": "所有配方共有的配置项（`run` 节）见[配置项](index.zh-CN.md)。",
    "columns": ("配置项", "类型", "默认值", "说明"),
    "stages": "阶段",
    "stages_text": "`powerband train {name} [STAGE]` 运行其中一个阶段：{stages}。默认为 `{default}`。",
    "algorithms": "算法",
    "algorithm_columns": ("`algo`", "循环", "配置节"),
    "variants": "变体",
    "variant_columns": ("`variant`", "取值"),
    "top": "没有节的配置项",
    "section": "`{name}` 节",
    "evaluation": "`powerband eval` 的配置项",
    "none": "无",
    "index": "配置项",
    "index_text": (
        "每个配置项都可以写成 `a.b=c` 或 `--a.b c`，`-` 与 `_` 等价。名称唯一时可以省略节名。"
        "`powerband train RECIPE --help` 打印同样的表，`powerband show RECIPE` 打印每个值、取值范围及其来源。"
        "\n\n数值的类型一栏写明取值范围；无论来自命令行、文件还是已保存的运行，超出范围的值都会被拒绝。"
        "数字只用 0 到 9、一个小数点和 `1e6` 这样的指数；只有范围里写了 `inf` 的配置项才接受无穷大。"
        "没有写上限的计数器，上限是 2**63 - 1。"
    ),
    "recipes": "配方",
    "recipe_columns": ("配方", "概要"),
    "every": "所有配方共有的配置项：`run` 节",
}


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """`text` as code; empty text stays empty."""
    return f"`{text}`" if text else ""


def kind_text(kind: Any) -> str:
    """A type annotation as the help prints it; the choices of a Literal by name."""
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(code(str(choice)) for choice in typing.get_args(kind))
    return describe_kind(kind)


def option_table(fields: list[Field], words: dict[str, Any]) -> str:
    """One row per option."""
    rows = [(code(f.path), kind_text(f.kind), code(value_text(f.default)), f.help) for f in fields]
    return table(words["columns"], rows)


def sections_of(schema: type) -> dict[str, list[Field]]:
    """Section -> its options; the section of an option without one is empty."""
    sections: dict[str, list[Field]] = defaultdict(list)
    for path, found in fields_of(schema).items():
        sections[path.rpartition(".")[0]].append(found)
    return dict(sorted(sections.items(), key=lambda item: item[0] != ""))


def recipe_page(recipe: Recipe, words: dict[str, Any]) -> str:
    """The page of one recipe."""
    sibling = words["sibling"].format(name=recipe.name)
    parts = [
        f"# {words['title'].format(name=recipe.name)}",
        sibling,
        f"{recipe.summary[0].upper()}{recipe.summary[1:]}.",
        words["generated"],
    ]
    parts.append(words["run"])
    stages = ", ".join(code(stage) for stage in recipe.stages)
    parts += [
        f"## {words['stages']}",
        words["stages_text"].format(name=recipe.name, stages=stages, default=recipe.default_stage),
    ]
    if recipe.algorithms:
        rows = [
            (code(name), code(row.loop), ", ".join(code(each) for each in recipe.sections[name]))
            for name, row in recipe.algorithms.items()
        ]
        parts += [f"## {words['algorithms']}", table(words["algorithm_columns"], rows)]
    if recipe.variants:
        rows = [
            (code(name), ", ".join(code(f"{path}={value_text(value)}") for path, value in values.items()))
            for name, values in recipe.variants.items()
        ]
        parts += [f"## {words['variants']}", table(words["variant_columns"], rows)]
    for name, fields in sections_of(recipe.Config).items():
        if name != "run":
            parts += [f"## {words['section'].format(name=name) if name else words['top']}", option_table(fields, words)]
    if recipe.Evaluation is not None:
        options = list(fields_of(load_object(recipe.Evaluation)).values())
        parts += [f"## {words['evaluation']}", option_table(options, words)]
    return "\n\n".join(parts) + "\n"


def index_page(recipes: list[Recipe], words: dict[str, Any]) -> str:
    """The overview: how options are written, the recipes, and the section ``run``."""
    rows = [(f"[{recipe.name}]({recipe.name}{words['suffix']}.md)", recipe.summary) for recipe in recipes]
    parts = [f"# {words['index']}", words["sibling"].format(name="index"), words["index_text"], words["generated"]]
    parts += [f"## {words['recipes']}", table(words["recipe_columns"], rows)]
    run = [Field(f"run.{path}", f.kind, f.default, f.help) for path, f in fields_of(RunConfig).items()]
    parts += [f"## {words['every']}", option_table(run, words)]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[Path, str]:
    """Every page with its text."""
    recipes = [load(name) for name in RECIPES]
    made = {}
    for words in (ENGLISH, CHINESE):
        made[PAGES / f"index{words['suffix']}.md"] = index_page(recipes, words)
        for recipe in recipes:
            made[PAGES / f"{recipe.name}{words['suffix']}.md"] = recipe_page(recipe, words)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if check:
        for path in stale:
            print(f"{path} is not up to date. Run python scripts/reference.py.", file=sys.stderr)
        return 1 if stale else 0
    PAGES.mkdir(parents=True, exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
