"""Distributions equal torch.distributions; masks; the ends of the unit interval."""

import torch
from torch import distributions as reference

from powerband.nets.distributions import Categorical, DiagGaussian, MultiCategorical, inverse_cdf_sample, softmax


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


def test_the_heads_of_an_action_are_independent_distributions():
    torch.manual_seed(0)
    logits, heads, action = torch.randn(60, 9), (2, 3, 4), torch.stack([torch.randint(n, (60,)) for n in (2, 3, 4)], 1)
    mask = torch.rand(60, 9) < 0.5
    mask[:, [0, 2, 5]] = True
    allowed = logits.masked_fill(~mask, -torch.inf)
    for given, expected in ((None, logits), (mask, allowed)):
        ours = MultiCategorical(logits, heads, given)
        theirs = [reference.Categorical(logits=part) for part in expected.split(heads, 1)]
        drawn = ours.sample(torch.rand(60, 3))
        for chosen in (ours.mode(), drawn, action) if given is None else (ours.mode(), drawn):
            wanted = sum(part.log_prob(chosen[:, i]) for i, part in enumerate(theirs))
            torch.testing.assert_close(ours.log_prob(chosen), wanted)
        torch.testing.assert_close(ours.entropy(), sum(part.entropy() for part in theirs))
        assert torch.equal(ours.mode(), torch.stack([part.probs.argmax(1) for part in theirs], 1))
