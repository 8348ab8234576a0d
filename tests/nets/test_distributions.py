"""Distributions equal torch.distributions; masks; the ends of the unit interval."""

import torch
from torch import distributions as reference

from powerband.nets.distributions import Categorical, DiagGaussian, inverse_cdf_sample, softmax


def test_softmax_of_the_last_axis():
    logits = torch.randn(4, 3, 5)
    torch.testing.assert_close(softmax(logits), logits.softmax(-1))


def test_categorical_equals_torch():
    logits = torch.randn(50, 4)
    ours, theirs = Categorical(logits), reference.Categorical(logits=logits)
    action = torch.randint(4, (50,))
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert torch.equal(ours.mode(), logits.argmax(-1))


def test_samples_follow_probabilities():
    probs = torch.tensor([0.1, 0.0, 0.6, 0.3])
    uniform = (torch.arange(10_000) + 0.5) / 10_000
    counts = torch.bincount(inverse_cdf_sample(probs.unsqueeze(1).expand(4, 10_000), uniform), minlength=4)
    assert (counts / 10_000 - probs).abs().max() < 1e-3 and counts[1] == 0


def test_masked_actions_are_never_taken():
    torch.manual_seed(0)
    logits, mask = torch.randn(2000, 6) * 3, torch.rand(2000, 6) < 0.4
    mask[torch.arange(2000), torch.randint(6, (2000,))] = True
    policy = Categorical(logits, mask)
    for uniform in (torch.zeros(2000), torch.full((2000,), 1 - 2.0**-24), torch.rand(2000)):
        action = policy.sample(uniform)
        assert mask[torch.arange(2000), action].all() and policy.log_prob(action).isfinite().all()
    assert mask[torch.arange(2000), policy.mode()].all() and policy.entropy().isfinite().all()


def test_gaussian_equals_torch():
    mean, log_std, action = torch.randn(7, 3), torch.randn(3), torch.randn(7, 3)
    ours = DiagGaussian(mean, log_std)
    theirs = reference.Independent(reference.Normal(mean, log_std.exp().expand(7, 3)), 1)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
