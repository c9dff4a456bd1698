//! Addresses of nodes, as `host:port`.

/// Longest address, in bytes, as the placement group allows.
const BYTES_MAX: usize = 1024;

/// Returns host and port of `host:port`; `None` if one is missing. An IPv6 host is in brackets.
pub fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let inner = host.strip_prefix('[').map_or(Some(host), |rest| rest.strip_suffix(']'))?;
    let is_ipv6 = inner.len() < host.len();
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-_.%".contains(c) || is_ipv6 && c == ':';
    // `u16` also reads a sign.
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let port: u16 = port.parse().ok().filter(|port| *port > 0 && digits)?;
    let is_whole = !inner.is_empty() && address.len() <= BYTES_MAX && inner.chars().all(is_host);
    is_whole.then_some((inner, port))
}

/// Returns whether a text is an address that a node can be dialled at.
pub fn is_address(text: &str) -> bool {
    split(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        let good = [("a:1", ("a", 1)), ("10.0.0.7:20160", ("10.0.0.7", 20160))];
        let good = good.into_iter().chain([("[::1]:65535", ("::1", 65535))]);
        for (text, parts) in good.chain([("node_1.stele.local:80", ("node_1.stele.local", 80))]) {
            assert_eq!(split(text), Some(parts), "{text}");
        }
        let bad =
            ["", "a", ":1", "a:", "a:0", "a:65536", "a:+1", "a:x", "::1:80", "[::1:80", "[]:1"];
        for text in bad.into_iter().chain(["http://localhost:1", "a b:1", "a/b:1", "::1"]) {
            assert_eq!(split(text), None, "{text}");
        }
        assert!(!is_address(&format!("{}:1", "a".repeat(2000))));
    }
}
