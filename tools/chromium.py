"""Find a Chromium for the browser tests: `python tools/chromium.py` installs one where there is none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = ("No Chromium. Install one (Debian: `apt-get install chromium`; elsewhere: `playwright install chromium`), "
           "or set CHROMIUM to the path of a Chromium or Chrome.")


def find():
    """The path of a Chromium: $CHROMIUM, one on PATH, or Playwright's own; None where there is none."""
    if os.environ.get("CHROMIUM"):
        return shutil.which(os.environ["CHROMIUM"])
    for name in NAMES:
        if path := shutil.which(name):
            return path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def install():
    """Try Playwright's download, then Debian's package."""
    commands = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if shutil.which("apt-get") and os.geteuid() == 0:
        commands += [["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]]
    for command in commands:
        print("No Chromium here:", " ".join(command[-3:]), flush=True)
        subprocess.run(command, check=False)
        if path := find():
            return path
    return None


if __name__ == "__main__":
    found = find() or install()
    if not found:
        sys.exit(MISSING)
    print("Browser tests use", found)
