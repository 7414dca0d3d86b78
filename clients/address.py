"""What listens at an address, told where the one who was expected does not answer."""

from __future__ import annotations

import httpx
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from clients import wire
from clients.wire import NoServerError

PROBE_S = 2.0


def host_port(url: str) -> str:
    """HOST:PORT of an address that may be written as `http://HOST:PORT/`. Raises ValueError for https, which Triton
    does not speak, and for what has no port."""
    scheme, mark, rest = url.rpartition("://")
    address = rest.split("/", 1)[0]
    if mark and scheme not in ("http", "grpc"):
        raise ValueError(f"the address is '{url}': a server of ours speaks no {scheme}, give HOST:PORT")
    if not address.rpartition(":")[2].isdecimal():
        raise ValueError(f"the address is '{url}': it has no port, give HOST:PORT, such as {wire.GRPC_URL}")
    return address


def not_grpc(url: str) -> NoServerError:
    """Why gRPC got no answer at HOST:PORT."""
    if _answers(url, "/v2/health/live"):
        return NoServerError(url, f"{url} is the HTTP port, gRPC is another ({_port(wire.GRPC_URL)} by default)")
    if _answers(url, "/metrics"):
        return NoServerError(url, f"{url} is the metrics port, gRPC is another ({_port(wire.GRPC_URL)} by default)")
    return NoServerError(url)


def not_http(url: str) -> NoServerError | None:
    """Why HTTP was not understood at HOST:PORT, where that is plain."""
    client = triton_grpc.InferenceServerClient(url)
    try:
        if not client.is_server_live(client_timeout=PROBE_S):
            return None
    except InferenceServerException:
        return None
    finally:
        client.close()
    return NoServerError(url, f"{url} is the gRPC port, HTTP is another ({_port(wire.HTTP_URL)} by default)")


def _answers(url: str, path: str) -> bool:
    try:
        return httpx.get(f"http://{url}{path}", timeout=PROBE_S).status_code == httpx.codes.OK
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def _port(url: str) -> str:
    return url.rpartition(":")[2]
