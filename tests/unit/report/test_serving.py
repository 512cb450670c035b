"""The live server: this machine alone, reading alone, new data alone."""

import http.client
import json
import socket
import threading

import numpy as np
import pytest

from dograph.errors import ConfigError
from dograph.report.server import Handler, Server
from page_runs import step_row, write_run


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", steps=30, total=60)


@pytest.fixture
def server(run):
    with Server([run], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path="/", method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_and_its_data(server):
    answer, body = ask(server)
    assert answer.status == 200
    assert b'data-live="yes"' in body
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    answer, body = ask(server, "/data.json")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert json.loads(body)["page"]["verdict"].startswith("30 of 60 steps done")


@pytest.mark.parametrize("sent", [b"", b"GET /data.json HTTP/1.1\r\nHost: "])
def test_an_idle_connection_is_closed_and_others_are_served(server, monkeypatch, sent):
    assert Handler.timeout <= 60
    monkeypatch.setattr(Handler, "timeout", 0.1)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as idle:
        idle.sendall(sent)
        assert ask(server)[0].status == 200
        assert idle.recv(1) == b""


def test_it_listens_on_the_loopback_alone(server):
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "0.0.0.0"])
def test_another_name_gets_nothing(server, host):
    answer, body = ask(server, "/data.json", host=host)
    assert answer.status == 403
    assert b"steps" not in body


def test_localhost_is_this_machine_too(server):
    assert ask(server, host=f"localhost:{server.server_port}")[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(server, method):
    assert ask(server, method=method)[0].status == 501


@pytest.mark.parametrize(
    "path", ["/config.yaml", "/../run/config.yaml", "/%2e%2e/config.yaml", "//etc/passwd"]
)
def test_no_other_file_is_served(server, path):
    assert ask(server, path)[0].status in (404, 400)


def test_only_news_are_sent(server, run):
    told = json.loads(ask(server, "/data.json")[1])
    assert told["wait"] >= 3
    assert ask(server, f"/data.json?since={told['version']}")[0].status == 204
    with open(run / "metrics.jsonl", "a") as file:
        row = step_row(31, np.random.default_rng(0), "natural", ("alpha",), {})
        file.write(json.dumps(row) + "\n")
    answer, body = ask(server, f"/data.json?since={told['version']}")
    assert answer.status == 200
    news = json.loads(body)
    assert news["page"]["verdict"].startswith("31 of 60 steps done")
    assert news["version"] != told["version"]


def test_a_taken_port_is_told(server, run):
    with pytest.raises(ConfigError, match="--port"):
        Server([run], server.server_port)


def test_a_comparison_is_followed_as_its_runs_come(tmp_path):
    folder = tmp_path / "compare"
    folder.mkdir()
    (folder / "ask.json").write_text("{}")
    with Server([folder], 0) as live:
        assert live.look()[0].runs == []
        write_run(folder / "cells" / "my-method-s0", steps=30, total=60)
        first = live.look()
        assert [(run.name, run.group) for run in first[0].runs] == [("my-method-s0", "my-method")]
        assert live.look() is first
        write_run(folder / "cells" / "natural-s0", steps=10, total=60)
        assert [run.steps for run in live.look()[0].runs] == [30, 10]
