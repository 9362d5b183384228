"""Where imagined episodes terminate: the learned classifier against its oracle, and who decides, function or classifier."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from oracles.comparing import FLOAT32, assert_same_parameters
from oracles.terminations import ClassifierReference
from rl_training.algorithms.terminations import TOLERATED, LearnedTerminations, TerminationClassifier, deciding
from rl_training.base.state import Rng
from rl_training.runtime.loops.model_based import learn_terminations

CPU = torch.device("cpu")


def transitions(n=400, seed=0):
    """An episode terminates where the next observation's first entry is above one: of one in six."""
    rng = np.random.default_rng(seed)
    obs, actions = rng.normal(0, 2, (n, 2)).astype(np.float32), rng.uniform(-1, 1, (n, 1)).astype(np.float32)
    actions[:, 0] = 0.5  # an input that never changes
    next_obs = (0.5 * obs + 0.2 * rng.normal(size=(n, 2))).astype(np.float32)
    return {"obs": obs, "actions": actions, "next_obs": next_obs, "dones": (next_obs[:, 0] > 1).astype(np.float32)}


def rows_of(data):
    return data["obs"], data["actions"], data["next_obs"]


def above_one(obs, actions, next_obs):
    return next_obs[:, 0] > 1


def test_the_classifier_learns_what_its_oracle_learns(monkeypatch):
    monkeypatch.setattr(TerminationClassifier, "UPDATES", 12)
    monkeypatch.setattr(TerminationClassifier, "ROWS", 16)
    classifier = TerminationClassifier(obs_dim=2, action_dim=1, device=CPU)
    reference = ClassifierReference(classifier.network.body)
    data, fresh = transitions(), transitions(seed=1)
    rngs = [np.random.default_rng(3) for _ in range(2)]
    for _ in range(2):  # the second fit goes on from the first
        assert classifier.fit(data, rngs[0])
        reference.fit(data, rngs[1], 12, 16)
        assert_same_parameters(classifier.network.body, reference.body, tolerance=FLOAT32)
        assert float(classifier.network.prior) == pytest.approx(reference.prior)
        assert np.array_equal(classifier(*rows_of(fresh)), reference(*rows_of(fresh)))
        data = transitions(n=300, seed=2)


def test_half_of_the_batches_terminated_but_few_of_the_transitions_do():
    """Where both kinds look alike, the rarer one is not predicted."""
    rng = np.random.default_rng(0)
    data = {
        name: rng.normal(size=(500, d)).astype(np.float32) for name, d in (("obs", 2), ("actions", 1), ("next_obs", 2))
    }
    data["dones"] = (np.arange(500) % 10 == 0).astype(np.float32)
    classifier = TerminationClassifier(obs_dim=2, action_dim=1, device=CPU)
    assert classifier.fit(data, rng)
    assert classifier(*(rng.normal(size=(500, d)).astype(np.float32) for d in (2, 1, 2))).mean() < 0.3


def learned(function, known=True):
    return LearnedTerminations(function, known=known, obs_dim=2, action_dim=1, device=CPU)


def test_a_known_function_decides_until_the_data_contradicts_it():
    data = transitions()
    terminations = learned(above_one)
    assert terminations.contradictions(data) == 0 and terminations.known and terminations.function is above_one
    data["dones"][:2] = 1 - data["dones"][:2]
    assert TOLERATED * 400 < 2
    assert terminations.contradictions(data) == 2 and not terminations.known and terminations.function is None
    terminations.classifier.network.fitted.fill_(True)
    assert terminations.function is terminations.classifier and deciding(terminations) is terminations.classifier
    assert deciding(above_one) is above_one and deciding(None) is None


def test_rounding_at_a_threshold_is_no_contradiction():
    data = transitions(n=2_000)
    data["dones"][:2] = 1 - data["dones"][:2]
    terminations = learned(above_one)
    assert terminations.contradictions(data) == 2 and terminations.known  # two of two thousand
    data["dones"][2] = 1 - data["dones"][2]
    assert terminations.contradictions(data) == 3 and not terminations.known


def test_episodes_that_are_known_never_to_terminate():
    terminations, data = learned(None), transitions()
    assert terminations.known and terminations.function is None
    wrong = int(data["dones"].sum())
    assert terminations.contradictions({**data, "dones": 0 * data["dones"]}) == 0 and terminations.known
    assert terminations.contradictions(data) == wrong > 10 and not terminations.known


def test_what_is_learned_is_saved_with_the_agent():
    first, second = learned(above_one), learned(above_one)
    first.distrusted = True
    first.classifier.network.fitted.fill_(True)
    second.load_state_dict(first.state_dict())
    assert second.distrusted and second.function is second.classifier
    second.load_state_dict(None)
    assert second.distrusted


class Announced:
    """What ``learn_terminations`` asks of a run."""

    def __init__(self, step=3):
        self.step, self.counters, self.said, self.config = step, {}, [], SimpleNamespace(env_id="Nowhere-v0")

    def rng(self, name):
        return Rng(0, name)

    def announce(self, text):
        self.said.append(text)


@pytest.mark.parametrize(
    ("terminations", "dones", "decides", "said"),
    [
        (learned(above_one), None, "function", ()),
        (learned(above_one), 1, "classifier", ("is wrong for 70 of 400 transitions: not used", "a classifier")),
        (learned(None), 0, "nothing", ()),
        (learned(None), None, "classifier", ("is wrong for", "a classifier, learned from the data, ends rollouts")),
        (learned(None, known=False), None, "classifier", ("a classifier, learned from the data, ends rollouts",)),
        (learned(None, known=False), 0, "nothing", ("rollouts never end: the data shows no termination",)),
    ],
)
def test_after_a_fit_it_is_said_once_who_decides(monkeypatch, terminations, dones, decides, said):
    monkeypatch.setattr(TerminationClassifier, "UPDATES", 2)
    run, data = Announced(), transitions()
    if dones == 0:
        data["dones"][:] = 0
    elif dones == 1:  # the function is wrong about seventy of them
        data["dones"][:70] = 1 - data["dones"][:70]
    for _ in range(2):
        learn_terminations(run, terminations, data)
    assert len(run.said) == len(said) and all(part in text for part, text in zip(said, run.said))
    functions = {"function": above_one, "classifier": terminations.classifier, "nothing": None}
    assert terminations.function is functions[decides]
