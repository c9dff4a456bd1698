//! Answers to calls and paths that the port does not serve.

use axum::Router;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use tonic::{Code, Status};

/// Answer to every call of TiKV and PD that is not supported.
pub(crate) const RAW_CALLS_ONLY: &str = "raw key-value calls only";

/// Prefix of the paths of Stele's own calls.
const OWN_CALLS: &str = "/stele.";

/// Adds a text to the refusals of calls that a generated service does not have. Their status has none.
pub(crate) fn with_text(grpc: Router) -> Router {
    grpc.layer(map_response(async |uri: Uri, response: Response| {
        let status = response.headers().get(Status::GRPC_STATUS);
        let is_refusal =
            status.is_some_and(|status| Code::from_bytes(status.as_bytes()) == Code::Unimplemented);
        match is_refusal && !response.headers().contains_key(Status::GRPC_MESSAGE) {
            true => refusal(uri.path()),
            false => response,
        }
    }))
}

/// Answers the requests that have no route.
pub(crate) async fn answer(request: Request) -> Response {
    let kind = request.headers().get(CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return refusal(request.uri().path());
    }
    (StatusCode::NOT_FOUND, "this path does not exist; / lists those that do\n").into_response()
}

fn refusal(path: &str) -> Response {
    let text = match path.starts_with(OWN_CALLS) {
        true => format!("{path} is not a call of this version: upgrade the node"),
        false => format!("{path} is not supported: {RAW_CALLS_ONLY}"),
    };
    Status::unimplemented(text).into_http()
}
