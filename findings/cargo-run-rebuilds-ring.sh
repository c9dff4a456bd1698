#!/usr/bin/env bash
# Cargo with ring 0.17.14: a cargo that a program under `cargo run` starts builds ring, and all that depends on it,
# again, although nothing has changed; the next build from a shell builds it again too.
#
# Guess: cargo sets `CARGO_PKG_NAME`, `CARGO_MANIFEST_DIR` and the like for each build script itself, so their values
# in cargo's own environment have no effect on whether a build script runs again.
# Seen: ring's build script prints `cargo:rerun-if-env-changed` for each of these variables that it reads. Cargo
# compares them with its own environment, not with what it sets. `cargo run` sets them for the program, so
# a cargo under that program sees other values than one in a shell.
# What a user meets: a task runner in Rust (`cargo run -p xtask`) that calls cargo in its steps, in a workspace with rustls,
# compiles TLS, HTTP and everything above in each turn between it and the shell.
# Remedy: the task runner removes `CARGO_PKG_*` and `CARGO_MANIFEST_*` from the environment of the cargo that it
# starts.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

mkdir src
cat > Cargo.toml <<'TOML'
[package]
name = "probe"
version = "0.1.0"
edition = "2024"

[dependencies]
ring = "=0.17.14"
TOML
echo 'fn main() { println!("{}", ring::digest::SHA256.output_len()); }' > src/main.rs
cargo --version

built() {
    printed=$("$@" 2>&1)
    if [[ $printed == *"Compiling ring"* ]]; then echo built; else echo fresh; fi
}
first=$(built cargo build)
second=$(built cargo build)
as_a_child=$(built env CARGO_PKG_NAME=xtask CARGO_MANIFEST_DIR=/elsewhere cargo build)
as_a_child_again=$(built env CARGO_PKG_NAME=xtask CARGO_MANIFEST_DIR=/elsewhere cargo build)
from_the_shell=$(built cargo build)
echo "first: $first | second: $second | as a child: $as_a_child, again: $as_a_child_again | shell: $from_the_shell"
[[ "$first $second $as_a_child $as_a_child_again $from_the_shell" == "built fresh built fresh built" ]]
