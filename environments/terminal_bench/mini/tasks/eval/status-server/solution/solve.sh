#!/bin/bash
set -e
cat >/app/server.py <<'EOF'
import json
import re
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        found = re.fullmatch(r"/count/(\w+)", self.path)
        if self.path == "/health":
            self.reply(200, "ok")
        elif found:
            with open("/app/words.txt", encoding="utf-8") as file:
                words = re.findall(r"\w+", file.read().lower())
            count = words.count(found[1].lower())
            self.reply(200, json.dumps({"word": found[1], "count": count}))
        else:
            self.reply(404, "")

    def reply(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        pass


HTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
EOF
cat >/app/start.sh <<'EOF'
setsid python3 /app/server.py >/dev/null 2>&1 </dev/null &
for _ in $(seq 50); do
  (exec 3<>/dev/tcp/127.0.0.1/8080) 2>/dev/null && exit 0
  sleep 0.1
done
exit 1
EOF
