"""Posts a document over HTTPS; prints the first line of the answer, or what went wrong.

Runs as `python -I -S -c`, with nothing but the standard library.
"""
import os
import socket


def main():
    value = lambda name: os.environ["RANKLAUNCH_POST_" + name]
    host, port = value("HOST"), int(value("PORT"))
    connection = socket.create_connection((host, port), 3)
    if value("TLS"):
        import ssl

        context = ssl.create_default_context(cafile=value("CA") or None)
        connection = context.wrap_socket(connection, server_hostname=host)
    body = value("BODY").encode()
    lines = [f"POST {value('PATH')} HTTP/1.1", f"Host: {value('AUTHORITY')}", "Content-Type: application/json",
             f"Content-Length: {len(body)}", "Connection: close"]
    if value("TOKEN"):
        with open(value("TOKEN")) as token:
            lines.append(f"Authorization: Bearer {token.read().strip()}")
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    answer = b""
    while b"\n" not in answer and len(answer) < 4096:
        more = connection.recv(4096)
        if not more:
            break
        answer += more
    return answer.split(b"\n")[0].strip().decode("latin-1")


try:
    print(main())
except Exception as error:
    print(f"{type(error).__name__}: {error}")
