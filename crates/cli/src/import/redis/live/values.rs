//! Values of a running server.
//!
//! A value of up to [`PART_MEMBERS_MAX`](super::PART_MEMBERS_MAX) members is read with its expiry in one transaction:
//! both are of one moment. A larger one is read page by page. Its type and expiry are read before and after: if they
//! differ, it must be read again. Members that are added or removed meanwhile may be missing or remain.

use super::{Found, Live, PAGE_NAMES, Way, is_wrong_type, length_command, within};
use crate::import::redis::endpoint::Database;
use crate::import::redis::part::{Cutter, SourceValue, ValueKind, ValuePart};
use crate::import::redis::report::Cause;
use crate::import::redis::unix_ms;
use bytes::Bytes;
use stele_load::resp::{RespHead, RespReply, unexpected};
use stele_types::Result;
use stele_types::size::{VALUE_BYTES_MAX, format_bytes};

/// Expiry of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    Gone,
    Never,
    /// Unix milliseconds.
    At(u64),
}

/// What became of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Ended,
    /// The value changed meanwhile.
    Changed,
}

impl Live {
    fn expiry_command(&self) -> &'static str {
        if self.has_expiry_times { "PEXPIRETIME" } else { "PTTL" }
    }

    fn expiry(&self, reply: &RespReply) -> Result<Expiry> {
        let RespReply::Integer(number) = reply else { return Err(unexpected()) };
        match u64::try_from(*number) {
            Ok(at_ms) if self.has_expiry_times => Ok(Expiry::At(at_ms)),
            Ok(left_ms) => Ok(Expiry::At(unix_ms().saturating_add(left_ms))),
            Err(_) if *number == -1 => Ok(Expiry::Never),
            Err(_) => Ok(Expiry::Gone),
        }
    }

    /// Reads values whole, each with its expiry.
    pub(super) async fn copy_small(
        &mut self,
        database: Database,
        values: &[Found],
        way: Way<'_>,
        changed: &mut Vec<Bytes>,
    ) -> Result<()> {
        let expiry = self.expiry_command();
        for Found { name, kind, .. } in values {
            let read = match kind {
                ValueKind::Hash => "HGETALL",
                ValueKind::Set => "SMEMBERS",
                ValueKind::Text | ValueKind::Gone => "GET",
            };
            // bug cli.import_expiry_of_another_moment: skip
            self.connection.send(&["MULTI"]).await?;
            self.connection.send(&[expiry.as_bytes(), name]).await?;
            self.connection.send(&[read.as_bytes(), name]).await?;
            self.connection.send(&["EXEC"]).await?;
        }
        self.connection.flush().await?;
        for found in values {
            if self.receive_value(database, found, way).await? == Read::Changed {
                changed.push(found.name.clone());
            }
        }
        Ok(())
    }

    /// Receives the replies of a transaction that reads a value.
    async fn receive_value(
        &mut self,
        database: Database,
        found: &Found,
        way: Way<'_>,
    ) -> Result<Read> {
        let mut refusal = None;
        for _ in 0..3 {
            if let RespReply::Error(text) = self.receive().await? {
                refusal.get_or_insert(text);
            }
        }
        match within(self.connection.receive_head()).await? {
            RespHead::Array(2) => {}
            RespHead::Whole(RespReply::Error(text)) => {
                return Err(self.refused(&refusal.unwrap_or(text)));
            }
            _ => return Err(unexpected()),
        }
        let expiry = self.receive().await?;
        let expiry = self.expiry(&expiry)?;
        let head = within(self.connection.receive_head()).await?;
        let mut cutter = found.cutter(database, expiry);
        match head {
            RespHead::Array(0) | RespHead::Whole(RespReply::Bulk(None)) => way.report.gone(),
            RespHead::Array(strings) => {
                let mut left_out = None;
                self.members(&mut cutter, strings, &mut left_out, way).await?;
                way.finish(cutter, None, left_out).await?;
            }
            RespHead::Whole(RespReply::Bulk(Some(text))) => {
                // A string is never divided.
                let part = cutter.push([text]);
                debug_assert!(part.is_none());
                way.lanes.send(cutter.finish(None)).await?;
            }
            RespHead::Whole(RespReply::TooLong(bytes)) => {
                way.too_long(database, &found.name, bytes);
            }
            RespHead::Whole(RespReply::Error(text)) if is_wrong_type(&text) => {
                return Ok(Read::Changed);
            }
            RespHead::Whole(RespReply::Error(text)) => return Err(self.refused(&text)),
            RespHead::Whole(_) => return Err(unexpected()),
        }
        Ok(Read::Ended)
    }

    /// Receives members and sends full parts. Keeps the bytes of a string that cannot be stored in
    /// `left_out`.
    async fn members(
        &mut self,
        cutter: &mut Cutter,
        strings: u64,
        left_out: &mut Option<u64>,
        way: Way<'_>,
    ) -> Result<()> {
        let width = cutter.value().kind.width();
        for _ in 0..strings / width as u64 {
            let (mut member, mut is_held) = (Vec::with_capacity(width), true);
            for _ in 0..width {
                match self.receive().await? {
                    RespReply::Bulk(Some(string)) => member.push(string),
                    RespReply::TooLong(bytes) => {
                        *left_out = Some(bytes);
                        is_held = false;
                    }
                    _ => return Err(unexpected()),
                }
            }
            if is_held && let Some(part) = cutter.push(member) {
                way.lanes.send(part).await?;
            }
        }
        Ok(())
    }

    /// Reads a collection page by page.
    pub(super) async fn copy_large(
        &mut self,
        database: Database,
        found: &Found,
        way: Way<'_>,
    ) -> Result<Read> {
        let (kind, expiry, _) = self.state(found).await?;
        if kind != found.kind.name() || expiry == Expiry::Gone {
            return Ok(Read::Changed);
        }
        let mut cutter = found.cutter(database, expiry);
        let command = if found.kind == ValueKind::Hash { "HSCAN" } else { "SSCAN" };
        let (mut cursor, mut left_out) = (Bytes::from_static(b"0"), None);
        let read = loop {
            let page = [command.as_bytes(), &found.name, &cursor, b"COUNT", PAGE_NAMES.as_bytes()];
            self.connection.send(&page).await?;
            self.connection.flush().await?;
            match within(self.connection.receive_head()).await? {
                RespHead::Array(2) => {}
                RespHead::Whole(RespReply::Error(text)) if is_wrong_type(&text) => {
                    break Read::Changed;
                }
                RespHead::Whole(RespReply::Error(text)) => return Err(self.refused(&text)),
                _ => return Err(unexpected()),
            }
            let RespReply::Bulk(Some(next)) = self.receive().await? else {
                return Err(unexpected());
            };
            let RespHead::Array(strings) = within(self.connection.receive_head()).await? else {
                return Err(unexpected());
            };
            self.members(&mut cutter, strings, &mut left_out, way).await?;
            if next == "0" {
                break Read::Ended;
            }
            cursor = next;
        };
        let (kind_after, expiry_after, members) = self.state(found).await?;
        let is_same = kind_after == kind && self.is_same(expiry, expiry_after);
        // bug cli.import_of_a_changed_collection: never
        if read == Read::Changed || !is_same {
            if !cutter.has_sent_nothing() {
                way.lanes.send(ValuePart::gone(database, found.name.clone())).await?;
            }
            return Ok(Read::Changed);
        }
        let total = if left_out.is_some() { None } else { Some(members) };
        way.finish(cutter, total, left_out).await?;
        Ok(Read::Ended)
    }

    fn is_same(&self, before: Expiry, after: Expiry) -> bool {
        match (before, after) {
            (Expiry::At(before), Expiry::At(after)) => {
                before.abs_diff(after) <= self.tolerance_ms()
            }
            _ => before == after,
        }
    }

    /// Returns the type of a name, its expiry and the number of its members.
    async fn state(&mut self, found: &Found) -> Result<(String, Expiry, u64)> {
        let name = &found.name[..];
        let commands = ["TYPE", self.expiry_command(), length_command(found.kind)];
        for command in commands {
            self.connection.send(&[command.as_bytes(), name]).await?;
        }
        self.connection.flush().await?;
        let RespReply::Status(kind) = self.receive().await? else { return Err(unexpected()) };
        let expiry = self.receive().await?;
        let expiry = self.expiry(&expiry)?;
        let members = match self.receive().await? {
            RespReply::Integer(members) => u64::try_from(members).unwrap_or(0),
            RespReply::Error(text) if is_wrong_type(&text) => 0,
            RespReply::Error(text) => return Err(self.refused(&text)),
            _ => return Err(unexpected()),
        };
        Ok((kind, expiry, members))
    }
}

impl Found {
    fn cutter(&self, database: Database, expiry: Expiry) -> Cutter {
        let expires_at_ms = match expiry {
            Expiry::At(at_ms) => Some(at_ms),
            Expiry::Never | Expiry::Gone => None,
        };
        let (name, kind) = (self.name.clone(), self.kind);
        Cutter::new(SourceValue { database, name, kind, expires_at_ms })
    }
}

impl Way<'_> {
    pub(super) fn too_long(&self, database: Database, name: &[u8], bytes: u64) {
        let (bytes, max) = (format_bytes(bytes), format_bytes(VALUE_BYTES_MAX as u64));
        let detail = format!("a string of {bytes}; the limit is {max}");
        self.report.problem(Cause::Refused, database, name, &detail);
    }

    async fn finish(self, cutter: Cutter, total: Option<u64>, left_out: Option<u64>) -> Result<()> {
        if let Some(bytes) = left_out {
            let (bytes, max) = (format_bytes(bytes), format_bytes(VALUE_BYTES_MAX as u64));
            let detail = format!("a string of {bytes} is left out; the limit is {max}");
            let value = cutter.value();
            let cause = Cause::StoredInPart;
            self.report.problem(cause, value.database, &value.name, &detail);
        }
        self.lanes.send(cutter.finish(total)).await
    }
}
