//! Tokens: secrets by which clients without a certificate prove what they are, and with which nodes join. A
//! cluster keeps the hash alone: of 256 random bits none is found by their hash.

use crate::TlsError;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt::Write;

const TOKEN_BYTES: usize = 32;

/// Creates a token of 256 random bits, as text. Fails if the system gives no random bytes.
pub fn new_token() -> Result<String, TlsError> {
    let mut bytes = [0; TOKEN_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| TlsError::Library {
        doing: "reading random bytes",
        detail: "the system gave none".to_owned(),
    })?;
    let mut text = String::from("stele_");
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// Returns the SHA-256 of a token.
pub fn token_hash(token: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, token).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_their_hash_is_sha_256() {
        let (one, two) = (new_token().unwrap(), new_token().unwrap());
        assert!(one != two && one.len() == 6 + 2 * TOKEN_BYTES && one.starts_with("stele_"));
        // FIPS 180-2, appendix B.1.
        assert_eq!(token_hash(b"abc")[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(token_hash(b"abc")[28..], [0xf2, 0x00, 0x15, 0xad]);
    }
}
