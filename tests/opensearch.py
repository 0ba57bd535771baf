"""A server that answers what the documentation of OpenSearch says, as far as our example asks."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np


class Cluster:
    """Indexes and their aliases; `answer` is the interface by HTTP."""

    def __init__(self) -> None:
        self.mappings: dict[str, Any] = {}
        self.passages: dict[str, list[dict[str, Any]]] = {}
        self.searchable: dict[str, int] = {}  # passages of an index when it was last refreshed
        self.aliases: dict[str, str] = {}
        self.searches: list[dict[str, Any]] = []  # their bodies

    def answer(self, method: str, path: str, body: str) -> tuple[int, Any]:
        """Returns status and body of the answer to a request."""
        match [method, *path.strip("/").split("/")]:
            case ["HEAD", "_alias", name]:
                return (200 if name in self.aliases else 404), None
            case ["DELETE", index]:
                self.passages.pop(index, None)
                return 200, {"acknowledged": True}
            case ["PUT", index] if index not in self.passages:
                created = json.loads(body)
                assert created["settings"] == {"index": {"knn": True}}
                self.mappings[index] = created["mappings"]["properties"]
                self.passages[index] = []
                return 200, {"acknowledged": True, "index": index}
            case ["POST", index, "_bulk"]:
                lines = [json.loads(line) for line in body.splitlines()]
                assert all(action == {"index": {}} for action in lines[::2])
                self.passages[index] += lines[1::2]
                done = [{"index": {"status": 201}} for _ in lines[::2]]
                return 200, {"errors": False, "items": done}
            case ["POST", index, "_refresh"]:
                self.searchable[index] = len(self.passages[index])
                return 200, {}
            case ["PUT", index, "_alias", name]:
                self.aliases[name] = index
                return 200, {"acknowledged": True}
            case ["POST", name, "_search"]:
                self.searches.append(json.loads(body))
                return 200, {"hits": {"hits": self._search(self.aliases[name])}}
        return 400, {"error": f"not expected: {method} {path}"}

    def _search(self, index: str) -> list[dict[str, Any]]:
        asked = self.searches[-1]
        lexical, dense = asked["query"]["hybrid"]["queries"]
        (nearest,) = dense["knn"].values()
        passages = self.passages[index][: self.searchable.get(index, 0)]
        words = [(f"{p['title']} {p['text']}").lower().split() for p in passages]
        query = lexical["match"]["words"].lower().split()
        rankings = (
            # A stand-in for BM25, which the server computes in a way of its own.
            _best(lambda i: sum(map(words[i].count, query)), len(passages), asked["size"]),
            _best(
                lambda i: inner_product_score(passages[i]["vector"], nearest["vector"]),
                len(passages),
                nearest["k"],
            ),
        )
        fused = fuse(rankings)
        kept = sorted(fused, key=fused.__getitem__, reverse=True)[: asked["size"]]
        return [
            {"_score": fused[i], "_source": {name: passages[i][name] for name in asked["_source"]}}
            for i in kept
        ]


def _best(score: Callable[[int], float], n: int, size: int) -> dict[int, float]:
    scores = {i: score(i) for i in range(n) if score(i) > 0}
    return dict(sorted(scores.items(), key=lambda item: -item[1])[:size])


def inner_product_score(a_D: Any, b_D: Any) -> float:
    """Returns the documented score of `innerproduct`: greater than 0, in the order of products."""
    product = float(np.dot(a_D, b_D))
    return product + 1 if product > 0 else 1 / (1 - product)


def fuse(rankings: Any) -> dict[int, float]:
    """Returns the mean of scores that lie between 0 and 1 in each ranking; 0 where it lacks one."""
    fused: dict[int, float] = {}
    for ranking in filter(None, rankings):
        low, high = min(ranking.values()), max(ranking.values())
        for i, score in ranking.items():
            fused[i] = fused.get(i, 0) + (score - low) / (high - low) / len(rankings)
    return fused


@contextmanager
def serving(cluster: Cluster) -> Iterator[str]:
    """Serves at a free port, and gives the address."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            status, answer = cluster.answer(self.command, self.path.split("?")[0], body)
            sent = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = answer

        def log_message(self, *_: Any) -> None:
            """Prints no line for each request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
