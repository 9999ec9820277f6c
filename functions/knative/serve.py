"""Serves a Python function the way Knative calls one: a POST of a JSON object to $PORT, answered by the object that main(args) returns.

    python3 serve.py FILE

What a request leaves out is taken from $ARGUMENTS, a JSON object. A function that fails is a 500 with {"error": why}; GET says that it is up.
"""
import http.server
import json
import os
import runpy
import sys
import traceback


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200, {"ok": True})

    def do_POST(self):
        try:
            if "Transfer-Encoding" in self.headers:
                raise ValueError("it must have a Content-Length")
            request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
            if not isinstance(request, dict):
                raise ValueError("it is another kind of JSON")
        except ValueError as error:
            self.answer(400, {"error": f"the body must be a JSON object: {error}"})
            return
        try:
            self.answer(200, main({**arguments, **request}))
        except Exception as error:
            traceback.print_exc()
            self.answer(500, {"error": str(error)})

    def answer(self, status, result):
        body = json.dumps(result).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 400:
            self.send_header("Connection", "close")  # nobody knows where the body ends
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code="-", size="-"):
        pass  # Knative keeps the access log


if __name__ == "__main__":
    main = runpy.run_path(sys.argv[1])["main"]
    arguments = json.loads(os.environ.get("ARGUMENTS", "{}"))
    http.server.ThreadingHTTPServer(("", int(os.environ.get("PORT", 8080))), Handler).serve_forever()
