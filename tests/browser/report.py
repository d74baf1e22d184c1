"""The report in a real browser: python tests/browser/report.py REPORT.html [SCREENSHOT.png]

Opens the file from disk in Chromium (apt-get install chromium), without a network, in a private
profile, and checks what the browser made of it: every image has a size, no text is wider than the
page, nothing is empty, the console is silent. With a second argument it leaves a screenshot.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROBE = """
<script>
window.addEventListener('load', () => {
  const images = [...document.images];
  const wide = [...document.querySelectorAll('h1,h2,h3,p,figcaption,pre,img')]
    .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
  const empty = [...document.querySelectorAll('td,th,figcaption,h3')]
    .filter(e => !e.textContent.trim());
  document.title = JSON.stringify({
    images: images.length,
    broken: images.filter(i => !i.complete || i.naturalWidth < 100).length,
    wide: wide.length, empty: empty.length,
    tables: document.querySelectorAll('table').length,
    height: document.documentElement.scrollHeight,
  });
});
</script>
"""


def browser() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit(f"no browser: none of {', '.join(NAMES)} (apt-get install chromium)")
    return found


def chromium(profile: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    flags = (
        "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--enable-logging=stderr",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000",
    )  # fmt: skip
    return subprocess.run(
        [browser(), *flags, *arguments], capture_output=True, text=True, timeout=590, check=False
    )


def look(page: Path, screenshot: Path | None) -> dict[str, int]:
    """What the browser found. Raises SystemExit where it did not come to an end."""
    import json

    with tempfile.TemporaryDirectory() as there:
        probed = Path(there) / "probed.html"
        text = page.read_text(encoding="utf-8")
        probed.write_text(text.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
        seen = chromium(there, "--window-size=1280,900", "--dump-dom", probed.as_uri())
        title = re.search(r"<title>(.*?)</title>", seen.stdout, re.DOTALL)
        if title is None or not title[1].startswith("{"):
            raise SystemExit(f"{page}: the browser did not load it\n{seen.stderr[-2000:]}")
        found = json.loads(title[1].replace("&quot;", '"'))
        found["console"] = len(re.findall(r"CONSOLE", seen.stderr))
        if screenshot is not None:
            size = f"--window-size=1280,{min(found['height'], 12_000)}"
            chromium(there, size, f"--screenshot={screenshot.absolute()}", page.absolute().as_uri())
    return found


def main() -> int:
    if not 2 <= len(sys.argv) <= 3:
        print(__doc__, file=sys.stderr)
        return 2
    page = Path(sys.argv[1])
    found = look(page, Path(sys.argv[2]) if len(sys.argv) == 3 else None)
    print(found)
    whole = found["images"] > 0 and found["tables"] > 0
    faults = [key for key in ("broken", "wide", "empty", "console") if found[key]]
    if faults or not whole:
        print(f"{page}: {', '.join(faults) or 'no image or no table'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
