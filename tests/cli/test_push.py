"""`isograd export --push` against a local server that speaks the hub's protocol: what lies there is the folder."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import transformers

from isograd.convert.parity import hashes
from tests.build import model
from tests.study.arms import called

TOKEN = "hf_local"


class Hub(ThreadingHTTPServer):
    """Repositories in memory: small files come in the commit, large ones by LFS before it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.large: dict[str, bytes] = {}
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        path, body = self.path.partition("?")[0], self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.asked.append(path)
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer({"error": "this token may not write here"}, 403)
        elif path == "/api/repos/create":
            said = json.loads(body)
            name = f"{said['organization']}/{said['name']}"
            self.server.repositories.setdefault(name, {})
            self._answer({"url": f"{self.server.url}/{name}", "name": name})
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in files}
            self._answer({"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]})
        elif path.endswith("/objects/batch"):
            actions = {
                one["oid"]: {"upload": {"href": f"{self.server.url}/{one['oid']}"}} for one in self._objects(body)
            }
            objects = [one | {"actions": actions[one["oid"]]} for one in self._objects(body)]
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            self._commit(path.split("/commit/")[0].removeprefix("/api/models/"), body)

    def do_PUT(self) -> None:
        length = self.headers["Content-Length"]
        content = b"".join(self._chunks()) if length is None else self.rfile.read(int(length))
        self.server.large[self.path.strip("/")] = content
        self._answer({})

    def _chunks(self) -> Iterator[bytes]:
        """Of a body whose length is not said before."""
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _objects(self, body: bytes) -> list[dict[str, Any]]:
        return list(json.loads(body)["objects"])

    def _commit(self, name: str, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.server.repositories[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.repositories[name][value["path"]] = self.server.large[value["oid"]]
        url = f"{self.server.url}/{name}/commit/1"
        self._answer({"commitUrl": url, "commitOid": "1" * 40, "success": True})

    def _answer(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(name="hub")
def _hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # its servers are not ours
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield hub
    hub.shutdown()
    thread.join()
    hub.server_close()


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own, of httpx
def test_what_is_pushed_is_the_folder(hub: Hub, tmp_path: Path) -> None:
    model().save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    code, _, err = called("export", str(tmp_path / "model"), "--out", str(out), "--push", "me/mine")
    assert code == 0 and "pushed: " in err and err.count("\n") == 1, err
    there = hub.repositories["me/mine"]
    assert {name: hashlib.sha256(content).hexdigest() for name, content in there.items() if name != "parity.json"} == (
        hashes(out)
    )
    assert there["parity.json"] == (out / "parity.json").read_bytes()
    assert len(hub.large) == 1  # the weights, before the commit
    copied = tmp_path / "copied"
    copied.mkdir()
    for name, content in there.items():
        (copied / name).write_bytes(content)
    assert type(transformers.AutoModelForCausalLM.from_pretrained(copied)).__name__ == "GPT2LMHeadModel"


def test_a_token_that_may_not_write_is_one_line(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    model().save_pretrained(tmp_path / "model")
    code, _, err = called("export", str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--push", "me/mine")
    assert code == 1 and err.startswith("isograd export: me/mine: not pushed (403") and err.count("\n") == 1, err
    assert (tmp_path / "out/model.safetensors").is_file() and not hub.repositories


def test_without_it_nobody_asks(hub: Hub, tmp_path: Path) -> None:
    model().save_pretrained(tmp_path / "model")
    assert called("export", str(tmp_path / "model"), "--out", str(tmp_path / "out"))[0] == 0
    assert hub.asked == []
