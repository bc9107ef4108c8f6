"""What tests share: the book built once, and a browser that refuses every request outside it."""

import functools
import http.server
import importlib.resources
import json
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import forkserver
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job ignores interrupts; tests send them
    signal.signal(signal.SIGINT, signal.default_int_handler)

THEME_FONTS = "_static/vendor/fontawesome/"  # the theme preloads them with CORS, which file:// refuses


def pytest_collection_modifyitems(items):
    """What needs the built book is slow."""
    for item in items:
        if "built" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


def build_book(out, source=ROOT, *options):
    """Build the book from stored outputs, warnings as errors; return the finished process."""
    command = [Path(sys.executable).with_name("jupyter-book"), "build", "-W", "-n", "--keep-going", *options,
               "--path-output", out, source]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The folder of the book's HTML, built once a session."""
    out = tmp_path_factory.mktemp("book")
    done = build_book(out)
    if done.returncode:
        pytest.fail(f"the book does not build:\n{(done.stdout + done.stderr)[-4000:]}")
    return out / "_build" / "html"


@pytest.fixture
def nothing_left():
    """After the test no rank lives: the server that forks them has no children."""
    yield
    server = forkserver._forkserver._forkserver_pid
    if server and os.path.isdir("/proc"):
        with open(f"/proc/{server}/task/{server}/children") as children:
            assert children.read() == "", "a rank is still there"


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium. Where there is none the test fails: a check that skips itself checks nothing."""
    import chromium
    from playwright.sync_api import sync_playwright

    path = chromium.find()
    if path is None:
        pytest.fail(chromium.MISSING)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        chrome = playwright.chromium.launch(executable_path=path, args=flags)
        yield chrome
        chrome.close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def served(built):
    """The address of a local web server over the built pages; for one test, since a module may have a `built` of its own."""
    handler = functools.partial(QuietHandler, directory=built)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def open_page(browser, built, request):
    """open_page("lessons/06_allreduce") -> a Playwright page in a profile of its own.

    `.errors` lists console errors, uncaught exceptions and local files that did not load;
    `.outside` the requests that left the book (all refused); `.root` is the book's address.
    """
    contexts = []

    def open_page(name, scheme="file", dark=False, width=1280, js=True):
        root = built.as_uri() if scheme == "file" else request.getfixturevalue("served")
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=js,
        )
        contexts.append(context)
        page = context.new_page()
        page.root, page.errors, page.outside = root, [], []
        ours = (root, "data:", "blob:", "about:")

        def on_console(message):
            theme = scheme == "file" and THEME_FONTS in message.text + message.location.get("url", "")
            if message.type == "error" and not theme:
                page.errors.append(f"{message.text} ({message.location.get('url')})")

        def on_route(route):
            if route.request.url.startswith(ours):
                return route.continue_()
            page.outside.append(route.request.url)
            return route.abort()

        def on_failed(failed):
            theme = scheme == "file" and THEME_FONTS in failed.url
            if failed.url.startswith(ours) and not theme and failed.failure != "net::ERR_ABORTED":
                page.errors.append(f"{failed.failure}: {failed.url}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: page.errors.append(f"uncaught: {error}"))
        page.on("requestfailed", on_failed)
        context.route("**/*", on_route)
        page.goto(f"{root}/{name.removesuffix('.html')}.html", wait_until="load")
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def axe():
    """axe(page, context, rules) -> its serious and critical accessibility findings, one entry a rule."""
    script = importlib.resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")

    def run(page, context="document", rules=()):
        page.evaluate(script)
        options = {"resultTypes": ["violations"]} | ({"runOnly": rules} if rules else {})
        context = context if isinstance(context, str) else json.dumps(context)
        found = page.evaluate(f"axe.run({context}, {json.dumps(options)}).then((result) => result.violations)")
        return [f"{v['impact']} {v['id']}, {len(v['nodes'])} times, first {v['nodes'][0]['target']}: "
                f"{v['nodes'][0]['failureSummary']}" for v in found if v["impact"] in ("serious", "critical")]

    return run
