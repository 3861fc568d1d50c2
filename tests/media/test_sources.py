"""Where media come from, and what is refused."""

import base64
import io
import os
import ssl
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.media import MediaError
from relax_core.media.sources import Sources, is_path


def sources(urls: bool = False, largest: int = 1000, seconds: float = 30.0) -> Sources:
    return Sources(urls, largest, seconds)


def refused(source: str, **settings: object) -> str:
    """The reason for which a source is not read; the message names it."""
    with pytest.raises(MediaError) as error:
        sources(**settings).read(source)  # type: ignore[arg-type]
    assert source[:50] in str(error.value)
    return error.value.reason


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"picture")
    assert sources().read(str(tmp_path / "a.png")) == b"picture"


@pytest.mark.parametrize(
    ("name", "reason"), [("nowhere.png", "missing"), ("folder", "missing"), ("empty", "empty"), ("large", "too_large")]
)
def test_a_file_that_is_none_is_told(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(bytes(1001))
    assert refused(str(tmp_path / name)) == reason


def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(str(tmp_path / "pipe")) == "missing"


def test_members_of_archives_are_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name, data in (("x/1.png", b"first"), ("2.png", b"second"), ("large", bytes(2000))):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    read = sources()
    assert [read.read(f"{path}#{name}") for name in ("2.png", "x/1.png")] == [b"second", b"first"]
    assert refused(f"{path}#3.png") == "missing"
    assert refused(f"{path}#large") == "too_large"
    assert refused(f"{tmp_path}/other.tar#2.png") == "missing"
    path.write_bytes(b"no archive at all")
    with pytest.raises(MediaError) as error:
        read.read(f"{path}#2.png")
    assert error.value.reason == "damaged", "what changed is read anew"


@given(data=st.binary(min_size=1, max_size=200), named=st.sampled_from(["image/png", "application/x-npy", ""]))
def test_data_urls_hold_their_bytes(data: bytes, named: str) -> None:
    url = f"data:{named};base64,{base64.b64encode(data).decode()}"
    assert not is_path(url)
    assert sources().read(url) == data


def test_a_data_url_that_is_none_is_told() -> None:
    assert refused("data:image/png;base64,a") == "damaged"
    assert refused("data:image/png;base64,") == "empty"
    assert refused("data:image/png;base64," + "A" * 2000) == "too_large"
    assert sources().read("data:text/plain,a%20b") == b"a b"


@pytest.mark.parametrize("url", ["https://127.0.0.1/a.png", "http://127.0.0.1/a.png", "file:///etc/hostname"])
def test_urls_are_refused_unless_they_are_allowed(url: str) -> None:
    assert refused(url) == "refused"


@pytest.mark.parametrize("url", ["http://127.0.0.1/a.png", "file:///etc/hostname", "ftp://127.0.0.1/a.png"])
def test_only_https_is_ever_fetched(url: str) -> None:
    assert refused(url, urls=True) == "refused"


class Server(BaseHTTPRequestHandler):
    """A picture, one without end, one that is elsewhere, and nothing else."""

    def do_GET(self) -> None:
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname")
            self.end_headers()
        elif self.path in ("/a.png", "/endless"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"picture" if self.path == "/a.png" else bytes(5000))
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a server with a certificate that this process trusts."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{listening.server_port}"
        listening.shutdown()


def test_https_is_fetched_within_its_limits(server: str) -> None:
    assert sources(urls=True).read(f"{server}/a.png") == b"picture"
    assert refused(f"{server}/endless", urls=True) == "too_large"
    assert refused(f"{server}/nowhere", urls=True) == "missing"
    assert refused(f"{server}/away", urls=True) == "missing"
