"""Adviser: collects predicted gains of changed settings, with short runs for settings that no model describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from powerband.core.errors import ConfigError
from powerband.core.machine.device import device_names
from powerband.core.recipe import Recipe
from powerband.tune.advise.advice import MIN_GAIN, Advice
from powerband.tune.diagnose.diagnosis import Diagnosis
from powerband.tune.knobs import Knobs
from powerband.tune.measure.in_process import Measurement
from powerband.tune.predict.model import ThroughputModel, fit
from powerband.tune.search.candidates import as_command_line

Probe = Callable[[Any], Measurement | None]
"""Function that measures a changed configuration in a short run."""
REPEAT_BELOW_GAIN = 1.2
"""If a short run shows a smaller gain than this, a second run repeats it right after the unchanged run."""
MAX_ERROR_CHARS = 160
"""Number of characters of an error that a note quotes."""
UNCHANGED = "the unchanged run"
"""Name of a run with the present settings in a note."""


class Adviser:
    """Collects advice for one measured run: changed settings (knobs) with their predicted gains.

    Args:
        recipe: Recipe of the run.
        config: Configuration of the run.
        measured: Measurement of the run.
        diagnosis: Diagnosis of the measurement; receives notes about probes that failed.
        probe: Measures a changed configuration in a short run; None if that is not possible.

    Attributes:
        ledger: Wall time of the run by the account of the host, without ``launch``.
        model: Throughput model of the run.
        ranks: Number of ranks of the run.
        gpus: Number of GPUs of this machine; 0 if the run uses the CPU.
        advice: Advice so far.
        without_gain: Knob whose change does not help -> (best value that was considered, rate with this value
            divided by the rate of the unchanged run).
    """

    def __init__(
        self, recipe: Recipe, config: Any, measured: Measurement, diagnosis: Diagnosis, probe: Probe | None
    ) -> None:
        self.recipe, self.knobs, self.measured, self.diagnosis = recipe, Knobs(recipe, config), measured, diagnosis
        self.facts, self.ledger, self.probe = measured.facts[0], diagnosis.ledger.by_host(), probe
        self.ranks = self.facts.world_size
        self.on_cpu = device_names(config.run)[0] == "cpu"
        self.gpus = 0 if self.on_cpu else torch.cuda.device_count()
        self.model = fit(self.ledger, self.facts)
        self.advice: list[Advice] = []
        self.without_gain: dict[str, tuple[Any, float]] = {}

    def add(
        self,
        knob: str,
        value: Any,
        prediction: ThroughputModel | float,
        why: str,
        *,
        learning: bool = False,
        probed: bool = False,
        always_listed: bool = False,
        also: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds advice for one changed knob, unless its gain is too small or the configuration refuses the value.

        The gain is relative to the rate that the model predicts for the unchanged run, so that the model's error
        cancels.

        Args:
            knob: Name of the setting.
            value: Value to advise.
            prediction: Model of the changed run, or steps per second as returned by `rate_of`.
            why: Reason in one phrase.
            learning: Whether the change affects what is learned.
            probed: Whether a short run measured the change.
            always_listed: List the knob even if it does not help, because users expect that it does.
            also: Further knobs that change together with `knob` -> their values.
        """
        predicted = prediction if isinstance(prediction, float) else prediction.steps_per_s
        gain = predicted / self.model.steps_per_s
        if gain < MIN_GAIN and not always_listed:
            if gain > self.without_gain.get(knob, (None, 0.0))[1]:
                self.without_gain[knob] = value, gain
            return
        try:
            config = self.config_with({knob: value, **(also or {})})
        except (ConfigError, ValueError):
            return
        if probed and not learning and MIN_GAIN <= gain < REPEAT_BELOW_GAIN:
            repeated = self.measured_gain(config)
            gain = (gain + repeated) / 2 if repeated >= MIN_GAIN else repeated
        if gain < MIN_GAIN:
            if not (always_listed and gain):
                self.without_gain[knob] = value, gain
                return
            gain, config = min(gain, 1.0), None
        rate, now = gain * self.measured.steps_per_s, self.knobs.get(knob)
        self.advice.append(Advice(knob, now, value, rate, gain, why, learning, probed, config))

    def config_with(self, setting: Mapping[str, Any]) -> Any:
        """Returns the configuration with several knobs changed (`setting`: knob -> value).

        Raises:
            ConfigError, ValueError: The configuration refuses the values, as it would on the command line.
        """
        config = self.knobs.config
        for knob, value in setting.items():
            config = Knobs(self.recipe, config).with_value(knob, value)
        self.recipe.check_sizes(config, max(self.ranks, config.run.nproc))
        return config

    def measured_gain(self, config: Any) -> float:
        """Measures a changed configuration and the unchanged one, in two short runs.

        Returns:
            Rate of the changed run divided by that of the unchanged run; 0 if a run fails or there is no `probe`.
        """
        before = self.measured_run(self.knobs.config, UNCHANGED)
        after = self.measured_run(config, "a changed setting") if before is not None else None
        if before is None or after is None or not before.facts[0].iterations or not after.facts[0].iterations:
            return 0.0
        return after.steps_per_s / before.steps_per_s

    def run_with(self, setting: Mapping[str, Any]) -> Measurement | None:
        """Measures the run with changed knobs (`setting`: knob -> value).

        Returns None if there is no `probe` or if the run fails. A failure adds a note to the diagnosis.
        """
        knob = as_command_line(dict(list(setting.items())[:1]))
        try:
            config = self.config_with(setting) if self.probe is not None else None
        except (ConfigError, ValueError) as error:
            self._note(knob, error)
            return None
        return self.measured_run(config, knob)

    def measured_run(self, config: Any, name: str) -> Measurement | None:
        """Measures a run with `config`.

        Returns None if there is no `probe` or if the run fails. A failure adds a note to the diagnosis, in which the
        run is called `name`.
        """
        if self.probe is None:
            return None
        try:
            return self.probe(config)
        except (ConfigError, MemoryError, RuntimeError) as error:  # torch.compile and CUDA raise RuntimeErrors
            self._note(name, error)
            return None

    def _note(self, name: str, error: Exception) -> None:
        """Adds the reason why a run was not measured to the notes of the diagnosis, once."""
        note = f"{name} was not measured: {reason_of(error)}."
        if note not in self.diagnosis.notes:
            self.diagnosis.notes.append(note)

    def rate_of(self, result: Measurement) -> float:
        """Returns the environment steps per second of a short run, comparable with the predictions of the model.

        The measured rate is multiplied by (predicted rate / measured rate) of the unchanged run, the error of the
        model.
        """
        return result.steps_per_s / self.measured.steps_per_s * self.model.steps_per_s

    def floor_s(self, *accounts: str) -> float:
        """Returns a lower bound of the seconds per iteration, for work that all cores share equally.

        It is the processor time of the simulators and of `accounts` (categories of time) per iteration, divided by the
        number of cores.
        """
        facts = self.facts
        busy = 1 - self.ledger.share("env_wait", "data_wait")  # a waiting process does not compute
        process_s = self.ledger.cpu_s * self.ledger.share(*accounts) / max(busy, 1e-9)
        return (process_s + facts.env_cpu_s) * self.ranks / max(facts.iterations, 1) / max(facts.cores, 1)


def reason_of(error: Exception) -> str:
    """Returns the first line of an error's message, shortened, for a note; its type if it has no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:MAX_ERROR_CHARS].rstrip(". ")
