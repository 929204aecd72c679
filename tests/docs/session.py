"""A Python that runs the blocks of one page, one after another, in one module.

Reads one JSON object a line (code, name, environment), answers with one (error,
output). ``await`` may stand at the top of a block, as in ``python -m asyncio``.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import linecache
import os
import sys
import traceback
import types
from pathlib import Path
from typing import Any


def main() -> None:
    sys.path.insert(0, str(Path.cwd()))
    module = types.ModuleType("page")
    sys.modules["page"] = module
    loop = asyncio.new_event_loop()
    for line in sys.stdin:
        job = json.loads(line)
        os.environ.update(job["environment"])
        said = io.StringIO()
        error = None
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                _run(job["code"], job["name"], module.__dict__, loop)
            except BaseException:
                error = traceback.format_exc()
        print(json.dumps({"error": error, "output": said.getvalue()}), flush=True)


def _run(
    code: str, name: str, namespace: dict[str, Any], loop: asyncio.AbstractEventLoop
) -> None:
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    compiled = compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = eval(compiled, namespace)
    if inspect.iscoroutine(found):
        loop.run_until_complete(found)


if __name__ == "__main__":
    main()
