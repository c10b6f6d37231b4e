"""A stand-in for the API of a model, on loopback, for real MCP clients: it asks for tool calls and records what the
client hands to the model.

It speaks what Claude Code (`/v1/messages`), Codex (`/v1/responses`), opencode (`/v1/chat/completions`) and Gemini CLI
(`/v1beta/models/MODEL:generateContent`) speak. What
it asks for is a generator: it yields a `ToolCall`, and is sent the text that the model would read as its result.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    Conversation = Generator["ToolCall", str, None]

DONE = "All done."
_MODEL = "stand-in"


class ToolCall(NamedTuple):
    """The name without the prefix that a client puts before the tools of a server."""

    tool: str
    arguments: dict[str, Any]


class Model:
    """`seen` has the bodies of the requests that offered our tools; `offered` the tools of the first of them."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._lock = threading.Lock()
        self._pending: ToolCall | None = None
        self._number = 0
        self._over = False
        self.problem: BaseException | None = None
        # Called with each request that offers our tools, before it is answered.
        self.asks: Callable[[], None] = lambda: None
        self.seen: list[dict[str, Any]] = []
        self.offered: dict[str, dict[str, Any]] = {}
        self.asked: set[str] = set()
        self.refused: list[str] = []

    @property
    def finished(self) -> bool:
        return self._over

    def next(self, results: dict[str, str]) -> tuple[str, ToolCall] | None:
        """The call to ask for now. A request that is sent again gets the same one."""
        with self._lock:
            if self._pending is None and not self._over:
                self._advance(None)
            elif self._pending is not None and self._id in results:
                self._advance(results[self._id])
            return None if self._pending is None else (self._id, self._pending)

    @property
    def _id(self) -> str:
        return f"call_{self._number}"

    def _advance(self, result: str | None) -> None:
        self._number += 1
        try:
            self._pending = next(self._conversation) if result is None else self._conversation.send(result)
        except StopIteration:
            self._pending, self._over = None, True
        except BaseException as problem:  # noqa: BLE001  the test raises it again, in its own thread
            self._pending, self._over, self.problem = None, True, problem
        if self._pending is not None:
            self.asked.add(self._pending.tool)


class ModelApi:
    """Serves one `Model` at `url`. It is a proxy too, one that refuses: a client reaches nothing but loopback."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(model))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ModelApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(model: Model) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_CONNECT(self) -> None:
            model.refused.append(self.path)
            self.send_error(403)

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_GET(self) -> None:
            if not self.path.startswith("/"):
                model.refused.append(self.path)
            self.send_error(404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            path = self.path.partition("?")[0]
            speak = _DIALECTS.get(path.rpartition(":")[2] if ":" in path else path)
            if speak is None:
                if not path.startswith("/"):
                    model.refused.append(path)
                self.send_error(404)
                return
            asked = {"stream": "stream" in path, **json.loads(body)}
            events = speak(model, asked)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream" if asked.get("stream") else "application/json")
            self.end_headers()
            self.wfile.write(_sse(events) if asked.get("stream") else json.dumps(_whole(path, events)).encode())

    return Handler


def _sse(events: list[dict[str, Any]]) -> bytes:
    lines = []
    for event in events:
        if "type" in event:
            lines.append(f"event: {event['type']}\n")
        lines.append(f"data: {json.dumps(event)}\n\n")
    if "type" not in events[-1] and "choices" in events[-1]:
        lines.append("data: [DONE]\n\n")
    return "".join(lines).encode()


def _whole(path: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    """For requests that are not streamed: none of those that offer tools is."""
    if ":" in path:
        return events[0]
    if path.endswith("/responses"):
        return dict(events[-1]["response"])
    if path.endswith("/completions"):
        message = {"role": "assistant", "content": DONE}
        return {"id": "c", "object": "chat.completion", "model": _MODEL, "choices": [_choice(message=message)]}
    content = [{"type": "text", "text": DONE}]
    return {**events[0]["message"], "content": content, "stop_reason": "end_turn"}


def _wanted(model: Model, asked: dict[str, Any], tools: dict[str, dict[str, Any]], results: dict[str, str]) -> Any:
    """The call to ask for, with the name that the client has for the tool; None: the model answers that all is done."""
    if not any("holdfast" in name for name in tools):
        return None  # a title for the conversation, say
    model.seen.append(asked)
    model.asks()
    model.offered = model.offered or tools
    following = model.next(results)
    if following is None:
        return None
    id, call = following
    (name,) = [name for name in tools if name.endswith(f"_{call.tool}") and "holdfast" in name] or [call.tool]
    return id, name, json.dumps(call.arguments)


# Anthropic: /v1/messages


def _messages(model: Model, asked: dict[str, Any]) -> list[dict[str, Any]]:
    tools = {tool["name"]: tool for tool in asked.get("tools", ())}
    wanted = _wanted(model, asked, tools, dict(_tool_results(asked)))
    usage = {"input_tokens": 10, "output_tokens": 10}
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": _MODEL, "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    block: dict[str, Any]
    waits = [name for name in tools if name == "WaitForMcpServers"]
    if wanted is None and waits and not any("holdfast" in name for name in tools):
        # The server is still starting: a model that wants its tools waits for it.
        wanted = "wait", waits[0], "{}"
    if wanted is None:
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": DONE}
    else:
        id, name, arguments = wanted
        block = {"type": "tool_use", "id": id, "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": arguments}
    reason = "end_turn" if wanted is None else "tool_use"
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


def _tool_results(asked: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for message in asked["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "tool_result":
                yield block["tool_use_id"], _text(block.get("content", ""))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content if "text" in block)


def strings(value: Any) -> str:
    """Every text and number in structured content."""
    if isinstance(value, dict):
        return "\n".join(map(strings, value.values()))
    if isinstance(value, list):
        return "\n".join(map(strings, value))
    return str(value)


# OpenAI: /v1/responses


def _responses(model: Model, asked: dict[str, Any]) -> list[dict[str, Any]]:
    tools: dict[str, dict[str, Any]] = {}
    for tool in asked.get("tools", ()):
        if tool["type"] == "namespace":
            tools |= {f"{tool['name']}|_{each['name']}": each for each in tool["tools"]}
        elif "name" in tool:
            tools[tool["name"]] = tool
    results = {
        item["call_id"]: _text(item["output"]) for item in asked["input"] if item["type"] == "function_call_output"
    }
    wanted = _wanted(model, asked, tools, results)
    item: dict[str, Any]
    if wanted is None:
        content = [{"type": "output_text", "text": DONE, "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    else:
        id, name, arguments = wanted
        space, _, plain = name.rpartition("|_")
        item = {"type": "function_call", "id": "fc_1", "call_id": id, "name": plain, "arguments": arguments}
        item |= {"status": "completed"} | ({"namespace": space} if space else {})
    usage: dict[str, Any] = {"input_tokens": 10, "output_tokens": 10, "total_tokens": 20}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    response = {"id": "resp_1", "object": "response", "model": _MODEL, "status": "completed"}
    return [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {**response, "output": [item], "usage": usage}},
    ]


# OpenAI: /v1/chat/completions


def _completions(model: Model, asked: dict[str, Any]) -> list[dict[str, Any]]:
    tools = {tool["function"]["name"]: tool["function"] for tool in asked.get("tools", ())}
    results = {each["tool_call_id"]: _text(each["content"]) for each in asked["messages"] if each["role"] == "tool"}
    wanted = _wanted(model, asked, tools, results)
    delta: dict[str, Any] = {"role": "assistant", "content": DONE}
    if wanted is not None:
        id, name, arguments = wanted
        function = {"name": name, "arguments": arguments}
        delta = {"role": "assistant", "tool_calls": [{"index": 0, "id": id, "type": "function", "function": function}]}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": _MODEL}
    usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
    return [
        {**chunk, "choices": [_choice(delta=delta)]},
        {**chunk, "choices": [_choice(delta={}, reason="stop" if wanted is None else "tool_calls")], "usage": usage},
    ]


def _choice(reason: str | None = None, **content: Any) -> dict[str, Any]:
    return {"index": 0, "finish_reason": reason, **content}


# Gemini: /v1beta/models/MODEL:generateContent


def _generate_content(model: Model, asked: dict[str, Any]) -> list[dict[str, Any]]:
    tools = {each["name"]: each for tool in asked.get("tools", ()) for each in tool.get("functionDeclarations", ())}
    results = {}
    for content in asked["contents"]:
        for answer in (each["functionResponse"] for each in content["parts"] if "functionResponse" in each):
            results[answer["id"]] = strings(answer["response"])
    wanted = _wanted(model, asked, tools, results)
    part: dict[str, Any] = {"text": DONE}
    if wanted is not None:
        id, name, arguments = wanted
        part = {"functionCall": {"id": id, "name": name, "args": json.loads(arguments)}}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}
    return [{"candidates": [candidate], "usageMetadata": usage, "modelVersion": _MODEL}]


_DIALECTS = {
    "/v1/messages": _messages,
    "/v1/responses": _responses,
    "/v1/chat/completions": _completions,
    "generateContent": _generate_content,
    "streamGenerateContent": _generate_content,
}
