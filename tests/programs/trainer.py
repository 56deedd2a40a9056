"""The status server of Kubeflow's Trainer, as a pod sees it: HTTPS, one path, a bearer token.

argv: a folder with cert.pem, key.pem and token; the path. Writes its port to the file `port`, and each status that
it took as a line of the file `taken`. It refuses as the real one does: 404, 401, 422.
"""

import http.server
import json
import os
import ssl
import sys

folder, path = sys.argv[1:]


class Status(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        with open(os.path.join(folder, "token")) as token:
            expected = f"Bearer {token.read().strip()}"
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(self.path, self.headers.get("Authorization"), expected, body)

    def answer(self, asked, given, expected, body):
        if asked != path:
            return self.send(404)
        if given != expected:
            return self.send(401)
        try:
            status = json.loads(body)["trainerStatus"]
            assert 0 <= status["progressPercentage"] <= 100 and status["lastUpdatedTime"].endswith("Z")
            assert all(isinstance(one["value"], str) for one in status["metrics"])
        except (ValueError, KeyError, AssertionError):
            return self.send(422)
        with open(os.path.join(folder, "taken"), "a") as taken:
            taken.write(json.dumps(status) + "\n")
        return self.send(200)

    def send(self, code):
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()


server = http.server.HTTPServer(("127.0.0.1", 0), Status)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem"))
server.socket = context.wrap_socket(server.socket, server_side=True)
with open(os.path.join(folder, ".port"), "w") as file:
    file.write(str(server.server_port))
os.rename(os.path.join(folder, ".port"), os.path.join(folder, "port"))
server.serve_forever()
