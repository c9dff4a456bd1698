#!/usr/bin/env bash
# quick_cache 0.7.0: which values a cache keeps depends on the number of processors.
#
# Guess: a cache of 64 MiB keeps any value of far less than 64 MiB; only the total is limited.
# Seen: the capacity is divided among the shards, and an insertion heavier than a shard's part is dropped without
# an error. By default there are four shards for each processor, rounded up to a power of two (fewer only if a
# shard would hold fewer than 32 expected items). So a value of 1.5 MiB is kept on a machine of 8 processors and
# dropped on one of 16, with the same code and the same capacity. The heaviest value is also kept out of an empty
# cache, and an insertion that is dropped removes the older value of its key.
# Remedy: choose the shards by the heaviest value that must be kept, with `OptionsBuilder::shards`, and compare
# `shard_capacity()` with it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
cat > "$folder/Cargo.toml" <<'TOML'
[package]
name = "large-values"
version = "0.0.0"
edition = "2021"
[dependencies]
quick_cache = "=0.7.0"
[workspace]
TOML
cat > "$folder/src/main.rs" <<'RUST'
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

#[derive(Clone)]
struct Bytes;
impl Weighter<u64, Vec<u8>> for Bytes {
    fn weight(&self, _: &u64, value: &Vec<u8>) -> u64 {
        value.len() as u64
    }
}

const CAPACITY: usize = 64 << 20;

/// The default for a machine of so many processors, spelled out.
fn on_a_machine_of(processors: usize) -> Cache<u64, Vec<u8>, Bytes> {
    let options = OptionsBuilder::new()
        .shards(processors * 4)
        .estimated_items_capacity(CAPACITY >> 10)
        .weight_capacity(CAPACITY as u64)
        .build()
        .unwrap();
    Cache::with_options(options, Bytes, DefaultHashBuilder::default(), DefaultLifecycle::default())
}

fn main() {
    let by_default = Cache::<u64, Vec<u8>, Bytes>::with_weighter(CAPACITY >> 10, CAPACITY as u64, Bytes);
    let processors = std::thread::available_parallelism().unwrap().get();
    assert_eq!(by_default.num_shards(), (processors * 4).next_power_of_two());
    for processors in [2, 8, 16, 64] {
        let cache = on_a_machine_of(processors);
        let heaviest = [64usize << 10, 200 << 10, 1536 << 10, 6 << 20, 12 << 20].into_iter().filter(|bytes| {
            cache.clear();
            cache.insert(1, vec![0; *bytes]);
            cache.get(&1).is_some()
        });
        let kept = heaviest.max().unwrap_or(0);
        println!("{processors} processors: a shard holds {} KiB, heaviest value kept {} KiB",
            cache.shard_capacity() >> 10, kept >> 10);
    }
    let cache = on_a_machine_of(16);
    cache.insert(7, vec![1; 10]);
    cache.insert(7, vec![2; 2 << 20]);
    println!("after a dropped insertion the older value of the key is {}",
        if cache.get(&7).is_some() { "kept" } else { "gone" });
}
RUST
printed=$(cd "$folder" && cargo run --quiet)
echo "$printed"
diff <(echo "$printed") - <<'SEEN'
2 processors: a shard holds 8192 KiB, heaviest value kept 6144 KiB
8 processors: a shard holds 2048 KiB, heaviest value kept 1536 KiB
16 processors: a shard holds 1024 KiB, heaviest value kept 200 KiB
64 processors: a shard holds 256 KiB, heaviest value kept 200 KiB
after a dropped insertion the older value of the key is gone
SEEN
echo "as seen with quick_cache 0.7.0"
