"""Takes everything but base_commit and its ancestors out of a repository that an image carries.

Images of published data sets were found with the fix in reach of `git log --all` (SWE-bench#465,
mini-swe-agent#787). Refs, reflogs, stashes, worktrees and remotes go without a look; objects go
where there are more of them than base_commit and the working tree account for.
"""

from __future__ import annotations

import re
import shlex

from environments.protocols import ExecResult, InfrastructureError, Sandbox
from environments.swebench.instance import Instance

_LIMIT_S = 900.0  # a repack of a large repository, on a busy core
_DONE = re.compile(r"^START ([0-9a-f]{40}) (clean|packed)$", re.MULTILINE)

# The image's working tree is the start, whatever its author changed after base_commit: a commit on
# top of base_commit holds those changes, with fixed names and dates, so that its id is always the
# same for an image.
_SCRIPT = r"""
set -euo pipefail
base=$1 trusted=$2
export GIT_AUTHOR_NAME=start GIT_AUTHOR_EMAIL=start@example.invalid
export GIT_COMMITTER_NAME=start GIT_COMMITTER_EMAIL=start@example.invalid
export GIT_AUTHOR_DATE='1735689600 +0000' GIT_COMMITTER_DATE='1735689600 +0000'
git=$(git rev-parse --absolute-git-dir)
git cat-file -e "$base^{commit}"
rm -f "$git/index.lock" "$git"/refs/replace/*
git -c core.fsmonitor=false add -A
tree=$(git write-tree)
start=$base
if [ "$tree" != "$(git rev-parse "$base^{tree}")" ]; then
  start=$(git commit-tree "$tree" -p "$base" -m "as the image has it")
fi
for remote in $(git remote); do git remote remove "$remote"; done
rm -rf "$git"/{refs,packed-refs,logs,worktrees,hooks,reftable,lost-found,rr-cache,rebase-*}
rm -rf "$git"/*_HEAD "$git"/{MERGE_MSG,SQUASH_MSG,COMMIT_EDITMSG,info/grafts,sequencer}
rm -rf "$git"/BISECT_*
mkdir -p "$git/refs/heads" "$git/refs/tags"
echo 'ref: refs/heads/main' > "$git/HEAD"
echo "$start" > "$git/refs/heads/main"
if [ "$trusted" = yes ]; then echo "START $start clean"; exit; fi
rm -rf "$git"/objects/info/commit-graph* "$git"/objects/pack/{multi-pack-index,*.keep,*.promisor}
count() {
  have=0
  while read -r key value; do
    case $key in count:|in-pack:) have=$((have + value)) ;; esac
  done < <(git count-objects -v)
  want=$(git rev-list --objects HEAD | wc -l)
}
count
if [ "$have" = "$want" ] && ! [ -e "$git/objects/info/alternates" ]; then
  echo "START $start clean"; exit
fi
git repack -a -d -q --window=0
rm -f "$git/objects/info/alternates"
git prune --expire=now
count
[ "$have" = "$want" ]
echo "START $start packed"
"""


async def strip_history(instance: Instance, sandbox: Sandbox, *, trusted: bool) -> tuple[str, bool]:
    """(the commit that the agent's diff is made against, whether the image itself was clean).

    `trusted` skips the count of objects: an earlier sandbox of the same image passed it. Raises
    InfrastructureError where the image has no repository at base_commit in its workdir.
    """
    arguments = f"{instance.base_commit} {'yes' if trusted else 'no'}"
    result = await sandbox.exec(
        f"bash -c {shlex.quote(_SCRIPT)} history {arguments}", timeout_s=_LIMIT_S
    )
    done = _DONE.search(result.output)
    if done is None or result.exit_code != 0:
        raise InfrastructureError("image", f"{instance.instance_id}: {_why(instance, result)}")
    return done[1], done[2] == "clean"


def _why(instance: Instance, result: ExecResult) -> str:
    said = " ".join(result.output.split())[-200:]
    return (
        f"{instance.image} holds no usable repository at base_commit {instance.base_commit[:12]} "
        f"in its workdir (a sandbox without images, such as bubblewrap, cannot either): {said}"
    )
