//! Requests that browsers make for pages of other sites. The service is for programs: it allows no other
//! origin, and sends no header that would let a page read an answer.

use super::HttpFailure;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};
use std::net::IpAddr;

/// Fails for a request of a page of another site. A node that is reached from its own machine alone also
/// refuses other names of hosts than those of the machine: a name that an attacker has would be its own
/// origin.
///
/// Invariant: a page that a browser shows reads and changes nothing.
/// Tests: `a_page_of_another_site_is_refused`, `a_local_node_has_local_names_alone`.
pub(super) fn check(headers: &HeaderMap, uri: &Uri, is_local: bool) -> Result<(), HttpFailure> {
    let host = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(HOST).and_then(|host| host.to_str().ok()),
    };
    // bug server.any_host_is_local: never
    if let Some(host) = host.filter(|host| is_local && !is_of_this_machine(host)) {
        return Err(HttpFailure::foreign_origin(format!(
            "the node is reached from its own machine alone, and `{host}` is no name of it: use localhost or its \
             address"
        )));
    }
    let mut origins = headers.get_all(ORIGIN).into_iter();
    let Some(origin) = origins.next() else { return Ok(()) };
    let is_own = match (origin.to_str(), host, origins.next()) {
        (Ok(origin), Some(host), None) => is_origin_of(origin, host),
        _ => false,
    };
    // bug server.any_origin: always
    if is_own {
        return Ok(());
    }
    let text = "the header Origin is of another site: pages of other sites may not use the node";
    Err(HttpFailure::foreign_origin(text.to_owned()))
}

fn is_origin_of(origin: &str, host: &str) -> bool {
    let Some((scheme, site)) = origin.split_once("://") else { return false };
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let bare = |site: &str| site.strip_suffix(port).unwrap_or(site).to_ascii_lowercase();
    bare(site) == bare(host)
}

fn is_of_this_machine(host: &str) -> bool {
    // `[::1]:20160`, `127.0.0.1:20160`, `localhost`
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    name.eq_ignore_ascii_case("localhost") || is_loopback
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn checked(host: &str, origins: &[&str], is_local: bool) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        for origin in origins {
            headers.append(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        check(&headers, &Uri::from_static("/v1/kv/a"), is_local).is_ok()
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        for (host, origin, is_allowed) in [
            ("example.com:2379", "http://example.com:2379", true),
            ("EXAMPLE.COM:2379", "http://example.com:2379", true),
            ("example.com", "http://example.com:80", true),
            ("example.com:443", "https://example.com", true),
            ("example.com:80", "https://example.com", false),
            ("example.com:2379", "http://example.com", false),
            ("example.com:2379", "http://localhost:2379", false),
            ("example.com:2379", "http://example.com:2379.other", false),
            ("example.com:2379", "null", false),
            ("example.com:2379", "", false),
            ("example.com:2379", "file://example.com:2379", false),
        ] {
            assert_eq!(checked(host, &[origin], false), is_allowed, "{host} {origin}");
        }
        assert!(checked("example.com", &[], false));
        assert!(!checked("example.com", &["http://example.com", "http://example.com"], false));
        let uri = Uri::from_static("http://example.com:2379/v1/kv/a");
        let headers =
            HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static("http://example.com:2379"))]);
        assert!(check(&headers, &uri, false).is_ok(), "HTTP/2 has the host in its target");
    }

    #[test]
    fn a_local_node_has_local_names_alone() {
        for host in ["localhost", "localhost:1", "127.0.0.1:20160", "127.9.9.9", "[::1]:1", "[::1]"]
        {
            assert!(checked(host, &[], true), "{host}");
        }
        for host in ["rebound.example:20160", "10.0.0.1", "localhost.example", "127.0.0.1.example"]
        {
            assert!(!checked(host, &[], true), "{host}");
            assert!(checked(host, &[], false), "{host}");
        }
    }
}
