"""Planted scripts: small seeded training scripts, with options that have no effect and options that have one.

A script trains a Q network on a point that is pushed to the origin. Its options are drawn: five or more that work, out
of `WORKING`, and five without effect, one in each of the ways of `DEAD`. All other settings are constants. The parser
decides how options are defined and read.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKING: dict[str, Callable[[random.Random], Any]] = {
    "lr": lambda draw: draw.choice([1e-4, 3e-4, 1e-3]),
    "weight_decay": lambda draw: 1e-6,
    "adam_eps": lambda draw: draw.choice([1e-8, 1e-7]),
    "beta2": lambda draw: draw.choice([0.99, 0.999]),
    "max_grad_norm": lambda draw: draw.choice([1.0, 10.0, 100.0]),
    "l2_coef": lambda draw: draw.choice([1e-5, 1e-7]),
    "hidden": lambda draw: draw.choice([32, 64]),
    "batch_size": lambda draw: draw.choice([16, 32, 64]),
    "gamma": lambda draw: draw.choice([0.9, 0.97, 0.99]),
    "tau": lambda draw: draw.choice([0.005, 0.01]),
    "target_interval": lambda draw: draw.choice([10, 50]),
    "noise_std": lambda draw: draw.choice([0.05, 0.1]),
    "learning_starts": lambda draw: draw.choice([50, 100]),
    "buffer_size": lambda draw: draw.choice([5000, 20000]),
    "reward_scale": lambda draw: draw.choice([0.1, 1.0]),
    "huber_delta": lambda draw: draw.choice([1.0, 10.0]),
    "lr_decay": lambda draw: draw.choice([0.9999, 0.99999]),
    "log_interval": lambda draw: draw.choice([100, 500]),
    "save_interval": lambda draw: draw.choice([200, 1000]),
    "seed": lambda draw: draw.randrange(100),
    "use_tanh": lambda draw: draw.random() < 0.5,
    "episode_length": lambda draw: draw.choice([50, 200]),
}
"""Option with an effect -> function that draws its value."""

DEAD: dict[str, dict[str, Any]] = {
    "never read": {
        "amp": True,
        "compile": True,
        "prefetch": 4,
        "warmup_frames": 1000,
        "label_noise": 0.1,
        "ema": 0.999,
    },
    "only printed": {"num_workers": 4, "run_tag": 7, "precision_bits": 16, "horizon": 20, "grad_penalty": 0.5},
    "replaced": {"num_envs": 16, "n_step": 3, "critic_count": 2, "frame_stack": 4, "accumulate": 2},
    "branch never taken": {"use_per": True, "dueling": True, "clip_reward": 5.0, "double_q": True, "aux_weight": 0.3},
    "order only": {"update_interval": 1, "train_freq": 1, "update_every": 1},
}
"""Way in which an option has no effect -> its names and values. Each name belongs to one way."""

PARSERS = ("argparse", "omegaconf", "yaml", "tyro", "hf", "absl")


@dataclass(frozen=True)
class PlantedScript:
    """A script with planted options.

    Attributes:
        parser: One of `PARSERS`.
        files: Path -> text.
        works: Options with an effect -> value.
        dead: Options without -> the way.
    """

    parser: str
    files: dict[str, str]
    works: dict[str, Any]
    dead: dict[str, str]

    def write(self, folder: Path) -> list[str]:
        """Writes the files. Returns the arguments of the script after the interpreter."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        return ["train.py"]


def draw_scripts(seed: int, working: int = 5) -> list[PlantedScript]:
    """Draws one script per parser, with `working` options that have an effect and five that have none."""
    draw = random.Random(seed)
    return [_draw_script(parser, draw, working) for parser in PARSERS]


def _draw_script(parser: str, draw: random.Random, working: int) -> PlantedScript:
    works = {name: WORKING[name](draw) for name in draw.sample(sorted(WORKING), working)}
    dead = {way: draw.choice(sorted(names)) for way, names in DEAD.items()}
    options = {**works, **{name: DEAD[way][name] for way, name in dead.items()}}
    names = list(options)
    draw.shuffle(names)
    options = {name: options[name] for name in names}
    ends = draw.random() < 0.5
    read = {"yaml": 'cfg["{}"]', "absl": "FLAGS.{}"}.get(parser, "args.{}").format
    constants = {name: WORKING[name](draw) for name in WORKING if name not in works}
    values = {name: read(name) if name in works else repr(constants[name]) for name in WORKING}
    text = CORE.format(
        **values,
        total=600 if ends else 200_000,
        printed=_printed(parser, dead["only printed"], read, draw),
        replaced=_replaced(dead["replaced"], read, draw),
        branch=_branch(dead["branch never taken"], read, draw),
        interval=read(dead["order only"]),
    )
    head, definition, files = _parser(parser, options)
    source = head + "\n" + CLASSES + definition + textwrap.indent(text, "    ") + _tail(parser)
    return PlantedScript(parser, {"train.py": source, **files}, works, {name: way for way, name in dead.items()})


def _printed(parser: str, name: str, read: Callable[[str], str], draw: random.Random) -> str:
    everything = {"yaml": "cfg", "absl": "FLAGS.flag_values_dict()"}.get(parser, "args")
    return draw.choice(
        [f'print("{name}", {read(name)})', f"print(f'run-{{{read(name)}!s}} starts')", f"print({everything})"]
    )


def _replaced(name: str, read: Callable[[str], str], draw: random.Random) -> str:
    ways = [
        f"count = {read(name)}\ncount = 1",
        f"count = max(1, min({read(name)}, 1))",
        f"count = ignores(1, {read(name)})",
        f"unused = Point(50)\nunused.{name} = {read(name)}\ncount = 1",
    ]
    return draw.choice(ways)


def _branch(name: str, read: Callable[[str], str], draw: random.Random) -> str:
    ways = [
        f'if {read(name)} and hasattr(torch, "not_in_this_version"):\n    raise SystemExit(1)',
        f'if os.environ.get("EXPERIMENTAL") == "1" and {read(name)}:\n    torch.manual_seed(1)',
        f"ready = False\nif ready and {read(name)}:\n    count += 1",
        f"extra = 0.0 * float({read(name)})",
    ]
    return draw.choice(ways)


def _parser(parser: str, options: dict[str, Any]) -> tuple[str, str, dict[str, str]]:
    """Returns the imports, the start of ``main`` with the parsing, and other files."""
    fields = "".join(f"    {name}: {type(value).__name__} = {value!r}\n" for name, value in options.items())
    if parser == "argparse":
        lines = [
            f'    parser.add_argument("--{name}", default={value!r}, '
            + ("action=argparse.BooleanOptionalAction)" if isinstance(value, bool) else f"type={type(value).__name__})")
            for name, value in options.items()
        ]
        start = "\n".join(["    parser = argparse.ArgumentParser()", *lines, "    args = parser.parse_args()\n"])
        return "import argparse\n" + IMPORTS, "def main():\n" + start, {}
    if parser in ("omegaconf", "yaml"):
        texts = {"config.yaml": "".join(f"{name}: {_yaml(value)}\n" for name, value in options.items())}
        if parser == "yaml":
            load = '    with open("config.yaml") as file:\n        cfg = yaml.safe_load(file)\n'
            return "import yaml\n" + IMPORTS, "def main():\n" + load, texts
        load = '    args = OmegaConf.merge(OmegaConf.load("config.yaml"), OmegaConf.from_cli())\n'
        return "from omegaconf import OmegaConf\n" + IMPORTS, "def main():\n" + load, texts
    if parser == "absl":
        kinds = {bool: "bool", int: "integer", float: "float"}
        lines = [f'flags.DEFINE_{kinds[type(value)]}("{name}", {value!r}, "")' for name, value in options.items()]
        head = "from absl import app, flags\n" + IMPORTS + "\nFLAGS = flags.FLAGS\n" + "\n".join(lines) + "\n"
        return head, "def main(_):\n", {}
    head = "from dataclasses import dataclass\n" + IMPORTS + f"\n@dataclass\nclass Args:\n{fields}"
    if parser == "tyro":
        return "import tyro\n" + head, "def main():\n    args = tyro.cli(Args)\n", {}
    load = "    (args,) = HfArgumentParser(Args).parse_args_into_dataclasses()\n"
    return "from transformers import HfArgumentParser\n" + head, "def main():\n" + load, {}


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.9f}" if isinstance(value, float) else str(value)


def _tail(parser: str) -> str:
    return '\n\nif __name__ == "__main__":\n' + ("    app.run(main)\n" if parser == "absl" else "    main()\n")


IMPORTS = "import copy\nimport os\nimport random\n\nimport torch\nfrom torch import nn\n"

CLASSES = '''

class Point:
    """A point on a line that actions push."""

    def __init__(self, length):
        self.length, self.draw = length, random.Random(0)

    def reset(self):
        self.time, self.x, self.v = 0, self.draw.uniform(-1, 1), 0.0
        return [self.x, self.v]

    def step(self, action):
        self.v = 0.9 * self.v + 0.1 * (1 if action else -1)
        self.x += 0.1 * self.v
        self.time += 1
        return [self.x, self.v], -abs(self.x), self.time >= self.length


def ignores(value, other):
    return value


def network(hidden, tanh):
    return nn.Sequential(nn.Linear(2, hidden), nn.Tanh() if tanh else nn.ReLU(), nn.Linear(hidden, 2))


'''

CORE = """\
torch.manual_seed({seed})
random.seed({seed})
{printed}
{replaced}
{branch}
env, q = Point({episode_length}), network({hidden}, {use_tanh})
target = copy.deepcopy(q)
opt = torch.optim.Adam(
    q.parameters(), lr={lr}, betas=(0.9, {beta2}), eps={adam_eps}, weight_decay={weight_decay}
)
memory, updates, obs = [], 0, env.reset()
for step in range({total}):
    with torch.no_grad():
        values = q(torch.tensor([obs])) + {noise_std} * torch.randn(1, 2)
    action = int(values.argmax())
    new_obs, reward, done = env.step(action)
    memory.append((obs, action, {reward_scale} * reward, new_obs, float(done)))
    del memory[: -int({buffer_size})]
    obs = env.reset() if done else new_obs
    every = {interval}
    if step >= {learning_starts} and step % every == 0:
        for _ in range(every):
            batch = random.sample(memory, min({batch_size}, len(memory)))
            o, a, r, n, d = (torch.tensor(column) for column in zip(*batch))
            with torch.no_grad():
                goal = r + {gamma} * (1 - d) * target(n).max(1).values
            chosen = q(o).gather(1, a[:, None])[:, 0]
            loss = nn.functional.huber_loss(chosen, goal, delta={huber_delta})
            loss = loss + {l2_coef} * sum((p ** 2).sum() for p in q.parameters())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(q.parameters(), {max_grad_norm})
            opt.step()
            updates += count
            opt.param_groups[0]["lr"] *= {lr_decay}
            if updates % {target_interval} == 0:
                for old, new in zip(target.parameters(), q.parameters()):
                    old.data.lerp_(new.data, {tau})
    if step % {log_interval} == 0:
        print("step", step, "reward", round(reward, 3))
    if step % {save_interval} == 0:
        torch.save(q.state_dict(), f"q-{{step}}.pt")
"""
