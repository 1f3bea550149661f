"""A separate JupyterLab, and a page in Debian's Chromium to use it."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.request import ProxyHandler, build_opener

import pytest
from playwright.sync_api import expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--disable-gpu", "--no-first-run", "--disable-background-networking"]
START_SECONDS = 180
expect.set_options(timeout=30_000)  # milliseconds; the limits here also suffice on a busy machine

# Written before the server starts: no question about news, and all cells rendered so that they can be found.
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}


@pytest.fixture(scope="session")
def artifacts():
    """The folder for screenshots and logs."""
    folder = Path(__file__).parents[1] / "artifacts"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory, artifacts, browser):
    """A server on a free loopback port: its `url`, `token` and `folder`. It ignores the user's Jupyter settings."""
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "work"
    folder.mkdir()
    for name, values in SETTINGS.items():
        file = home / "SETTINGS_DIR" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    environment = os.environ | {"JUPYTER_PREFER_ENV_PATH": "1", "IPYTHONDIR": str(home / "ipython")}
    for place in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR"):
        environment[f"JUPYTER_{place}"] = str(home / place)
    for place in ("SETTINGS_DIR", "WORKSPACES_DIR"):
        environment[f"JUPYTERLAB_{place}"] = str(home / place)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder}",
        "--expose-app-in-browser",
        "--JupyterNotebookApp.expose_app_in_browser=True",
    ]
    if os.geteuid() == 0:
        command.append("--allow-root")
    with open(artifacts / "jupyter.log", "w") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        await_server(server, f"{url}/api?token={token}")
        yield SimpleNamespace(url=url, token=token, folder=folder)
    finally:
        server.terminate()
        server.wait(60)


def await_server(server, url):
    direct = build_opener(ProxyHandler({}))  # no proxy for loopback
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            direct.open(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail("JupyterLab did not start; see tests/artifacts/jupyter.log")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH (on Debian and Ubuntu: apt install chromium)")
    as_root = ["--no-sandbox"] * (os.geteuid() == 0)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET + as_root)
        yield browser
        browser.close()


@pytest.fixture
def errors():
    """The errors in the page's console so far; any left at the end fail the test."""
    return []


@pytest.fixture
def page(browser, artifacts, request, errors):
    """A fresh page; saves a final screenshot."""
    page = browser.new_page(viewport={"width": 1280, "height": 1100})
    page.set_default_timeout(90_000)
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.screenshot(path=artifacts / f"{request.node.name}-last.png")
    page.close()
    assert errors == []
