"""The `Ttl` plugin: removes expired records, on the leader only.

    ttl = Ttl()
    ttl.register("session", expires_after=3600.0)

Each removal names the version that had expired, and is fenced: a record that was written meanwhile
stays, and a deposed leader removes nothing. The store holds the progress of a sweep, so that the
next leader continues it. A record that cannot be removed does not stop the sweep.

Readers use `get`: it hides a record from the moment when it expires, also before it is removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from squall.coordination.election.term import write_library_records
from squall.coordination.errors import (
    LeadershipLost,
    StaleEpochError,
    StoreUnavailableError,
    VersionConflict,
)
from squall.coordination.expiry.records import (
    ARCHIVE,
    PROGRESS,
    Action,
    Callback,
    ExpiryRule,
    SweepFinished,
    SweepProgress,
    SweepStarted,
    check_rule,
)
from squall.coordination.members.cleanup import idle_ms_of
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.records import keys
from squall.coordination.stores.interface import ABSENT, ANY, Delete, Put, Record, Write, make_key
from squall.coordination.stores.kinds import kept_s
from squall.coordination.value_rules import check, seconds

INTERVAL_S = 300.0
PAGE = 100
PAGE_LISTING = 1000
ARCHIVE_TTL_S = kept_s("archive")
PROGRESS_TTL_S = kept_s("sweeps")
SWEEP_PAGES = 100


class Ttl(CoordinatorPlugin):
    """Removes expired records while its member leads. Register the same rules on every member: any
    of them may lead."""

    name = "ttl"

    def __init__(self, *, ttl_interval: float = INTERVAL_S) -> None:
        super().__init__()
        check("ttl_interval", ttl_interval, seconds(above=0.0, example=INTERVAL_S))
        self.work_interval = ttl_interval
        self._rules: list[ExpiryRule] = []
        # Counts of the last sweep of this member.
        self.scanned = self.deleted = self.failed = 0
        # The progress record as last read or written.
        self._noted: bytes | None = None

    def register(
        self,
        prefix: str,
        *,
        expires_after: float | None = None,
        expires_field: str = "",
        action: Action = "delete",
        callback: Callback | None = None,
    ) -> None:
        """`prefix` is a kind of records, or a kind and parts below it. With a callback the record
        is removed after the callback returned; if that fails, the callback is called again."""
        rule = ExpiryRule(
            prefix=prefix,
            expires_after=expires_after,
            expires_field=expires_field,
            action="callback" if callback is not None and action == "delete" else action,
            callback=callback,
        )
        check_rule(rule)
        self._rules.append(rule)

    async def get(self, key: str) -> Record | None:
        """The record; None if it is absent or expired by a rule."""
        (found,) = await self.coordinator.store.get(key)
        now = self.coordinator.parts.store_time()
        if found is None or any(
            rule.covers(key) and rule.is_expired(found, now) for rule in self._rules
        ):
            return None
        return found

    async def touch(self, key: str, *, ttl_s: float | None = None) -> bool:
        """Writes the record again, so that its age starts at 0. The store then keeps it for
        `ttl_s`, by default as long as before. False if it is gone."""
        while True:
            found = await self.get(key)
            if found is None:
                return False
            try:
                kept_s = ttl_s
                if ttl_s is None and found.expires_ms is not None:
                    kept_s = (found.expires_ms - found.modified_ms) / 1000.0
                put = Put(key, found.value, expect=found.version, ttl_s=kept_s, silent=True)
                await self.coordinator.store.write(put)
                return True
            except VersionConflict:
                continue

    async def coordinator_work(self) -> None:
        parts = self.coordinator.parts
        begun = parts.clock.now()
        self.scanned = self.deleted = self.failed = 0
        parts.bus.emit(SweepStarted(epoch=self.term.epoch))
        progress, version = await self._progress()
        for rule in self._rules:
            version = await self._apply(rule, progress, version)
            progress = msgspec.structs.replace(progress, after={**progress.after, rule.prefix: ""})
        self.deleted += await self._sweep_store()
        await self._note(msgspec.structs.replace(progress, finished=parts.store_time()), version)
        duration_s = parts.clock.now() - begun
        metrics = parts.metrics
        metrics.histogram(metrics.families.cleanup_s).observe(duration_s)
        metrics.counter(metrics.families.expired_records).add(self.deleted)
        parts.bus.emit(
            SweepFinished(
                epoch=self.term.epoch,
                scanned=self.scanned,
                deleted=self.deleted,
                failed=self.failed,
                duration=duration_s,
            )
        )

    async def _apply(self, rule: ExpiryRule, progress: SweepProgress, version: str) -> str:
        async for records, after in self._pages(rule, progress.after.get(rule.prefix, "")):
            now = self.coordinator.parts.store_time()
            for record in records:
                self.scanned += 1
                if rule.is_expired(record, now):
                    await self._remove(rule, record)
            known = {**progress.after, rule.prefix: after}
            version = await self._note(msgspec.structs.replace(progress, after=known), version)
        return version

    async def _pages(self, rule: ExpiryRule, after: str) -> AsyncIterator[tuple[list[Record], str]]:
        store = self.coordinator.store
        capabilities = store.capabilities
        lists = capabilities.cross_host and not capabilities.blocking_wait
        idle_ms = 0 if rule.expires_after is None else round(rule.expires_after * 1000.0)
        while True:
            page = await store.list(
                rule.kind, idle_ms=idle_ms, after=after, limit=PAGE_LISTING if lists else PAGE
            )
            names = [entry.key for entry in page.entries if rule.covers(entry.key)]
            found = await store.get(*names) if names else ()
            after = page.after
            yield [record for record in found if record is not None], after
            if not after:
                return

    async def _remove(self, rule: ExpiryRule, record: Record) -> None:
        """Removes the record unless it was written meanwhile, which changes its version."""
        try:
            if rule.callback is not None:
                await rule.callback(record)
            writes: list[Write] = [Delete(record.key, record.version)]
            if rule.action == "archive":
                # The copy may be written again, so it comes first: the removal decides.
                key = make_key(ARCHIVE, *record.key.split("/"))
                writes.insert(0, Put(key, record.value, expect=ANY, ttl_s=ARCHIVE_TTL_S))
            await self.term.write(*writes)
            self.deleted += 1
        except (LeadershipLost, StaleEpochError, StoreUnavailableError):
            raise
        except VersionConflict:
            return
        except Exception as error:
            self.failed += 1
            self.coordinator.parts.on_failure("ttl_record_failed", error)

    async def _sweep_store(self) -> int:
        """Removes records past their ttl in a store that does not do so itself. Not heartbeats: the
        monitor notices a death by an expired one."""
        store = self.coordinator.store
        if store.capabilities.native_expiry:
            return 0
        removed = 0
        for kind in set(await store.count()) - {keys.HEARTBEAT}:
            for _ in range(SWEEP_PAGES):
                self.term.check()
                found = await store.sweep(kind, limit=PAGE, idle_ms=idle_ms_of(kind))
                removed += found
                if found < PAGE:
                    break
        return removed

    async def _progress(self) -> tuple[SweepProgress, str]:
        """Reads the progress and writes it under this epoch, before anything is removed."""
        (found,) = await self.coordinator.store.get(PROGRESS)
        read = None
        if found is not None:
            read = self.coordinator.parts.codec.read(SweepProgress, found.value, key=found.key)
        progress = read or SweepProgress()
        self._noted = None if found is None or read is None else found.value
        return progress, await self._note(progress, "" if found is None else found.version)

    async def _note(self, progress: SweepProgress, version: str) -> str:
        value = self.coordinator.parts.codec.encode(progress, over=self._noted)
        (written,) = await write_library_records(
            self.term,
            Put(PROGRESS, value, expect=version or ABSENT, ttl_s=PROGRESS_TTL_S, silent=True),
        )
        self._noted = value
        return written
