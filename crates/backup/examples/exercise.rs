//! Exercises a repository at a URL: `cargo xtask s3` runs it against servers of S3.
//!
//! Usage: `exercise URL`, with an empty place and the AWS_* environment of the store.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/s3/exercise.rs"]
mod exercise;

use stele_backup::{OpenOptions, Repository, install_tls_provider};
use stele_types::{ClusterId, Error, Prng, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1);
    let url = url.ok_or_else(|| Error::invalid("name the place: exercise URL"))?;
    install_tls_provider();
    let options = OpenOptions::default();
    let repository = Repository::create_or_open(&url, &options, ClusterId(7)).await?;
    exercise::write_check_prune(&repository, &mut Prng::new(1)).await?;
    exercise::refuse_others(&url, &repository).await?;
    println!("{url}: every operation is right");
    Ok(())
}
