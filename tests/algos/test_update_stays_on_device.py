"""No function of an update may wait for the device. The test reads the source, because a CPU would not reveal it."""

import ast
from pathlib import Path

import pytest

import powerband

SOURCE = Path(powerband.__path__[0])
FORBIDDEN = {"item", "cpu", "numpy", "tolist", "nonzero", "print", "synchronize"}
PER_CALL = {
    "algos/coma.py": {
        *("update", "act", "probability", "targets", "after_rollout", "all_actions_allowed"),
        *("_mixed", "_values", "_critic_loss", "_actor_loss"),
    },
    "algos/mappo.py": {
        *("update", "act", "probability", "targets", "after_rollout", "masked_log_policy"),
        *("_logits", "_values", "_critic_loss", "_actor_loss"),
    },
    "algos/ddpg.py": {"update", "act", "_critic_loss", "_actor_loss"},
    "algos/dqn.py": {
        "update",
        "act",
        "update_statistics",
        "_loss",
        "_set_epsilon",
        "best_action",
        "of_action",
    },
    "algos/td3.py": {"update", "act", "update_statistics", "_critic_loss", "_actor_loss"},
    "algos/replay_learner.py": {"_features"},
    "algos/fast_td3.py": {
        *("update", "act", "_noise_scales", "_update_statistics", "_reward_factor"),
        *("_critic_loss", "_actor_loss", "_mean", "project"),
    },
    "algos/sac.py": {"update", "act", "update_statistics", "_features", "_policy", "_critic_loss", "_actor_loss"},
    "algos/ppo.py": {
        "update",
        "act",
        "value",
        "after_rollout",
        "_choose",
        "_loss",
        "_forward",
        "_features",
        "_state",
        "_mask",
        "clipped_policy_loss",
    },
    "algos/actions.py": {"distribution", "sample", "rows", "for_env"},
    "recipes/libero/rdt.py": {"update", "_hidden"},
    "algos/ema.py": {"update_ema"},
    "recipes/libero/nets/image_jitter.py": {"jitter_images", "shift_images"},
    "nets/attention.py": {"attend"},
    "recipes/libero/nets/rdt.py": {"forward"},
    "recipes/libero/nets/rdt_policy.py": {"condition", "denoise", "normalize", "_image_tokens", "_encode_images"},
    "core/optim/flat_adam.py": {"step", "apply", "update", "frozen"},
    "core/noise/noise.py": {"bits", "uniform", "normal", "pink", "integers", "permutation"},
    "core/noise/streams.py": {
        *("splitmix64_", "box_muller", "stream_bits", "stream_normal", "stream_integers", "stream_pink"),
    },
    "data/rollout.py": {"store", "gae", "lambda_returns", "minibatches"},
    "recipes/uav/map_net.py": {"forward", "critic_inputs", "state_inputs"},
    "data/priorities.py": {"add", "update", "_set", "sample", "weights"},
    "data/replay.py": {"sample", "_draw", "set_errors"},
    "data/hindsight.py": {"add", "cut", "later", "_row_after", "_continues", "relabel"},
    "data/n_step.py": {"returns", "bootstrap_discount"},
    "nets/mlp.py": {"forward"},
    "nets/q_network.py": {"forward"},
    "nets/dense.py": {"forward", "backward", "affine", "output", "relu_", "relu_backward"},
    "nets/recurrent.py": {"forward"},
    "recipes/snakes/nets/team.py": {"forward"},
    "nets/actor_critic.py": {"forward"},
    "nets/observations/normalise.py": {"forward", "update_statistics"},
    "nets/observations/features.py": {"features", "feature_leaves", "action_mask"},
    "nets/distributions.py": {
        *("softmax", "inverse_cdf_sample", "uniform_actions"),
        *("sample", "mode", "log_prob", "entropy"),
    },
}


@pytest.mark.parametrize("name", PER_CALL)
def test_no_host_synchronisation(name):
    tree = ast.parse((SOURCE / name).read_text())
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert PER_CALL[name] <= functions.keys()
    for function in PER_CALL[name]:
        for call in (node for node in ast.walk(functions[function]) if isinstance(node, ast.Call)):
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            assert called not in FORBIDDEN, f"{name}:{call.lineno}: {function} calls {called}"
