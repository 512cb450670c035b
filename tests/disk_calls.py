"""What was forced onto the disk and what was renamed, in order: a crash of the machine cannot be
tried, but what outlasts one follows from these calls."""

import os
from pathlib import Path


class DiskCalls:
    """Watches os.fsync, os.rename and os.replace; files and folders are known by their inodes."""

    def __init__(self, monkeypatch):
        self.calls, self.kept = [], []
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))
        fsync = os.fsync

        def forced(descriptor):
            self.calls.append(("forced", os.fstat(descriptor).st_ino))
            self.kept.append(os.dup(descriptor))  # else a later file may get a dead one's inode
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", forced)

    def __del__(self):
        for descriptor in self.kept:
            os.close(descriptor)

    def _watched(self, rename):
        def call(old, new):
            self.calls.append(("renamed", Path(old).stat().st_ino))
            rename(old, new)

        return call

    def places(self, what, path):
        """When, counted in calls, this happened to `path`."""
        found = (what, path.stat().st_ino)
        return [place for place, call in enumerate(self.calls) if call == found]

    def assert_outlasts_a_crash(self, path):
        """Its content was on the disk before it had its name, and the name was put there too."""
        named = self.places("renamed", path)[-1]
        for part in (path, *path.rglob("*")):
            assert min(self.places("forced", part), default=named) < named, part
        assert max(self.places("forced", path.parent), default=named) > named, path
