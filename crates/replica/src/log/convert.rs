//! Conversion between this crate's messages and the `raft` crate's. In the log and on the wire
//! every entry is a command; only Raft sees a change of members in its own form.

use crate::admin;
use crate::messages::{RaftEntry, RaftKind, RaftMessage};
use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use stele_types::{CommittedEntry, LogIndex, Term};

pub(crate) fn entry(term: u64, index: u64, payload: Bytes) -> Entry {
    let mut entry = Entry { term, index, ..Entry::default() };
    let change = admin::conf_change(&payload);
    match change.and_then(|change| change.write_to_bytes().ok()) {
        Some(change) => {
            entry.set_entry_type(EntryType::EntryConfChangeV2);
            entry.data = Bytes::from(change);
            entry.context = payload;
        }
        None => entry.data = payload,
    }
    entry
}

/// Returns the command of an entry; empty for a no-op.
pub(crate) fn payload_of(entry: &Entry) -> &Bytes {
    match entry.get_entry_type() {
        EntryType::EntryNormal => &entry.data,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => &entry.context,
    }
}

pub(crate) fn committed(entry: &Entry) -> CommittedEntry {
    let payload = payload_of(entry).clone();
    CommittedEntry {
        term: Term(entry.term),
        index: LogIndex(entry.index),
        is_command: !payload.is_empty(),
        payload,
    }
}

const KINDS: [(RaftKind, MessageType); 12] = [
    (RaftKind::Append, MessageType::MsgAppend),
    (RaftKind::AppendResponse, MessageType::MsgAppendResponse),
    (RaftKind::RequestVote, MessageType::MsgRequestVote),
    (RaftKind::RequestVoteResponse, MessageType::MsgRequestVoteResponse),
    (RaftKind::RequestPreVote, MessageType::MsgRequestPreVote),
    (RaftKind::RequestPreVoteResponse, MessageType::MsgRequestPreVoteResponse),
    (RaftKind::Heartbeat, MessageType::MsgHeartbeat),
    (RaftKind::HeartbeatResponse, MessageType::MsgHeartbeatResponse),
    (RaftKind::TransferLeader, MessageType::MsgTransferLeader),
    (RaftKind::TimeoutNow, MessageType::MsgTimeoutNow),
    (RaftKind::ReadIndex, MessageType::MsgReadIndex),
    (RaftKind::ReadIndexResponse, MessageType::MsgReadIndexResp),
];

/// Converts a message for Raft. A read's context becomes the data of an entry there.
pub(crate) fn to_raft(message: RaftMessage, from: u64, to: u64) -> Message {
    let kind = KINDS.iter().find(|(kind, _)| *kind == message.kind);
    let mut out = Message::default();
    out.set_msg_type(kind.map_or(MessageType::MsgUnreachable, |(_, kind)| *kind));
    out.from = from;
    out.to = to;
    out.term = message.term.0;
    out.log_term = message.log_term.0;
    out.index = message.index.0;
    out.commit = message.commit.0;
    out.commit_term = message.commit_term.0;
    out.reject = message.reject;
    out.reject_hint = message.reject_hint.0;
    out.request_snapshot = message.request_snapshot.0;
    out.priority = message.priority;
    let entries = match message.kind {
        RaftKind::ReadIndex | RaftKind::ReadIndexResponse => {
            vec![Entry { data: message.context, ..Entry::default() }]
        }
        _ => {
            out.context = message.context;
            message.entries.into_iter().map(|e| entry(e.term.0, e.index.0, e.payload)).collect()
        }
    };
    out.set_entries(entries.into());
    out
}

/// Converts a message from Raft; `None` for a local one or a snapshot.
pub(crate) fn from_raft(message: Message) -> Option<RaftMessage> {
    let msg_type = message.get_msg_type();
    let (kind, _) = KINDS.iter().find(|(_, theirs)| *theirs == msg_type)?;
    let mut out = RaftMessage::new(*kind, Term(message.term));
    out.log_term = Term(message.log_term);
    out.index = LogIndex(message.index);
    out.commit = LogIndex(message.commit);
    out.commit_term = Term(message.commit_term);
    out.reject = message.reject;
    out.reject_hint = LogIndex(message.reject_hint);
    out.request_snapshot = LogIndex(message.request_snapshot);
    out.priority = message.priority;
    out.context = message.context.clone();
    if matches!(kind, RaftKind::ReadIndex | RaftKind::ReadIndexResponse) {
        out.context = message.entries.first().map(|e| e.data.clone()).unwrap_or_default();
        return Some(out);
    }
    out.entries = message.entries.iter().map(raft_entry).collect();
    Some(out)
}

fn raft_entry(entry: &Entry) -> RaftEntry {
    let payload = payload_of(entry).clone();
    RaftEntry { term: Term(entry.term), index: LogIndex(entry.index), payload }
}
