"""Private interfaces of other packages that the instrumentation uses: the tested versions, and what must hold."""

from __future__ import annotations

import argparse
import importlib.metadata

import pytest
import torch

TESTED = {
    "torch": ("2.13",),
    "gin-config": ("0.5",),
    "omegaconf": ("2.3", "2.4"),
    "absl-py": ("2.5",),
}
"""Package -> tested versions."""


def check_version(package: str) -> None:
    """Skips the test if a package is not installed, and fails if its version was not tested."""
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    assert ".".join(installed.split(".")[:2]) in TESTED[package], (
        f"{package} {installed}: check what this file tests, then add the version to TESTED."
    )


def test_the_iterator_of_a_torch_loader_has_the_settings_that_the_profile_records() -> None:
    check_version("torch")
    loader = torch.utils.data.DataLoader([1, 2, 3], batch_size=3, num_workers=1, prefetch_factor=4)
    iterator = iter(loader)
    assert isinstance(iterator, torch.utils.data.dataloader._BaseDataLoaderIter)
    assert "__next__" in torch.utils.data.dataloader._BaseDataLoaderIter.__dict__
    settings = {name: getattr(iterator, name) for name in ("_num_workers", "_pin_memory", "_drop_last")}
    assert settings == {"_num_workers": 1, "_pin_memory": False, "_drop_last": False}
    assert (iterator._prefetch_factor, iterator._persistent_workers) == (4, False)
    assert iterator._index_sampler.batch_size == 3
    assert issubclass(torch.nn.Conv2d, torch.nn.modules.conv._ConvNd)


def test_argparse_has_the_classes_that_the_audit_wraps() -> None:
    parser = argparse.ArgumentParser()
    action = parser.add_argument("--lr", default=0.1)
    assert isinstance(parser, argparse._ActionsContainer) and action in parser._actions
    assert any(isinstance(each, argparse._HelpAction) for each in parser._actions)
    assert isinstance(parser.add_subparsers(), argparse._SubParsersAction)


def test_gin_keeps_bindings_by_scope_and_selector() -> None:
    gin = pytest.importorskip("gin")
    check_version("gin-config")

    def sized(size: int = 1) -> int:
        return size

    sized = gin.external_configurable(sized, module="powerband_test")
    with gin.unlock_config():
        gin.parse_config("powerband_test.sized.size = 3")
    try:
        assert gin.config._CONFIG[("", "powerband_test.sized")] == {"size": 3}
        assert sized() == 3
        assert gin.config._OPERATIVE_CONFIG[("", "powerband_test.sized")] == {"size": 3}
    finally:
        gin.clear_config()


def test_omegaconf_keeps_nodes_in_its_content() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    check_version("omegaconf")
    config = omegaconf.OmegaConf.create({"optim": {"lr": "${base}", "sizes": [1]}, "base": 0.1})
    inner = config.__dict__["_content"]["optim"]
    assert inner.__dict__["_content"]["lr"]._value() == "${base}"
    assert [item._value() for item in inner.__dict__["_content"]["sizes"].__dict__["_content"]] == [1]
    assert inner._get_full_key("lr") == "optim.lr" and inner._get_root() is config
    assert config._get_node("base")._value() == 0.1


def test_absl_parses_by_call_and_reads_by_attribute() -> None:
    flags = pytest.importorskip("absl.flags")
    check_version("absl-py")
    values = flags.FlagValues()
    flags.DEFINE_float("lr", 0.1, "", flag_values=values)
    values(["train.py", "--lr=0.5"])
    assert values.lr == 0.5 and type(values) is flags._flagvalues.FlagValues
    (flag,) = (each for each in values.flags_by_module_dict().popitem()[1] if each.name == "lr")
    assert (flag.value, flag.using_default_value) == (0.5, False)
