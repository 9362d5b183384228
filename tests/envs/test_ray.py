"""Ray: environments in actors, runs as tasks, a node lost in the middle. On a cluster of two nodes, made here."""

import contextlib
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import toys
from rl_training.cli import main
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.envs.remote import RayLink
from rl_training.envs.replay import episode_seed
from rl_training.envs.watchdog import Watchdog
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import dump_yaml, newest_checkpoint
from rl_training.runtime.workflows import resume_training
from toys import Broken, StopAt, same_end

ray = pytest.importorskip("ray")


@contextlib.contextmanager
def cluster_of_two_nodes():
    from ray.cluster_utils import Cluster

    ray.shutdown()
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.nodes_of_test = [made.add_node(num_cpus=1) for _ in range(2)]
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def shared_cluster():
    with cluster_of_two_nodes() as made:
        yield made


@pytest.fixture(autouse=True)
def classes_of_the_tests_go_along():
    """Workers cannot import the tests' modules, so their classes are sent as they are."""
    ray.cloudpickle.register_pickle_by_value(toys)
    yield
    ray.cloudpickle.unregister_pickle_by_value(toys)


@pytest.fixture
def at_the_cluster(shared_cluster, monkeypatch):
    if ray.is_initialized() and ray.get_runtime_context().gcs_address != shared_cluster.address:
        ray.shutdown()  # another test's cluster
    monkeypatch.setenv("RAY_ADDRESS", shared_cluster.address)
    return shared_cluster


@pytest.fixture
def cluster_to_lose():
    """A cluster of the test's own: Ray takes minutes to notice a lost node, and would place other tests' actors there."""
    with cluster_of_two_nodes() as made:
        yield made


def test_a_run_with_environments_on_ray_stopped_and_resumed_equals_one_without_ray(tiny, at_the_cluster):
    spec = get_algorithm_spec("ppo")
    here = spec.train(tiny("ppo", num_envs=2, total_timesteps=192), run_suffix="here")
    there = tiny("ppo", num_envs=2, total_timesteps=192, execution_backend="ray")
    stopped = spec.train(there, run_suffix="there", callbacks=[StopAt(77)])
    assert stopped.metrics["global_step"] < 192
    resumed = resume_training(stopped.run_dir)
    same_end(load_checkpoint(here.checkpoint_path), load_checkpoint(resumed.checkpoint_path))


def test_an_environment_that_raises_elsewhere_says_what_it_raised(at_the_cluster):
    collector = Collector(EnvFactory(lambda: Broken("raises", at=3), {}), 1, seed=0, backend="ray")
    actions = np.zeros(1, np.int64)
    collector.step(actions)
    collector.step(actions)
    with pytest.raises(EnvironmentFailure, match="KeyError: 'the simulator lost a wheel' at step 2"):
        collector.step(actions)
    collector.close()


def test_a_worker_that_hangs_is_given_up_with_what_it_had_been_sent(at_the_cluster):
    class Sleepy(toys.Counter):
        def step(self, action):
            if self.t == 2:
                time.sleep(600)
            return super().step(action)

    factory = EnvFactory(lambda: Sleepy(limit=9), {}, watchdog=Watchdog(5.0))
    collector = Collector(factory, 1, 7, backend="ray")
    for action in (1, 0):
        collector.step(np.array([action]))
    with pytest.raises(EnvironmentFailure, match="has not answered for 5 seconds, twice at step 2") as failed:
        collector.step(np.array([1]))
    collector.close()
    report = failed.value.incident
    assert (report["episode"], report["actions"]) == (0, [1, 0, 1]) and report["seed"] == episode_seed(7, 0, 0)


def test_actors_step_several_environments_with_a_message_each_and_a_lost_one_is_repeated(at_the_cluster, monkeypatch):
    factory, sent, send = EnvFactory("CartPole-v1", {}), [], RayLink.send
    monkeypatch.setattr(RayLink, "send", lambda link, *order: (sent.append(order), send(link, *order))[1])
    here, there = Collector(factory, 5, 7), Collector(factory, 5, 7, backend="ray", workers=2)
    try:
        rng = np.random.default_rng(0)
        for t in range(30):
            if t == 12:
                ray.kill(there._workers._workers[1].link._actor)
            actions, episodes = rng.integers(2, size=5), here.episodes
            sent.clear()
            there.step(actions)
            here.step(actions)
            assert np.array_equal(here.obs, there.obs)
            if t != 12 and here.episodes == episodes:
                assert [(name, len(places)) for name, places in sent] == [("step", 3), ("step", 2)]
        assert here.metrics() == there.metrics() and here.episodes > 2
    finally:
        there.close()


@pytest.mark.timeout(600)  # on a busy machine Ray takes minutes to notice the loss
def test_a_sweep_loses_a_node_and_ends_as_if_it_had_not(tiny, cluster_to_lose, tmp_path, capsys):
    steps = {"total_timesteps": 12_000, "checkpoint_interval": 500, "log_interval": 500, "eval_interval": 0}
    (tmp_path / "config.yaml").write_text(dump_yaml(tiny("ppo", num_envs=2, **steps).plain()))
    words = ["sweep", "--config", str(tmp_path / "config.yaml"), "--seeds", "1-2"]
    assert main([*words, "--name", "here"]) == 0

    def lose_a_node():
        while len(list(tmp_path.glob("there/ppo__*/checkpoints/step_*.ckpt"))) < 1:
            time.sleep(0.05)
        cluster_to_lose.remove_node(cluster_to_lose.nodes_of_test.pop(), allow_graceful=False)

    thief = threading.Thread(target=lose_a_node)
    thief.start()
    ray.shutdown()  # the command connects by itself
    assert main([*words, "--name", "there", "--backend", "ray", "--address", cluster_to_lose.address]) == 0
    thief.join()
    assert "2 finished in" in capsys.readouterr().out
    for seed in (1, 2):
        name = f"ppo__CartPole-v1__seed{seed}__default"
        same_end(*(newest_checkpoint(tmp_path / place / name)[1] for place in ("here", "there")))


def test_a_search_on_ray_writes_where_the_command_was_started(tiny, at_the_cluster, tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(dump_yaml(tiny("ppo", num_envs=2).plain()))
    (tmp_path / "space.yaml").write_text("algo_kwargs.gamma: {low: 0.8, high: 0.99}\n")
    ray.shutdown()  # the command connects by itself
    words = [
        "tune",
        "--config",
        "config.yaml",
        "--space",
        "space.yaml",
        "--trials",
        "2",
        "--output-dir",
        "out",
        "--name",
        "t",
    ]
    assert main([*words, "--backend", "ray", "--address", at_the_cluster.address]) == 0
    assert "2 complete" in capsys.readouterr().out
    assert len(list(tmp_path.glob("out/t/ppo__*/checkpoints/*.ckpt"))) >= 2 and (tmp_path / "out/t/best.yaml").exists()


def test_an_address_where_no_cluster_is_gets_one_line(tiny, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(dump_yaml(tiny("ppo").plain()))
    words = ["sweep", "--config", str(tmp_path / "config.yaml"), "--backend", "ray", "--address"]
    for address, complaint in (("localhost:1", "no Ray cluster at localhost:1"), ("nowhere", "is host:port, or auto")):
        ray.shutdown()
        assert main([*words, address]) == 2
        shown = capsys.readouterr().err
        assert complaint in shown and len(shown.strip().splitlines()) == 1


def test_numbers_of_the_last_info_come_from_actors_too(at_the_cluster):
    factory, actions = EnvFactory(toys.Reaching, {}), np.zeros(2, np.int64)
    here = Collector(factory, 2, seed=0, log_info=["distance"])
    there = Collector(factory, 2, seed=0, log_info=["distance"], backend="ray")
    try:
        for _ in range(12):
            here.step(actions)
            there.step(actions)
        assert there.metrics() == here.metrics() and 1 <= here.metrics()["info/distance"] <= 2
        assert "success_rate" in there.metrics()
    finally:
        there.close()


def test_arguments_of_environments_in_actors_can_be_changed(at_the_cluster, monkeypatch):
    # workers look where this process was told to look for modules of the user's
    monkeypatch.setattr("rl_training.base.modules._added", [str(Path(toys.__file__).parent)])
    factory, actions = EnvFactory("toys:Reaching-v0", {}), np.zeros(1, np.int64)
    collectors = [Collector(factory, 1, seed=0, log_info=["distance"], backend=backend) for backend in ("local", "ray")]
    try:
        for collector in collectors:
            for t in range(17):
                collector.step(actions)
                if t == 2:
                    collector.set_env_kwargs({"limit": 8, "scale": 10.0})
        here, there = collectors
        assert [episode.length for episode in there.recent] == [5, 8] and there.metrics() == here.metrics()
        assert here.recent[-1].info["distance"] >= 10
        again = Collector(factory, 1, seed=0, log_info=["distance"], backend="ray")
        collectors.append(again)
        again.load_state_dict(there.state_dict())
        assert not again.lost.any() and (again.obs == here.obs).all()
    finally:
        for collector in collectors[1:]:
            collector.close()
