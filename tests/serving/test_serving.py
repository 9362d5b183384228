"""A trained agent as a web service: what it answers is what ``predict`` says, alone and under load."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from toys import Counter, ImageEnv, tiny_config

pytest.importorskip("fastapi", reason="needs the serve extra")
pytest.importorskip("uvicorn", reason="needs the serve extra")
pytest.importorskip("orjson", reason="needs the serve extra")

from rl_training import PPO, SAC, Dreamer
from rl_training.base.trust import UntrustedCode
from rl_training.cli import main
from rl_training.experiment.checkpointing import CheckpointError, load_checkpoint, save_checkpoint
from rl_training.serving import app, batching, server
from rl_training.serving.app import Service
from rl_training.serving.batching import Batcher
from rl_training.serving.messages import Question, Refusal
from rl_training.serving.served import load_served

PATIENCE = 60.0  # seconds after which a test that hangs is ended


def learned(kind, algo, folder, env=None, **options):
    agent = kind(tiny_config(algo, folder, total_timesteps=48, eval_interval=0, **options), env=env)
    agent.learn()
    return agent


@pytest.fixture(scope="module")
def ppo(tmp_path_factory):
    return learned(PPO, "ppo", tmp_path_factory.mktemp("ppo"))


@pytest.fixture(scope="module")
def sac(tmp_path_factory):
    return learned(SAC, "sac", tmp_path_factory.mktemp("sac"))


@pytest.fixture(scope="module")
def dreamer(tmp_path_factory):
    return learned(Dreamer, "dreamer", tmp_path_factory.mktemp("dreamer"), env_id="Pendulum-v1")


class Running:
    """A service in a thread of this process, with a socket of its own."""

    def __init__(self, agent, **options):
        self.served = load_served(agent.checkpoint_path, "cpu")
        self.service = Service(self.served, **options)
        self.listener = server.listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.server = server.make_server(self.service)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True)
        self.thread.start()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, body, path="/predict", method="POST", connection=None, **headers):
        """The status and the JSON of an answer."""
        connection = connection or self.connect()
        connection.request(method, path, body if isinstance(body, bytes | None) else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def stop(self):
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        self.listener.close()
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def serving(ppo):
    running = Running(ppo)
    yield running
    running.stop()


# ---- answers


@pytest.mark.parametrize(
    ("kind", "options"),
    [("ppo", {}), ("ppo", {"max_batch": 5, "wait_ms": 1.0}), ("sac", {}), ("sac", {"threaded": True})],
)
def test_under_load_every_answer_is_what_predict_says(kind, options, request):
    agent = request.getfixturevalue(kind)
    running, wrong, most = Running(agent, **options), [], []
    act = running.service._batcher._act
    running.service._batcher._act = lambda rows, *rest: (most.append(len(rows)), act(rows, *rest))[1]
    size = running.served.spaces.obs_dim

    def client(number):
        connection, rng = running.connect(), np.random.default_rng(number)
        for turn in range(40):
            obs = rng.normal(size=(size,) if turn % 4 else (1 + turn % 5, size)).astype(np.float32)
            status, answer = running.ask({"obs": obs.tolist()}, connection=connection)
            expected = np.asarray(agent.predict(obs))
            if status != 200 or not np.allclose(answer["action"], expected, atol=1e-5):
                wrong.append((obs, status, answer, expected))
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    running.stop()
    assert wrong == [] and sum(most) == 8 * (30 + 10 * 1 + sum(turn % 5 for turn in range(0, 40, 4)))
    assert max(most) <= options.get("max_batch", 64)


def test_a_dreamers_episodes_through_the_server_are_those_of_predict_with_its_state(dreamer):
    running = Running(dreamer)
    try:
        obs = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
        text, state, rows_text, rows_state = None, None, None, None
        for t, row in enumerate(obs):
            status, answer = running.ask({"obs": row.tolist(), **({"state": text} if text else {})})
            action, state = dreamer.predict(row, state=state, return_state=True)
            assert status == 200 and np.allclose(answer["action"], action, atol=1e-5)
            text = answer["state"]

            batch = np.stack([row, -row])
            asked = {"obs": batch.tolist(), "episode_start": [False, t == 2]}
            _, answer = running.ask({**asked, **({"state": rows_text} if rows_text else {})})
            actions, rows_state = dreamer.predict(
                batch, state=rows_state, episode_start=np.array([False, t == 2]), return_state=True
            )
            assert np.allclose(answer["action"], actions, atol=1e-5)
            rows_text = answer["state"]
        for wrong in ("", "AAAA", "not base64!", 5, rows_text, text[:-8]):
            status, answer = running.ask({"obs": obs[0].tolist(), "state": wrong})
            assert status == 422 and "state" in answer["error"], wrong
    finally:
        running.stop()


def test_drawn_actions_are_drawn(sac):
    running = Running(sac)
    asked = {"obs": [0.1, 0.2, 0.3], "deterministic": False}
    drawn = {running.ask(asked)[1]["action"][0] for _ in range(4)}
    running.stop()
    assert len(drawn) > 1


def test_images_are_sent_as_numbers(tmp_path):
    agent = learned(PPO, "ppo", tmp_path, env=ImageEnv, num_steps=16, minibatch_size=16)
    running = Running(agent)
    image = np.random.default_rng(0).integers(256, size=(48, 48, 3))
    assert running.ask({"obs": image.tolist()}) == (200, {"action": agent.predict(image)})
    status, answer = running.ask({"obs": (image - 300).tolist()})
    running.stop()
    assert (status, answer["error"]) == (422, "pixels of observations are numbers from 0 to 255")


# ---- what is refused

REFUSED = [
    (b"not json", 400, "the body is not JSON"),
    (b"", 400, "the body is not JSON"),
    (b'{"obs": [NaN, 0, 0, 0]}', 400, "which knows no NaN"),
    (b'{"obs": [1e999, 0, 0, 0]}', 400, "the body is not JSON"),
    (b"[" * 5000, 400, "the body is not JSON"),
    ([1, 2], 422, "a request is an object with an observation"),
    ({}, 422, "a request is an object with an observation"),
    ({"obs": [0, 0, 0]}, 422, "observations have shape (4,) (or a batch of them), got (3,)"),
    ({"obs": [[0, 0, 0, 0], [0]]}, 422, "observations have shape (4,)"),
    ({"obs": []}, 422, "observations have shape (4,)"),
    ({"obs": [[0, 0, 0, 0]] * 65}, 422, "a request has 1 to 64 observations, got 65"),
    ({"obs": ["0", "0", "0", "0"]}, 422, "does not hold numbers alone"),
    ({"obs": {"a": 1}}, 422, "does not hold numbers alone"),
    ({"obs": None}, 422, "observations have shape (4,)"),
    ({"obs": [1e300, 0, 0, 0]}, 422, "observations must be finite numbers"),
    ({"obs": [0, 0, 0, 0], "deterministic": 1}, 422, "deterministic is true or false"),
    ({"obs": [0, 0, 0, 0], "obx": 1}, 422, "'obx' is no field of a request; there are obs, deterministic"),
    ({"obs": [0, 0, 0, 0], "state": "AAAA"}, 422, "PPO has no state from one observation to the next"),
    ({"obs": [0, 0, 0, 0], "episode_start": [True, False]}, 422, "episode_start is one truth value; got shape (2,)"),
    (b" " * 80_000, 413, "a request to this agent has at most 73,728 bytes"),
]


@pytest.mark.parametrize(("body", "status", "message"), REFUSED)
def test_a_malformed_request_is_refused_in_one_line_and_the_next_is_answered(serving, body, status, message):
    code, answer = serving.ask(body)
    assert code == status and message in answer["error"] and "\n" not in answer["error"] and list(answer) == ["error"]
    assert serving.ask({"obs": [0, 0, 0, 0]})[0] == 200


def test_a_body_without_a_length_is_cut_off_where_it_grows_too_large(serving):
    connection = serving.connect()
    connection.request("POST", "/predict", iter([b" " * 50_000] * 2), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection = serving.connect()
    connection.request("POST", "/predict", iter([b'{"obs": [0,', b"0, 0, 0]}"]), encode_chunked=True)
    assert connection.getresponse().status == 200


def test_a_body_that_does_not_arrive_is_not_waited_for(serving, monkeypatch):
    monkeypatch.setattr(app, "BODY_SECONDS", 0.05)
    with socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("path", ["/predict", "/health", "/openapi.json"])
def test_a_request_by_another_name_than_this_machines_is_refused(serving, path):
    for host in ("example.org", "localhost.example.org:80", ""):
        assert serving.ask(b"", path, Host=host) == (403, {"error": "ask for localhost or 127.0.0.1"})


def test_where_the_address_is_not_this_machines_alone_any_name_will_do(ppo):
    running = Running(ppo, local=False)
    answered = running.ask({"obs": [0, 0, 0, 0]}, Host="robot.example.org")[0]
    running.stop()
    assert answered == 200


def test_other_paths_and_methods(serving):
    assert serving.ask(None, "/health", "GET") == (
        200, {"status": "ok", "algo": "ppo", "env_id": "CartPole-v1", "step": serving.served.step},
    )  # fmt: skip
    assert serving.ask(None, "/nothing", "GET") == (404, {"error": "Not Found"})
    assert serving.ask(None, "/predict", "GET") == (405, {"error": "observations are sent by POST"})
    assert serving.ask(None, "/docs", "GET")[0] == 404  # a page that would load programs from elsewhere


def test_an_agent_that_fails_is_one_line_and_the_next_request_is_answered(ppo, capfd):
    running = Running(ppo)
    act, failing = running.service._batcher._act, [True]

    def fail_once(*arguments):
        if failing.pop() if failing else False:
            raise RuntimeError("the network is\nbroken")
        return act(*arguments)

    running.service._batcher._act = fail_once
    assert running.ask({"obs": [0, 0, 0, 0]}) == (500, {"error": "the agent failed"})
    assert running.ask({"obs": [0, 0, 0, 0]})[0] == 200
    running.stop()
    assert capfd.readouterr().err == "rl-training: error: the agent failed: the network is broken\n"


# ---- the schema


def test_the_schema_describes_observation_and_action(serving):
    jsonschema = pytest.importorskip("jsonschema")
    schema = serving.ask(None, "/openapi.json", "GET")[1]
    operation = schema["paths"]["/predict"]["post"]
    asked = operation["requestBody"]["content"]["application/json"]["schema"]
    answered = operation["responses"]["200"]["content"]["application/json"]["schema"]
    for body, status, _ in REFUSED:
        if status == 422 and "e+300" not in json.dumps(body) and "episode_start" not in body:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(body, {**asked, "not": {"required": ["state"]}})
    for obs in ([0, 0.5, 0, 0], [[0, 0, 0, 0]] * 3):
        jsonschema.validate({"obs": obs, "deterministic": True}, asked)
        jsonschema.validate(serving.ask({"obs": obs})[1], answered)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"action": 2}, answered)
    assert set(operation["responses"]) >= {"400", "413", "422"}


def test_the_schema_of_an_agent_with_a_state_and_a_box(dreamer):
    jsonschema = pytest.importorskip("jsonschema")
    running = Running(dreamer)
    operation = running.ask(None, "/openapi.json", "GET")[1]["paths"]["/predict"]["post"]
    answer = running.ask({"obs": [0, 0, 0]})[1]
    running.stop()
    answered = operation["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer, answered)
    assert answered["required"] == ["action", "state"]
    box = answered["properties"]["action"]["anyOf"][0]
    assert box["items"] == {"type": "number", "minimum": -2.0, "maximum": 2.0} and "[-2, 2]" in box["description"]
    asked = operation["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.validate({"obs": [0, 0, 0], "state": answer["state"]}, asked)


# ---- batches


class Asked:
    """Acts by adding up each row, and remembers the batches."""

    def __init__(self):
        self.batches = []

    def __call__(self, rows, carry, deterministic):
        self.batches.append((len(rows), deterministic))
        return rows.sum(1).tolist(), None if carry is None else carry + 1


def question(*values, deterministic=True, carry=None):
    return Question(np.array(values, float)[:, None], carry, deterministic, len(values) == 1)


def test_questions_that_come_together_are_one_batch_and_each_gets_its_own_rows():
    async def scenario():
        act = Asked()
        batcher = Batcher(act, max_batch=8)
        answers = await asyncio.gather(
            *(batcher.ask(question(i, carry=np.full((1, 2), i))) for i in range(3)),
            batcher.ask(question(7, 8, carry=np.full((2, 2), 7))),
        )
        assert act.batches == [(5, True)]
        assert [actions for actions, _ in answers] == [[0], [1], [2], [7, 8]]
        assert [carry.tolist() for _, carry in answers][2:] == [[[3, 3]], [[8, 8], [8, 8]]]

    asyncio.run(scenario())


def test_a_batch_has_no_more_rows_than_it_may_and_kinds_are_not_mixed():
    async def scenario():
        act = Asked()
        batcher = Batcher(act, max_batch=4)
        kinds = [True, True, False, True, True, True, False]
        answers = await asyncio.gather(
            *(batcher.ask(question(i, i + 1, deterministic=kind)) for i, kind in enumerate(kinds))
        )
        assert [actions for actions, _ in answers] == [[i, i + 1] for i in range(7)]
        assert act.batches == [(4, True), (4, False), (4, True), (2, True)]

    asyncio.run(scenario())


@pytest.mark.parametrize("threaded", [False, True])
def test_those_that_wait_a_while_are_joined_by_others_and_a_full_batch_does_not_wait(threaded):
    async def scenario():
        act = Asked()
        batcher = Batcher(act, max_batch=3, wait_seconds=PATIENCE, threaded=threaded)
        first = batcher.ask(question(1))
        await asyncio.sleep(0.01)
        assert act.batches == []  # it waits for others
        await asyncio.gather(first, batcher.ask(question(2)), batcher.ask(question(3)))
        assert act.batches == [(3, True)]
        batcher._wait = 0.01
        assert await batcher.ask(question(5)) == ([5], None)

    asyncio.run(scenario())


def test_what_comes_while_a_batch_is_computed_is_the_next_one():
    async def scenario():
        act, go, began = Asked(), threading.Event(), threading.Event()

        def slow(*arguments):
            began.set()
            assert go.wait(PATIENCE)
            return act(*arguments)

        batcher = Batcher(slow, max_batch=8, threaded=True)
        waiting = [batcher.ask(question(0))]
        while not began.is_set():
            await asyncio.sleep(0)  # the event loop is free meanwhile
        waiting += [batcher.ask(question(i)) for i in range(1, 4)]
        go.set()
        assert [actions for actions, _ in await asyncio.gather(*waiting)] == [[0], [1], [2], [3]]
        assert act.batches == [(1, True), (3, True)]

    asyncio.run(scenario())


def test_one_that_went_away_does_not_disturb_the_others(monkeypatch):
    async def scenario():
        batcher = Batcher(Asked(), max_batch=8)
        gone, there = batcher.ask(question(1)), batcher.ask(question(2))
        gone.cancel()
        assert await there == ([2], None)

    asyncio.run(scenario())


def test_a_failure_reaches_everybody_in_the_batch_and_too_many_are_refused(monkeypatch):
    def fail(*arguments):
        raise ValueError("broken")

    async def scenario():
        for threaded in (False, True):
            batcher = Batcher(fail, max_batch=8, threaded=threaded)
            outcomes = await asyncio.gather(*(batcher.ask(question(i)) for i in range(2)), return_exceptions=True)
            assert [str(error) for error in outcomes] == ["broken"] * 2
        monkeypatch.setattr(batching, "MOST_WAITING", 2)
        batcher = Batcher(Asked(), max_batch=8)
        first = batcher.ask(question(1, 2))
        with pytest.raises(Refusal, match="too many requests wait already"):
            batcher.ask(question(3))
        await first

    asyncio.run(scenario())


# ---- checkpoints


def altered(agent, folder, **changes):
    """A checkpoint of the agent with other metadata or config."""
    state = load_checkpoint(agent.checkpoint_path, buffers=False)
    state.buffer_state = None
    for name, value in changes.items():
        part = state.config if name in state.config else state.metadata
        if value is None:
            part.pop(name)
        else:
            part[name] = value
    return save_checkpoint(folder / "altered.ckpt", state)


def test_no_environment_is_made_and_nothing_imported(ppo, tmp_path, monkeypatch):
    path = altered(ppo, tmp_path, env_id="stranger_module:Stranger-v0")
    monkeypatch.setattr("gymnasium.make", lambda *a, **k: pytest.fail("made an environment"))
    served = load_served(path, "cpu")
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    assert served.act(obs, None, True)[0] == ppo.predict(obs).tolist() and "stranger_module" not in sys.modules


def test_a_checkpoint_of_before_makes_its_environment_if_that_may_be_trusted(ppo, tmp_path):
    served = load_served(altered(ppo, tmp_path, spaces=None), "cpu")
    assert served.spaces.obs_shape == (4,)
    with pytest.raises(UntrustedCode, match="--trust stranger_module"):
        load_served(altered(ppo, tmp_path, spaces=None, env_id="stranger_module:Stranger-v0"), "cpu")


def test_an_agent_of_an_environment_object_is_served_without_it(tmp_path):
    agent = learned(PPO, "ppo", tmp_path, env=lambda: Counter(limit=5))
    assert load_served(agent.checkpoint_path, "cpu").act(np.zeros((2, 1), np.float32), None, True)[0] == (
        agent.predict(np.zeros((2, 1))).tolist()
    )


@pytest.mark.parametrize(
    "facts",
    [
        5, {}, {"obs_shape": [4]}, {"choices": [3]}, {"obs_shape": [2**40]}, {"obs_shape": [4, 4]}, {"obs_shape": [5]},
        {"action_kind": "thought"}, {"action_kind": "box"}, {"start": "0"}, {"frames": 0}, {"choices": [-1]},
        {"action_kind": "box", "choices": [], "low": [float("nan")], "high": [1], "env_shape": [1], "env_dtype": "float32"},
        {"action_kind": "box", "choices": [], "low": [0], "high": [1, 2], "env_shape": [1], "env_dtype": "float32"},
        {"action_kind": "box", "choices": [], "low": [0], "high": [1], "env_shape": [1], "env_dtype": "object"},
    ],
)  # fmt: skip
def test_a_checkpoint_that_lies_about_its_spaces_is_refused(ppo, tmp_path, facts):
    whole = load_checkpoint(ppo.checkpoint_path, buffers=False).metadata["spaces"]
    lie = {**whole, **facts} if facts and isinstance(facts, dict) and facts != {"obs_shape": [4]} else facts
    with pytest.raises(CheckpointError, match="does not fit"):
        load_served(altered(ppo, tmp_path, spaces=lie), "cpu")


# ---- the command


def test_a_server_says_where_it_is_answers_and_stops_in_order_at_a_signal(ppo):
    words = [sys.executable, "-m", "rl_training", "serve", str(ppo.checkpoint_path.parent.parent), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        line = process.stdout.readline()
        assert line.startswith("ppo on CartPole-v1, step ") and "Ctrl-C stops" in line
        port = int(line.split("http://127.0.0.1:")[1].split("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("POST", "/predict", '{"obs": [0, 0, 0, 0]}')
        assert json.loads(connection.getresponse().read()) == {"action": ppo.predict([0, 0, 0, 0])}
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out, err) == (0, "stopped\n", "")
    finally:
        process.kill()


def test_an_orderly_stop_answers_what_was_asked_before_it(ppo):
    running, began, go = Running(ppo, threaded=True), threading.Event(), threading.Event()
    act, answers = running.service._batcher._act, []

    def slow(*arguments):
        began.set()
        assert go.wait(PATIENCE)
        return act(*arguments)

    running.service._batcher._act = slow
    client = threading.Thread(target=lambda: answers.append(running.ask({"obs": [0, 0, 0, 0]})))
    client.start()
    assert began.wait(PATIENCE)
    running.server.should_exit = True
    until = time.monotonic() + PATIENCE
    while running.listener.fileno() != -1 and running.server.servers and time.monotonic() < until:
        if not any(one.is_serving() for one in running.server.servers):
            break
        time.sleep(0.01)
    go.set()
    client.join(PATIENCE)
    running.thread.join(PATIENCE)
    assert answers == [(200, {"action": ppo.predict([0, 0, 0, 0])})] and not running.thread.is_alive()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no/such/run"], "no checkpoint at no/such/run"),
        (["RUN", "--max-batch", "0"], "--max-batch is at least 1"),
        (["RUN", "--wait-ms", "-1"], "--wait-ms from 0 to 60,000"),
        (["RUN", "--wait-ms", "nan"], "--wait-ms from 0 to 60,000"),
        (["RUN", "--port", "70000"], "a port is a number from 0 to 65535, got 70000"),
    ],
)
def test_a_mistake_is_one_line(ppo, words, message, capsys):
    assert main(["serve", *(str(ppo.checkpoint_path) if word == "RUN" else word for word in words)]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_a_port_that_is_taken_is_said(ppo, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(ppo.checkpoint_path), "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(ppo, capsys, monkeypatch):
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    assert main(["serve", str(ppo.checkpoint_path)]) == 2
    assert "serving needs the serve extra: pip install 'rl_training[serve]'" in capsys.readouterr().err


def test_a_request_as_large_as_a_batch_is_answered_when_nobody_waits(monkeypatch):
    async def scenario():
        monkeypatch.setattr(batching, "MOST_WAITING", 2)
        batcher = Batcher(lambda rows, carry, deterministic: (rows.tolist(), None), max_batch=8)
        return await batcher.ask(Question(np.zeros((5, 1), np.float32), None, True, False))

    assert len(asyncio.run(scenario())[0]) == 5
