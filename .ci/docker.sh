#!/usr/bin/env bash
# Makes sure that a Docker engine answers and has the image that the sandboxes start from.
# Idempotent, quick when all is there. Needs root only where something is missing.
#   PYTHON=... .ci/docker.sh       (default: python; the package must be importable)
#   THUNDERSYNC_IMAGE_CACHE=DIR    keep the image as a file there and load it from there
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
image=thundersync/mini:1
log=${TMPDIR:-/tmp}/dockerd.log

engine_answers() { timeout 5 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

install() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "$@" >&2
}

if ! command -v docker >/dev/null || { ! engine_answers && ! command -v dockerd >/dev/null; }; then
  install docker.io iptables
fi
if ! engine_answers; then
  echo "starting dockerd, log in $log" >&2
  setsid nohup dockerd >"$log" 2>&1 </dev/null &
  for _ in $(seq 60); do
    engine_answers && break
    sleep 0.5
  done
  engine_answers || { echo "dockerd does not answer:" >&2; tail -n 20 "$log" >&2; exit 1; }
fi

if ! docker image inspect "$image" >/dev/null 2>&1; then
  cache=${THUNDERSYNC_IMAGE_CACHE:+$THUNDERSYNC_IMAGE_CACHE/mini-1.tar.gz}
  if [ -n "$cache" ] && [ -f "$cache" ]; then
    docker load -q -i "$cache" >&2
  else
    if [ "$(id -u)" = 0 ] && ! command -v debootstrap >/dev/null; then
      install debootstrap debian-archive-keyring
    fi
    "$python" -m environments.sandbox.images build >&2
    if [ -n "$cache" ]; then
      mkdir -p "$(dirname "$cache")"
      docker save "$image" | gzip -1 >"$cache.part"
      mv "$cache.part" "$cache"
    fi
  fi
fi
echo "docker $(docker version --format '{{.Server.Version}}') with $image"
