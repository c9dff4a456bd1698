//! Addresses of nodes, as `host:port`.

use crate::{Error, Result};

/// Longest address, in bytes, as the placement group allows.
const BYTES_MAX: usize = 1024;
/// Scheme that is accepted before an address to connect to: it names what a node speaks.
const PLAIN: &str = "http://";

/// Returns host and port of `host:port`. An IPv6 host is in brackets. The error says what is wrong.
pub fn split(address: &str) -> Result<(&str, u16)> {
    let refuse = |reason: &str| Err(refusal(address, reason));
    if let Some((scheme, _)) = address.split_once("://") {
        return match scheme.eq_ignore_ascii_case("https") {
            true => refuse("files turn TLS on (--ca, tls_ca), not the address; remove `https://`"),
            false => refuse(&format!("remove `{scheme}://`")),
        };
    }
    if address.len() > BYTES_MAX {
        return Err(Error::invalid(format!(
            "an address of {} bytes is too long; at most {BYTES_MAX} are allowed",
            address.len()
        )));
    }
    let Some((host, port)) = address.rsplit_once(':') else { return refuse("the port is missing") };
    let inner = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']'),
        None if host.contains(':') => None,
        None => Some(host),
    };
    let Some(inner) = inner else { return refuse("an IPv6 address is in brackets") };
    if inner.is_empty() {
        return refuse("the host is missing");
    }
    let is_ipv6 = inner.len() < host.len();
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-_.%".contains(c) || is_ipv6 && c == ':';
    if let Some(other) = inner.chars().find(|c| !is_host(*c)) {
        return refuse(&format!("a host has no {other:?}"));
    }
    // `u16` also reads a sign.
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse::<u16>().ok().filter(|_| digits) {
        Some(port) => Ok((inner, port)),
        None => refuse("the port is not a number from 1 to 65535"),
    }
}

/// Checks an address that a node can be dialled at: its port is not 0.
pub fn check(address: &str) -> Result<()> {
    match split(address)? {
        (_, 0) => Err(refusal(address, "the port is not a number from 1 to 65535")),
        _ => Ok(()),
    }
}

/// Returns whether a text is an address that a node can be dialled at.
pub fn is_address(text: &str) -> bool {
    check(text).is_ok()
}

/// Returns the `host:port` to connect to. `http://` before it and `/` after it are accepted, because
/// PD writes its addresses so; whether a connection has TLS does not depend on it. Any other scheme is an error:
/// without it the connection would not be what was asked for.
pub fn to_connect(text: &str) -> Result<&str> {
    let text = text.trim();
    let address = match text.get(..PLAIN.len()) {
        Some(scheme) if scheme.eq_ignore_ascii_case(PLAIN) => {
            let rest = text.get(PLAIN.len()..).unwrap_or_default();
            rest.strip_suffix('/').unwrap_or(rest)
        }
        _ => text,
    };
    check(address).map(|()| address)
}

fn refusal(address: &str, reason: &str) -> Error {
    Error::invalid(format!("`{address}` is not an address: {reason}; write host:port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        let good = [("a:1", ("a", 1)), ("10.0.0.7:20160", ("10.0.0.7", 20160))];
        let good = good.into_iter().chain([("[::1]:65535", ("::1", 65535)), ("a:0", ("a", 0))]);
        for (text, parts) in good.chain([("node_1.stele.local:80", ("node_1.stele.local", 80))]) {
            assert_eq!(split(text).unwrap(), parts, "{text}");
        }
        for (bad, reason) in [
            ("", "port is missing"),
            ("a", "port is missing"),
            (":1", "host is missing"),
            ("[]:1", "host is missing"),
            ("a:", "not a number from 1 to 65535"),
            ("a:65536", "not a number from 1 to 65535"),
            ("a:+1", "not a number from 1 to 65535"),
            ("a:x", "not a number from 1 to 65535"),
            ("::1:80", "in brackets"),
            ("[::1:80", "in brackets"),
            ("::1", "in brackets"),
            ("a b:1", "no ' '"),
            ("a/b:1", "no '/'"),
            ("http://localhost:1", "remove `http://`"),
        ] {
            let refused = split(bad).unwrap_err().to_string();
            assert!(refused.contains(reason) && refused.contains("host:port"), "{bad}: {refused}");
            assert!(!is_address(bad));
        }
        assert!(!is_address("a:0"), "no node can be dialled at port 0");
        assert!(!is_address(&format!("{}:1", "a".repeat(2000))));
    }

    #[test]
    fn a_scheme_that_asks_for_tls_is_not_dropped() {
        for text in
            ["localhost:1", "http://localhost:1", "HTTP://localhost:1/", " http://localhost:1 "]
        {
            assert_eq!(to_connect(text).unwrap(), "localhost:1", "{text}");
        }
        for text in ["https://localhost:1", "HTTPS://localhost:1/"] {
            let refused = to_connect(text).unwrap_err().to_string();
            assert!(refused.contains("files turn TLS on"), "{text}: {refused}");
        }
        for text in
            ["tcp://a:1", "http://localhost", "http://localhost:1/path", "http://localhost:1//"]
        {
            assert!(to_connect(text).is_err(), "{text}");
        }
    }
}
