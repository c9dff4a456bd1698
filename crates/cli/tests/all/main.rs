//! All files are one program: each program of tests takes long to build and to link.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod backup;
mod backup_access;
mod backup_files;
mod bench;
mod cert;
mod cluster;
mod common;
mod copy;
mod corpus;
mod events;
#[path = "../../../client/tests/fake/mod.rs"]
mod fake;
mod import_export;
mod import_redis;
mod keys;
mod moment;
mod node_dir;
mod node_process;
mod playground;
mod processes;
mod recover;
mod restore;
mod secrets;
mod tls;
mod watch;
mod watch_access;
