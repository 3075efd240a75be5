"""Servers that take encrypted connections, and certificates for them."""

from pathlib import Path

import trustme

from aioretry.testing import Mongod


def certificates(folder: Path) -> Path:
    """Put an authority's certificate into a folder, and those of a server and a client."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server = authority.issue_cert("127.0.0.1", "localhost")
    server.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    client = authority.issue_cert("client.example.net")
    client.private_key_and_cert_chain_pem.write_to_path(str(folder / "client.pem"))
    return folder


def with_tls(mongod: Mongod, folder: Path, *options: str) -> Mongod:
    """The same server, which takes encrypted connections too."""
    script = folder / "mongod"
    more = (
        f"--tlsMode allowTLS --tlsCertificateKeyFile {folder / 'server.pem'} "
        f"--tlsCAFile {folder / 'ca.pem'} {' '.join(options)}"
    )
    script.write_text(f'#!/bin/sh\nexec {mongod.path} "$@" {more}\n')
    script.chmod(0o755)
    return Mongod(script, mongod.version, mongod.env)
