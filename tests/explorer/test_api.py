"""The API over HTTP: exact verdicts in the shell's words, refusals in sentences, and no stranger gets in."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgewise
from edgewise.present import wording

fastapi_client = pytest.importorskip("fastapi.testclient", reason="the extra `explore` is not installed")

from edgewise.explorer import requests  # noqa: E402
from edgewise.explorer.server import (  # noqa: E402
    LARGEST_BODY,
    RequestGuard,
    _listener,
    allowed_hosts,
    application,
    serve,
)

AXES = {
    "x": {"knob": "mlp_in_gain", "low": 0.1, "high": 2},
    "y": {"knob": "attention_branch", "low": 0, "high": 1},
}
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "edgewise" / "explorer" / "static"
FILES = [path for end in ("js", "css", "html") for path in FOLDER.rglob(f"*.{end}")]
STATIC = sorted(path.relative_to(FOLDER).as_posix() for path in FILES)
FOREIGN = re.compile(r"(https?:)?//\w+\.\w|<script(?! type=\"module\" src)| style=\"| on\w+=\"")
SMALL = {"preset": "transformer", "depth": 6, "tokens": 16}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    app = RequestGuard(application(), allowed_hosts(8765))
    with fastapi_client.TestClient(app, base_url="http://127.0.0.1:8765") as client:
        yield client


def test_the_verdict_of_a_point_is_the_exact_one_in_the_shells_words(client: Any) -> None:
    wanted = {"source": SMALL, "knobs": {"attention_branch": 0.4}, "fixes": True}
    answer = client.post("/api/1/point", json=wanted).json()
    network = edgewise.transformer(depth=6, tokens=16, attention_branch=0.4).replace(name="transformer")
    verdict = edgewise.judge(edgewise.predict(network))
    assert answer["outcome"].lower() == verdict.outcome.value and answer["title"] == wording.title(verdict)
    assert answer["chance"].replace("\u00a0", " ").lower().rstrip(".") == wording.why(verdict)
    assert answer["sentences"].replace("\u00a0", " ") == " ".join(wording.sentences(verdict))
    assert answer["curves"]["overlap"] == list(verdict.profile.overlap)
    names: dict[str, Any] = {}
    exec(
        answer["code"].replace("print", "verdict = (lambda v: v)"), names
    )  # our own lines, as a user would paste them
    assert names["network"] == network and names["verdict"].outcome is verdict.outcome


def test_fixes_are_those_of_the_verdict(client: Any) -> None:
    source = {
        "config": json.dumps({"depth": 24, "tokens": 32, "norm": "post", "activation": "tanh"}),
        "name": "mine",
    }
    answer = client.post("/api/1/point", json={"source": source, "fixes": True}).json()
    network = edgewise.transformer(depth=24, tokens=32, norm="post", activation="tanh")
    verdict = edgewise.judge(edgewise.predict(network))
    assert [row["change"] for row in answer["fixes"]["rows"]] == [
        remedy.sentence for remedy in verdict.remedies[:3]
    ]
    assert answer["title"].startswith("mine")


def test_a_map(client: Any) -> None:
    answer = client.post("/api/1/map", json={"source": SMALL, **AXES, "points": 5}).json()
    assert len(answer["share"]) == 25 and answer["x"]["count"] == 5 and 0 <= min(answer["share"]) <= 1000
    gpt2 = {"preset": "gpt2", "depth": 4, "tokens": 16}
    causal = client.post("/api/1/map", json={"source": gpt2, **AXES, "points": 3})
    assert "leaves mask and positions out" in causal.json()["caption"]


def test_long_networks_are_followed_over_fewer_tokens_and_say_so(client: Any) -> None:
    answer = client.post("/api/1/network", json={"preset": "gpt2"}).json()
    assert answer["positions"] and answer["tokens"] == requests.USUAL_WITH_POSITIONS
    assert "64 of 128 tokens" in answer["note"] and ", causal." in answer["note"]
    assert ", no mask." in client.post("/api/1/network", json=SMALL).json()["note"]


def test_a_report_is_a_file_without_script(client: Any) -> None:
    answer = client.post("/api/1/report", json={"source": SMALL})
    assert "attachment" in answer.headers["content-disposition"] and "<script" not in answer.text
    assert "Content-Security-Policy" in answer.text and answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path, body, sentence",
    [
        ("network", {"preset": "nothing"}, "is not a preset"),
        ("network", {}, "a preset or a config"),
        ("network", {"preset": "gpt2", "tokens": 4000}, "more than this page follows"),
        ("network", {"config": '{"model_type": "mamba"}', "name": "c.json"}, "mamba"),
        ("network", {"config": "[1]"}, "holds no config"),
        ("network", {"config": '{"weight_variance": 1}'}, "perceptron"),
        ("network", {"config": '{"depth": 1000, "tokens": 8}'}, "more than"),
        ("network", {"preset": "gpt2", "surprise": 1}, "surprise"),
        ("map", {"source": SMALL, "x": AXES["x"], "y": AXES["x"]}, "two knobs"),
        (
            "map",
            {"source": SMALL, "x": {"knob": "mlp_in_gain", "low": 2, "high": 1}, "y": AXES["y"]},
            "low below high",
        ),
        ("map", {"source": SMALL, **AXES, "points": 9999}, "points"),
        ("point", {"source": SMALL, "knobs": {"depth": 3}}, "knobs"),
        ("point", {"source": SMALL, "knobs": {"value_gain": -1}}, "value_gain"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refusals_are_sentences(client: Any, path: str, body: dict[str, Any], sentence: str) -> None:
    answer = client.post(f"/api/1/{path}", json=body)
    assert answer.status_code == 422 and sentence in answer.json()["error"]


BROKEN = ["{", "NaN", '{"depth": NaN}', '{"depth": 1e999}', "[" * 20000, '{"a": "\\ud800"}', '""']


@pytest.mark.parametrize("config", BROKEN, ids=range(len(BROKEN)))
def test_a_hostile_config_gets_a_sentence(client: Any, config: str) -> None:
    answer = client.post("/api/1/network", json={"config": config, "name": "<img src=x>"})
    assert answer.status_code == 422 and answer.json()["error"]


def test_only_this_machines_own_page_is_answered(client: Any) -> None:
    point = {"source": SMALL}
    for headers, status in [
        ({"host": "evil.example:8765"}, 421),
        ({"host": "127.0.0.1:80"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://127.0.0.1:8765"}, 200),
        ({"host": "localhost:8765", "origin": "http://localhost:8765"}, 200),
    ]:
        answer = client.post("/api/1/point", json=point, headers=headers)
        assert answer.status_code == status, headers
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers
    plain = client.post("/api/1/point", content=json.dumps(point), headers={"content-type": "text/plain"})
    assert plain.status_code == 422  # what a foreign form could send is not read
    big = client.post(
        "/api/1/network", content=b" " * (LARGEST_BODY + 1), headers={"content-type": "application/json"}
    )
    assert big.status_code == 413


def test_others_need_the_token() -> None:
    app = RequestGuard(application(), None, "secret-of-this-test")
    with fastapi_client.TestClient(app, base_url="http://192.0.2.1:8765") as client:
        assert client.get("/api/1/catalogue").status_code == 401
        assert client.get("/api/1/catalogue", headers={"x-edgewise-token": "wrong"}).status_code == 401
        assert client.get("/?token=secret-of-this-test").status_code == 200  # leaves a cookie
        assert client.get("/api/1/catalogue").status_code == 200
        evil = client.get("/api/1/catalogue", headers={"origin": "http://evil.example"})
        assert evil.status_code == 403
    with pytest.raises(edgewise.BadInput, match="--share"):
        serve("0.0.0.0", 0, False, print)


@pytest.mark.parametrize(
    "path", ["/../server.py", "/..%2fserver.py", "/server.py", "/static/app.js", "/docs", "/%00"]
)
def test_nothing_but_the_page_is_served(client: Any, path: str) -> None:
    assert client.get(path).status_code in (404, 422)


def test_the_page_and_its_schema(client: Any) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "unsafe" not in page.headers["content-security-policy"]
    for name in STATIC:
        text = client.get(f"/{name}").text.replace("http://www.w3.org/2000/svg", "")
        assert text and not FOREIGN.search(text.replace("http://www.w3.org/1998/Math/MathML", "")), name
    schema = client.get("/api/1/openapi.json").json()
    paths = {path.removeprefix("/api/1/").partition("/")[0] for path in schema["paths"]}
    assert paths >= {"point", "map", "network", "report", "catalogue", "depth", "runs", "run", "papers"}


def test_every_view_of_the_bar_is_a_module_and_every_module_in_the_bar(client: Any) -> None:
    bar = re.findall(
        r'\["(\w+)", "\w+", \(\) => import\("\./views/(\w+)\.js"\)\]', client.get("/app.js").text
    )
    assert bar and all(name == module for name, module in bar)
    assert {f"views/{name}.js" for name, _ in bar} == {name for name in STATIC if name.startswith("views/")}


def test_the_theory_page_is_that_of_the_docs() -> None:
    pytest.importorskip("latex2mathml", reason="the extra `docs` is not installed")
    subprocess.run([sys.executable, ROOT / "tools" / "theory_page.py", "--check"], check=True)


def test_links_to_the_theory_lead_to_its_headings(client: Any) -> None:
    headings = set(re.findall(r'<h2 id="([\w-]+)"', client.get("/theory.html").text))
    scripts = [client.get(f"/{name}").text for name in STATIC if name.endswith(".js")]
    used = {match for text in scripts for match in re.findall(r'(?:why\(|section: )"([\w-]+)"', text)}
    assert used and used <= headings


def test_an_address_that_is_told_can_be_opened_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser may be faster than the server that has just told its address."""
    uvicorn = pytest.importorskip("uvicorn")
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)

    def connect(address: str) -> None:
        socket.create_connection(
            ("127.0.0.1", int(address.rstrip("/").rpartition(":")[2])), timeout=5
        ).close()

    serve("127.0.0.1", 0, False, connect)


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """With Nagle's algorithm the body of an answer follows its head 40 ms later."""

    async def undelayed(listener: socket.socket) -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            server_side = writer.get_extra_info("socket")
            accepted.set_result(server_side.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await accepted

    assert asyncio.run(undelayed(_listener("127.0.0.1", 0)))


def test_without_the_extra_its_name_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from edgewise.cli.main import run

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "edgewise.explorer.server")  # it has imported it already
    assert run(["explore", "--port", "0"]) == 64
    assert 'pip install "edgewise[explore]"' in capsys.readouterr().err
