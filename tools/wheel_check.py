"""Ask an installed edgewise for its page, as `make release-check` does: files, an answer of a worker, an example.

cd / && python tools/wheel_check.py        with the python of the environment to be tried
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any
from urllib.request import Request, urlopen

FILES = ("", "app.js", "progress.js", "views/map.js", "views/landscape.js", "style.css", "theory.html")
SECONDS = 300


def answer(address: str, path: str, question: dict[str, Any]) -> Any:
    body, header = json.dumps(question).encode(), {"content-type": "application/json"}
    with urlopen(Request(f"{address}api/1/{path}", body, header), timeout=SECONDS) as reply:
        return json.load(reply)


def main() -> None:
    command = [sys.executable, "-P", "-u", "-m", "edgewise", "explore", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            match = re.search(r"http://\S+", server.stdout.readline())
            assert match is not None, "the server printed no address"
            for name in FILES:
                assert urlopen(match[0] + name, timeout=SECONDS).status == 200, name
            print(answer(match[0], "point", {"source": {"preset": "gpt2", "tokens": 16}})["title"])
            print(answer(match[0], "landscape", {"planes": ["example after training"]})["title"])
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
