"""The stages of metaworld. Each reads what earlier ones left in the project folder and leaves its own part there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.algos.distill import Distill
from powerband.algos.imitate import Imitate
from powerband.algos.represent import Represent
from powerband.algos.sac import SAC
from powerband.algos.student import Student
from powerband.core.config import ConfigError
from powerband.core.run import Run
from powerband.core.scaling import per_rank, scaled_lr
from powerband.data.types import VecEnv
from powerband.envs.encoded import EncodedVecEnv
from powerband.envs.metaworld.env import metaworld_envs
from powerband.envs.metaworld.single import scripted
from powerband.envs.metaworld.tasks import MT10
from powerband.envs.supervision import Supervision
from powerband.loops.off_policy import off_policy
from powerband.loops.offline import offline
from powerband.nets.collective import state_of
from powerband.recipes import metaworld_score as score
from powerband.recipes.metaworld import Config
from powerband.recipes.metaworld_collect import Collector, labelled, ordered, write_rows
from powerband.recipes.metaworld_learn import Recorded, feed_of
from powerband.recipes.metaworld_probe import probe
from powerband.recipes.metaworld_project import (
    REWARD_SCALE,
    collective_of,
    encoder_of,
    expert_of,
    folder_of,
    load_sac,
    sac_tensors,
    save_policy,
)


def _envs(config: Config, run: Run) -> VecEnv:
    """This rank's environments, drawn goals."""
    ranks, loop = run.ranks, config.off_policy
    count = per_rank("num_envs", loop.num_envs, ranks.world_size)
    simulated = config.simulated()
    said = {"threads": "MuJoCo in threads", "envpool": "EnvPool", "workers": "metaworld in worker processes"}
    run.facts["simulator"] = said[simulated.stepper]
    return metaworld_envs(
        simulated,
        count,
        config.num_workers,
        run.device,
        config.run.seed,
        ranks.rank * count,
        supervision=Supervision(),
        tell=lambda fault: run.console.note(str(fault)),
    )


def _sac(config: Config, run: Run) -> tuple[Any, tuple]:
    """An agent's section under the rule of rates, and the parts that every learner is handed."""
    section, run.facts["learning rates"] = scaled_lr(config.sac, config.run.lr_scale, run.ranks.world_size)
    ratio = config.off_policy.global_batch_size / 512
    if ratio != 1:
        run.facts["learning rates"] += f"; sqrt rule for batch {ratio * 512:g} against 512: {3e-4 * ratio**0.5:.2g}"
    ranks = run.ranks
    return section, (run.device, run.precision, run.noise, ranks.average_, ranks.world_size)


def expert(config: Config, run: Run) -> dict:
    """SAC on one task; the transitions it sampled on the way are labelled by what it has become."""
    env = _envs(config, run)
    try:
        section, parts = _sac(config, run)
        learner = SAC(env.spec, section, *parts)
        collector = Collector(run, config, env.num_envs)
        run.attach("collector", collector)
        with score.Trials(config) as trials:
            run.evaluate = lambda: trials.figures(score.acting(learner), config.eval_episodes)
            off_policy(run, env, learner, config.off_policy, after_step=collector.after_step)
            if run.signalled:
                return {}
            run.export_policy(learner.policy_state())
            final = trials.final(run, score.acting(learner), config.final_episodes)
    finally:
        env.close()
    where = folder_of(config, "experts", config.task)
    if run.ranks.leads:
        save_policy(where, config, sac_tensors(learner))
        (where / "evaluation.json").write_text(json.dumps({**final, "env_steps": run.env_steps}, indent=2))
    if collector.chunks and config.task != MT10:
        write_rows(config, run, "experts", labelled(collector.rows(), learner), "expert", config.sac.gamma)
    return final


def online_distill(config: Config, run: Run) -> dict:
    """A temporary policy acts while it learns, then the teacher; the teacher labels all that was seen."""
    if config.task == MT10:
        raise ConfigError("task=mt10: online_distill takes one task at a time. Write task=reach, then the others.")
    by_expert = config.teacher == "expert"
    teacher = expert_of(config, config.task, run.device) if by_expert else None
    rule = None if by_expert else scripted(config.task)

    def acts(obs: Tensor) -> Tensor:
        if teacher is not None:
            return teacher.act(obs, None, explore=False)[0]
        return torch.stack([torch.from_numpy(rule(row)).float() for row in obs.cpu().numpy()]).to(obs.device)

    steps, world = config.run.env_steps, run.ranks.world_size
    sizes = config.off_policy
    random = min(8_000, sizes.random_steps or 8_000)
    loop = replace(
        sizes,
        replay_size=-(-steps // (sizes.num_envs * world)) * sizes.num_envs * world,  # every step is kept
        update_interval=config.imitate.steps_per_update,
        updates_per_interval=1,
        warmup=random,
        random_steps=random,
        anneal_from=1.0,
    )
    env = _envs(config, run)
    try:
        learner = Imitate(
            config.imitate, acts, run.device, run.precision, run.noise, run.ranks.average_, run.ranks.world_size
        )
        off_policy(run, env, learner, loop)
        if run.signalled:
            return {}
        rows = {name: leaf.cpu() for name, leaf in run.part("replay").newest(len(run.part("replay"))).items()}
        rows = ordered(rows, env.num_envs)
    finally:
        env.close()
    if teacher is not None:
        rows = labelled(rows, teacher)
    else:
        mu = torch.cat([acts(part) for part in rows["obs"].split(1024)])
        unknown = torch.full((len(mu),), float("nan"))
        rows |= {"mu": mu, "log_std": torch.full_like(mu, -2.0), "q_target": unknown}
    gamma = config.sac.gamma if teacher is None else teacher.config.gamma
    write_rows(config, run, "online", rows, config.teacher, gamma)
    return {"rows": len(rows["obs"]) * run.ranks.world_size}


def represent(config: Config, run: Run) -> dict:
    """The trajectory encoder, on what all tasks recorded; then how well its code tells them apart."""
    recorded = Recorded(config)
    train, held_out = recorded.split()
    learner = Represent(
        config.represent, run.device, run.precision, run.noise, run.ranks.average_, run.ranks.world_size
    )
    length = config.represent.net.length
    feed, note = feed_of(config, run, recorded, train, lambda rows, data: data.trajectories(rows, length))
    run.facts["data"] = note
    offline(run, learner, feed, config.offline)
    if run.signalled or not run.ranks.leads:
        return {}
    where = folder_of(config, "encoder")
    save_policy(where, config, dict(learner.encoder.state_dict()))
    figures = probe(config, recorded, train, held_out, learner.encoder, where)
    (where / "probe.json").write_text(json.dumps(figures, indent=2))
    return figures


def distill(config: Config, run: Run) -> dict:
    """One network takes over the policies of all experts, then their values."""
    encoder = encoder_of(config, run.device)
    recorded = Recorded(config)
    run.console.note(f"encoding {recorded.rows:,} rows")
    recorded.encode(encoder, run.device)
    learner = Distill(
        config.distill,
        encoder.config.code,
        run.device,
        run.precision,
        run.noise,
        run.ranks.average_,
        run.ranks.world_size,
    )
    valued = int(torch.isfinite(recorded.fields["q_target"]).sum())
    if valued < recorded.rows:
        said = f"{valued:,} of {recorded.rows:,} rows" if valued else "none of the rows"
        run.console.note(f"the critics learn from {said}: a scripted teacher knows no values")
    rows = torch.arange(recorded.rows)
    feed, run.facts["data"] = feed_of(config, run, recorded, rows, lambda index, data: data.labels(index))
    offline(run, learner, feed, config.offline)
    if run.ranks.leads and not run.signalled:
        save_policy(folder_of(config, "collective"), config, dict(learner.net.state_dict()))
    return {}


def evaluate(config: Config, run: Run) -> dict:
    """Success of expert, collective and scripted policy on each task."""
    run.banner({"episodes": f"{config.final_episodes} of each policy and task, the 50 goals in turn"})
    if not run.ranks.leads:
        return {}
    rows = score.table(config, run)
    path = Path(config.project) / "evaluation.json"
    path.write_text(json.dumps(rows, indent=2))
    run.console.note(score.as_text(rows))
    return {"rows": rows}


def student(config: Config, run: Run) -> dict:
    """SAC with the collective policy's bonus."""
    encoder, collective = encoder_of(config, run.device), collective_of(config, run.device)
    return _learn_from(config, run, encoder, collective, finetune=False)


def student_finetune(config: Config, run: Run) -> dict:
    """SAC that goes on from the collective network."""
    encoder, collective = encoder_of(config, run.device), collective_of(config, run.device)
    return _learn_from(config, run, encoder, collective, finetune=True)


def _learn_from(config: Config, run: Run, encoder: Any, collective: Any, finetune: bool) -> dict:
    def coded(env: VecEnv) -> EncodedVecEnv:
        code, length = encoder.config.code, encoder.config.length
        return EncodedVecEnv(env, encoder.encode, state_of, code, length, REWARD_SCALE, whole=not finetune)

    env = coded(_envs(config, run))
    try:
        section, parts = _sac(config, run)
        if finetune:
            widths = tuple(layer.out_features for layer in collective.actor.hidden)
            section = replace(section, hidden=widths, obs_scale=1.0)  # what the collective network learned from
            learner: Any = SAC(env.spec, section, *parts)
            own = sac_tensors(learner)
            for part in ("actor", "critic"):
                own |= {f"{part}.{name}": tensor for name, tensor in getattr(collective, part).state_dict().items()}
            own |= {f"target_{name}": tensor for name, tensor in own.items() if name.startswith("critic.")}
            load_sac(learner, own)
        else:
            learner = Student(config.student, collective, env.spec, section, *parts)
        with score.Trials(config, coded) as trials:
            run.evaluate = lambda: trials.figures(score.acting(learner), config.eval_episodes)
            off_policy(run, env, learner, config.off_policy)
            if run.signalled:
                return {}
            run.export_policy(learner.policy_state())
            final = trials.final(run, score.acting(learner), config.final_episodes)
    finally:
        env.close()
    if run.ranks.leads:
        where = folder_of(config, "students", config.task)
        save_policy(where, config, learner.policy_state())
        (where / "evaluation.json").write_text(json.dumps({**final, "env_steps": run.env_steps}, indent=2))
    return final
