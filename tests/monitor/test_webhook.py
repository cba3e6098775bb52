"""Alarms sent to an address: a server of this machine receives them, and one that fails stops nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import torch
from torch import nn

import edgewise
from tests.monitor.subjects import encoder, train


class Server(HTTPServer):
    """Keeps what is posted; answers with `code`."""

    code = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[tuple[str, Any]] = []
        self.address = f"http://127.0.0.1:{self.server_port}/alarms"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(
            (self.headers["Content-Type"], json.loads(body, parse_constant=pytest.fail))
        )
        self.send_response(self.server.code)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def not_a_number(webhook: str) -> tuple[Any, nn.Module]:
    """A run whose loss is not a number at its only step."""
    model = encoder()
    with edgewise.watch(model, everything=True, quiet=True, webhook=webhook) as handle:
        handle.log(loss=float("nan"))
        train(model, 1)
    return handle, model


def test_an_alarm_arrives_before_the_run_is_closed(server: Server) -> None:
    handle, _ = not_a_number(server.address)
    (alarm,) = handle.alarms
    ((kind, document),) = server.received
    assert kind == "application/json" and document["text"] == str(alarm)
    sent = document["alarm"]
    assert sent["kind"] == "not_a_number" and sent["symptom"] == "not a number" and sent["failing"]
    assert sent["step"] == 0 and sent["advice"] == alarm.try_next and sent["cause"] == alarm.cause


@pytest.mark.parametrize("how", ["error", "nobody"])
def test_a_webhook_that_fails_is_said_once_and_stops_nothing(
    how: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with quiet=True; the weights are those of an unwatched run."""
    server.code = 500
    handle, model = not_a_number(server.address if how == "error" else "http://127.0.0.1:1/")
    other = encoder()
    train(other, 1)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    handle.sinks.alert(handle.alarms[0])
    handle.sinks.close()
    assert handle.error == ""
    assert capsys.readouterr().err.count("an alarm could not be sent to the webhook") == 1
