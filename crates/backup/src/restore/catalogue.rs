//! Settings and access rules of a cluster, as a base records them. Secrets are not among them: a grant to a token
//! is recorded without the token.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stele_client::Control;
use stele_client::messages::AccessGrant;
use stele_types::{Error, Result};

/// Beginning of the names of grants to tokens.
const TOKEN_NAME: &str = "token:";

/// A grant in JSON.
#[derive(Serialize, Deserialize)]
struct GrantText {
    name: String,
    /// Sum of 1 (read), 2 (write) and 4 (administration).
    permissions: u32,
    /// Beginnings of keys, in hexadecimal; empty for all keys.
    prefixes: Vec<String>,
    operations_per_second: u64,
    bytes_per_second: u64,
    connections: u64,
}

/// Returns grants as JSON, without the hashes of tokens.
pub fn access_text(grants: &[AccessGrant]) -> Result<String> {
    let text = |grant: &AccessGrant| GrantText {
        name: grant.name.clone(),
        permissions: grant.permissions,
        prefixes: grant.prefixes.iter().map(|prefix| to_hex(prefix)).collect(),
        operations_per_second: grant.operations_per_second,
        bytes_per_second: grant.bytes_per_second,
        connections: grant.connections,
    };
    let texts: Vec<GrantText> = grants.iter().map(text).collect();
    serde_json::to_string(&texts).map_err(|error| Error::invalid(format!("grants: {error}")))
}

/// Returns the grants of [`access_text`].
pub fn access_grants(text: &str) -> Result<Vec<AccessGrant>> {
    let invalid = |detail: String| {
        Error::invalid(format!("the access rules of the base cannot be read: {detail}"))
    };
    let texts: Vec<GrantText> =
        serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
    let grant = |text: GrantText| {
        let prefix = |hex: &String| from_hex(hex).ok_or_else(|| invalid(format!("`{hex}`")));
        Ok(AccessGrant {
            name: text.name,
            permissions: text.permissions,
            prefixes: text.prefixes.iter().map(prefix).collect::<Result<_>>()?,
            operations_per_second: text.operations_per_second,
            bytes_per_second: text.bytes_per_second,
            connections: text.connections,
            ..AccessGrant::default()
        })
    };
    texts.into_iter().map(grant).collect()
}

/// Sets the settings of a cluster through the node at `address`. Returns those that it refused, with reasons.
pub async fn apply_settings(
    control: &Control,
    address: &str,
    settings: &[(String, String)],
) -> Result<Vec<String>> {
    let mut refused = Vec::new();
    for (name, value) in settings {
        match control.set_config(address, name, value).await {
            Ok(_) => {}
            Err(error @ (Error::Refused(_) | Error::Invalid(_))) => {
                refused.push(format!("{name} = {value}: {error}"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(refused)
}

/// Makes grants in a cluster. Returns the names of those that it cannot make: their tokens are not in a backup.
pub async fn apply_access(control: &Control, grants: Vec<AccessGrant>) -> Result<Vec<String>> {
    let (of_tokens, of_names) = by_kind(grants);
    for grant in of_names {
        control.grant_access(grant).await?;
    }
    Ok(of_tokens)
}

/// Returns the names of grants to tokens, and the other grants, administrators first: with the first grant access is
/// on.
fn by_kind(grants: Vec<AccessGrant>) -> (Vec<String>, Vec<AccessGrant>) {
    const ADMINISTRATION: u32 = 4;
    let (of_tokens, mut of_names): (Vec<_>, Vec<_>) =
        grants.into_iter().partition(|grant| grant.name.starts_with(TOKEN_NAME));
    of_names.sort_by_key(|grant| grant.permissions & ADMINISTRATION == 0);
    (of_tokens.into_iter().map(|grant| grant.name).collect(), of_names)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Bytes> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| match pair {
        [high, low] => {
            let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
            Some(digit(*high)? << 4 | digit(*low)?)
        }
        _ => None,
    };
    digits.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(name: &str, permissions: u32) -> AccessGrant {
        AccessGrant {
            name: name.to_owned(),
            permissions,
            prefixes: vec![Bytes::from_static(b"a\xff"), Bytes::new()],
            operations_per_second: 5,
            ..AccessGrant::default()
        }
    }

    #[test]
    fn grants_are_recorded_without_the_hashes_of_tokens() {
        let token = AccessGrant { token_hash: vec![7; 32].into(), ..grant("token:x", 1) };
        let text = access_text(&[grant("app", 3), token]).unwrap();
        assert!(!text.contains("hash") && !text.contains("0707"), "{text}");
        assert_eq!(access_grants(&text).unwrap(), [grant("app", 3), grant("token:x", 1)]);
        for bad in ["", "{}", "[{\"name\":\"x\"}]", &text.replace("61ff", "61f")] {
            let refused = access_grants(bad).unwrap_err().to_string();
            assert!(refused.contains("cannot be read"), "{bad}: {refused}");
        }
    }

    #[test]
    fn administrators_are_granted_first_and_tokens_are_left_to_their_owner() {
        let grants = vec![grant("app", 3), grant("token:x", 7), grant("root", 7), grant("b", 1)];
        let (of_tokens, of_names) = by_kind(grants);
        let names: Vec<&str> = of_names.iter().map(|grant| grant.name.as_str()).collect();
        assert_eq!((of_tokens, names), (vec!["token:x".to_owned()], vec!["root", "app", "b"]));
    }
}
