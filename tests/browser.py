"""Chromium without a window, driven over a pipe with the DevTools protocol: no library, no port, no network."""

import itertools
import json
import os
import select
import shutil
import subprocess
import time

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium():
    """Return the path of a Chromium, or skip the test."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} on PATH (Debian: apt-get install chromium)")
    return path


def without_sanitizer():
    """Return the environment without what an instrumented build has loaded into this process."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


class Browser:
    """One page in a browser of its own.

    `errors` has what the page logged as errors: exceptions, and what its content security policy refused.
    """

    def __init__(self, folder, width=1200, height=1000):
        there, self.write_to = os.pipe()
        self.read_from, back = os.pipe()
        command = [find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   "--remote-debugging-pipe", f"--window-size={width},{height}", f"--user-data-dir={folder}",
                   "--force-device-scale-factor=1", "about:blank"]
        # The browser reads from descriptor 3 and writes to 4.
        self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{there} 4>&{back}', "bash", *command],
                                        pass_fds=(there, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env=without_sanitizer())
        os.close(there)
        os.close(back)
        self.numbers, self.buffer, self.session, self.errors, self.requests = itertools.count(1), b"", None, [], []
        target = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log", "Network":
            self.call(f"{domain}.enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.write_to)
        os.close(self.read_from)

    def open(self, path, fragment=""):
        """Open a file and wait until the map says that it is drawn."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        self.wait("location.protocol === 'file:' && document.documentElement?.dataset.ready !== undefined")

    def wait(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"{expression} does not become true; {self.errors}"
            time.sleep(0.02)

    def value(self, expression):
        """Return what an expression is in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key):
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def call(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.note(answer)

    def note(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown" or (
                method == "Log.entryAdded" and parameters["entry"]["level"] == "error"):
            self.errors.append(parameters)
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def receive(self, seconds=60):
        while b"\0" not in self.buffer:
            assert select.select([self.read_from], [], [], seconds)[0], "the browser does not answer"
            piece = os.read(self.read_from, 1 << 20)
            assert piece, "the browser has ended"
            self.buffer += piece
        line, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(line)
