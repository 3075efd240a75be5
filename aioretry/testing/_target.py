"""A deployment of the user's own, as its URI has it."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pymongo.uri_parser import parse_uri

from aioretry.testing._admin import split_address

_URI: Final = re.compile(
    r"mongodb(?P<srv>\+srv)?://(?P<user>[^@/?]*@)?(?P<hosts>[^/?]+)(?P<rest>[/?].*)?"
)
_OPTION: Final = re.compile(r"(?<=[?&])(?P<name>\w+)=[^&]*&?")
_NOT_FOR_A_PROXY: Final = re.compile(r"ssl|tls.*|srv.*", re.IGNORECASE)
_OF_A_RECORD: Final = ("authSource", "replicaSet", "loadBalanced")  # of DNS, with the hosts


@dataclass(frozen=True, slots=True)
class Target:
    """Where a deployment is.

    Attributes:
        hosts: where its servers are, as `host:port`.
        tls: how to speak to them; None for connections that aren't encrypted.
        rest: the URI after the hosts, for a client that comes without TLS.
    """

    hosts: tuple[str, ...]
    tls: ssl.SSLContext | None
    rest: str


class TargetURI:
    """The URI of a deployment.

    Args:
        uri: It begins with `mongodb://` or `mongodb+srv://`.

    Raises:
        ValueError: It does not, or names a Unix socket, or no host.
    """

    def __init__(self, uri: str) -> None:
        match = _URI.fullmatch(uri)
        if match is None or "%2f" in match["hosts"].lower():
            raise ValueError("uri is no mongodb://host:port,... URI, which is needed")
        self.user: str = match["user"] or ""
        self._uri = uri
        self._has_record = bool(match["srv"])
        self._hosts = tuple(match["hosts"].split(","))
        for host in self._hosts:
            split_address(host)  # refuses what it can't be
        self._rest = match["rest"] or "/"

    def find(self) -> Target:
        """Look its hosts up, where DNS has them, and read its files of TLS.

        Raises:
            OSError: A file can't be read.
            ValueError: An option of TLS can't be had at a proxy.
            pymongo.errors.PyMongoError: DNS has no such record, or an option is none.
        """
        names = {name.lower() for name in _OPTION.findall(self._rest)}
        if not self._has_record and not any(_NOT_FOR_A_PROXY.fullmatch(name) for name in names):
            return Target(self._hosts, None, self._rest)
        parsed = parse_uri(self._uri)
        options = parsed["options"]
        rest = _OPTION.sub(_kept, self._rest).rstrip("&?")
        more = [name for name in _OF_A_RECORD if name in options and name.lower() not in names]
        rest += "" if rest.startswith("/") else "/"
        for name in more if self._has_record else ():
            value = options[name]
            text = str(value).lower() if isinstance(value, bool) else value
            rest += f"{'&' if '?' in rest else '?'}{name}={text}"
        hosts = tuple(f"{host}:{port}" for host, port in parsed["nodelist"])
        return Target(hosts, _context(options) if options.get("tls") else None, rest)


def _kept(option: re.Match[str]) -> str:
    return "" if _NOT_FOR_A_PROXY.fullmatch(option["name"]) else option[0]


def _context(options: Mapping[str, Any]) -> ssl.SSLContext:
    if options.get("tlsCRLFile"):
        raise ValueError("uri: tlsCRLFile can't be had at a proxy")
    context = ssl.create_default_context(cafile=options.get("tlsCAFile"))
    is_insecure = options.get("tlsInsecure", False)
    takes_all = is_insecure or options.get("tlsAllowInvalidCertificates", False)
    if takes_all or options.get("tlsAllowInvalidHostnames", False):
        context.check_hostname = False
    if takes_all:
        context.verify_mode = ssl.CERT_NONE
    if key := options.get("tlsCertificateKeyFile"):
        context.load_cert_chain(key, password=options.get("tlsCertificateKeyFilePassword"))
    return context
