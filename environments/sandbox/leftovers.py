"""Removal that is verified, of one container with its volumes and of what dead runs have left.

Everything this project makes in an engine carries its owner's labels (ownership.py): containers,
networks, volumes and built images. Anonymous volumes, which an image's VOLUME lines make and no
label can be put on, are removed with their container, and looked for again by name.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from environments.sandbox.ownership import IMAGE_LABEL, OWNER_LABEL, is_orphan

_END_LIMIT_S = 10.0
_ENDED = ("exited", "dead")
# Of another machine's run nobody here knows whether it goes on: what lies unused so long is over.
_FOREIGN_AGE_S = 86400.0


def anonymous_volumes(mounts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the volumes that the engine made for one container, out of its mounts."""
    names = [mount.get("Name", "") for mount in mounts if mount.get("Type") == "volume"]
    return [name for name in names if len(name) == 64]


def remove_container(api: Any, name: str, volumes: Collection[str] = ()) -> None:
    """Kill and remove with its volumes, and see that they are gone; what never was is fine."""
    from docker.errors import APIError, NotFound

    give_up = time.monotonic() + _END_LIMIT_S
    while True:
        try:
            api.remove_container(name, v=True, force=True)
        except NotFound:
            break
        except APIError as error:
            conflict = error.response is not None and error.response.status_code == 409
            if not conflict or time.monotonic() > give_up:
                raise
            time.sleep(0.05)  # a removal by somebody else is in progress
    for volume in volumes:
        _remove_volume(api, volume)


def remove_network(api: Any, name: str) -> None:
    """Remove, and see that it is gone; what never was is fine."""
    from docker.errors import APIError, NotFound

    give_up = time.monotonic() + _END_LIMIT_S
    while True:
        try:
            api.remove_network(name)
        except NotFound:
            return
        except APIError as error:
            if error.status_code not in (403, 409) or time.monotonic() > give_up:
                raise
            time.sleep(0.05)  # the engine lets go a moment after the last container


def _remove_volume(api: Any, name: str) -> None:
    from docker.errors import NotFound

    try:
        api.remove_volume(name, force=True)
    except NotFound:
        return


def reap(api: Any) -> dict[str, int]:
    """Remove containers, networks and volumes of harnesses that are gone, until a look finds none;
    returns how many of each."""
    counts = {"containers": 0, "networks": 0, "volumes": 0}
    give_up = time.monotonic() + _END_LIMIT_S
    while True:
        found = _reap_once(api)
        for kind, number in found.items():
            counts[kind] += number
        if not any(found.values()) or time.monotonic() > give_up:
            return counts


def _reap_once(api: Any) -> dict[str, int]:
    from docker.errors import APIError

    ours = {"label": OWNER_LABEL}
    containers = [
        entry
        for entry in api.containers(all=True, filters=ours)
        if is_orphan(entry["Labels"], ended=entry["State"] in _ENDED)
    ]
    for entry in containers:
        remove_container(api, entry["Id"], anonymous_volumes(entry["Mounts"]))
    networks = [
        entry
        for entry in api.networks(filters=ours)
        if is_orphan(entry["Labels"], ended=_age_s(entry["Created"]) > _FOREIGN_AGE_S)
    ]
    volumes = [
        entry
        for entry in api.volumes(filters={**ours, "dangling": True})["Volumes"] or []
        if is_orphan(entry["Labels"], ended=_age_s(entry["CreatedAt"]) > _FOREIGN_AGE_S)
    ]
    removed = {"containers": len(containers), "networks": 0, "volumes": 0}
    for entry in networks:
        try:
            api.remove_network(entry["Id"])
        except APIError as error:  # in use by another, or just removed by another run's reaping
            if error.status_code not in (403, 404, 409):
                raise
        else:
            removed["networks"] += 1
    for entry in volumes:
        try:
            _remove_volume(api, entry["Name"])
        except APIError as error:
            if error.status_code != 409:
                raise
        else:
            removed["volumes"] += 1
    return removed


def clean(api: Any) -> dict[str, int]:
    """What may go where the disk runs out: dead runs' leftovers, and images of ours that have lost
    their name to a newer build."""
    counts = reap(api)
    pruned = api.prune_images(filters={"dangling": True, "label": IMAGE_LABEL})
    return {**counts, "images": len(pruned.get("ImagesDeleted") or [])}


def _age_s(created: str) -> float:
    """Of the engine's RFC 3339 time; its fraction and zone (an hour or so) do not matter here."""
    return time.time() - calendar.timegm(time.strptime(created[:19], "%Y-%m-%dT%H:%M:%S"))
