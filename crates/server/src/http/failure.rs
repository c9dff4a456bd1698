//! Answers to requests that are not done: a status, and an object of JSON.
//!
//! ```text
//! {"error": {"code": NAME, "message": TEXT, "outcome": "no_effect" | "unknown" | "partial", ...}}
//! ```
//!
//! Invariant: `no_effect` is stated only if the request certainly has none, now or later.
//! Test: `an_answer_states_whether_the_request_may_have_taken_effect`.

use super::routes::Route;
use super::{JSON, encoding};
use crate::access::Denied;
use crate::memory::Exceeded;
use crate::tikv::ValueDigest;
use axum::body::Body;
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, ETAG, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use std::fmt;
use stele_types::command::Unfit;
use stele_types::{Error, Partial};

/// Request that is not done, or of which that is unknown.
#[derive(Debug)]
pub(crate) struct HttpFailure(Box<Stated>);

#[derive(Debug)]
struct Stated {
    status: StatusCode,
    /// Name for programs.
    code: &'static str,
    message: String,
    effect: Effect,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Effect of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// None, now and later.
    None,
    /// It may or may not take effect, now or later.
    Unknown,
    /// So many of its writes.
    Partial { done: u64, not_done: u64, unknown: u64 },
}

const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

impl HttpFailure {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let (message, headers) = (message.into(), Vec::new());
        Self(Box::new(Stated { status, code, message, effect: Effect::None, headers }))
    }

    fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.push((name, value));
        self
    }

    fn having(mut self, effect: Effect) -> Self {
        self.0.effect = effect;
        self
    }

    pub(super) fn invalid(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    pub(super) fn internal(message: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    pub(super) fn forbidden(message: String) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(super) fn foreign_origin(message: String) -> Self {
        Self::new(StatusCode::FORBIDDEN, "foreign_origin", message)
    }

    /// Creates the answer to a caller that may not make the call.
    pub(crate) fn denied(denied: &Denied) -> Self {
        let message = denied.to_string();
        if denied.is_elsewhere() {
            return Self::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", message);
        }
        match denied.is_unidentified() {
            true => Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
                .with(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            false => Self::forbidden(message),
        }
    }

    /// Creates the answer to a request for a path that is not served.
    pub(crate) fn no_such_path(path: &str) -> Self {
        let message =
            format!("there is no {path}: /v1/openapi.json describes those that there are");
        Self::new(StatusCode::NOT_FOUND, "no_such_path", message)
    }

    pub(super) fn method_not_allowed(route: &Route) -> Self {
        let allow = route.allow();
        let message = format!("{} has the methods {allow}", route.path);
        let failure = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        match HeaderValue::try_from(allow) {
            Ok(allow) => failure.with(ALLOW, allow),
            Err(_) => failure,
        }
    }

    pub(super) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "the key has no value")
    }

    /// Creates the answer to a request of which the conditions do not hold for a value with this digest.
    pub(super) fn precondition_failed(found: Option<ValueDigest>) -> Self {
        let (status, code) = (StatusCode::PRECONDITION_FAILED, "precondition_failed");
        match found {
            Some(digest) => {
                let message = "the key has another value: that of the header ETag";
                Self::new(status, code, message).with(ETAG, super::etag::header(digest))
            }
            None => Self::new(status, code, "the key has no value"),
        }
    }

    pub(super) fn body_too_long(bytes_max: u64) -> Self {
        let message = format!("the body has more than {bytes_max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    pub(super) fn too_large(message: String) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// Creates the answer to a request of which the body, of at most `bytes_max`, is refused.
    pub(super) fn of_body(exceeded: Exceeded, bytes_max: u64) -> Self {
        match exceeded {
            Exceeded::Request { bytes_max: exceeded_max, .. } if exceeded_max == bytes_max => {
                Self::body_too_long(bytes_max)
            }
            exceeded => exceeded.into(),
        }
    }

    pub(super) fn body_timeout(message: &str) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    }

    pub(super) fn unsupported_encoding(coding: &str) -> Self {
        let message = format!("the body has the encoding {coding}: send it as it is to be stored");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message)
    }

    pub(super) fn too_many_watches() -> Self {
        let message = "the node has as many watches as it serves: use another node";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).with(RETRY_AFTER, RETRY_AFTER_S)
    }

    /// Returns the object of the failure.
    pub(super) fn object(&self) -> Vec<u8> {
        let Stated { code, message, effect, .. } = &*self.0;
        let mut out = format!("{{\"error\":{{\"code\":\"{code}\",\"message\":").into_bytes();
        encoding::put_text(&mut out, message);
        let effect = match effect {
            Effect::None => "\"no_effect\"".to_owned(),
            Effect::Unknown => "\"unknown\"".to_owned(),
            Effect::Partial { done, not_done, unknown } => format!(
                "\"partial\",\"done\":{done},\"not_done\":{not_done},\"of_unknown_outcome\":{unknown}"
            ),
        };
        out.extend_from_slice(format!(",\"outcome\":{effect}}}}}").as_bytes());
        out
    }
}

impl fmt::Display for HttpFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.0.status.as_u16(), self.0.code, self.0.message)
    }
}

impl IntoResponse for HttpFailure {
    fn into_response(self) -> Response {
        let mut object = self.object();
        object.push(b'\n');
        let mut response = Response::new(Body::from(object));
        *response.status_mut() = self.0.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.extend(self.0.headers);
        response
    }
}

impl From<Exceeded> for HttpFailure {
    fn from(exceeded: Exceeded) -> Self {
        let message = exceeded.to_string();
        match exceeded {
            Exceeded::Request { .. } => Self::too_large(message),
            Exceeded::Limit => Self::new(StatusCode::TOO_MANY_REQUESTS, "over_limit", message)
                .with(RETRY_AFTER, RETRY_AFTER_S),
            Exceeded::Shared | Exceeded::Abandoned => busy(message),
        }
    }
}

fn busy(message: String) -> HttpFailure {
    HttpFailure::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
        .with(RETRY_AFTER, RETRY_AFTER_S)
}

impl From<Error> for HttpFailure {
    /// Converts the failure of a call of the cluster's client, which has repeated what may succeed at once.
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Invalid(detail) => of_invalid(&detail, message),
            Error::Busy(_) | Error::NoSpace(_) => busy(message),
            Error::Unavailable(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
                    .with(RETRY_AFTER, RETRY_AFTER_S)
            }
            Error::Undetermined(_) => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, "undetermined", message)
                    .having(Effect::Unknown)
            }
            Error::Partial(partial) => of_partial(&partial, message),
            Error::Refused(_) => Self::new(StatusCode::CONFLICT, "refused", message),
            Error::TooOld(_) => Self::new(StatusCode::GONE, "too_old", message),
            _ => Self::internal(&message),
        }
    }
}

/// Converts the refusal of a request that can never succeed in this form.
fn of_invalid(detail: &str, message: String) -> HttpFailure {
    let is = |unfit: Unfit| matches!(unfit.error(), Error::Invalid(text) if text == detail);
    if is(Unfit::NotANumber) {
        return HttpFailure::new(StatusCode::CONFLICT, "not_a_number", message);
    }
    if is(Unfit::Overflow) {
        return HttpFailure::new(StatusCode::CONFLICT, "overflow", message);
    }
    // The leader of the region has no memory for so much.
    match detail.contains("request_memory_bytes_max") {
        true => HttpFailure::too_large(message),
        false => HttpFailure::invalid(message),
    }
}

fn of_partial(partial: &Partial, message: String) -> HttpFailure {
    let Partial { done, not_done, unknown, .. } = *partial;
    let (status, code) = match unknown {
        0 => (StatusCode::SERVICE_UNAVAILABLE, "partly_done"),
        _ => (StatusCode::GATEWAY_TIMEOUT, "undetermined"),
    };
    HttpFailure::new(status, code, message).having(Effect::Partial { done, not_done, unknown })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use stele_types::Unit;

    fn object(failure: impl Into<HttpFailure>) -> (u16, Value) {
        let failure = failure.into();
        let status = failure.0.status.as_u16();
        (status, serde_json::from_slice(&failure.object()).unwrap())
    }

    #[test]
    fn an_answer_states_whether_the_request_may_have_taken_effect() {
        let text = || "a \"text\"\nof two lines".to_owned();
        for (error, status, code, outcome) in [
            (Error::Invalid(text()), 400, "invalid_request", "no_effect"),
            (Error::Busy(text()), 503, "busy", "no_effect"),
            (Error::Unavailable(text()), 503, "unavailable", "no_effect"),
            (Error::Refused(text()), 409, "refused", "no_effect"),
            (Error::TooOld(text()), 410, "too_old", "no_effect"),
            (Error::Undetermined(text()), 504, "undetermined", "unknown"),
            (Unfit::NotANumber.error(), 409, "not_a_number", "no_effect"),
            (Unfit::Overflow.error(), 409, "overflow", "no_effect"),
            (
                Error::Invalid("9 bytes are too many: raise request_memory_bytes_max".to_owned()),
                413,
                "too_large",
                "no_effect",
            ),
        ] {
            let message = error.to_string();
            let (found, object) = object(error);
            let error = &object["error"];
            assert_eq!((found, error["code"].as_str()), (status, Some(code)), "{object}");
            assert_eq!(error["outcome"], outcome);
            assert_eq!(error["message"], message);
        }
        let partial = |unknown| Partial {
            unit: Unit::Pairs,
            done: 3,
            not_done: 2,
            unknown,
            not_reached: None,
            first: Error::Busy(text()),
        };
        for (unknown, status) in [(0, 503), (1, 504)] {
            let (found, object) = object(partial(unknown).into_error());
            assert_eq!((found, &object["error"]["outcome"]), (status, &Value::from("partial")));
            assert_eq!(object["error"]["done"], 3);
            assert_eq!(object["error"]["not_done"], 2);
            assert_eq!(object["error"]["of_unknown_outcome"], unknown);
        }
    }

    #[test]
    fn memory_is_refused_by_what_its_caller_can_do() {
        let request = Exceeded::Request { bytes: 9, bytes_max: 8 };
        for (exceeded, status) in [
            (request, 413),
            (Exceeded::Shared, 503),
            (Exceeded::Limit, 429),
            (Exceeded::Abandoned, 503),
        ] {
            let failure = HttpFailure::from(exceeded);
            let may_retry = failure.0.headers.iter().any(|(name, _)| name == RETRY_AFTER);
            assert_eq!((object(failure).0, may_retry), (status, status != 413));
        }
        assert!(HttpFailure::of_body(request, 8).to_string().contains("more than 8 bytes"));
        assert!(HttpFailure::of_body(request, 9).to_string().contains("request_memory"));
    }
}
