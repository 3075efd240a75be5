"""What is left to the garbage collector, which holds up the event loop: nothing that went well."""

import json
import os
import subprocess
import sys


def test_no_cycles(servers_of_test, client_class):
    """No object of the library's is in one."""
    del client_class  # the other process makes it, too
    child = subprocess.run(
        [sys.executable, "-m", "tests.integration.garbage", servers_of_test.uri],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert {} == json.loads(child.stdout)
