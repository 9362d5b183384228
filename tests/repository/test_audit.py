"""The audit of what is installed: licences by their SPDX names, and advisories from a database that may be out of reach."""

import json
import sys
import threading
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest


@pytest.fixture
def audit(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    import audit

    yield audit
    sys.modules.pop("audit", None)


def facts(**fields):
    message = Message()
    for name, value in fields.items():
        for text in value if isinstance(value, list) else [value]:
            message[name.replace("_", "-")] = text
    return message


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License_Expression": "MIT AND PSF-2.0"}, "MIT AND PSF-2.0"),
        ({"Classifier": ["License :: OSI Approved :: Apache Software License"]}, "Apache-2.0"),
        ({"License": "3-Clause BSD License"}, "BSD-3-Clause"),
        ({"License": "MPL-2.0 AND MIT"}, "MPL-2.0 AND MIT"),
        ({"License": "Something of our own"}, "Something of our own"),
        ({}, "unknown"),
    ],
)
def test_a_licence_is_read_from_newer_and_older_metadata(audit, fields, licence):
    assert audit.licence_of(facts(**fields)) == licence


@pytest.mark.parametrize(
    ("licence", "bad"),
    [
        ("MIT", []),
        ("Apache-2.0 OR GPL-3.0-only", []),
        ("(MIT AND GPL-3.0-only)", ["GPL-3.0-only"]),
        ("GPL-2.0-only", ["GPL-2.0-only"]),
        ("unknown", ["unknown"]),
    ],
)
def test_only_licences_on_the_list_are_allowed(audit, licence, bad):
    assert audit.not_allowed(audit.Package("a-package", "1.0", licence)) == bad


def test_everything_that_make_installs_has_a_licence_on_the_list(audit):
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text().lower()
    pinned = [package for package in audit.installed() if f"\n{package.name.lower()}==" in pins]
    assert len(pinned) > 20 and not [package for package in pinned if audit.not_allowed(package)]


def test_a_database_out_of_reach_is_said_in_one_line_and_fails_only_if_asked(audit, monkeypatch, capsys):
    monkeypatch.setattr(audit, "installed", lambda: [audit.Package("a-package", "1.0", "MIT")])
    nowhere = ["--database", "http://127.0.0.1:9/"]
    assert audit.main(nowhere) == 0 and audit.main([*nowhere, "--strict"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("advisories:")]
    assert len(lines) == 2 and all("cannot be reached" in line for line in lines)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ({"results": [{"vulns": [{"id": "OSV-1"}]}, {}]}, 1, "a-package 1.0: OSV-1"),
        ({"results": [{}, {}]}, 0, "2 packages, 0 with a known weakness"),
        (["odd"], 0, "its answer cannot be read"),
    ],
)
def test_a_known_weakness_fails_the_audit(audit, monkeypatch, capsys, answer, code, said):
    class Database(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            assert asked[0] == {"package": {"name": "a-package", "ecosystem": "PyPI"}, "version": "1.0"}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *words):
            pass

    packages = [audit.Package("a-package", "1.0", "MIT"), audit.Package("another", "2.0", "MIT")]
    monkeypatch.setattr(audit, "installed", lambda: packages)
    with HTTPServer(("127.0.0.1", 0), Database) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert audit.main(["--database", f"http://127.0.0.1:{server.server_port}/"]) == code
    assert said in capsys.readouterr().out
