"""Mutations of a run folder's checkpoints, as a failing disk, a careless copy or a hostile sender would leave them.

After each mutation, the newest checkpoint that still counts as undamaged is loaded, and a new one is saved. Loading
must give exactly what was saved or a `ConfigError`, and nothing outside the run folder may change.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import runs
from powerband.core.errors import ConfigError
from powerband.core.run.checkpoints.checkpoint import load_checkpoint, resolve_resume
from powerband.core.run.checkpoints.checkpoint_writer import CheckpointWriter
from powerband.core.run_folder import refuse_links

SHARDS = ("shared", "rank0")
MEMORY_LIMIT = 2**30
"""Largest growth of memory in bytes, beyond the sizes of the files."""


class CheckpointMutations:
    """Mutates copies of a run with two or more checkpoints.

    Args:
        run: A run folder.
        other: Run folder of another run with checkpoints of the same steps.
        folder: Folder for the copies.
        seed: Seed of the mutations.
    """

    def __init__(self, run: Path, other: Path, folder: Path, seed: int) -> None:
        self.template, self.other, self.folder, self.seed = run, other, folder, seed
        self.run, self.outside = folder / "work" / "run", folder / "outside"
        steps = sorted(path for path in (run / "checkpoints").iterdir() if path.is_dir())
        self.saved = {path.name: content(path) for path in steps}
        self.counts: Counter[str] = Counter()
        self.largest_growth = 0
        self.outside.mkdir(parents=True)
        (self.outside / "secret").write_text("secret")
        shutil.copytree(run / "checkpoints" / steps[-1].name, self.outside / "copy")
        os.mkfifo(self.outside / "pipe")
        self.before = picture(self.outside)

    def check(self, number: int) -> list[str]:
        """Makes one mutation, sometimes several, and uses the folder. Returns what went wrong."""
        self.rng = random.Random(f"{self.seed} {number}")
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.template, self.run, symlinks=True)
        what = f"{number}:"
        for _ in range(self.rng.choice((1, 1, 1, 1, 8))):
            mutate = self.rng.choice(MUTATIONS)
            try:
                what += f" {mutate.__name__} {mutate(self)};"
            except (OSError, ValueError, IndexError):  # an earlier mutation has removed what this one needs
                continue
            self.counts[mutate.__name__] += 1
        declared, start = sum(path.lstat().st_size for path in self.template.rglob("*")), resident(peak=False)
        problems = self._use(what)
        growth = resident(peak=True) - start
        self.largest_growth = max(self.largest_growth, growth)
        if growth > MEMORY_LIMIT + declared:
            problems.append(f"{what}: memory grew by {growth / 2**20:.0f} MiB")
        if picture(self.outside) != self.before:
            problems.append(f"{what}: something outside has changed")
        return problems

    def _use(self, what: str) -> list[str]:
        problems = []
        try:
            path, notices = resolve_resume(str(self.run))
            self.counts["fell back" if notices else "loaded the newest"] += 1
            if content(path) != self.saved.get(path.name):
                problems.append(f"{what}: {path.name} is not what was saved")
        except ConfigError as error:
            self.counts["refused"] += 1
            if len(str(error)) > 4000 or "\n" in str(error):
                problems.append(f"{what}: a long message")
        except BaseException as error:
            problems.append(f"{what}: {type(error).__name__}: {error}"[:500])
        try:
            refuse_links(self.run)
            writer = CheckpointWriter(self.run, 10**6)
            tree: dict[str, Any] = {"number": 1}
            files = writer.write("shared", tree) | writer.write("rank0", tree)
            writer.write_manifest(files, {"world_size": 1})
            writer.publish()
        except ConfigError:
            self.counts["no new checkpoint"] += 1
        except BaseException as error:
            problems.append(f"{what}, saving: {type(error).__name__}: {error}"[:500])
        return problems

    # -- what the mutations draw ----------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> list[Path]:
        """Checkpoints of the copy, oldest first; never a link, through which a mutation would reach the outside."""
        place = self.run / "checkpoints"
        folders = [path for path in (() if place.is_symlink() else place.iterdir()) if path.name.isascii()]
        return sorted(
            (path for path in folders if path.name.isdigit() and real_folder(path)), key=lambda path: int(path.name)
        )

    def file(self) -> Path:
        """A file of the copy: mostly of a checkpoint, sometimes ``last`` or ``run.json``."""
        path = self.rng.choice([self.run / "checkpoints" / "last", self.run / "run.json"])
        if self.rng.random() >= 0.1:
            path = self.rng.choice(sorted(self.rng.choice(self.checkpoints).iterdir()))
        return unmutated(path)


def flip_bits(each: CheckpointMutations) -> str:
    """Flips one bit, or several."""
    path = each.file()
    data = bytearray(path.read_bytes())
    for _ in range(each.rng.choice((1, 1, 1, 2, 40))):
        data[each.rng.randrange(len(data))] ^= 1 << each.rng.randrange(8)
    path.write_bytes(data)
    return path.name


def cut(each: CheckpointMutations) -> str:
    """Cuts the end of a file."""
    path = each.file()
    os.truncate(path, each.rng.randrange(path.stat().st_size))
    return path.name


def extend(each: CheckpointMutations) -> str:
    """Adds bytes, or a hole of 8 GiB that occupies no disk."""
    path = each.file()
    if each.rng.random() < 0.3:
        os.truncate(path, 8 * 2**30)
    else:
        with path.open("ab") as file:
            file.write(each.rng.randbytes(each.rng.randrange(1, 5000)))
    return path.name


def zero_block(each: CheckpointMutations) -> str:
    """Overwrites a block with zeros, as after a lost write."""
    path = each.file()
    data = bytearray(path.read_bytes())
    at = each.rng.randrange(len(data))
    data[at : at + 4096] = bytes(len(data[at : at + 4096]))
    path.write_bytes(data)
    return path.name


def delete(each: CheckpointMutations) -> str:
    """Deletes a file or a checkpoint."""
    path = each.file() if each.rng.random() < 0.8 else each.rng.choice(each.checkpoints)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return path.name


def swap_files(each: CheckpointMutations) -> str:
    """Swaps two files of the run, or takes one of another run or step."""
    first = each.file()
    second = each.file()
    if each.rng.random() < 0.5 and first.parent.parent.name == "checkpoints":
        shutil.copy(each.other / "checkpoints" / first.parent.name / first.name, first)
        return f"{first.name} of another run"
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    return f"{first.parent.name}/{first.name} and {second.parent.name}/{second.name}"


def swap_checkpoints(each: CheckpointMutations) -> str:
    """Renames checkpoints, or replaces one by that of another run."""
    first, second = each.rng.sample(each.checkpoints, 2)
    kind = each.rng.randrange(3)
    if kind == 0:
        spare = first.with_name("spare")
        first.rename(spare)
        second.rename(first)
        spare.rename(second)
    elif kind == 1:
        if any(path.lstat().st_size > 2**30 for path in first.iterdir()):
            raise ValueError("too large to copy")
        shutil.copytree(first, first.with_name(str(each.rng.choice((0, 7, 10**6, 10**18, 10**19)))), symlinks=True)
    else:
        shutil.rmtree(first)
        shutil.copytree(each.other / "checkpoints" / first.name, first)
    return f"{kind} {first.name} {second.name}"


def link(each: CheckpointMutations) -> str:
    """Replaces a file or folder by a link, a pipe or a folder, or adds a link where a save will write."""
    targets = [each.outside / "secret", each.outside / "copy", each.outside / "pipe", Path("/dev/zero"), each.outside]
    target = each.rng.choice([*targets, each.run / "checkpoints", Path("nowhere")])
    kind = each.rng.randrange(6)
    if (each.run / "checkpoints").is_symlink():
        raise ValueError("the checkpoints have been mutated already")
    if kind == 0:
        path = each.run / "checkpoints" / each.rng.choice((".saving-1000000", ".last", "1000000", "5000000", "best"))
        path.symlink_to(target)
    elif kind == 1:
        path = each.rng.choice(each.checkpoints)
        shutil.rmtree(path)
        path.symlink_to(target)
    elif kind == 2:
        path = each.run / "checkpoints"
        shutil.rmtree(path)
        path.symlink_to(target)
    else:
        path = each.file()
        path.unlink()
        (path.symlink_to, lambda _: os.mkfifo(path), lambda _: path.mkdir())[kind - 3](target)
    return f"{kind} {path.name} to {target}"


def foreign(each: CheckpointMutations) -> str:
    """Adds files that no run has written."""
    name = each.rng.choice(("notes.txt", ".hidden", "a b", "é", "x" * 200, "-1", "007", "1e3", "100000000", "manifest"))
    place = each.rng.choice([each.run / "checkpoints", *each.checkpoints, each.run])
    path = place / name
    if place.is_symlink():
        raise ValueError(f"{place} has been mutated already")
    if each.rng.random() < 0.5:
        path.write_bytes(each.rng.randbytes(100))
    else:
        path.mkdir()
        (path / "manifest.json").write_text(each.rng.choice(("{}", "[]", "", "[" * 100_000, '{"format": 2}', "1")))
    return f"{path.parent.name}/{name[:20]}"


def edit_manifest(each: CheckpointMutations) -> str:
    """Replaces a part of a manifest by another text of JSON."""
    path = unmutated(each.rng.choice(each.checkpoints) / "manifest.json")
    text = path.read_text()
    old = each.rng.choice(
        ['"format": 2', '"step": ', '"world_size": 1', '"size": ', '"run": "', '"sha256": "', "{", "}"]
    )
    new = each.rng.choice(['"format": 1', '"step": 9', '"world_size": 3', '"size": 1', "", "null", "[", '"../../x"'])
    path.write_text(text.replace(old, new, each.rng.choice((1, 2, -1))))
    return f"{old} -> {new}"


MUTATIONS: list[Callable[[CheckpointMutations], str]] = [
    flip_bits, flip_bits, cut, extend, zero_block, delete, swap_files, swap_checkpoints, link, foreign, edit_manifest,
]  # fmt: skip


def content(path: Path) -> str:
    """Digest of everything that a resume reads from a checkpoint."""
    digest = hashlib.sha256()
    for shard in SHARDS:
        tree, manifest = load_checkpoint(path, shard)
        facts = (shard, manifest.step, manifest.world_size, sorted(manifest.counters.items()))
        digest.update(repr(facts).encode())
        for name, leaf in runs.leaves(tree):
            value = leaf.numpy().tobytes() if hasattr(leaf, "numpy") else repr(leaf).encode()
            digest.update(name.encode() + b"\0" + value)
    return digest.hexdigest()


def unmutated(path: Path) -> Path:
    """Returns the path of a file that a mutation can read and change.

    Raises:
        ValueError: It is a link, a pipe or a large hole, or lies behind a link.
    """
    if not stat.S_ISREG(path.lstat().st_mode) or path.parent.is_symlink() or path.stat().st_size > 2**30:
        raise ValueError(f"{path} has been mutated already")
    return path


def real_folder(path: Path) -> bool:
    """True for a folder that is no link."""
    return stat.S_ISDIR(path.lstat().st_mode)


def picture(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Path -> kind and content of everything in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        found[str(path)] = (stat.S_IFMT(mode), path.read_bytes() if stat.S_ISREG(mode) else b"")
    return found


def resident(peak: bool) -> int:
    """Memory of this process in bytes: the peak since the last call without `peak`, or the present size."""
    if not peak:
        Path("/proc/self/clear_refs").write_text("5")
    field = "VmHWM:" if peak else "VmRSS:"
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
