"""What an agent on a terminal task reads first; actions and observations are SWE-bench's here."""

from __future__ import annotations

from environments.terminal_bench.network import Network

FULL_PROMPT = """\
You are working in a Linux machine through a terminal. Your task:

{instruction}

Work in steps. Answer each time with one bash command in a fenced block:
```bash
ls -la
```
You then read its output. Each command runs in a new shell in {workdir}. {network}
Only the state in which you leave the machine's files counts{processes}. When the task is done, \
answer with:
```bash
submit
```
"""


def full_prompt(instruction: str, workdir: str, *, network: Network, processes: bool) -> str:
    reach = "There is a network." if network.public else "There is no network."
    if network.agent_hosts:
        reach = f"Of the network only these hosts can be reached: {', '.join(network.agent_hosts)}."
    return FULL_PROMPT.format(
        instruction=instruction,
        workdir=workdir,
        network=reach,
        processes=" and what runs in it" if processes else ": whatever still runs is ended first",
    )
