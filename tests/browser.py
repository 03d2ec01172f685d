"""A real browser, headless, for pages: `run(page, script)` opens a page and gives what a script saw.

Chromium (or another browser of its family) is looked for on the PATH, or named by GFLOW_BROWSER; without
one the tests are skipped. On Debian: `apt-get install chromium`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    named = os.environ.get("GFLOW_BROWSER")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


needs_browser = pytest.mark.skipif(
    find_browser() is None,
    reason="no Chromium on the PATH (GFLOW_BROWSER names one; Debian: apt-get install chromium)",
)

_CATCH = """<script>
window.errors = [];
addEventListener('error', e => errors.push(String(e.message || e.type)));
addEventListener('securitypolicyviolation', e => errors.push('blocked ' + e.blockedURI));
</script>"""

#: `point(element)` moves the pointer to the middle of an element, as a person would: to what is on top
_DRIVE = """
function point(element, type) {
  const r = element.getBoundingClientRect();
  const x = r.left + r.width / 2, y = r.top + r.height / 2;
  const top = document.elementFromPoint(x, y);
  const event = {bubbles: true, cancelable: true, clientX: x, clientY: y, pointerId: 1, view: window};
  const kind = type === 'click' ? MouseEvent : type === 'wheel' ? WheelEvent : PointerEvent;
  if (top) top.dispatchEvent(new kind(type || 'pointermove', {...event, deltaY: -300}));
  return top;
}
const tipText = () => document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent;
"""


def run(html: str, script: str, folder: Path) -> Any:
    """Open a page without a network, run `script` (which returns a value), give that value.

    Fails where the page has an error or asks for anything but itself.
    """
    harness = f"""<script>
    setTimeout(() => {{
      let value = null;
      try {{ value = (() => {{ {_DRIVE} {script} }})(); }} catch (e) {{ errors.push('test: ' + e.stack); }}
      const out = document.createElement('pre');
      out.id = 'outcome';
      out.textContent = JSON.stringify({{
        value, errors, loaded: performance.getEntriesByType('resource').map(r => r.name),
      }});
      document.body.append(out);
    }}, 50);
    </script></body>"""
    file = folder / "page.html"
    file.write_text(html.replace("<head>", f"<head>{_CATCH}", 1).replace("</body>", harness, 1))
    command = [
        find_browser() or "", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
        "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}", "--window-size=1400,850",
        "--proxy-server=127.0.0.1:9", "--virtual-time-budget=3000", file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=120)
    match = re.search(r'<pre id="outcome">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, f"the browser gave no outcome (status {done.returncode}): {done.stderr[-2000:]}"
    outcome = json.loads(unescape(match.group(1)))
    assert outcome["errors"] == []
    assert outcome["loaded"] == []
    return outcome["value"]
