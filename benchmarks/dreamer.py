"""Dreamer's updates on images: how many per processor second, where the time goes, and what a full buffer takes.

    python benchmarks/dreamer.py [--rounds 7] [--no-record]

Size tiny, 16 sequences of 64 images of 64 x 64 x 3, one thread. Everything in turn, several rounds, medians. The result goes to
benchmarks/results/speed/dreamer.json; memory is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "speed" / "dreamer.json"
LENGTH, BATCH, SIDE, ACTIONS, FRAMES = 64, 16, 64, 6, 100_000
ASKED = {"world_model_per_cpu_second": 1.4, "buffer_gb": 1.3, "process_gb": 2.0}


def learner(kernels: bool = True):
    import torch

    from rl_training.algorithms.dreamer import Dreamer
    from rl_training.models.dreamer import SIZES
    from rl_training.runtime.engine import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    agent = Dreamer(obs_shape=(3, SIDE, SIDE), size=SIZES["tiny"], num_actions=ACTIONS)
    if kernels:
        agent.use_compiled()  # as a run of more than a hundred updates does
    return agent


def random_batch(shape: tuple[int, int]) -> dict:
    """Sequences (T, B) of random pixels, actions and rewards."""
    import torch

    return {
        "obs": torch.randint(256, (*shape, 3, SIDE, SIDE), dtype=torch.uint8),
        "actions": torch.randint(ACTIONS, shape),
        "rewards": torch.randn(shape),
        "dones": torch.zeros(shape),
        "episode_starts": torch.zeros(shape),
    }


def work(agent) -> dict[str, Callable]:
    """What is timed. Parts of the world model run forward and backward on their own, from random inputs."""
    import torch

    model, rssm, plain = agent.world_model, agent.world_model.rssm, learner(kernels=False)
    shape = (LENGTH, BATCH)
    batch = random_batch(shape)
    target, noise = model.encoder.target(batch["obs"]), rssm.noise(*shape)
    tokens = torch.randn(*shape, model.encoder.width, requires_grad=True)
    features = torch.randn(*shape, model.width, requires_grad=True)
    inputs, weights = agent.actor.as_inputs(batch["actions"]), torch.randn(*shape, model.encoder.width)

    def back(output: torch.Tensor, *inputs: torch.Tensor, modules: tuple = ()) -> None:
        leaves = [*inputs, *(p for module in modules for p in module.parameters())]
        torch.autograd.grad(output, leaves, allow_unused=True)

    def recurrence() -> None:
        states, logp = rssm.observe(tokens, inputs, batch["episode_starts"], rssm.initial(BATCH), noise)
        back(states.deter.sum() + states.stoch.square().sum() + logp.square().sum(), tokens, modules=(rssm,))

    def heads() -> None:
        reward = model.bins.loss(model.reward(features).log_softmax(-1), batch["rewards"]).mean()
        prior = rssm.prior(features[..., : rssm.size.deter]).square().mean()
        modules = (model.reward, model.goes_on, rssm.prior_net)
        back(reward + prior + model.continue_logits(features).mean(), features, modules=modules)

    def behaviour() -> None:
        back(agent._actor_loss(imagined)[0], modules=(agent.actor,))
        back(agent._critic_loss(imagined), modules=(agent.critic,))

    with torch.no_grad():
        observed, _, _ = agent.observe(batch)
        imagined = agent._imagine(observed)
        gradient = torch.zeros_like(agent.world_optimizer.flat)
    return {
        "world model": lambda: agent.update_world_model(batch, global_step=0),
        "world model, without our kernels": lambda: plain.update_world_model(batch, global_step=0),
        "everything": lambda: agent.update(batch, global_step=0),
        "encoder": lambda: back((model.encoder(target) * weights).sum(), modules=(model.encoder,)),
        "decoder and its loss": lambda: back(model.decoder.loss(features, target), features, modules=(model.decoder,)),
        "recurrence": recurrence,
        "prior, reward, continuation": heads,
        "optimizer": lambda: agent.world_optimizer.step(gradient),
        "imagination": lambda: agent._imagine(observed),
        "actor and critic from it": behaviour,
    }


def times(rounds: int) -> dict[str, list[float]]:
    """Processor seconds of everything, each round."""
    timed = work(learner())
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds + 1):
        for name, function in timed.items():
            start = time.process_time()
            function()
            seconds[name].append(time.process_time() - start)
    return {name: [round(x, 4) for x in taken[1:]] for name, taken in seconds.items()}  # the first is a warm-up


def memory() -> dict[str, float]:
    """Gigabytes (10^9 bytes) of a buffer of 100,000 images, and of a process that learns from it, at its most."""
    import numpy as np

    from rl_training.data import RecurrentReplayBuffer

    buffer = RecurrentReplayBuffer(FRAMES, 1, (3, SIDE, SIDE), LENGTH, np.uint8, (), np.int64)
    image = np.random.default_rng(0).integers(256, size=(1, 3, SIDE, SIDE), dtype=np.uint8)
    zero = np.zeros(1, np.float32)
    for _ in range(FRAMES):
        buffer.add(obs=image, actions=zero, rewards=zero, next_obs=image, dones=zero)
    agent = learner()
    for _ in range(3):
        agent.update(buffer.sample(BATCH), global_step=0)
    stored = sum(column.nbytes for column in buffer._columns.values())
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"frames": len(buffer), "buffer_gb": round(stored / 1e9, 3), "process_gb": round(most / 1e9, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="times everything runs")
    parser.add_argument("--memory", action="store_true", help="measure the memory of this process, and nothing else")
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    if args.memory:
        return print(json.dumps(memory()))
    from rl_training.experiment.runs import provenance

    facts = provenance()
    facts.pop("command")
    alone = subprocess.run(
        [sys.executable, __file__, "--memory"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = times(args.rounds)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    result = {
        "unit": "dreamer",
        "what": f"Dreamer tiny, {BATCH} sequences of {LENGTH} pictures of {SIDE} x {SIDE} x 3, one thread",
        **facts,
        "rows": [],  # no peer is measured beside it
        "asked": ASKED,
        "world_model_per_cpu_second": round(1 / medians["world model"], 3),
        "updates_per_cpu_second": round(1 / medians["everything"], 3),
        "memory": json.loads(alone.stdout.splitlines()[-1]),
        "seconds": medians,
        "raw": seconds,
    }
    print(json.dumps({name: result[name] for name in (*list(result)[-6:-1], "asked")}, indent=1))
    if not args.no_record:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
