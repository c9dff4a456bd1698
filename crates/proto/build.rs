//! Generates the messages, clients and services of `proto/` without tools outside Cargo.

use std::error::Error;

const FILES: [&str; 9] = [
    "metapb.proto",
    "errorpb.proto",
    "kvrpcpb.proto",
    "tikvpb.proto",
    "pdpb.proto",
    "meta_storagepb.proto",
    "keyspacepb.proto",
    "stele/control/v1/control.proto",
    "stele/kv/v1/kv.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::SizedCodec")
        .include_file("mod.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
