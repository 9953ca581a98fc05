"""A small OpenAI-compatible endpoint on this machine: real HTTP, answers from a function."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], str | int]


class Endpoint:
    """Serves `POST /v1/chat/completions`; `answer(request)` gives the text, or an HTTP status to fail with.

    Like OpenAI's own servers it cuts the text before the first stop string and then says `finish_reason: stop`. With
    `names_stop` it says like vLLM which string that was.
    """

    def __init__(self, answer: Answer, names_stop: bool = False) -> None:
        self.requests: list[dict[str, Any]] = []
        self._names_stop = names_stop
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.requests.append(request)
                text = answer(request)
                status = text if isinstance(text, int) else 200
                body = json.dumps(endpoint.body(request, text)).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def body(self, request: dict[str, Any], text: str | int) -> dict[str, Any]:
        """An answer, or an error, in OpenAI's words."""
        if isinstance(text, int):
            return {"error": {"message": "no", "type": "invalid_request_error"}}
        place, stop = min(
            ((text.find(stop), stop) for stop in request.get("stop", ()) if stop in text), default=(None, None)
        )
        text = text[:place]
        message = {"role": "assistant", "content": text}
        return {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [
                {"index": 0, "message": message, "finish_reason": "stop"}
                | ({"stop_reason": stop} if self._names_stop else {})
            ],
        }

    def __enter__(self) -> Endpoint:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
